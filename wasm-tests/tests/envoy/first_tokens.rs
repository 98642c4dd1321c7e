//! First tokens in time: a lane with a `ttft_goal` beside a backlog of long prompts.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait, eventually, reason_of};
use wasm_tests::sidecar;

/// Prompt tokens of a document, as the worker counts them.
const DOCUMENT: usize = 2_000;

/// Documents that come together.
const DOCUMENTS: usize = 40;

/// A worker that reads 40,000 tokens in a second, and has places enough for all.
fn setup(goal: Option<&str>) -> Setup {
    let queue = json!({"max_requests": 100, "max_wait": "60s"});
    let lanes = json!([
        {"name": "interactive", "priority": 100, "ttft_goal": goal, "queue": queue},
        {"name": "batch", "queue": queue},
    ]);
    let mut setup = Setup::new(2, Wait::Unread).with("/lanes", lanes);
    (setup.worker.base_ms, setup.worker.per_prefill_token_us) = (4.0, 25.0);
    setup
}

fn body(prompt_tokens: usize, streams: bool) -> Value {
    let text = "sea ".repeat(prompt_tokens);
    let messages = json!([{"role": "user", "content": text}]);
    json!({"model": MODEL, "max_tokens": 2, "stream": streams, "messages": messages})
}

/// Asks for an answer and reads it to its end; how long it took until its first byte, and until its last.
async fn ask(rig: &Rig, lane: &str, body: &Value) -> (Duration, Duration) {
    let begun = Instant::now();
    let mut answer = rig.post("acme", &[("x-sluice-lane", lane)], body).await;
    assert_eq!(answer.status(), 200);
    let mut first = None;
    while answer.chunk().await.expect("a whole answer").is_some() {
        first.get_or_insert_with(|| begun.elapsed());
    }
    (first.expect("an answer"), begun.elapsed())
}

/// Shows the filter how fast the worker reads.
async fn teach(rig: &Rig) {
    for prompt in [50, DOCUMENT, 50, 2 * DOCUMENT, DOCUMENT / 2] {
        ask(rig, "interactive", &body(prompt, true)).await;
    }
}

/// Time to the first token of a chat that comes when the worker has begun with the documents, and until all of these are answered.
async fn beside_documents(goal: Option<&str>, streams: bool) -> (Duration, Duration) {
    let rig = Rig::start(setup(goal)).await;
    teach(&rig).await;
    let document = body(DOCUMENT, streams);
    let documents = async {
        let begun = Instant::now();
        join_all((0..DOCUMENTS).map(|_| ask(&rig, "batch", &document))).await;
        begun.elapsed()
    };
    let chat = async {
        eventually("the worker reads documents, and has been sent what it may be", async || {
            let stats = rig.worker.stats();
            let sent = stats.running + stats.waiting;
            (sent >= if goal.is_some() { 3 } else { DOCUMENTS as u64 - 2 }).then_some(()).ok_or(sent.to_string())
        })
        .await;
        ask(&rig, "interactive", &body(50, true)).await.0
    };
    let (documents, chat) = tokio::join!(documents, chat);
    rig.nothing_is_held().await;
    if goal.is_some() {
        let waited = rig.count("sluice_waits_total", &[("outcome", "prefill_backlog")]).await;
        assert!(waited > DOCUMENTS as u64 / 2, "{waited} documents have waited");
        assert!(rig.count("sluice_prefill_tokens_per_second", &[]).await > 1_000);
        rig.counts("sluice_prefill_tokens", &[], 0).await;
    }
    (chat, documents)
}

/// Forty documents are two seconds of reading. With a goal of half a second a chat has a quarter of a second in front of it.
async fn a_chat_does_not_wait_for_documents(streams: bool) {
    let (chat_without, documents_without) = beside_documents(None, streams).await;
    let (chat, documents) = beside_documents(Some("500ms"), streams).await;
    assert!(chat * 2 < chat_without, "{chat:?} with the goal, {chat_without:?} without");
    // The worker always has prompts to read, so that no work is lost.
    assert!(documents < documents_without * 3 / 2, "{documents:?} with the goal, {documents_without:?} without");
}

#[tokio::test]
async fn a_chat_has_its_first_token_in_time_beside_forty_documents() {
    a_chat_does_not_wait_for_documents(true).await;
}

#[tokio::test]
async fn a_chat_has_its_first_token_in_time_beside_forty_documents_that_are_answered_whole() {
    a_chat_does_not_wait_for_documents(false).await;
}

/// Engines that nothing waits in tell no prompt tokens, however many they have to read: the filter counts what it has sent. Each of two workers takes one
/// prompt, and another while it has less than the threshold; where the proxy chooses the worker, both together take prompts until they have more than twice
/// that.
#[tokio::test]
async fn a_threshold_of_prompt_tokens_binds_though_no_engine_tells_any() {
    for (steered, started) in [(true, 4), (false, 3)] {
        // Read before they are decided: a length that is only claimed does not count.
        let mut setup = Setup::new(2, Wait::AtHeaders).with("/pools/0/pick_endpoint", json!(steered));
        (setup.more_workers, setup.steered) = (1, steered);
        // Two seconds for a document.
        setup.worker.per_prefill_token_us = 1_000.0;
        let rig = Rig::start(setup.alone()).await;
        let workers = [rig.worker.address(), rig.others[0].address()].map(|address| address.to_string());
        let sidecar = sidecar::start(
            rig.worker.address(),
            &json!({
                "proxies": [{"url": format!("http://{}", rig.control_address()), "token": TOKEN}],
                "pools": [{"name": "main", "workers": workers, "busy": {"active_prefill_tokens_threshold": 2_500}}],
            }),
        )
        .await;
        eventually("the view is there", async || {
            let state = rig.state().await;
            let live = state["pools"]["main"]["view"]["live_workers"].as_u64();
            // A pool is shown from its first request on.
            rig.ask("acme", &[]).await;
            (live == Some(2)).then_some(()).ok_or(state.to_string())
        })
        .await;
        rig.nothing_is_held().await;
        let document = body(DOCUMENT, true);
        let outcomes = join_all((0..8).map(async |_| {
            let answer = rig.post("acme", &[], &document).await;
            let outcome = (answer.status().as_u16(), reason_of(&answer));
            answer.bytes().await.expect("a whole answer");
            outcome
        }))
        .await;
        let count =
            |status, reason: &str| outcomes.iter().filter(|outcome| **outcome == (status, reason.to_owned())).count();
        assert_eq!(
            (count(200, ""), count(503, "all_busy")),
            (started, 8 - started),
            "steered: {steered}; {outcomes:?}"
        );
        rig.counts("sluice_prefill_tokens", &[], 0).await;
        sidecar.stop().await;
        rig.nothing_is_held().await;
    }
}
