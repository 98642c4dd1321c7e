//! An attacker that wants more than its share of the starts.

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::line::{order, queues, send, send_more, waiting};
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait, eventually, reason_of};
use wasm_tests::sidecar;

/// Requests of each tenant that wait for one place.
const EACH: usize = 40;

/// An attacker claims a body of 64 KiB, is charged for it in fair order, and sends three bytes that are no request: what comes back to it
/// then is no turn that it has missed. When it asks in earnest, later, it shares the starts with the others.
#[tokio::test]
async fn claims_that_nothing_follows_are_worth_no_turn() {
    let queue = json!({"max_requests": 4 * EACH, "max_wait": "60s"});
    let setup = queues(2, Wait::Unread).with("/lanes", json!([{"name": "standard", "queue": queue}]));
    let rig = Rig::start(setup).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: sluice\r\nx-tenant-id: evil\r\ncontent-length: 65536\r\n\r\n");
    for _ in 0..EACH {
        let mut claim = RawCaller::send(rig.address, head.as_bytes()).await;
        rig.in_hand(1).await;
        assert!(claim.send_more(b"{}x").await);
        assert_eq!(claim.status().await, Some(400));
        rig.in_hand(0).await;
    }
    for number in 0..EACH {
        assert_eq!(send(&rig, "acme", "standard", number).await.status().await, Some(200));
    }
    let running = rig.endless("first", &[]).await;
    let of_evil = contest(&rig, running).await;
    assert!((EACH * 2 / 5..=EACH * 3 / 5).contains(&of_evil), "{of_evil} of the first {EACH}");
    rig.nothing_is_held().await;
}

/// An attacker makes up a key for each of its requests, where keys part the requests of a tenant.
#[tokio::test]
async fn keys_that_are_made_up_are_worth_no_turn() {
    let queue = json!({"max_requests": 4 * EACH, "max_wait": "60s"});
    let setup = queues(2, Wait::Unread).with("/lanes", json!([{"name": "standard", "queue": queue}]));
    let rig = Rig::start(setup.with("/fairness_header", json!("x-user"))).await;
    let running = rig.endless("first", &[]).await;
    let of_evil = contest(&rig, running).await;
    assert!((EACH * 2 / 5..=EACH * 3 / 5).contains(&of_evil), "{of_evil} of the first {EACH}");
    rig.nothing_is_held().await;
}

/// Both tenants wait with as many requests for the place that a caller leaves; how many of the first ones to start are the attacker's.
async fn contest(rig: &Rig, running: RawCaller) -> usize {
    let mut callers = Vec::new();
    for number in 0..EACH {
        let key = number.to_string();
        let keyed = [("x-user", key.as_str())];
        callers.push(send_more(rig, "evil", "standard", 1_000 + number, &keyed, "Say something, please.").await);
        callers.push(send(rig, "acme", "standard", 2_000 + number).await);
    }
    waiting(rig, 2 * EACH as u64).await;
    drop(running);
    for caller in &mut callers {
        assert_eq!(caller.status().await, Some(200));
    }
    let all = order(rig);
    let starts = all.iter().filter_map(|number| number.parse::<usize>().ok()).filter(|number| *number >= 1_000);
    starts.take(EACH).filter(|number| *number < 2_000).count()
}

/// An attacker asks for more KV blocks than will be free while it waits. For a while nothing starts behind it, so that blocks come free for it; what
/// stays idle then is charged to it in fair order as if it had been served, and the others have that before it is served again.
#[tokio::test]
async fn a_line_kept_for_a_request_that_never_fits_is_charged_to_it() {
    let queue = json!({"max_requests": 4 * EACH, "max_wait": "60s"});
    let mut setup = Setup::new(2, Wait::Unread).with("/lanes", json!([{"name": "standard", "queue": queue}]));
    setup = setup.with("/pools/0/kv", json!({"headroom": 0.0})).with("/pools/0/max_in_flight", json!(2));
    // One block is vLLM's null block; 25 tokens a second.
    (setup.worker.num_gpu_blocks, setup.worker.base_ms, setup.worker.per_kv_block_us) = (101, 40.0, 0.0);
    let rig = Rig::start(setup).await;
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    let pools = json!([{"name": "main", "workers": [rig.worker.address().to_string()]}]);
    let proxies = json!([{"url": format!("http://{}", rig.control_address()), "token": TOKEN}]);
    let _sidecar = sidecar::start(rig.worker.address(), &json!({"proxies": proxies, "pools": pools})).await;
    let _half = long(&rig, 700).await;
    eventually("half of the blocks are in use", async || {
        let view = rig.state().await["pools"]["main"]["view"].clone();
        let free = view["kv_free_blocks"].as_u64().unwrap_or(100);
        (free < 60).then_some(()).ok_or_else(|| view.to_string())
    })
    .await;
    let wait: (&str, &[u8]) = ("x-slo-ttft-ms", b"3000");
    let mut greedy = RawCaller::send(rig.address, &request(&[("x-tenant-id", b"evil"), wait], 1_400, 4)).await;
    let (head, _) = greedy.last_answer().await;
    assert!(head.contains("x-sluice-reason: queue_timeout"), "{head}");
    let running = long(&rig, 1).await;
    let of_evil = contest(&rig, running).await;
    assert!(of_evil <= EACH / 5, "{of_evil} of the first {EACH}");
}

/// One request of a tenant that is capped at few: it asks for as many answers as fill a worker. Embeddings are no answers.
#[tokio::test]
async fn one_request_is_not_a_thousand() {
    let rig = Rig::start(Setup::new(2, Wait::BodyHeld)).await;
    let prompts = |count: usize| vec!["word"; count];
    for (path, body, status) in [
        (CHAT, json!({"messages": [{"role": "user", "content": "hi"}], "n": 257}), 413),
        (CHAT, json!({"messages": [{"role": "user", "content": "hi"}], "n": 128, "max_tokens": 1}), 200),
        ("/v1/completions", json!({"prompt": prompts(129), "n": 2, "max_tokens": 1}), 413),
        ("/v1/completions", json!({"prompt": prompts(2), "best_of": 2, "max_tokens": 1}), 200),
        ("/v1/embeddings", json!({"input": prompts(1_000)}), 200),
    ] {
        let mut body = body;
        body["model"] = json!(MODEL);
        let answer = rig.post_to(path, "acme", &[], body.to_string()).await;
        let (answered, reason) = (answer.status().as_u16(), reason_of(&answer));
        let text = answer.text().await.unwrap();
        assert_eq!((answered, reason.as_str()), (status, if status == 413 { "oversize" } else { "" }), "{path} {text}");
        assert!(status == 200 || text.contains("pools[main].max_sequences allows 256"), "{text}");
    }
    rig.nothing_is_held().await;
}

/// A chat request of a prompt of so many tokens, as the worker counts them.
fn request(headers: &[(&str, &[u8])], prompt: usize, output: u32) -> Vec<u8> {
    let message = json!({"role": "user", "content": "word".repeat(prompt)});
    let body: Value = json!({"messages": [message], "max_tokens": output, "stream": true, "model": MODEL});
    request_bytes(CHAT, headers, body.to_string().as_bytes(), true)
}

/// One whose answer lasts beyond the test; it has begun when this returns.
async fn long(rig: &Rig, prompt: usize) -> RawCaller {
    let mut caller = RawCaller::send(rig.address, &request(&[("x-tenant-id", b"first")], prompt, 300)).await;
    assert!(caller.read_until("data: ").await.starts_with("HTTP/1.1 200"));
    caller
}
