//! Workers that refuse, and workers that requests are steered to.

use std::net::SocketAddr;

use serde_json::{Value, json};
use wasm_tests::bootstrap::{virtual_hosts, worker_routes};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use wasm_tests::view;
use worker_sim::{Fault, Worker};

const ENDPOINT: &str = "x-gateway-destination-endpoint";

/// A view is believed for longer than any machine stalls.
fn trusting(setup: Setup) -> Setup {
    setup.with("/pools/0/stale", json!({"hold": "10m"}))
}

/// Three workers, and requests steered to the freest.
fn steered(threads: u32) -> Setup {
    let mut setup = trusting(Setup::new(threads, Wait::Unread)).with("/pools/0/pick_endpoint", json!(true));
    (setup.more_workers, setup.steered) = (2, true);
    setup
}

fn workers(rig: &Rig) -> Vec<&Worker> {
    std::iter::once(&rig.worker).chain(&rig.others).collect()
}

fn addresses(rig: &Rig) -> Vec<SocketAddr> {
    workers(rig).into_iter().map(Worker::address).collect()
}

/// Requests that each worker has read, since it started.
fn served(rig: &Rig) -> Vec<u64> {
    workers(rig).into_iter().map(|worker| worker.stats().requests).collect()
}

fn set_faults(rig: &Rig, faults: &[Fault]) {
    workers(rig).into_iter().for_each(|worker| worker.set_faults(faults.iter().copied()));
}

async fn push(rig: &Rig, generation: u64, list: Vec<Value>) {
    let (status, answer) = rig.push_view(7, generation, json!({"workers": list})).await;
    assert_eq!(status, 200, "{answer}");
}

/// A view in which all are free and idle.
async fn push_all_free(rig: &Rig, generation: u64) {
    push(rig, generation, addresses(rig).into_iter().map(|address| view::free(address, 0)).collect()).await;
}

fn all_busy() -> (u16, String) {
    (503, "all_busy".to_owned())
}

fn answered(status: u16) -> (u16, String) {
    (status, String::new())
}

/// A new view ends a mark, but for one that came just before it: its scrape began before the worker refused.
async fn nobody_is_marked(rig: &Rig) {
    eventually("no worker is marked", async || {
        let state = rig.state().await;
        let pools = state["pools"].as_object().into_iter().flat_map(|pools| pools.values());
        let workers: Vec<_> = pools.filter_map(|pool| pool["workers"].as_array()).flatten().collect();
        let is_clear = workers.iter().all(|worker| worker["refusing"] == false);
        is_clear.then_some(()).ok_or_else(|| state.to_string())
    })
    .await;
}

/// A refusal says something only of a worker that was seen to serve the like: by each thread, which connections fall to as they like.
async fn every_thread_has_seen_it_serve(rig: &Rig) {
    let body = chat(MODEL, 1, false).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
    for _ in 0..20 {
        let (head, _) = RawCaller::send(rig.address, &request).await.last_answer().await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    }
}

/// A mark holds for a second, so a machine that stalls for longer finds it gone; then it is tried again. The tenant is another one each
/// time: one whose requests its worker refuses while it serves others says nothing new.
async fn shed_after_refusal(rig: &Rig, first_generation: u64, status: u16) -> u64 {
    for generation in first_generation..first_generation + 20 {
        push_all_free(rig, generation).await;
        nobody_is_marked(rig).await;
        let (before, other) = (rig.worker.stats().requests, format!("tenant-{generation}"));
        assert_eq!(rig.ask(&other, &[]).await, answered(status), "a new view: it is tried");
        if rig.ask(&other, &[]).await == all_busy() {
            assert_eq!(rig.worker.stats().requests, before + 1, "it was not asked again");
            return generation;
        }
    }
    panic!("a worker that refuses is never taken for busy");
}

#[tokio::test]
async fn a_worker_that_refuses_is_left_alone_until_the_next_view_or_for_a_second() {
    let rig = Rig::start(trusting(Setup::new(2, Wait::Unread))).await;
    every_thread_has_seen_it_serve(&rig).await;
    for (round, fault, status) in [(1, Fault::Refuse503, 503), (2, Fault::Refuse429, 429), (3, Fault::Refuse529, 529)] {
        rig.worker.set_faults([fault]);
        let generation = shed_after_refusal(&rig, round * 100, status).await;
        shed_after_refusal(&rig, generation + 1, status).await;
        let before = rig.worker.stats().requests;
        eventually("it is tried again without a new view", async || {
            rig.ask("another", &[]).await;
            (rig.worker.stats().requests > before).then_some(()).ok_or_else(String::new)
        })
        .await;
    }
    rig.worker.set_faults([]);
    push_all_free(&rig, 900).await;
    nobody_is_marked(&rig).await;
    assert_eq!(rig.ask("acme", &[]).await, answered(200));
    assert_eq!(rig.ask("acme", &[]).await, answered(200));
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_pool_sheds_once_all_of_its_workers_have_refused() {
    let mut setup = trusting(Setup::new(1, Wait::AtHeaders));
    setup.more_workers = 2;
    let rig = Rig::start(setup).await;
    let mut generation = 0;
    // The proxy goes round, so three requests meet three workers; and says once in a tick which it was that has served.
    let shed = loop {
        generation += 1;
        assert!(generation < 100, "it never sheds");
        push_all_free(&rig, generation).await;
        set_faults(&rig, &[]);
        for _ in 0..3 {
            assert_eq!(rig.ask("acme", &[]).await, answered(200));
        }
        set_faults(&rig, &[Fault::Refuse503]);
        nobody_is_marked(&rig).await;
        let before = served(&rig);
        let other = format!("tenant-{generation}");
        for _ in 0..3 {
            assert_eq!(rig.ask(&other, &[]).await, answered(503), "some worker has not refused yet");
        }
        let after = served(&rig);
        assert!(before.iter().zip(&after).all(|(before, after)| before + 1 == *after), "{before:?} {after:?}");
        if rig.ask(&other, &[]).await == all_busy() {
            break after;
        }
    };
    assert_eq!(served(&rig), shed, "none was asked");
    rig.others[0].set_faults([]);
    push_all_free(&rig, generation + 1).await;
    nobody_is_marked(&rig).await;
    for _ in 0..6 {
        assert_ne!(rig.ask("acme", &[]).await, all_busy(), "one does not refuse");
    }
    rig.nothing_is_held().await;
}

/// A caller who finds what an engine always refuses takes it from no other caller: not what it has never served, nor, again and again, the same.
#[tokio::test]
async fn what_a_worker_always_refuses_closes_it_for_no_other() {
    let rig = Rig::start(trusting(Setup::new(1, Wait::AtHeaders))).await;
    push_all_free(&rig, 1).await;
    assert_eq!(rig.ask("acme", &[]).await, answered(200));
    rig.worker.set_faults([Fault::SwitchedOff]);
    for round in 0..6 {
        let text = format!("number {round}");
        let answer =
            rig.post_to("/v1/embeddings", "evil", &[], json!({"model": MODEL, "input": text}).to_string()).await;
        assert_eq!(answer.status(), 503, "the worker's");
        assert_eq!(rig.ask("acme", &[]).await, answered(200), "an API that it has never served");
    }
    let mut refused = chat(MODEL, 1, false);
    refused["logprobs"] = json!(true);
    let mut served = Vec::new();
    for generation in 2..12 {
        // Whatever else it asks for.
        refused["max_tokens"] = json!(generation);
        rig.post("evil", &[], &refused).await;
        push_all_free(&rig, generation).await;
        // A mark holds for 100 ms after whatever view comes.
        let others = eventually("others are served", async || match rig.ask("acme", &[]).await {
            outcome if outcome == all_busy() => Err(format!("{outcome:?}")),
            outcome => Ok(outcome),
        })
        .await;
        served.push(others);
        rig.post("evil", &[], &refused).await;
        served.push(rig.ask("acme", &[]).await);
    }
    let kept_back = served.iter().filter(|outcome| **outcome != answered(200)).count();
    assert!(kept_back <= 1, "the first refusal is believed, and no other: {served:?}");
    rig.nothing_is_held().await;
}

/// The policy says which other statuses mean that a worker has too much to do.
#[tokio::test]
async fn the_policy_says_which_statuses_mean_busy() {
    let setup = trusting(Setup::new(1, Wait::Unread)).with("/pools/0/busy_statuses", json!([429]));
    let rig = Rig::start(setup).await;
    push_all_free(&rig, 1).await;
    assert_eq!(rig.ask("acme", &[]).await, answered(200));
    rig.worker.set_faults([Fault::Refuse503]);
    for tenant in ["one", "two", "three", "four"] {
        assert_eq!(rig.ask(tenant, &[]).await, answered(503), "not one of them");
    }
    rig.worker.set_faults([Fault::Refuse429]);
    shed_after_refusal(&rig, 2, 429).await;
    rig.nothing_is_held().await;
}

/// A worker that no connection reaches is left alone until a view knows better, though it has said nothing.
#[tokio::test]
async fn a_worker_that_takes_no_connection_is_steered_around() {
    let mut rig = Rig::start(steered(1)).await;
    let at = addresses(&rig);
    let list = || vec![view::free(at[0], 10), view::free(at[1], 0), view::free(at[2], 20)];
    rig.others.remove(0).stop().await;
    // As above: a mark holds for a second, and the machine may stall for longer.
    for generation in 1.. {
        assert!(generation < 20, "it is never steered around");
        push(&rig, generation, list()).await;
        nobody_is_marked(&rig).await;
        assert_eq!(rig.ask("acme", &[]).await, answered(503), "no view knows of it yet");
        if rig.ask("acme", &[]).await == answered(200) {
            break;
        }
    }
    rig.nothing_is_held().await;
}

/// The proxy's own answer to a request that its worker has given up says nothing of how busy the worker is.
#[tokio::test]
async fn what_the_proxy_answers_itself_marks_nobody() {
    let rig = Rig::start(trusting(Setup::new(1, Wait::Unread))).await;
    push(&rig, 2, vec![view::free(rig.resetter.address(), 0)]).await;
    for _ in 0..4 {
        let answer = rig.post_to(&format!("/resetting{CHAT}"), "acme", &[], chat(MODEL, 1, false).to_string()).await;
        let reset = answer.text().await.unwrap();
        assert!(reset.contains("upstream connect error"), "the proxy's words: {reset}");
    }
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn the_least_loaded_free_worker_gets_the_request() {
    let rig = Rig::start(steered(2)).await;
    let at = addresses(&rig);
    push(&rig, 1, vec![view::free(at[0], 9), view::free(at[1], 1), view::free(at[2], 5)]).await;
    for _ in 0..4 {
        assert_eq!(rig.ask("acme", &[(ENDPOINT, &at[0].to_string())]).await, answered(200));
        rig.nothing_is_held().await;
    }
    assert_eq!(served(&rig), [0, 4, 0]);
    let header = &rig.others[0].stats().last_headers[ENDPOINT];
    assert_eq!(*header, format!("{},{}", at[1], at[2]), "and the next best behind it");

    push(&rig, 2, vec![view::busy(at[0]), view::idle(at[1], "draining"), view::free(at[2], 50)]).await;
    for _ in 0..4 {
        assert_eq!(rig.ask("acme", &[]).await, answered(200));
    }
    assert_eq!(served(&rig), [0, 4, 4], "busy or draining ones never");
    push(&rig, 3, vec![view::free(at[0], 50), view::idle(at[1], "down"), view::busy(at[2])]).await;
    for _ in 0..4 {
        assert_eq!(rig.ask("acme", &[]).await, answered(200));
    }
    assert_eq!(served(&rig), [4, 4, 4], "nor those that are down");
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_callers_own_choice_of_worker_is_no_choice() {
    let rig = Rig::start(steered(1)).await;
    let wanted = addresses(&rig)[2].to_string();
    for _ in 0..6 {
        assert_eq!(rig.ask("acme", &[(ENDPOINT, &wanted)]).await, answered(200));
    }
    assert_eq!(served(&rig), [2, 2, 2], "without a view the proxy goes round");
    assert!(workers(&rig).iter().all(|worker| !worker.stats().last_headers.contains_key(ENDPOINT)));
}

#[tokio::test]
async fn a_worker_that_refuses_is_steered_around() {
    let rig = Rig::start(steered(1)).await;
    let at = addresses(&rig);
    let list = || vec![view::free(at[0], 0), view::free(at[1], 10), view::free(at[2], 20)];
    push(&rig, 1, list()).await;
    assert_eq!(rig.ask("acme", &[]).await, answered(200), "it is seen to serve");
    let before = served(&rig);
    rig.worker.set_faults([Fault::Refuse503]);
    // As above: a mark holds for a second, and the machine may stall for longer.
    for generation in 2.. {
        assert!(generation < 20, "it is never steered around");
        push(&rig, generation, list()).await;
        nobody_is_marked(&rig).await;
        let other = format!("tenant-{generation}");
        assert_eq!(rig.ask(&other, &[]).await, answered(503));
        if rig.ask(&other, &[]).await == answered(200) {
            break;
        }
    }
    assert_eq!(served(&rig)[1..], [before[1] + 1, before[2]], "to the next best");
    rig.nothing_is_held().await;
}

/// As many callers as are told to, whose requests the workers hold.
async fn hold(rig: &Rig, count: u64) -> Vec<RawCaller> {
    set_faults(rig, &[Fault::Hang]);
    let body = chat(MODEL, 1, false).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
    let mut callers = Vec::new();
    for _ in 0..count {
        callers.push(RawCaller::send(rig.address, &request).await);
    }
    eventually("the workers have them all", async || {
        let inside: u64 = workers(rig).iter().map(|worker| worker.stats().in_server).sum();
        (inside == count).then_some(()).ok_or(inside.to_string())
    })
    .await;
    callers
}

fn inside(rig: &Rig) -> Vec<u64> {
    workers(rig).into_iter().map(|worker| worker.stats().in_server).collect()
}

#[tokio::test]
async fn the_cap_of_each_worker_binds_every_one_of_them() {
    for threads in [2, 4] {
        let rig = Rig::start(steered(threads).with("/pools/0/max_in_flight_per_worker", json!(3))).await;
        push_all_free(&rig, 1).await;
        for _ in 0..2 {
            let mut callers = hold(&rig, 9).await;
            assert_eq!(inside(&rig), [3, 3, 3]);
            assert_eq!(rig.ask("acme", &[]).await, (429, "pool_requests".to_owned()));
            // Of six callers that leave, any may have been at any worker; those who come instead fill it up again.
            callers.drain(..6);
            eventually("they are given back", async || {
                let (held, inside) = (rig.held().await.0, inside(&rig).iter().sum::<u64>());
                (held == 3 && inside == 3).then_some(()).ok_or(format!("{held} {inside}"))
            })
            .await;
            push_all_free(&rig, served(&rig).iter().sum()).await;
            let body = chat(MODEL, 1, false).to_string();
            let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
            for _ in 0..6 {
                callers.push(RawCaller::send(rig.address, &request).await);
            }
            eventually("each holds its three again", async || {
                let inside = inside(&rig);
                (inside == [3, 3, 3]).then_some(()).ok_or(format!("{inside:?}"))
            })
            .await;
            drop(callers);
            rig.nothing_is_held().await;
            eventually("the workers have let go", async || {
                let inside = inside(&rig);
                (inside == [0, 0, 0]).then_some(()).ok_or(format!("{inside:?}"))
            })
            .await;
        }
        rig.nothing_trapped().await;
    }
}

/// A view whose workers differ in how many requests they may still take.
#[tokio::test]
async fn a_pool_whose_free_workers_are_full_says_so() {
    let rig = Rig::start(steered(1).with("/pools/0/max_in_flight_per_worker", json!(2))).await;
    let at = addresses(&rig);
    push(&rig, 1, vec![view::free(at[0], 0), view::busy(at[1]), view::busy(at[2])]).await;
    let holders = hold(&rig, 2).await;
    assert_eq!(inside(&rig), [2, 0, 0]);
    let answer = rig.post("acme", &[], &chat(MODEL, 1, false)).await;
    assert_eq!(answer.status(), 429);
    let limit = answer.json::<Value>().await.unwrap()["error"]["limit"].clone();
    let expected = json!({
        "knob": "pools[main].max_in_flight_per_worker", "measured": 3, "allowed": 2,
        "unit": "requests on the freest worker",
    });
    assert_eq!(limit, expected);
    drop(holders);
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn a_retry_goes_to_the_second_address() {
    let mut setup = steered(1);
    let mut route = worker_routes()[1].clone();
    route["route"]["retry_policy"] = json!({"retry_on": "connect-failure", "num_retries": 1});
    setup.virtual_hosts = virtual_hosts(&[route]);
    let mut rig = Rig::start(setup).await;
    let at = addresses(&rig);
    rig.others.remove(0).stop().await;
    push(&rig, 1, vec![view::free(at[0], 9), view::free(at[1], 0), view::free(at[2], 5)]).await;
    for _ in 0..5 {
        assert_eq!(rig.ask("acme", &[]).await, answered(200));
    }
    assert_eq!(served(&rig), [0, 5], "all at the next best, none at the other");
    assert_eq!(rig.envoy.stat("cluster.workers.upstream_rq_retry_success").await.unwrap(), 5);
    rig.nothing_is_held().await;
}

/// Headers that have gone on name no worker, so the proxy chooses one, and nobody knows which.
#[tokio::test]
async fn a_request_that_cannot_be_steered_counts_at_no_worker() {
    // The lane of acme takes the model, so its bodies wait behind their headers; the other tenant's lane is known.
    let setup = steered(1)
        .with("/pools/0/max_in_flight_per_worker", json!(1))
        .with("/lane_rules", json!([{"model": "sim*", "lane": "interactive"}]))
        .with("/tenants/capped/lane", json!("standard"));
    let rig = Rig::start(setup).await;
    let at = addresses(&rig);
    push(&rig, 1, vec![view::free(at[0], 0), view::busy(at[1]), view::busy(at[2])]).await;
    set_faults(&rig, &[Fault::Hang]);
    let body = chat(MODEL, 1, false).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
    let _holder = RawCaller::send(rig.address, &request).await;
    eventually("some worker has it", async || {
        let inside: u64 = inside(&rig).iter().sum();
        (inside == 1).then_some(()).ok_or(inside.to_string())
    })
    .await;
    set_faults(&rig, &[]);
    let before = rig.worker.stats().requests;
    assert_eq!(rig.ask("capped", &[]).await, answered(200));
    assert_eq!(rig.worker.stats().requests, before + 1, "the free worker's one place was left");
}

/// Leaving out the length is no way around the choice.
#[tokio::test]
async fn a_request_that_does_not_say_its_length_is_steered_all_the_same() {
    let rig = Rig::start(steered(1)).await;
    let at = addresses(&rig);
    push(&rig, 1, vec![view::busy(at[0]), view::free(at[1], 0), view::busy(at[2])]).await;
    let body = chat(MODEL, 1, false).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), false);
    for _ in 0..4 {
        assert_eq!(RawCaller::send(rig.address, &request).await.status().await, Some(200));
    }
    assert_eq!(served(&rig), [0, 4, 0]);
    rig.nothing_is_held().await;
}
