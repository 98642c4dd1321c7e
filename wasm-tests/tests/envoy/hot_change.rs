//! Policies and builds of the filter change while requests are on their way.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use wasm_tests::artefacts;
use wasm_tests::bootstrap::PLUGIN;
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of};
use wasm_tests::steady::{self, Answer, CAPPED, Knob, Load, Outcome, STEADY};
use worker_sim::Fault;

const EVERY_WAIT: [Wait; 3] = [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld];

const THREADS: u32 = 2;

fn knob(place: &str, allowed: u64) -> Knob {
    (place.to_owned(), allowed)
}

/// The cap of the tenant `capped` as every test begins.
fn wide() -> Knob {
    knob("tenants.capped.max_in_flight", 4)
}

/// A policy that is another in all that a request is charged and held to.
fn tighten(policy: &mut Value) {
    policy["tiers"] = json!({"tight": {"max_in_flight": 2}});
    policy["tenants"][CAPPED] = json!({"tier": "tight"});
    policy["pools"][0]["expected_output_tokens"] = json!(7);
    policy["pools"][0]["max_in_flight"] = json!(500);
}

fn tight() -> Knob {
    knob("tiers.tight.max_in_flight", 2)
}

fn setup(wait: Wait) -> Setup {
    let mut setup = Setup::new(THREADS, wait).patient();
    steady::number(&mut setup.policy, 0);
    setup
}

async fn start(wait: Wait) -> Rig {
    Rig::start(setup(wait)).await
}

/// Every request was served, or refused by the cap of the policy it met, and nothing that was admitted is lost or
/// counted twice.
async fn all_is_accounted_for(rig: &Rig, answers: &[Answer], caps: &[Knob], others_admitted: usize) {
    for answer in answers {
        let policies = answer.policies.clone();
        let meant = match &answer.outcome {
            Outcome::Served(policy) => policies.contains(policy),
            Outcome::Refused(by) => policies.clone().any(|policy| caps.get(policy as usize) == Some(by)),
            Outcome::Failed(_) => false,
        };
        assert!(meant, "{answer:?}\n{}", rig.envoy.log());
        assert!(answer.tenant == CAPPED || matches!(answer.outcome, Outcome::Served(_)), "{answer:?}");
    }
    rig.nothing_is_held().await;
    let served = answers.iter().filter(|answer| matches!(answer.outcome, Outcome::Served(_))).count();
    let admitted = rig.state().await["pools"]["main"]["admitted"]["requests"].clone();
    assert_eq!(admitted, served + others_admitted, "each admission is counted once");
    rig.nothing_trapped().await;
}

async fn policies_swapped(wait: Wait) {
    let mut rig = start(wait).await;
    let load = Load::start(&rig, 6).await;
    let mut caps = vec![wide()];
    load.refused_by(&caps[0]).await;
    let mut streams = Vec::new();
    for number in 1..=6 {
        streams.push(rig.endless("patient", &[]).await);
        let cap = if number % 2 == 0 { wide() } else { tight() };
        let change = if number % 2 == 0 { |_: &mut Value| {} } else { tighten };
        assert_eq!(load.change(&mut rig, change).await, number);
        load.refused_by(&cap).await;
        eventually("no more are held than the new cap allows", async || {
            let held = rig.held().await.1;
            (held <= cap.1).then_some(()).ok_or(held.to_string())
        })
        .await;
        for _ in 0..10 {
            let held = rig.held().await.1;
            assert!(held <= cap.1, "{held} are held under {cap:?}");
        }
        caps.push(cap);
    }
    let answers = load.stop().await;
    eventually("only the streams are held, one of every policy", async || {
        let held = rig.held().await;
        (held == (6, 0)).then_some(()).ok_or(format!("{held:?}"))
    })
    .await;
    let across = |answer: &&Answer| matches!(answer.outcome, Outcome::Served(policy) if policy < answer.newest);
    assert!(answers.iter().filter(across).count() > 0, "no answer of the load lived across a change");
    drop(streams);
    all_is_accounted_for(&rig, &answers, &caps, 6).await;
}

#[tokio::test]
async fn policies_swapped_under_load_lose_nothing_unread() {
    policies_swapped(Wait::Unread).await;
}

#[tokio::test]
async fn policies_swapped_under_load_lose_nothing_at_headers() {
    policies_swapped(Wait::AtHeaders).await;
}

#[tokio::test]
async fn policies_swapped_under_load_lose_nothing_body_held() {
    policies_swapped(Wait::BodyHeld).await;
}

/// What the tenant `capped` is refused by now: the request included, and what is allowed.
async fn refusal(rig: &Rig) -> (u16, u64, u64) {
    let answer = rig.post(CAPPED, &[], &chat(MODEL, 1, false)).await;
    let status = answer.status().as_u16();
    let limit = answer.json::<Value>().await.expect("JSON")["error"]["limit"].clone();
    (status, limit["measured"].as_u64().unwrap_or(0), limit["allowed"].as_u64().unwrap_or(0))
}

async fn endless(rig: &Rig, count: usize) -> Vec<RawCaller> {
    let mut callers = Vec::new();
    for _ in 0..count {
        callers.push(rig.endless(CAPPED, &[]).await);
    }
    callers
}

/// Waits until the tenant `capped` holds so many requests.
async fn capped_holds(rig: &Rig, count: u64) {
    eventually("so many are held", async || {
        let held = rig.held().await.1;
        (held == count).then_some(()).ok_or(format!("{held} of {count}"))
    })
    .await;
}

#[tokio::test]
async fn a_lower_cap_holds_at_once_and_what_is_held_drains_under_it() {
    for wait in EVERY_WAIT {
        let mut rig = start(wait).await;
        let load = Load::start(&rig, 0).await;
        let mut held = endless(&rig, 4).await;
        assert_eq!(refusal(&rig).await, (429, 5, 4));
        load.change(&mut rig, tighten).await;
        for left in [4, 3, 2] {
            capped_holds(&rig, left).await;
            assert_eq!(refusal(&rig).await, (429, left + 1, 2));
            held.pop();
        }
        capped_holds(&rig, 1).await;
        held.extend(endless(&rig, 1).await);
        assert_eq!(refusal(&rig).await, (429, 3, 2), "full again");
        load.change(&mut rig, |_| {}).await;
        held.extend(endless(&rig, 2).await);
        assert_eq!(refusal(&rig).await, (429, 5, 4), "the wider cap holds at once too");
        drop(held);
        capped_holds(&rig, 0).await;
        let answers = load.stop().await;
        all_is_accounted_for(&rig, &answers, &[], 4 + 1 + 2).await;
    }
}

/// The new policy is there before the rest of a request is, and does not touch it.
#[tokio::test]
async fn a_request_ends_under_the_policy_it_began_under() {
    let (allowed, forbidden) = (200, 413);
    // Too small for the request below, and large enough for those of the load; or large enough for both.
    let answer_with = |policy: &mut Value, status| {
        policy["pools"][0]["max_prompt_tokens"] = json!(if status == forbidden { 100 } else { 10_000 });
    };
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(400)}], "max_tokens": 1, "model": MODEL});
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], long.to_string().as_bytes(), true);
    let (first, rest) = request.split_at(request.len() - 1_900);
    for wait in EVERY_WAIT {
        for (before, after) in [(allowed, forbidden), (forbidden, allowed)] {
            let mut setup = setup(wait);
            answer_with(&mut setup.policy, before);
            let mut rig = Rig::start(setup).await;
            let mut begun = RawCaller::send(rig.address, first).await;
            rig.in_hand(1).await;
            let load = Load::start(&rig, 0).await;
            load.change(&mut rig, |policy| answer_with(policy, after)).await;
            assert_eq!(rig.post("acme", &[], &long).await.status(), after, "{wait:?}: what begins now");
            begun.send_more(rest).await;
            assert_eq!(begun.status().await, Some(before), "{wait:?}: what began before");
            let answers = load.stop().await;
            // Unread, what proves too large has been let in by a guess.
            let admitted = if wait == Wait::Unread { 2 } else { 1 };
            all_is_accounted_for(&rig, &answers, &[], admitted).await;
        }
    }
}

/// VMs of all builds of the filter, on whatever thread.
async fn vms(rig: &Rig) -> u64 {
    rig.envoy.stat("wasm.envoy.wasm.runtime.v8.active").await.expect("a gauge")
}

/// The VMs of one build give way to those of another and come back; what either holds counts in both until it ends.
#[tokio::test]
async fn another_build_takes_over_under_load_and_back() {
    takes_over_and_back(&artefacts::faulty_filter()).await;
}

#[tokio::test]
#[ignore = "cargo xtask neighbours runs it"]
async fn the_release_before_takes_over_under_load_and_back() {
    takes_over_and_back(&artefacts::neighbour("sluice.wasm")).await;
}

async fn takes_over_and_back(another: &Path) {
    for wait in EVERY_WAIT {
        // Alone, since it counts VMs.
        let mut rig = Rig::start(setup(wait).alone()).await;
        let before = vms(&rig).await;
        let load = Load::start(&rig, 0).await;
        let mut held = endless(&rig, 4).await;
        for round in 0..4 {
            let other = round % 2 == 0;
            let code = if other { another.to_owned() } else { artefacts::filter() };
            load.change_code(&mut rig, code).await;
            assert!(
                !other || vms(&rig).await >= before + u64::from(THREADS),
                "the other build has a VM on every thread"
            );
            assert_eq!(rig.held().await.1, 4, "what other code holds stays held");
            assert_eq!(refusal(&rig).await, (429, 5, 4), "and counts");
            held.drain(..2);
            capped_holds(&rig, 2).await;
            held.extend(endless(&rig, 2).await);
            assert_eq!(refusal(&rig).await, (429, 5, 4), "held by both builds");
        }
        drop(held);
        capped_holds(&rig, 0).await;
        // The load goes on, so it is the first build that serves it.
        eventually("the other build's VMs are gone", async || {
            let now = vms(&rig).await;
            (now == before).then_some(()).ok_or(format!("{now}, before {before}"))
        })
        .await;
        let answers = load.stop().await;
        all_is_accounted_for(&rig, &answers, &[], 4 + 4 * 2).await;
        eventually("and nobody counts them as alive", async || {
            let members = rig.state().await["members"].clone();
            (members.as_array().map(Vec::len) == Some(THREADS as usize)).then_some(()).ok_or(members.to_string())
        })
        .await;
    }
}

/// Requests held in the pool by lane, without those of the load.
async fn by_lane(rig: &Rig) -> BTreeMap<String, u64> {
    let state = rig.state().await;
    let mut lanes = BTreeMap::new();
    for column in state["pools"]["main"]["columns"].as_array().expect("columns") {
        let (lane, held) = (column["lane"].as_str().expect("a lane"), &column["held"]["requests"]);
        if lane != STEADY {
            *lanes.entry(lane.to_owned()).or_default() += held.as_u64().expect("a number");
        }
    }
    lanes
}

async fn lanes_hold(rig: &Rig, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> = expected.iter().map(|(lane, held)| ((*lane).to_owned(), *held)).collect();
    eventually("the lanes hold what they should", async || {
        let held = by_lane(rig).await;
        (held == expected).then_some(()).ok_or(format!("{held:?}, not {expected:?}"))
    })
    .await;
}

#[tokio::test]
async fn lanes_come_and_go_while_requests_of_theirs_are_held() {
    let lanes = |names: &[&str]| {
        let lane = |(place, name)| json!({"name": name, "priority": 100 - 10 * place});
        names.iter().enumerate().map(lane).collect::<Value>()
    };
    let mut setup = setup(Wait::Unread);
    setup.policy["default_lane"] = json!("standard");
    setup.policy["lanes"] = lanes(&["interactive", "standard", STEADY]);
    let mut rig = Rig::start(setup).await;
    let load = Load::start(&rig, 0).await;
    let asking = async |rig: &Rig, lane| rig.endless("acme", &[("x-sluice-lane", lane)]).await;

    let mut interactive = vec![asking(&rig, "interactive").await, asking(&rig, "interactive").await];
    let mut standard = vec![asking(&rig, "standard").await];
    lanes_hold(&rig, &[("interactive", 2), ("standard", 1)]).await;

    // One is gone, one is new, and those that stay have changed places.
    load.change(&mut rig, |policy| policy["lanes"] = lanes(&["urgent", STEADY, "standard"])).await;
    assert_eq!(by_lane(&rig).await, BTreeMap::from([("interactive".to_owned(), 2), ("standard".to_owned(), 1)]));
    let urgent = asking(&rig, "urgent").await;
    standard.push(asking(&rig, "interactive").await);
    lanes_hold(&rig, &[("interactive", 2), ("standard", 2), ("urgent", 1)]).await;
    interactive.pop();
    lanes_hold(&rig, &[("interactive", 1), ("standard", 2), ("urgent", 1)]).await;

    // It is back in another place, and the new one is gone.
    load.change(&mut rig, |policy| policy["lanes"] = lanes(&["standard", "interactive", STEADY])).await;
    interactive.push(asking(&rig, "interactive").await);
    standard.push(asking(&rig, "urgent").await);
    lanes_hold(&rig, &[("interactive", 2), ("standard", 3), ("urgent", 1)]).await;
    drop(urgent);
    lanes_hold(&rig, &[("interactive", 2), ("standard", 3)]).await;
    drop(standard);
    lanes_hold(&rig, &[("interactive", 2)]).await;
    drop(interactive);
    lanes_hold(&rig, &[]).await;
    let answers = load.stop().await;
    all_is_accounted_for(&rig, &answers, &[], 3 + 2 + 2).await;
}

/// Two listeners whose plugins differ in name share a namespace and a VM, but not what waits.
#[tokio::test]
async fn a_change_of_one_listener_leaves_what_waits_at_another_alone() {
    let mut setup = setup(Wait::Unread);
    setup.neighbour = json!({
        "tenant": {"sources": [{"header": "x-tenant-id"}]},
        "lanes": [{"name": "beside", "queue": {"max_requests": 9, "max_wait": "60s"}}],
        "pools": [{"name": "beside", "max_in_flight": 1}],
    });
    let mut rig = Rig::start(setup).await;
    rig.worker.set_faults([Fault::Hang]);
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], chat(MODEL, 1, false).to_string().as_bytes(), true);
    let holder = RawCaller::send(rig.neighbour, &request).await;
    let beside = async |what: &str, wanted: u64| {
        eventually("the pool of the other listener has so many", async || {
            let pool = rig.state().await["pools"]["beside"].clone();
            let found = pool.pointer(what).and_then(Value::as_u64).unwrap_or(0);
            (found == wanted).then_some(()).ok_or(pool.to_string())
        })
        .await;
    };
    beside("/held/requests", 1).await;
    rig.worker.set_faults([]);
    let mut waiter = RawCaller::send(rig.neighbour, &request).await;
    beside("/waiting/beside/requests", 1).await;

    let load = Load::start(&rig, 0).await;
    load.change(&mut rig, |policy| {
        policy["pools"] = json!([{"name": "renamed", "models": ["sim"], "max_in_flight": 99}])
    })
    .await;
    load.stop().await;
    let waits = rig.state().await["pools"]["beside"]["waiting"]["beside"]["requests"].clone();
    assert_eq!(waits, 1, "under its own policy, which has its pool");
    drop(holder);
    assert_eq!(waiter.status().await, Some(200));
    rig.nothing_is_held().await;
}

/// A start with a mistake in the policy, its correction, and then the same mistake as a change.
#[tokio::test]
async fn a_start_with_a_refused_policy_answers_so_until_it_is_mended() {
    let mut setup = Setup::new(THREADS, Wait::Unread).with("/pools/0/max_in_flight", json!("four"));
    (setup.has_default, setup.alone) = (true, true);
    let mut rig = Rig::start(setup).await;
    for _ in 0..4 {
        let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
        assert_eq!((answer.status().as_u16(), reason_of(&answer)), (503, "misconfigured".to_owned()), "{answer:?}");
        let error = answer.json::<Value>().await.expect("a refusal is JSON")["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| message.contains("its log says why")), "{error}");
    }
    assert_eq!(rig.worker.stats().received, 0, "nothing reaches a worker unjudged");
    assert!(rig.envoy.log().contains("the configuration is refused: pools[0].max_in_flight"), "{}", rig.envoy.log());
    let counter = async |name: &str| {
        rig.envoy.stat(&format!("extension_config_discovery.http_filter.{PLUGIN}.{name}")).await.unwrap_or_default()
    };
    assert_eq!((counter("config_fail").await, counter("update_success").await), (1, 0));
    rig.reconfigure(|policy| policy["pools"][0]["max_in_flight"] = json!(4));
    eventually("the new version serves", async || {
        let answer = rig.ask("acme", &[]).await;
        (answer.0 == 200).then_some(()).ok_or(format!("{answer:?}"))
    })
    .await;
    rig.reconfigure(|policy| policy["pools"][0]["max_in_flight"] = json!("four"));
    eventually("the change is refused", async || {
        let failed = rig.envoy.stat(&format!("extension_config_discovery.http_filter.{PLUGIN}.config_fail")).await;
        (failed == Ok(2)).then_some(()).ok_or(format!("{failed:?}"))
    })
    .await;
    for _ in 0..4 {
        assert_eq!(rig.ask("acme", &[]).await.0, 200, "the former policy stays");
    }
    rig.nothing_is_held().await;
}
