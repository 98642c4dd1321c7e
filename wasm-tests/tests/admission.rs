//! What a caller and a worker see of the filter, in each of the three places where a request can wait.

use serde_json::json;
use wasm_tests::caller::chat;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait};

#[tokio::test]
async fn an_admitted_request_reaches_the_worker_with_its_tags() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let rig = Rig::start(Setup::new(2, wait)).await;
        let answer = rig.post("acme", &[], &chat(MODEL, 3, false)).await;
        assert_eq!(answer.status(), 200, "{wait:?}: {}", rig.envoy.log());
        let headers = rig.worker.stats().last_headers;
        println!("{wait:?} {headers:?} {}", rig.state().await);
        assert_eq!(headers["x-sluice-tenant"], "acme");
        let _ = json!({});
    }
}
