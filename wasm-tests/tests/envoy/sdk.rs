//! The packages that callers use, `openai` and `anthropic`, against a proxy that refuses them: what it advises is what they do.

use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::{Child, Command};
use wasm_tests::artefacts;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};

/// Calls of each package.
const CALLS: usize = 4;

/// Starts `sdk.py`. Dropping it ends it.
fn start(rig: &Rig, model: &str, retries: u32) -> Child {
    let mut python = Command::new(artefacts::python());
    python.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/envoy/sdk.py"));
    python.args([format!("http://{}", rig.address), model.to_owned(), CALLS.to_string(), retries.to_string()]);
    python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    python.spawn().expect("start Python")
}

/// What became of every call, in the order in which they ended.
async fn outcomes(child: Child) -> Vec<Value> {
    let output = child.wait_with_output().await.expect("an end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("text");
    let calls: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(names(calls.iter().map(|call| call["name"].as_str())), all_names());
    calls
}

fn names<'a>(names: impl Iterator<Item = Option<&'a str>>) -> Vec<String> {
    let mut names: Vec<String> = names.map(|name| name.expect("a name").to_owned()).collect();
    names.sort_unstable();
    names
}

fn all_names() -> Vec<String> {
    ["anthropic", "openai"].iter().flat_map(|name| (0..CALLS).map(move |number| format!("{name}-{number}"))).collect()
}

/// Checks that every attempt but the last was refused for this reason with advice, and that each pause was at least as
/// long as advised. Left alone, the packages try again after half a second at most, and the advice is never below one.
fn followed_advice(call: &Value, reason: &str) {
    let met = call["met"].as_array().expect("attempts");
    let pauses: Vec<f64> = call["pauses_ms"].as_array().expect("pauses").iter().filter_map(Value::as_f64).collect();
    let (served, refused) = met.split_last().expect("an attempt");
    assert_eq!((&served["status"], pauses.len()), (&json!(200), refused.len()), "{call}");
    for (refusal, pause) in refused.iter().zip(pauses) {
        assert_eq!((&refusal["status"], &refusal["x-sluice-reason"]), (&json!(429), &json!(reason)), "{call}");
        let advice = |header: &str| refusal[header].as_str().and_then(|value| value.parse::<f64>().ok());
        let (seconds, milliseconds) = (advice("retry-after").expect("seconds"), advice("retry-after-ms").expect("ms"));
        assert!(milliseconds >= 1_000.0 && milliseconds <= seconds * 1_000.0, "{call}");
        assert!(pause >= milliseconds, "paused {pause} ms: {call}");
    }
}

#[tokio::test]
async fn clients_that_are_refused_come_back_when_they_were_told_and_all_are_served() {
    // The holder holds for as long as Python takes to start, and what endings are expected to come at is advice to all.
    let setup = Setup::new(2, Wait::Unread).patient().with("/reject", json!({"retry_after": {"max": "2s"}}));
    let setup = setup.with("/pools/0/max_in_flight", json!(1));
    let rig = Rig::start(setup).await;
    let holder = rig.endless("holder", &[]).await;
    let child = start(&rig, MODEL, 100);
    let calls = 2 * CALLS as u64;
    eventually("every call has been refused", async || {
        let refused = rig.count("sluice_requests_total", &[("outcome", "pool_requests")]).await;
        (refused >= calls).then_some(()).ok_or(refused.to_string())
    })
    .await;
    assert_eq!(rig.worker.stats().requests, 1, "nobody but the holder");
    drop(holder);
    for call in outcomes(child).await {
        followed_advice(&call, "pool_requests");
        assert!(call["met"].as_array().is_some_and(|met| met.len() > 1), "{call}");
        assert_eq!(call["text"], " the slow water finds");
    }
    let arrivals = rig.worker.arrivals().requests;
    assert_eq!(names(arrivals[1..].iter().map(|arrival| arrival.id.as_deref())), all_names(), "each came once");
    assert_eq!(rig.worker.stats().peak_in_server, 1);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// They would try again after any other 503.
#[tokio::test]
async fn clients_try_only_once_where_they_are_told_that_it_is_in_vain() {
    let rig =
        Rig::start(Setup::new(1, Wait::AtHeaders).with("/reject", json!({"status": {"unknown_model": 503}}))).await;
    for call in outcomes(start(&rig, "nobody-serves-this", 100)).await {
        let met = json!([{"status": 503, "x-sluice-reason": "unknown_model", "x-should-retry": "false"}]);
        assert_eq!((&call["met"], &call["error"]["status"]), (&met, &json!(503)), "{call}");
        let said = &call["error"]["said"];
        assert!(said.to_string().contains("nobody-serves-this"), "the packages have read why: {call}");
    }
    assert_eq!(rig.worker.stats().requests, 0);
    rig.nothing_trapped().await;
}

/// Each name may have one request a minute and no second try, and each package's error has the headers that say what is left.
#[tokio::test]
async fn an_error_of_each_package_says_what_is_left_of_a_budget() {
    let budget = json!({"requests_per_minute": 1, "tokens_per_minute": {"rate": 1, "burst": 5_000}});
    let mut setup = Setup::new(1, Wait::Unread);
    for name in all_names() {
        setup.policy["tenants"][name] = budget.clone();
    }
    let rig = Rig::start(setup).await;
    for call in outcomes(start(&rig, MODEL, 0)).await {
        assert_eq!(call["met"][0]["status"], 200, "{call}");
    }
    for call in outcomes(start(&rig, MODEL, 0)).await {
        assert_eq!(call["error"]["status"], 429, "{call}");
        let said = |header: &str| call["error"]["headers"][header].as_str().unwrap_or_default().to_owned();
        let left =
            ["limit-requests", "remaining-requests", "limit-tokens"].map(|field| said(&format!("x-ratelimit-{field}")));
        assert_eq!(left, ["1", "0", "5000"], "{call}");
        let tokens: u64 = said("x-ratelimit-remaining-tokens").parse().expect("a number");
        assert!((1..5_000).contains(&tokens), "{call}");
        let of_anthropic = ["requests-limit", "requests-remaining", "tokens-limit"]
            .map(|field| said(&format!("anthropic-ratelimit-{field}")));
        let is_anthropic = call["name"].as_str().is_some_and(|name| name.starts_with("anthropic"));
        assert_eq!(of_anthropic, if is_anthropic { ["1", "0", "5000"] } else { [""; 3] }, "{call}");
        if is_anthropic {
            let wait = call["error"]["resets_in_s"].as_f64().expect("an instant");
            assert!(wait > 0.0 && wait <= 61.0, "{call}");
        }
    }
    rig.nothing_trapped().await;
}
