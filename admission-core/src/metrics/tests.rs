use serde_json::json;

use super::*;
use crate::policy::{Plugin, Policy};
use crate::store::memory::MemoryStore;
use crate::units::Time;
use crate::vm::Vm;

fn policy() -> Policy {
    let json = json!({
        "lanes": [{"name": "chat", "priority": 1, "queue": {}}, {"name": "batch"}],
        "pools": [{"name": "p", "models": ["tiny", "llama*"], "max_in_flight": 9}],
    });
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.to_string().as_bytes()) else { panic!("{json}") };
    *policy
}

fn labels(policy: &Policy, model: Option<&str>) -> Labels {
    Labels::of(policy.only_pool(), policy.lane_at(Some(0), 0), model, Api::Chat)
}

/// Samples as text, in the order in which they were handed over.
fn text(hand_over: impl FnOnce(&mut dyn FnMut(Sample<'_>))) -> Vec<String> {
    let mut all = Vec::new();
    hand_over(&mut |Sample { kind, name, value, .. }| all.push(format!("{kind:?} {name} {value}")));
    all
}

#[test]
fn counters_gather_until_they_are_flushed() {
    let (policy, mut metrics) = (policy(), Metrics::default());
    for model in [Some("llama-8b"), Some("llama-70b"), None] {
        metrics.count(&labels(&policy, model), ADMITTED);
    }
    metrics.count_overdraft(&labels(&policy, None), Tokens(0));
    assert_eq!(text(|sink| metrics.take(sink)), [""; 0], "nothing is written with the event");
    let name = |model| {
        format!(
            "pool=.=p;.;lane=.=chat;.;model=.={model};.;endpoint=.=chat_completions;.;outcome=.=admitted;.;sluice_requests_total"
        )
    };
    let all = [format!("Counter {} 2", name("llama*")), format!("Counter {} 1", name("unread"))];
    assert_eq!(text(|sink| metrics.flush(sink)), all);
    assert_eq!(text(|sink| metrics.flush(sink)), [""; 0]);
}

#[test]
fn two_names_of_one_hash_are_two_metrics() {
    let mut metrics = Metrics::default();
    metrics.count_bad_route();
    // As if the other counter's name had the hash of the first.
    let first = metrics.by_hash.remove(&hash::stable(BAD_ROUTES.as_bytes())).unwrap();
    metrics.by_hash.insert(hash::stable(JUDGED_TWICE.as_bytes()), first);
    metrics.count_judged_twice();
    metrics.count_judged_twice();
    let all = [format!("Counter {BAD_ROUTES} 1"), format!("Counter {JUDGED_TWICE} 2")];
    assert_eq!(text(|sink| metrics.flush(sink)), all);
}

#[test]
fn an_answer_is_recorded_with_its_event_and_by_the_same_numbers() {
    let (policy, mut metrics) = (policy(), Metrics::default());
    let labels = labels(&policy, Some("tiny"));
    let measured = Measured {
        estimate: Tokens(110),
        prompt: Some(Tokens(100)),
        output: Some(Tokens(51)),
        times: Some((Millis(20), Millis(500))),
    };
    let mut numbers = Vec::new();
    for _ in 0..2 {
        metrics.record_answer(&labels, &measured);
        numbers.push(Vec::new());
        let all = text(|sink| {
            metrics.take(|sample| {
                numbers.last_mut().unwrap().push(sample.metric);
                sink(sample);
            });
        });
        let of = "Histogram pool=.=p;.;lane=.=chat;.;sluice_";
        let error = "Histogram pool=.=p;.;model=.=tiny;.;sign=.=over;.;sluice_estimate_error_permille 100";
        let expected = [
            format!("{of}prompt_tokens 100"),
            format!("{of}output_tokens 51"),
            error.to_owned(),
            format!("{of}ttft_ms 20"),
            format!("{of}decode_ms 500"),
            format!("{of}tokens_per_second 100"),
        ];
        assert_eq!(all, expected);
    }
    assert_eq!(numbers[0], numbers[1]);
    let unmeasured = Measured { prompt: None, output: None, times: None, ..measured };
    metrics.record_answer(&labels, &unmeasured);
    assert_eq!(text(|sink| metrics.take(sink)), ["Histogram pool=.=p;.;lane=.=chat;.;sluice_prompt_tokens 110"]);
}

#[test]
fn the_first_request_that_was_judged_twice_is_known() {
    let mut metrics = Metrics::default();
    assert!(metrics.count_judged_twice() && !metrics.count_judged_twice());
    assert_eq!(text(|sink| metrics.flush(sink)), ["Counter sluice_judged_twice_total 2"]);
}

#[test]
fn pools_without_a_view_show_that_it_is_missing() {
    let (policy, mut metrics, store) = (policy(), Metrics::default(), MemoryStore::default());
    let vm = Vm::new(policy.keys.clone());
    metrics.record_pools(&policy, &store, vm.members(), Time(1_000));
    let all = text(|sink| metrics.take(sink));
    for expected in [
        "Gauge sluice_unlisted_tenants_unlimited 0",
        "Gauge pool=.=p;.;sluice_in_flight_requests 0",
        "Gauge pool=.=p;.;lane=.=chat;.;sluice_waiting_requests 0",
        "Gauge pool=.=p;.;sluice_view_missing 1",
    ] {
        assert!(all.iter().any(|line| line == expected), "{expected} is not among {all:#?}");
    }
    assert!(!all.iter().any(|line| line.contains("sluice_view_age_ms")), "{all:#?}");
    assert!(!all.iter().any(|line| line.contains("lane=.=batch;.;sluice_waiting_requests")), "batch has no queue");
}
