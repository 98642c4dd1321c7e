//! What answers cost: budgets of tokens, to the token, whatever becomes of the answer.

use futures_util::stream::{self, StreamExt};
use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually, reason_of, text_of};
use worker_sim::Fault;

mod measured;

const MESSAGES: &str = "/v1/messages";

/// Paths of the APIs that stream.
const STREAMING: [&str; 4] = [CHAT, "/v1/completions", MESSAGES, "/v1/responses"];

/// Tokens of a tenant's budget, which earns one a minute: none comes back while a test looks.
const LIMIT: u64 = 10_000_000;

/// Tokens that the worker makes of every prompt of these tests: it takes four bytes for one.
const PROMPT: u64 = 10;

/// Tokens that pools expect of every answer.
const EXPECTED: u64 = 32;

fn setup(threads: u32) -> Setup {
    let format = json!({"tenant": "%REQ(x-sluice-tenant)%", "probe": "%REQ(x-probe)%", "sluice": "%FILTER_STATE(wasm.sluice.decision:TYPED)%"});
    let exact = json!({"tokens_per_minute": {"rate": 1, "burst": LIMIT}});
    let tenants: Value = (0..40).map(|number| (tenant(number), json!({"tier": "exact"}))).collect();
    let setup = Setup::new(threads, Wait::Unread)
        .with("/tiers", json!({"exact": exact}))
        .with("/tenants", tenants)
        .with("/pools/0/expected_output_tokens", json!(EXPECTED))
        // What asking for a budget is charged must be the same before and after.
        .with("/pools/0/estimate", json!({"output": "expected"}));
    Setup { access_log: format, ..setup }
}

fn tenant(number: u64) -> String {
    format!("tenant-{number}")
}

/// A request to a path, of [`PROMPT`] tokens and so many of output.
fn body(path: &str, output: u64, stream: bool) -> Value {
    let text = "x".repeat(4 * PROMPT as usize);
    let messages = json!([{"role": "user", "content": text}]);
    match path {
        CHAT => json!({"model": MODEL, "messages": messages, "max_tokens": output, "stream": stream}),
        "/v1/completions" => json!({"model": MODEL, "prompt": text, "max_tokens": output, "stream": stream}),
        MESSAGES => json!({"model": MODEL, "messages": messages, "max_tokens": output, "stream": stream}),
        "/v1/responses" => json!({"model": MODEL, "input": text, "max_output_tokens": output, "stream": stream}),
        _ => json!({"model": MODEL, "input": text}),
    }
}

/// With the usage that the API's streams have to be asked for.
fn reporting(path: &str, output: u64, stream: bool) -> Value {
    let mut body = body(path, output, stream);
    if stream && path.ends_with("completions") {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// Posts as a tenant; the status, and the answer as far as it came.
async fn post(rig: &Rig, path: &str, tenant: &str, body: &Value) -> (u16, String) {
    let mut answer = rig.post_to(path, tenant, &[], body.to_string()).await;
    let (status, mut read) = (answer.status().as_u16(), Vec::new());
    while let Ok(Some(bytes)) = answer.chunk().await {
        read.extend(bytes);
    }
    (status, String::from_utf8(read).unwrap())
}

/// What is left of tenants' budgets. It costs the tenants a request, so each can be asked once.
struct Budgets<'a> {
    rig: &'a Rig,
    of_nobody: u64,
}

impl<'a> Budgets<'a> {
    async fn of(rig: &'a Rig) -> Self {
        let of_nobody = remaining(rig, &tenant(39)).await;
        Self { rig, of_nobody }
    }

    /// Tokens that a tenant has spent, once all its requests are over.
    async fn spent(&self, tenant: &str) -> u64 {
        self.rig.nothing_is_held().await;
        self.of_nobody - remaining(self.rig, tenant).await
    }
}

async fn remaining(rig: &Rig, tenant: &str) -> u64 {
    // A prompt of token ids costs the same whatever estimates have learned.
    let exact = json!({"model": MODEL, "prompt": [1], "max_tokens": 1});
    let answer = rig.post_to("/v1/completions", tenant, &[("x-probe", "true")], exact.to_string()).await;
    let remaining = text_of(&answer, "x-ratelimit-remaining-tokens").parse().unwrap();
    answer.bytes().await.unwrap();
    remaining
}

/// What the access log says of a tenant's first request, but for those that ask for its budget.
async fn logged(rig: &Rig, tenant: &str) -> Value {
    let line = || {
        let mut lines = rig.logged().into_iter();
        // Why: a thread that pauses between giving back and logging is overtaken by the request that asks for the budget.
        lines.find(|line| line["tenant"] == tenant && line["probe"] != "true")
    };
    eventually("the access log has it", async || line().map(drop).ok_or(rig.envoy.log())).await;
    let line = line().unwrap();
    line["sluice"]["value"].clone()
}

fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().or(line[name].as_str().and_then(|text| text.parse().ok())).unwrap_or_else(|| panic!("{line}"))
}

#[tokio::test]
async fn every_api_is_settled_as_its_worker_reports() {
    let mut setup = setup(2);
    setup.worker.cached_share = 0.5;
    let rig = Rig::start(setup).await;
    let budgets = Budgets::of(&rig).await;
    let mut cases: Vec<_> = STREAMING.into_iter().flat_map(|path| [(path, false, 7), (path, true, 7)]).collect();
    cases.push(("/v1/embeddings", false, 0));
    for (number_of, (path, stream, output)) in (0..).zip(cases) {
        let tenant = tenant(number_of);
        let (status, answer) = post(&rig, path, &tenant, &reporting(path, output, stream)).await;
        assert_eq!((status, answer.contains("usage")), (200, true), "{path} {stream}: {answer}");
        assert_eq!(budgets.spent(&tenant).await, PROMPT + output, "{path} {stream}: {answer}");
        let line = logged(&rig, &tenant).await;
        let told = |name| number(&line, name);
        let expected_cached = if path == "/v1/embeddings" { 0 } else { PROMPT / 2 };
        assert_eq!((told("prompt_tokens"), told("output_tokens")), (PROMPT, output), "{path} {stream}");
        assert_eq!((told("cached_tokens"), &line["complete"]), (expected_cached, &json!(true)), "{path} {stream}");
        assert_eq!(line["ttft_ms"].is_null(), !stream, "{path} {stream}: {line}");
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn odd_reports_take_nothing_away() {
    let rig = Rig::start(setup(2)).await;
    let budgets = Budgets::of(&rig).await;
    let mut tenants = (0..).map(tenant);
    for (fault, plain_is_known, stream_is_known) in [
        (Fault::NoUsage, false, false),
        (Fault::NullUsage, false, false),
        (Fault::AbsurdUsage, false, false),
        (Fault::RepeatedUsage, true, true),
        (Fault::NullsBetween, true, true),
    ] {
        for (path, stream) in [(CHAT, false), (CHAT, true), (MESSAGES, true), ("/v1/responses", true)] {
            let tenant = tenants.next().unwrap();
            rig.worker.set_faults([fault]);
            assert_eq!(post(&rig, path, &tenant, &reporting(path, 9, stream)).await.0, 200);
            rig.worker.set_faults([]);
            let (spent, line) = (budgets.spent(&tenant).await, logged(&rig, &tenant).await);
            let estimated = |name: &str| number(&line, &format!("estimated_{name}_tokens"));
            let expected = match (stream, plain_is_known, stream_is_known) {
                (false, true, _) | (true, _, true) => PROMPT + 9,
                (false, false, _) => estimated("prompt") + estimated("output"),
                // Without a report, its deltas are counted.
                (true, _, false) => estimated("prompt") + 9,
            };
            assert_eq!(spent, expected, "{fault:?} {path} {stream}: {line}");
        }
    }
}

/// What the worker has told of a prompt by the time an answer of such a path breaks off, or what was estimated.
fn prompt_of(path: &str, line: &Value) -> u64 {
    // Of all streams Anthropic's alone tell at their begin.
    if path == MESSAGES { PROMPT } else { number(line, "estimated_prompt_tokens") }
}

#[tokio::test]
async fn answers_that_break_off_cost_what_was_seen() {
    let rig = Rig::start(setup(2)).await;
    let budgets = Budgets::of(&rig).await;
    rig.worker.set_faults([Fault::Truncate]);
    for (tenant, path) in (0..).map(tenant).zip(STREAMING) {
        let (status, answer) = post(&rig, path, &tenant, &reporting(path, 10, true)).await;
        let ended = ["[DONE]", "message_stop", "response.completed"].iter().any(|end| answer.contains(end));
        assert_eq!((status, ended), (200, false), "{path}: {answer}");
    }
    for (tenant, path) in (10..).map(tenant).zip(STREAMING.into_iter().chain(["/v1/embeddings"])) {
        let (status, answer) = post(&rig, path, &tenant, &body(path, 10, false)).await;
        assert!(status == 200 && !answer.is_empty() && !answer.ends_with('}'), "{path}: {answer}");
    }
    rig.worker.set_faults([]);
    for (tenant, path) in (0..).map(tenant).zip(STREAMING) {
        let line = logged(&rig, &tenant).await;
        assert_eq!((number(&line, "output_tokens"), &line["complete"]), (5, &json!(false)), "{path}");
        assert_eq!(budgets.spent(&tenant).await, prompt_of(path, &line) + 5, "{path}: {line}");
    }
    for (tenant, path) in (10..).map(tenant).zip(STREAMING.into_iter().chain(["/v1/embeddings"])) {
        let line = logged(&rig, &tenant).await;
        let estimated = number(&line, "estimated_prompt_tokens") + number(&line, "estimated_output_tokens");
        assert_eq!((budgets.spent(&tenant).await, &line["complete"]), (estimated, &json!(false)), "{path}: {line}");
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_report_of_one_of_several_answers_is_not_taken_for_all() {
    let rig = Rig::start(setup(2)).await;
    let budgets = Budgets::of(&rig).await;
    let of_two = |path: &str| {
        let mut body = reporting(path, 10, true);
        body["n"] = json!(2);
        body
    };
    // Whoever reports before the end reports of one answer.
    rig.worker.set_faults([Fault::RepeatedUsage, Fault::Truncate]);
    let paths = [CHAT, "/v1/completions"];
    for (tenant, path) in (0..).map(tenant).zip(paths) {
        let (status, answer) = post(&rig, path, &tenant, &of_two(path)).await;
        assert!(
            status == 200 && answer.contains("completion_tokens") && !answer.contains("[DONE]"),
            "{path}: {answer}"
        );
    }
    rig.worker.set_faults([Fault::RepeatedUsage]);
    for (tenant, path) in (10..).map(tenant).zip(paths) {
        assert_eq!(post(&rig, path, &tenant, &of_two(path)).await.0, 200);
    }
    rig.worker.set_faults([]);
    for (tenant, path) in (0..).map(tenant).zip(paths) {
        let (spent, line) = (budgets.spent(&tenant).await, logged(&rig, &tenant).await);
        assert_eq!((number(&line, "output_tokens"), &line["prompt_tokens"]), (10, &Value::Null), "{path}: {line}");
        assert_eq!(spent, number(&line, "estimated_prompt_tokens") + 10, "half of both, by their deltas: {path}");
    }
    for (tenant, path) in (10..).map(tenant).zip(paths) {
        assert_eq!(budgets.spent(&tenant).await, PROMPT + 20, "{path}: what is reported at the end is of all");
    }
}

#[tokio::test]
async fn callers_that_leave_pay_for_what_has_come_or_as_estimated() {
    let rig = Rig::start(setup(2).patient()).await;
    let budgets = Budgets::of(&rig).await;
    let sent = |tenant: &str, path: &str, body: &Value| {
        request_bytes(path, &[("x-tenant-id", tenant.as_bytes())], body.to_string().as_bytes(), true)
    };
    for (tenant, path) in (0..).map(tenant).zip(STREAMING) {
        let request = sent(&tenant, path, &reporting(path, 400_000, true));
        let mut caller = RawCaller::send(rig.address, &request).await;
        caller.read_until(" finds").await;
        drop(caller);
        let line = logged(&rig, &tenant).await;
        let seen = number(&line, "output_tokens");
        assert!(seen >= 4 && line["complete"] == false, "{path}: {line}");
        assert_eq!(budgets.spent(&tenant).await, prompt_of(path, &line) + seen, "{path}: {line}");
    }
    rig.worker.set_faults([Fault::Hang]);
    let unanswered: Vec<_> = (10..).map(tenant).zip(STREAMING.into_iter().chain(["/v1/embeddings"])).collect();
    for (tenant, path) in &unanswered {
        let before = rig.worker.stats().requests;
        let caller = RawCaller::send(rig.address, &sent(tenant, path, &body(path, 10, false))).await;
        eventually("the worker has it", async || {
            let requests = rig.worker.stats().requests;
            (requests > before).then_some(()).ok_or(format!("{requests}, {before} before"))
        })
        .await;
        drop(caller);
    }
    rig.nothing_is_held().await;
    rig.worker.set_faults([]);
    for (tenant, path) in &unanswered {
        let line = logged(&rig, tenant).await;
        let estimated = number(&line, "estimated_prompt_tokens") + number(&line, "estimated_output_tokens");
        assert_eq!(budgets.spent(tenant).await, estimated, "{path}: {line}");
    }
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn errors_cost_nothing() {
    let rig = Rig::start(setup(2)).await;
    let budgets = Budgets::of(&rig).await;
    rig.worker.set_faults([Fault::Refuse503]);
    for (tenant, path) in (0..).map(tenant).zip(STREAMING) {
        assert_eq!(post(&rig, path, &tenant, &body(path, 10, true)).await.0, 503, "{path}");
    }
    rig.worker.set_faults([Fault::ErrorInStream]);
    for (tenant, path) in (6..).map(tenant).zip(STREAMING) {
        let (status, answer) = post(&rig, path, &tenant, &body(path, 10, true)).await;
        assert!(status == 200 && answer.contains("overloaded"), "{path}: {status} {answer}");
    }
    rig.worker.set_faults([]);
    let mut wrong = body(MESSAGES, 10, true);
    wrong["max_tokens"] = json!(0);
    assert_eq!(post(&rig, MESSAGES, "tenant-4", &wrong).await.0, 400);
    let reset = post(&rig, "/resetting/v1/chat/completions", "tenant-5", &body(CHAT, 10, true)).await;
    assert_eq!(reset.0, 503);
    for tenant in (0..10).map(tenant) {
        assert_eq!(budgets.spent(&tenant).await, 0, "{tenant}");
    }
    rig.nothing_trapped().await;
}

/// The worker judges what it cannot read; what it does not serve costs nothing.
#[tokio::test]
async fn what_is_no_json_is_charged_by_its_size() {
    let bodies = ["hello", "--form\r\n\r\n--form--\r\n", r#"{"model": "sim", "messages": ["#];
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let rig = Rig::start(Setup { wait, ..setup(2) }).await;
        let budgets = Budgets::of(&rig).await;
        for (tenant, body) in (0..).map(tenant).zip(bodies) {
            let (status, answer) = post_text(&rig, &tenant, body).await;
            // Only here is the pool known without the body.
            if wait != Wait::Unread && !body.contains("model") {
                let told = answer.contains("a JSON object was expected at byte 0, so its `model` cannot be read");
                assert!(status == (400, "malformed".to_owned()) && told, "{wait:?} {body}: {answer}");
                continue;
            }
            assert_eq!(status, (400, String::new()), "{wait:?} {body}: {answer}");
            assert_eq!(rig.worker.stats().last_body, body);
            rig.worker.set_faults([Fault::Hang]);
            for sized in [true, false] {
                let request = request_bytes(CHAT, &[("x-tenant-id", tenant.as_bytes())], body.as_bytes(), sized);
                let caller = RawCaller::send(rig.address, &request).await;
                let expected = (body.len() as u64).div_ceil(4) + EXPECTED;
                eventually("it holds what its size comes to", async || {
                    let held = rig.state().await["tenants"][&tenant]["tokens"].clone();
                    (held == expected).then_some(()).ok_or(format!("{held} instead of {expected}"))
                })
                .await;
                eventually("the worker has it", async || {
                    let inside = rig.worker.stats().in_server;
                    (inside == 1).then_some(()).ok_or(inside.to_string())
                })
                .await;
                drop(caller);
                rig.nothing_is_held().await;
            }
            rig.worker.set_faults([]);
        }
        let malformed = if wait == Wait::Unread { 0 } else { 2 };
        rig.counts("sluice_requests_total", &[("outcome", "malformed")], malformed).await;
        let unserved = post_text(&rig, "tenant-9", r#"{"model": "sim", "a": }"#).await;
        assert_eq!((unserved.0.0, budgets.spent("tenant-9").await), (400, 0), "{unserved:?}");
        rig.nothing_trapped().await;
    }
}

async fn post_text(rig: &Rig, tenant: &str, body: &str) -> ((u16, String), String) {
    let answer = rig.post_to(CHAT, tenant, &[], body.to_owned()).await;
    let told = (answer.status().as_u16(), reason_of(&answer));
    (told, answer.text().await.unwrap())
}

#[tokio::test]
async fn callers_are_told_what_is_left_once_their_body_has_been_read() {
    let rig = Rig::start(setup(2)).await;
    let told = async |tenant: &str, body: Value| {
        let answer = rig.post_to("/v1/completions", tenant, &[], body.to_string()).await;
        assert_eq!(answer.status().as_u16(), 200);
        let state = text_of(&answer, "ratelimit");
        let remaining = text_of(&answer, "x-ratelimit-remaining-tokens").parse::<u64>().unwrap();
        assert!(state.starts_with(&format!("\"tokens\";r={remaining};")), "{state}");
        answer.bytes().await.unwrap();
        LIMIT - remaining
    };
    let long = "x".repeat(4_000);
    let less = json!({"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4, "user": long});
    assert_eq!(told("tenant-0", less).await, 3 + 4, "its size says a thousand");
    let more = json!({"model": MODEL, "prompt": vec![1; 3_000], "max_tokens": 4});
    assert_eq!(told("tenant-1", more).await, 3_000 + 4, "its size says half of that");
}

#[tokio::test]
async fn cached_prompt_tokens_cost_what_the_tenant_pays_for_them() {
    let mut setup = setup(1).with("/tiers/exact/cached_token_cost", json!(0.2));
    setup.worker.cached_share = 0.5;
    let rig = Rig::start(setup).await;
    let budgets = Budgets::of(&rig).await;
    for (tenant, path) in [("tenant-0", CHAT), ("tenant-1", MESSAGES), ("tenant-2", "/v1/responses")] {
        assert_eq!(post(&rig, path, tenant, &reporting(path, 3, true)).await.0, 200);
        assert_eq!(budgets.spent(tenant).await, 5 + 1 + 3, "{path}: a fifth of the five that were cached");
    }
}

#[tokio::test]
async fn a_lease_grows_with_an_answer_that_proves_longer() {
    let rig = Rig::start(setup(2).patient()).await;
    eventually(
        "the gauge shows that nothing is held, whatever those who had this proxy before have left",
        async || {
            let gauge = rig.count("sluice_in_flight_tokens", &[("pool", "main")]).await;
            (gauge == 0).then_some(()).ok_or(gauge.to_string())
        },
    )
    .await;
    let request =
        request_bytes(CHAT, &[("x-tenant-id", b"tenant-0")], body(CHAT, 400_000, true).to_string().as_bytes(), true);
    let caller = RawCaller::send(rig.address, &request).await;
    eventually("it holds more than was expected", async || {
        let state = rig.state().await;
        let (of_pool, of_tenant) = (&state["pools"]["main"]["held"], &state["tenants"]["tenant-0"]);
        let (tokens, blocks) = (of_pool["tokens"].as_u64().unwrap_or(0), of_pool["blocks"].as_u64().unwrap_or(0));
        let gauge = rig.count("sluice_in_flight_tokens", &[("pool", "main")]).await;
        let grown = rig.count("sluice_overdraft_tokens_total", &[("pool", "main"), ("lane", "standard")]).await;
        let beyond = EXPECTED + 2 * PROMPT + 64;
        let shown = tokens > beyond && gauge > beyond && grown > 64 && tokens.div_ceil(16) == blocks;
        let is_same = ["requests", "tokens", "blocks"].iter().all(|amount| of_pool[amount] == of_tenant[amount]);
        (shown && is_same).then_some(()).ok_or(format!("{state}, {gauge}, {grown}"))
    })
    .await;
    drop(caller);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_budget_is_exact_over_a_thousand_streams() {
    let rig = Rig::start(setup(2)).await;
    let budgets = Budgets::of(&rig).await;
    let mut rng = fastrand::Rng::with_seed(7);
    let outputs: Vec<u64> = (0..1_000).map(|_| rng.u64(1..60)).collect();
    let expected: u64 = outputs.iter().map(|output| PROMPT + output).sum();
    let reported: u64 = stream::iter(outputs)
        .map(|output| {
            let rig = &rig;
            async move {
                let (status, answer) = post(rig, CHAT, "tenant-0", &reporting(CHAT, output, true)).await;
                assert_eq!(status, 200, "{answer}");
                let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
                let events = events.filter_map(|data| serde_json::from_str::<Value>(data).ok());
                events.filter_map(|event| event["usage"]["total_tokens"].as_u64()).sum::<u64>()
            }
        })
        .buffer_unordered(16)
        .fold(0, async |sum, tokens| sum + tokens)
        .await;
    assert_eq!((reported, budgets.spent("tenant-0").await), (expected, expected));
    rig.nothing_trapped().await;
}
