//! Turns among the users of one tenant, by a header that the platform sets.

use serde_json::json;
use wasm_tests::line::{order, queues, send_more, waiting};
use wasm_tests::rig::{Rig, Setup, Wait};

/// Six requests of one user wait, then two of another, over both worker threads; the numbers of all in the order in which they start.
async fn served(setup: Setup, header: &str) -> Vec<String> {
    served_beside(setup, header, None).await
}

/// The same, where each request of the first user has a value of its own in another header.
async fn served_beside(mut setup: Setup, header: &str, other: Option<&str>) -> Vec<String> {
    // Why: see `take_turns` in queues.rs.
    setup.worker.base_ms = 100.0;
    let rig = Rig::start(setup).await;
    let running = rig.endless("acme", &[(header, "hog")]).await;
    let mut callers = Vec::new();
    for (number, user) in ["hog"; 6].into_iter().chain(["modest"; 2]).enumerate() {
        let made_up = number.to_string();
        let headers: Vec<(&str, &str)> = [(header, user)]
            .into_iter()
            .chain(other.filter(|_| user == "hog").map(|other| (other, &*made_up)))
            .collect();
        callers.push(send_more(&rig, "acme", "standard", number, &headers, "Say something, please.").await);
        waiting(&rig, number as u64 + 1).await;
    }
    drop(running);
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
    order(&rig)
}

fn setup(header: &str) -> Setup {
    queues(2, Wait::Unread).with("/fairness_header", json!(header))
}

/// The pool is full, or the tenant holds all that it may.
#[tokio::test]
async fn users_of_one_tenant_take_turns() {
    let capped = setup("x-user").with("/pools/0/max_in_flight", json!(8));
    let capped = capped.with("/tenants/acme", json!({"max_in_flight": 1}));
    for setup in [setup("x-user"), capped] {
        let order = served(setup, "x-user").await;
        let places: Vec<usize> =
            ["6", "7"].iter().filter_map(|id| order.iter().position(|other| other == id)).collect();
        assert!(matches!(places[..], [first, second] if first <= 1 && second <= 3), "{order:?}");
    }
    let order = served(queues(2, Wait::Unread), "x-user").await;
    assert_eq!(order, ["0", "1", "2", "3", "4", "5", "6", "7"], "no policy names the header");
}

/// Both of llm-d's headers are read where the policy names one.
#[tokio::test]
async fn both_headers_of_llm_d_are_known() {
    let [newer, older] = ["x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id"];
    for (named, sent) in [(newer, older), (older, newer)] {
        let order = served(setup(named), sent).await;
        assert!(order[..2].contains(&"6".to_owned()), "{named} {sent}: {order:?}");
        let order = served_beside(setup(named), named, Some(sent)).await;
        assert!(order[..2].contains(&"6".to_owned()), "{named} is the gateway's, {sent} the caller's: {order:?}");
    }
}
