//! Rates that are waited for: a spent bucket queues.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use wasm_tests::bootstrap::PLUGIN;
use wasm_tests::caller::chat;
use wasm_tests::line::{order, queues, send, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};

/// Lanes whose requests wait for some seconds, before a pool with room, with a rate of its own.
fn setup(requests_per_second: Value) -> Setup {
    let setup = queues(2, Wait::Unread).with("/pools/0/max_in_flight", json!(64));
    setup
        .with("/pools/0/requests_per_second", requests_per_second)
        .with("/lanes/1/queue", json!({"max_requests": 64, "max_wait": "1500ms"}))
}

/// The time in milliseconds that an answer says its request has waited.
fn waited(answer: &reqwest::Response) -> u64 {
    let timing = text_of(answer, "server-timing");
    let wait = timing.strip_prefix("queue;dur=").and_then(|rest| rest.split(',').next());
    wait.and_then(|wait| wait.parse().ok()).unwrap_or_else(|| panic!("{timing}"))
}

async fn post(rig: &Rig, tenant: &str) -> reqwest::Response {
    rig.post(tenant, &[], &chat(MODEL, 1, false)).await
}

/// Sends so many requests together, of some tenants in turn; how many were served within how long, and the others' answers.
async fn crowd(rig: &Rig, tenants: &[&str], count: usize) -> (usize, Duration, Vec<reqwest::Response>) {
    let begun = Instant::now();
    let answers = join_all((0..count).map(|number| post(rig, tenants[number % tenants.len()]))).await;
    let took = begun.elapsed();
    let (served, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status() == 200);
    assert!(served.iter().any(|answer| waited(answer) > 0), "nobody has waited");
    (served.len(), took, refused)
}

/// Asserts that refusals say how long the wait would be and that this rate is what bound; the advice, in milliseconds.
async fn say_what_bound(refused: Vec<reqwest::Response>, reason: &str, knob: &str) -> Vec<u64> {
    let mut advice = Vec::new();
    for answer in refused {
        // A request that joins with the last of its patience has waited in vain where the machine is late.
        let outcome = reason_of(&answer);
        assert!(["wait_too_long", "queue_timeout"].contains(&outcome.as_str()), "{answer:?}");
        advice.push(text_of(&answer, "retry-after-ms").parse().unwrap());
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(
            (&error["bound"]["code"], &error["bound"]["limit"]["knob"]),
            (&json!(reason), &json!(knob)),
            "{error}"
        );
    }
    advice.sort_unstable();
    advice
}

/// The behaviour of SMG's rate limiter, with advice for those that it has no room for: five a second with a burst of one, and a wait of 1.5 s at most.
#[tokio::test]
async fn a_spent_bucket_queues() {
    let jitter = json!({"retry_after": {"min": "10ms", "max": "60s", "jitter": 0.0}});
    let rig = Rig::start(setup(json!({"rate": 5, "burst": 1})).with("/reject", jitter)).await;
    let (served, took, refused) = crowd(&rig, &["acme", "globex", "initech"], 24).await;
    let most = 2 + took.as_millis() as usize / 200;
    assert!((8..=most).contains(&served), "{served} of 24 in {took:?} at five a second");
    assert!(!refused.is_empty(), "all of 24 within 1.5 s at five a second");
    let advice = say_what_bound(refused, "pool_request_rate", "pools[main].requests_per_second").await;
    let last = advice.last().copied().unwrap_or_default();
    let least = 1_400 + 200 * (advice.len() as u64 - 1) / 2;
    assert!(last >= least, "{advice:?}: those who wait are served for 1.5 s, then one in 200 ms");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Asserts that requests at forty a second started when each might, and not with the ticks of 100 ms: those would let the last one start
/// after half as long again or later.
fn one_by_one(answers: &[reqwest::Response], what: &str) {
    let waits: Vec<u64> = answers.iter().filter(|answer| answer.status() == 200).map(waited).collect();
    assert_eq!(waits.len(), answers.len(), "{what}: all within their patience");
    let due = 25 * (waits.len() as u64 - 1);
    assert!(waits.iter().max() <= Some(&(due * 7 / 5)), "{what}: the last is due after {due} ms: {waits:?}");
}

async fn changes(rig: &mut Rig) {
    rig.reconfigure(|policy| policy["pools"][0]["max_in_flight"] = json!(63));
    eventually("the change is taken over", async || {
        let updates = rig.envoy.stat(&format!("extension_config_discovery.http_filter.{PLUGIN}.update_success")).await;
        (updates == Ok(2)).then_some(()).ok_or(format!("{updates:?}"))
    })
    .await;
}

/// The filter ticks every 100 ms while none waits. Those of the second crowd come when the ticks have become rare again, those of the
/// third after a change of the configuration.
#[tokio::test]
async fn each_starts_when_the_rate_allows_it_and_not_at_the_next_tick() {
    let mut rig = Rig::start(setup(json!({"rate": 40, "burst": 1}))).await;
    for round in 0..3 {
        let answers = join_all((0..24).map(|_| post(&rig, "acme"))).await;
        one_by_one(&answers, &format!("round {round}"));
        waiting(&rig, 0).await;
        if round == 1 {
            changes(&mut rig).await;
        }
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// The waiter that has made the ticks of its configuration frequent leaves, and that configuration goes with it, while others wait under
/// the next one.
#[tokio::test]
async fn the_next_configuration_ticks_for_those_that_wait_when_the_former_goes() {
    let mut setup = setup(json!({"rate": 40, "burst": 1})).with("/tenants/stuck", json!({"max_in_flight": 1}));
    setup.threads = 1;
    let mut rig = Rig::start(setup).await;
    let running = rig.endless("stuck", &[]).await;
    let stuck = send(&rig, "stuck", "standard", 0).await;
    waiting(&rig, 1).await;
    changes(&mut rig).await;
    let former = async {
        eventually("a crowd waits", async || {
            let lane = rig.state().await["pools"]["main"]["waiting"]["standard"].clone();
            (lane["requests"].as_u64() >= Some(10)).then_some(()).ok_or_else(|| lane.to_string())
        })
        .await;
        drop((running, stuck));
    };
    let (answers, ()) = tokio::join!(join_all((0..30).map(|_| post(&rig, "acme"))), former);
    one_by_one(&answers, "the former configuration has gone");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Higher lanes go first, though they came last.
#[tokio::test]
async fn those_who_wait_for_a_pools_rate_start_by_their_lanes() {
    let patient = json!({"max_requests": 64, "max_wait": "60s"});
    let rig = Rig::start(setup(json!({"rate": 1, "burst": 1})).with("/lanes/1/queue", patient)).await;
    assert_eq!(post(&rig, "acme").await.status(), 200);
    let mut callers = vec![send(&rig, "acme", "batch", 0).await, send(&rig, "acme", "standard", 1).await];
    waiting(&rig, 2).await;
    callers.push(send(&rig, "globex", "interactive", 2).await);
    for caller in callers.iter_mut().rev() {
        assert!(caller.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    }
    assert_eq!(order(&rig), ["2", "1", "0"]);
}

/// A tenant's budget of five requests, or of their tokens, a second, that it waits for.
#[tokio::test]
async fn a_tenant_that_waits_for_its_budget_keeps_back_nobody_else() {
    let cases = [
        (json!({"requests_per_minute": {"rate": 300, "burst": 1}}), "tenant_request_rate", "requests_per_minute"),
        (json!({"tokens_per_minute": {"rate": 6_000, "burst": 1}}), "tenant_token_rate", "tokens_per_minute"),
    ];
    for (mut budget, reason, field) in cases {
        budget["on_rate"] = json!("wait");
        let patient = json!({"max_requests": 64, "max_wait": "3s"});
        let setup = setup(json!(1_000)).with("/lanes/1/queue", patient).with("/tenants/acme", budget);
        let rig = Rig::start(setup).await;
        let (acme, others) = tokio::join!(crowd(&rig, &["acme"], 24), async {
            eventually("some wait", async || {
                let lane = rig.state().await["pools"]["main"]["waiting"]["standard"].clone();
                let is_told = lane["for_rates"].as_u64() > Some(0) && lane["kept_by"] == json!([reason]);
                is_told.then_some(()).ok_or_else(|| lane.to_string())
            })
            .await;
            join_all((0..20).map(|_| post(&rig, "globex"))).await
        });
        for answer in others {
            assert_eq!((answer.status().as_u16(), waited(&answer)), (200, 0), "{reason}: {answer:?}");
        }
        let (served, took, refused) = acme;
        assert!(served < 24, "{reason}: all of 24 in {took:?}");
        say_what_bound(refused, reason, &format!("tenants.acme.{field}")).await;
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

/// A rate of one an hour: who joins its line stays there.
#[tokio::test]
async fn those_who_wait_for_a_rate_have_half_of_a_queue_and_a_change_of_the_policy_frees_them() {
    let slow = json!({"requests_per_minute": {"rate": 1, "burst": 1}, "on_rate": "wait"});
    let queue = json!({"max_requests": 4, "max_wait": "10m"});
    let setup = setup(json!(1_000)).with("/lanes/1/queue", queue).with("/tenants/acme", slow);
    let mut rig = Rig::start(setup.with("/tenants/one", json!({"max_in_flight": 1})).alone()).await;
    assert_eq!(post(&rig, "acme").await.status(), 200);
    let mut of_acme = vec![send(&rig, "acme", "standard", 0).await, send(&rig, "acme", "standard", 1).await];
    waiting(&rig, 2).await;
    let answer = post(&rig, "acme").await;
    assert_eq!(
        (reason_of(&answer), text_of(&answer, "x-sluice-bound")),
        ("queue_full".into(), "tenant_request_rate".into())
    );
    // Two places are left for who lacks no more than a place of its own.
    let running = rig.endless("one", &[]).await;
    let mut of_one = send(&rig, "one", "standard", 2).await;
    waiting(&rig, 3).await;
    // A caller that leaves takes its cost out of the line with it.
    drop(of_acme.pop());
    waiting(&rig, 2).await;
    of_acme.push(send(&rig, "acme", "standard", 3).await);
    waiting(&rig, 3).await;
    drop(running);
    assert!(of_one.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    rig.reconfigure(|policy| policy["tenants"]["acme"] = json!({}));
    for caller in &mut of_acme {
        assert!(caller.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// Small requests behind a large one of their tenant, over two threads: the large one waits for some seconds for its tokens, and each small one
/// would fit before it.
#[tokio::test]
async fn a_large_request_that_waits_for_tokens_is_not_starved_by_small_ones_of_its_tenant() {
    let limits = json!({"tokens_per_minute": {"rate": 12_000, "burst": 1_000}, "on_rate": "wait"});
    let queue = json!({"max_requests": 64, "max_wait": "60s"});
    let rig = Rig::start(setup(json!(1_000)).with("/tenants/acme", limits).with("/lanes/1/queue", queue)).await;
    let mut large = chat(MODEL, 1, false);
    large["messages"][0]["content"] = json!("word ".repeat(800));
    assert_eq!(rig.post("acme", &[], &large).await.status(), 200);
    let (of_large, mut small) = tokio::join!(rig.post("acme", &[], &large), async {
        waiting(&rig, 1).await;
        join_all((0..10).map(|number| send(&rig, "acme", "standard", number))).await
    });
    assert_eq!(of_large.status(), 200);
    assert!(waited(&of_large) > 0, "{of_large:?}");
    for caller in &mut small {
        assert!(caller.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 200"));
    }
    let ids: Vec<Option<String>> = rig.worker.arrivals().requests.into_iter().map(|arrival| arrival.id).collect();
    assert_eq!(ids.iter().position(Option::is_some), Some(2), "the large one starts before every small one: {ids:?}");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
