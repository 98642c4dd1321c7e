//! Beside an endpoint picker: a real `ext_proc` filter before ours and behind it.

use serde_json::{Value, json};
use wasm_tests::picker::Picker;
use wasm_tests::rig::{Rig, Setup, Wait};

const ENDPOINT: &str = "x-gateway-destination-endpoint";
const FAIRNESS: &str = "x-llm-d-inference-fairness-id";
const OBJECTIVE: &str = "x-llm-d-inference-objective";

/// Takes a caller's own choice of worker off.
fn removes_callers_choice() -> Value {
    let remove = |header: &str| json!({"remove": header});
    json!({"name": "callers", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.header_mutation.v3.HeaderMutation",
        "mutations": {"request_mutations": [remove(ENDPOINT), remove("x-gateway-destination-endpoint-subset")]},
    }})
}

/// Two workers of a cluster that heeds the header, and a picker that picks the second.
async fn beside_a_picker(is_before: bool, whose: &str) -> (Rig, Picker) {
    let picker = Picker::start().await;
    let mut setup = Setup::new(2, Wait::Unread).with("/endpoint_picker", json!(whose));
    (setup.more_workers, setup.steered, setup.picker) = (1, true, Some(picker.address));
    setup.filters_before = vec![removes_callers_choice()];
    let filters = if is_before { &mut setup.filters_before } else { &mut setup.filters_behind };
    filters.push(Picker::filter("picker"));
    let rig = Rig::start(setup).await;
    picker.picks(rig.others[0].address());
    (rig, picker)
}

fn served(rig: &Rig) -> (u64, u64) {
    (rig.worker.stats().requests, rig.others[0].stats().requests)
}

/// Callers name a worker of their own, an objective and whose they are; neither the picker nor the worker believes them.
#[tokio::test]
async fn the_pickers_choice_stands_whether_it_is_asked_before_or_behind() {
    for is_before in [true, false] {
        let (rig, picker) = beside_a_picker(is_before, "theirs").await;
        let wanted = rig.worker.address().to_string();
        let headers =
            [(ENDPOINT, &*wanted), (FAIRNESS, "another"), (OBJECTIVE, "another"), ("x-sluice-lane", "interactive")];
        for _ in 0..4 {
            assert_eq!(rig.ask("acme", &headers).await, (200, String::new()));
        }
        assert_eq!(served(&rig), (0, 4), "before: {is_before}");
        let seen = rig.others[0].stats().last_headers;
        assert_eq!(seen[ENDPOINT], rig.others[0].address().to_string());
        assert_eq!((&*seen[FAIRNESS], &*seen[OBJECTIVE]), ("acme", "interactive"));
        assert_eq!(seen["x-gateway-inference-fairness-id"], "acme");
        let asked = picker.seen();
        assert!(asked.len() == 4 && asked.iter().all(|headers| !headers.contains_key(ENDPOINT)), "{asked:?}");
        if !is_before {
            let told = |header: &str| asked.iter().map(|headers| headers[header].clone()).collect::<Vec<_>>();
            assert_eq!(
                (told(FAIRNESS), told(OBJECTIVE)),
                (vec!["acme".to_owned(); 4], vec!["interactive".to_owned(); 4])
            );
        }
        rig.nothing_is_held().await;
    }
}

/// Without `theirs` what a filter before ours has chosen counts as a caller's, and goes.
#[tokio::test]
async fn without_the_word_of_the_policy_a_choice_before_ours_is_a_callers() {
    for whose in ["ours", "none"] {
        let (rig, picker) = beside_a_picker(true, whose).await;
        for _ in 0..4 {
            assert_eq!(rig.ask("acme", &[]).await, (200, String::new()));
        }
        assert_eq!((served(&rig), picker.seen().len()), ((2, 2), 4), "{whose}: the proxy goes round");
        assert!(!rig.worker.stats().last_headers.contains_key(ENDPOINT));
        assert!(!rig.worker.stats().last_headers.contains_key(FAIRNESS));
    }
}
