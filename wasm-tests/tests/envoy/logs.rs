//! Every decision in the access log, as the shipped configurations have it.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::line::{queues, send, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, shipped_log_format};
use worker_sim::Fault;

/// Decisions of the log's lines, as soon as there are so many lines.
async fn decisions(rig: &Rig, lines: usize) -> Vec<(Value, Value)> {
    eventually("the access log has every request", async || {
        let logged = rig.logged().len();
        (logged == lines).then_some(()).ok_or_else(|| format!("{logged} of {lines}: {:?}", rig.logged()))
    })
    .await;
    rig.logged().into_iter().map(|line| (line["sluice"]["value"].clone(), line)).collect()
}

/// The decisions of one outcome.
fn of<'a>(all: &'a [(Value, Value)], outcome: &str) -> Vec<&'a (Value, Value)> {
    all.iter().filter(|(decision, _)| decision["outcome"] == outcome).collect()
}

/// Counters that the log's lines come to, by name and labels.
fn counted(all: &[(Value, Value)]) -> BTreeMap<(&'static str, [String; 5]), u64> {
    let mut counters = BTreeMap::new();
    for (decision, line) in all {
        let text = |field: &str| decision[field].as_str().unwrap_or_else(|| panic!("{field} of {line}")).to_owned();
        let mut count = |metric, outcome: String| {
            let labels = [text("pool"), text("lane"), text("model"), text("endpoint"), outcome];
            *counters.entry((metric, labels)).or_default() += 1;
        };
        match text("outcome").as_str() {
            "admitted" => count("sluice_requests_total", "admitted".to_owned()),
            "evicted" => {
                count("sluice_requests_total", "admitted".to_owned());
                count("sluice_evicted_total", "evicted".to_owned());
            }
            "left" => count("sluice_requests_total", "left".to_owned()),
            "refused" => count("sluice_requests_total", text("reason")),
            "would_reject" => count("sluice_would_reject_total", text("reason")),
            "would_wait" => count("sluice_would_wait_total", text("reason")),
            other => panic!("{other}: {line}"),
        }
    }
    counters
}

/// One request of each kind, at a pool of one place: served, streamed, refused, out of the queue, out of patience, left, in shadow twice, and
/// evicted for the last.
#[tokio::test]
async fn every_decision_is_a_line_and_the_lines_add_up_to_the_metrics() {
    let mut setup = queues(2, Wait::Unread).with("/tenants/watched", json!({"mode": "shadow"}));
    setup.access_log = shipped_log_format();
    let rig = Rig::start(setup).await;
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    let streamed = rig.post("acme", &[], &chat(MODEL, 4, true)).await;
    assert_eq!((streamed.status().as_u16(), streamed.text().await.is_ok()), (200, true));

    let running = rig.endless("first", &[]).await;
    let no_queue = ("x-sluice-no-queue", "true");
    assert_eq!(rig.ask("acme", &[no_queue]).await.1, "pool_requests");
    assert_eq!(rig.ask("acme", &[("x-slo-ttft-ms", "300")]).await.1, "queue_timeout");
    let leaves = send(&rig, "acme", "standard", 0).await;
    waiting(&rig, 1).await;
    drop(leaves);
    waiting(&rig, 0).await;
    assert_eq!(rig.ask("watched", &[]).await.0, 200);
    assert_eq!(rig.ask("watched", &[no_queue]).await.0, 200);
    drop(running);
    rig.nothing_is_held().await;

    let before = rig.worker.arrivals().requests.len();
    rig.worker.set_faults([Fault::Hang]);
    let mut victim = send(&rig, "acme", "batch", 1).await;
    eventually("the worker has it", async || {
        let inside = rig.worker.arrivals().requests.len();
        (inside > before).then_some(()).ok_or(inside.to_string())
    })
    .await;
    rig.worker.set_faults([]);
    let mut urgent = send(&rig, "acme", "interactive", 2).await;
    assert_eq!((victim.status().await, urgent.status().await), (Some(429), Some(200)));
    rig.nothing_is_held().await;

    let all = decisions(&rig, 10).await;
    for ((metric, labels), expected) in counted(&all) {
        let names = ["pool", "lane", "model", "endpoint", "outcome"];
        let labels: Vec<(&str, &str)> = names.into_iter().zip(labels.iter().map(String::as_str)).collect();
        rig.counts(metric, &labels, expected).await;
    }
    for metric in
        ["sluice_requests_total", "sluice_would_reject_total", "sluice_would_wait_total", "sluice_evicted_total"]
    {
        let logged = counted(&all).iter().filter(|((name, _), _)| *name == metric).map(|(_, count)| count).sum();
        rig.counts(metric, &[], logged).await;
    }
    says_what_each_has_met(&rig, &all);
    rig.nothing_trapped().await;
}

fn says_what_each_has_met(rig: &Rig, all: &[(Value, Value)]) {
    let [(served, line), (streamed, _), ..] = &of(all, "admitted")[..] else { panic!("{all:?}") };
    assert_eq!(
        (&served["tenant"], &served["pool"], &served["lane"]),
        (&json!("acme"), &json!("main"), &json!("standard"))
    );
    assert_eq!((&line["status"], &line["worker"]), (&json!(200), &json!(rig.worker.address().to_string())));
    let tokens =
        ["estimated_prompt_tokens", "estimated_output_tokens", "prompt_tokens", "cached_tokens", "output_tokens"];
    assert!(tokens.iter().all(|field| served[field].is_u64()) && served["complete"] == true, "{served}");
    assert!(streamed["ttft_ms"].is_u64() && served["ttft_ms"].is_null(), "{streamed}");
    assert_eq!((&served["queue_wait_ms"], served["policy"].as_str().map(str::len)), (&json!(0), Some(16)));

    let refused = of(all, "refused");
    let by = |reason: &str| &refused.iter().find(|(decision, _)| decision["reason"] == reason).expect(reason).0;
    let limit = json!({"knob": "pools[main].max_in_flight", "measured": 2, "allowed": 1, "unit": "requests"});
    assert_eq!(by("pool_requests")["limit"], limit);
    let late = by("queue_timeout");
    assert_eq!(late["bound"], json!({"reason": "pool_requests", "limit": limit}), "{late}");
    assert_eq!(late["limit"]["knob"], "the request's own deadline");
    assert!(late["queue_wait_ms"].as_u64() >= Some(300) && late["estimated_prompt_tokens"].is_u64(), "{late}");

    let (left, _) = of(all, "left")[0];
    assert!(left["tenant"] == "acme" && left["queue_wait_ms"].is_u64(), "{left}");
    for outcome in ["would_wait", "would_reject"] {
        let (decision, line) = of(all, outcome)[0];
        let told = (&decision["tenant"], &decision["shadow"], &decision["reason"], &line["status"]);
        assert_eq!(told, (&json!("watched"), &json!(true), &json!("pool_requests"), &json!(200)), "{outcome}");
    }
    let (evicted, line) = of(all, "evicted")[0];
    assert_eq!(
        (&evicted["lane"], &evicted["reason"], &line["status"]),
        (&json!("batch"), &json!("evicted"), &json!(429))
    );
}

/// A caller that leaves before its body has come, and a request without a body.
#[tokio::test]
async fn what_was_not_decided_says_so_and_what_is_not_judged_is_null() {
    let mut setup = Setup::new(1, Wait::AtHeaders);
    setup.access_log = shipped_log_format();
    let rig = Rig::start(setup).await;
    let body = chat(MODEL, 1, false).to_string();
    let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
    let caller = RawCaller::send(rig.address, &request[..request.len() - 10]).await;
    rig.in_hand(1).await;
    drop(caller);
    let all = decisions(&rig, 1).await;
    assert_eq!((&all[0].0["outcome"], &all[0].0["tenant"]), (&json!("undecided"), &json!("acme")), "{all:?}");
    let client = testkit::envoy::direct_client().expect("a client");
    let answer = client.get(format!("http://{}/v1/models", rig.address)).send().await.expect("an answer");
    assert_eq!(reason_of(&answer), "");
    let all = decisions(&rig, 2).await;
    assert!(all.iter().any(|(_, line)| line["sluice"].is_null()), "{all:?}");
    rig.nothing_trapped().await;
}
