//! An attacker that wants to spend more in one moment than its burst.

use serde_json::json;
use wasm_tests::line::queues;
use wasm_tests::rig::{Rig, Wait, eventually};

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
