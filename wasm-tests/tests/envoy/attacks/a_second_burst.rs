//! Budgets: an attacker that wants to spend more in one moment than its burst, and one that wants to spend what is another's.

use serde_json::json;
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts, worker_routes};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::line::queues;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of};
use worker_sim::Fault;

/// An attacker opens streams, one after the other as its budget allows, whose tokens time pays while they run. Then it leaves the first two:
/// what it was charged for those comes back, but time has paid it already, so it buys no stream more in the same moment.
#[tokio::test]
async fn what_time_has_paid_is_not_given_back() {
    let mut setup = queues(2, Wait::Unread).with("/pools/0/max_in_flight", json!(8));
    setup = setup.with("/pools/0/expected_output_tokens", json!(600));
    // 25 tokens a second, so that most of what a stream was charged comes back when it is left.
    (setup.worker.base_ms, setup.worker.per_kv_block_us) = (40.0, 0.0);
    // One token at a time may be owed, and a stream's are earned in some two seconds.
    let evil = json!({"tokens_per_minute": {"rate": 18_000, "burst": 1}});
    let rig = Rig::start(setup.with("/tenants/evil", evil)).await;
    let refused = || (429, "tenant_token_rate".to_owned());
    let mut streams = vec![rig.endless("evil", &[]).await];
    for _ in 0..2 {
        assert_eq!(rig.ask("evil", &[]).await, refused());
        streams.push(eventually("what the last one cost is earned", async || rig.try_endless("evil", &[]).await).await);
    }
    let last = streams.pop();
    drop(streams);
    eventually("the first ones have ended", async || {
        let held = rig.state().await["pools"]["main"]["held"]["requests"].clone();
        (held == 1).then_some(()).ok_or(held.to_string())
    })
    .await;
    assert_eq!(rig.ask("evil", &[]).await, refused(), "what the last one cost is owed");
    drop(last);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// An attacker that is anonymous, as others are, uses up the slow route; the others' requests on all other routes are as before.
#[tokio::test]
async fn a_slow_route_that_is_used_up_shuts_no_other_route() {
    let mut setup = Setup::new(2, Wait::Unread)
        .with("/tiers", json!({"slow": {"requests_per_minute": 3, "tokens_per_minute": 1_000_000}}))
        .with("/tenants/anonymous", json!({"requests_per_minute": 6_000}))
        .with("/routes", json!([{"match": {"path_prefix": "/slow/"}, "tier": "slow"}]));
    setup.virtual_hosts = virtual_hosts(&[route_without_prefix("/slow/", "workers")]);
    let rig = Rig::start(setup).await;
    let post = async |path: &str| {
        let answer = rig.post_to(path, "", &[], chat(MODEL, 1, false).to_string()).await;
        (answer.status().as_u16(), reason_of(&answer))
    };
    let (slow, refused) = (format!("/slow{CHAT}"), (429, "tenant_request_rate".to_owned()));
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        outcomes.push(post(&slow).await.1);
    }
    assert_eq!(outcomes, ["", "", "", "tenant_request_rate"]);
    for _ in 0..20 {
        assert_eq!(post(CHAT).await, (200, String::new()), "the rate elsewhere");
    }
    assert_eq!(post(&slow).await, refused, "and what is spent elsewhere earns nothing there");
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// An attacker asks for what takes longer than the proxy waits: its worker has computed for it all the same.
#[tokio::test]
async fn a_timeout_of_the_proxy_gives_nothing_back() {
    let evil = json!({"tokens_per_minute": {"rate": 1, "burst": 100}});
    let mut setup = Setup::new(1, Wait::Unread).with("/tenants/evil", evil.clone()).with("/tenants/other", evil);
    let mut route = worker_routes()[1].clone();
    route["route"]["timeout"] = json!("0.2s");
    setup.virtual_hosts = virtual_hosts(&[route]);
    let rig = Rig::start(setup).await;
    for (tenant, fault, first, again) in [("other", Fault::Refuse503, 503, 200), ("evil", Fault::Hang, 504, 429)] {
        rig.worker.set_faults([fault]);
        let long = chat(MODEL, 400, false);
        assert_eq!(rig.post(tenant, &[], &long).await.status(), first, "{fault:?}");
        rig.worker.set_faults([]);
        rig.nothing_is_held().await;
        assert_eq!(rig.ask(tenant, &[]).await.0, again, "{fault:?}");
    }
    rig.nothing_trapped().await;
}

/// An attacker has its worker refuse requests that were charged by a guess and corrected once they had been read. What comes back is what was charged, whether
/// the guess was too high or too low.
#[tokio::test]
async fn a_refund_is_of_what_the_correction_has_left() {
    let text = "word ".repeat(300);
    let body = json!({"model": MODEL, "max_tokens": 100, "messages": [{"role": "user", "content": text}]}).to_string();
    let padded = format!("{body}{}", " ".repeat(8_000));
    for (sent, chunked) in [(&padded, false), (&body, true)] {
        let evil = json!({"tokens_per_minute": {"rate": 1, "burst": 700}});
        let rig = Rig::start(Setup::new(1, Wait::Unread).with("/tenants/evil", evil)).await;
        let status = async || {
            let request = request_bytes(CHAT, &[("x-tenant-id", b"evil")], sent.as_bytes(), !chunked);
            RawCaller::send(rig.address, &request).await.status().await
        };
        rig.worker.set_faults([Fault::Refuse503]);
        for _ in 0..3 {
            assert_eq!(status().await, Some(503), "each gives back all that it was charged");
        }
        rig.worker.set_faults([]);
        rig.nothing_is_held().await;
        assert_eq!(status().await, Some(200));
        rig.nothing_is_held().await;
        assert_eq!(status().await, Some(429), "and no more");
        rig.nothing_trapped().await;
    }
}
