//! Histograms of answers: their times, their tokens, and how far estimates were from reports.

use std::time::Instant;

use wasm_tests::caller::CHAT;
use wasm_tests::rig::{Rig, Setup, Wait, eventually, text_of};
use worker_sim::Fault;

use super::{MESSAGES, PROMPT, body, logged, number, post, reporting, setup};

#[tokio::test]
async fn answers_are_measured() {
    let rig = Rig::start(setup(1)).await;
    for (path, stream) in [(CHAT, true), (CHAT, false), (MESSAGES, true), ("/v1/embeddings", false)] {
        assert_eq!(post(&rig, path, "tenant-0", &reporting(path, 20, stream)).await.0, 200);
    }
    rig.worker.set_faults([Fault::Refuse503]);
    assert_eq!(post(&rig, CHAT, "tenant-1", &body(CHAT, 10, true)).await.0, 503);
    let of_answers = [("pool", "main"), ("lane", "standard")];
    for (metric, count) in [
        ("sluice_ttft_ms_count", 2),
        ("sluice_decode_ms_count", 2),
        ("sluice_tokens_per_second_count", 2),
        ("sluice_output_tokens_count", 4),
        ("sluice_prompt_tokens_count", 4),
    ] {
        recorded(&rig, metric, &of_answers, count).await;
    }
    let sums = async |metric| rig.count(metric, &of_answers).await;
    // Envoy keeps histograms in buckets, so their sums are near.
    let (prompts, outputs) = (sums("sluice_prompt_tokens_sum").await, sums("sluice_output_tokens_sum").await);
    assert!((38..=44).contains(&prompts) && (57..=63).contains(&outputs), "{prompts} {outputs}");
    let by_model = [("pool", "main"), ("model", "sim*")];
    recorded(&rig, "sluice_estimate_error_permille_count", &by_model, 4).await;
    let over = [("pool", "main"), ("sign", "over")];
    assert!(rig.count("sluice_estimate_error_permille_count", &over).await > 0, "by size, JSON counts too");
    let answer = rig.post("tenant-2", &[], &body(CHAT, 1, false)).await;
    assert!(text_of(&answer, "server-timing").starts_with("worker;dur="), "{answer:?}");
}

/// The worker never takes less than its configuration says. How much longer it takes, and the proxy after it, only the caller knows.
#[tokio::test]
async fn what_is_measured_is_what_the_worker_took_and_said() {
    const OUTPUT: u64 = 21;
    let (first_ms, token_ms) = (200, 100);
    let mut setup = Setup { wait: Wait::AtHeaders, ..setup(1) };
    (setup.worker.base_ms, setup.worker.per_sequence_us, setup.worker.per_kv_block_us) = (token_ms as f64, 0.0, 0.0);
    setup.worker.per_prefill_token_us = (first_ms - token_ms) as f64 * 1_000.0 / PROMPT as f64;
    let rig = Rig::start(setup).await;
    let begun = Instant::now();
    let elapsed = || begun.elapsed().as_millis() as u64 + 1;
    let body = reporting(CHAT, OUTPUT, true).to_string();
    let mut answer = rig.post_to(CHAT, "tenant-0", &[], body).await;
    let (mut read, mut first) = (String::new(), None);
    while let Some(bytes) = answer.chunk().await.unwrap() {
        read.push_str(std::str::from_utf8(&bytes).unwrap());
        first = first.or_else(|| read.contains(" the").then(elapsed));
    }
    let (first, all) = (first.unwrap(), elapsed());
    assert_eq!(rig.seen("x-sluice-output-tokens"), Some(OUTPUT.to_string()), "its own limit, below what is expected");

    let line = logged(&rig, "tenant-0").await;
    assert!(read.contains(&format!(r#""completion_tokens":{OUTPUT}"#)), "{read}");
    assert_eq!((number(&line, "output_tokens"), number(&line, "prompt_tokens")), (OUTPUT, PROMPT), "{line}");
    let ttft = number(&line, "ttft_ms");
    // Clocks of whole milliseconds.
    assert!((first_ms - 1..=first).contains(&ttft), "{ttft} ms to the first output, {first} as seen by the caller");

    let of_answers = [("pool", "main"), ("lane", "standard")];
    recorded(&rig, "sluice_decode_ms_count", &of_answers, 1).await;
    let sum = async |metric| rig.count(metric, &of_answers).await;
    let (recorded_ttft, decode) = (sum("sluice_ttft_ms_sum").await, sum("sluice_decode_ms_sum").await);
    let (speed, outputs) = (sum("sluice_tokens_per_second_sum").await, sum("sluice_output_tokens_sum").await);
    let found = format!("{recorded_ttft} and {decode} ms of {all}, {speed}/s, {outputs} tokens, {line}");
    // Buckets are a tenth as wide as their values at most.
    let near = |exact: u64| exact * 9 / 10..=exact * 11 / 10 + 1;
    assert!(near(ttft).contains(&recorded_ttft) && near(OUTPUT).contains(&outputs), "{found}");
    // The first output may come late, the last one never early.
    let least = (first_ms + (OUTPUT - 1) * token_ms).saturating_sub(ttft + 2);
    assert!((least * 9 / 10..=(all - ttft) * 11 / 10 + 1).contains(&decode), "{least} at least: {found}");
    // Both figures are those of buckets, so their errors add up.
    let speeds = (OUTPUT - 1) * 800 / decode..=(OUTPUT - 1) * 1_200 / decode + 1;
    assert!(least < token_ms || speeds.contains(&speed), "{found}");
    rig.nothing_trapped().await;
}

/// Waits until the proxy has merged its histograms.
async fn recorded(rig: &Rig, metric: &str, labels: &[(&str, &str)], count: u64) {
    eventually("the proxy has merged its histograms", async || {
        let found = rig.count(metric, labels).await;
        (found == count).then_some(()).ok_or(format!("{found} of {count} {metric}"))
    })
    .await;
}
