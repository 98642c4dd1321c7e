//! An attacker at its own cap that wants to be taken for another caller, or for none that is known.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wasm_tests::caller::{RawCaller, chat};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, reason_of};

const KEY: &str = "Bearer sk-evil-0123456789";

fn sources() -> Value {
    let digest = hex::encode(Sha256::digest("sk-evil-0123456789"));
    json!([{"api_key": {"header": "authorization", "prefix": "Bearer ", "sha256": {digest: "evil"}}}])
}

async fn outcome(rig: &Rig, authorization: Option<&str>) -> (u16, String) {
    let headers: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
    let answer = rig.post("", &headers, &chat(MODEL, 1, false)).await;
    (answer.status().as_u16(), reason_of(&answer))
}

/// An attacker that holds all that its key lets it hold leaves the key out, garbles it, or sends it twice.
#[tokio::test]
async fn a_caller_without_its_key_has_no_more_than_the_least_of_all() {
    for everybody in [json!({}), json!({"*": {"max_in_flight": 64}})] {
        let mut tenants = json!({"evil": {"max_in_flight": 2}, "large": {"max_in_flight": 50}});
        tenants.as_object_mut().unwrap().extend(everybody.as_object().unwrap().clone());
        let setup = Setup::new(1, Wait::Unread).with("/tenant", json!({"sources": sources()}));
        let rig = Rig::start(setup.with("/tenants", tenants).patient()).await;
        let _own: Vec<RawCaller> =
            [rig.endless("", &[("authorization", KEY)]).await, rig.endless("", &[("authorization", KEY)]).await].into();
        assert_eq!(outcome(&rig, Some(KEY)).await, (429, "tenant_requests".into()));
        let _nobodys: Vec<RawCaller> = [rig.endless("", &[]).await, rig.endless("", &[]).await].into();
        assert_eq!(outcome(&rig, None).await, (429, "tenant_requests".into()), "{everybody}: the smallest cap");
        let twice = format!("{KEY}, {KEY}");
        for wrong in ["Bearer sk-evil-0123456788", "bearer x", &twice] {
            assert_eq!(outcome(&rig, Some(wrong)).await, (401, "unknown_key".into()), "{everybody}: {wrong}");
        }
        for none in ["Basic eDp5", "Bearer ", "Bearer"] {
            assert_eq!(outcome(&rig, Some(none)).await, (429, "tenant_requests".into()), "{everybody}: {none}");
        }
        assert_eq!(rig.worker.stats().in_server, 4, "{everybody}");
        rig.nothing_trapped().await;
    }
}

/// A name that a source yields and no entry lists has no limit where the policy says nothing of such names, which is said aloud.
#[tokio::test]
async fn limits_for_some_alone_are_told_of() {
    for (everybody, told) in [(json!({}), 1), (json!({"*": {}}), 0)] {
        let mut tenants = json!({"capped": {"max_in_flight": 1}});
        tenants.as_object_mut().unwrap().extend(everybody.as_object().unwrap().clone());
        let rig = Rig::start(Setup::new(1, Wait::Unread).with("/tenants", tenants)).await;
        assert_eq!(rig.ask("a-name-that-is-not-listed", &[]).await.0, 200);
        rig.counts("sluice_unlisted_tenants_unlimited", &[], told).await;
        assert_eq!(
            rig.envoy.log().contains("tenants: those that it does not list have no limit"),
            told == 1,
            "{everybody}"
        );
    }
}
