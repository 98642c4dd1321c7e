//! KV blocks of real workers: who starts while blocks are short.

use host_sidecar::Sidecar;
use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use wasm_tests::sidecar;

/// Workers of 100 usable blocks of 16 tokens, ten tokens a second, and a queue of a few seconds.
fn setup() -> Setup {
    let lanes = json!([{"name": "only", "queue": {"max_wait": "6s"}}]);
    let mut setup = Setup::new(2, Wait::Unread).with("/lanes", lanes);
    setup = setup.with("/pools/0/kv", json!({"block_size": 16, "headroom": 0.0}));
    // One block is vLLM's null block.
    setup.worker.num_gpu_blocks = 101;
    setup.worker.base_ms = 100.0;
    setup.worker.per_kv_block_us = 0.0;
    setup
}

/// A chat request of a prompt of so many tokens, as the worker counts them.
pub fn of_tokens(prompt: usize, output: u32) -> Value {
    let content = "word".repeat(prompt);
    json!({"messages": [{"role": "user", "content": content}], "max_tokens": output, "stream": true, "model": MODEL})
}

/// A sidecar that reads the rig's workers; the proxy has its view when this returns.
async fn watched(rig: &Rig) -> Sidecar {
    watched_with(rig, json!({})).await
}

/// The same with more fields of its configuration; `busy` is the pool's.
pub async fn watched_with(rig: &Rig, mut more: Value) -> Sidecar {
    assert_eq!(rig.ask("acme", &[]).await.0, 200, "the state page knows a pool by its first request");
    let workers: Vec<String> =
        [&rig.worker].into_iter().chain(&rig.others).map(|one| one.address().to_string()).collect();
    let url = format!("http://{}", rig.control_address());
    let busy = more.as_object_mut().and_then(|more| more.remove("busy")).unwrap_or_else(|| json!({}));
    more["proxies"] = json!([{"url": url, "token": wasm_tests::rig::TOKEN}]);
    more["pools"] = json!([{"name": "main", "workers": workers, "busy": busy}]);
    let sidecar = sidecar::start(rig.worker.address(), &more).await;
    free_blocks(rig, |free| free >= 100 * workers.len() as u64).await;
    sidecar
}

/// Waits until the proxy knows of enough free blocks.
pub async fn free_blocks(rig: &Rig, is_it: impl Fn(u64) -> bool) {
    eventually("the proxy knows how many blocks are free", async || {
        let view = rig.state().await["pools"]["main"]["view"].clone();
        view["kv_free_blocks"].as_u64().filter(|free| is_it(*free)).map(drop).ok_or_else(|| view.to_string())
    })
    .await;
}

async fn waiting(rig: &Rig) -> u64 {
    rig.state().await["pools"]["main"]["waiting"]["only"]["requests"].as_u64().unwrap_or(0)
}

async fn send(rig: &Rig, tenant: &str, body: &Value) -> RawCaller {
    let body = body.to_string();
    let headers: [(&str, &[u8]); 1] = [("x-tenant-id", tenant.as_bytes())];
    RawCaller::send(rig.address, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await
}

/// A prompt that needs 76 blocks comes while another request has half of the blocks. Small ones pass it, then they wait so that
/// what comes free is left for it, and it starts before them.
#[tokio::test]
async fn a_request_that_does_not_fit_is_passed_and_then_waited_for() {
    let rig = Rig::start(setup()).await;
    let _sidecar = watched(&rig).await;
    let mut half = send(&rig, "acme", &of_tokens(700, 400)).await;
    assert!(half.read_until("data: ").await.starts_with("HTTP/1.1 200"));
    free_blocks(&rig, |free| (20..60).contains(&free)).await;

    let large = of_tokens(1_200, 4);
    let mut large = send(&rig, "large", &large).await;
    eventually("the large one waits", async || match waiting(&rig).await {
        1 => Ok(()),
        count => Err(count.to_string()),
    })
    .await;

    let mut passed = 0;
    let mut small = loop {
        let mut small = send(&rig, "small", &of_tokens(8, 2)).await;
        tokio::select! {
            answer = small.read_until("[DONE]") => {
                assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                passed += 1;
            }
            () = both_wait(&rig) => break small,
        }
        assert!(waiting(&rig).await >= 1, "the large one has left");
    };
    assert!(passed > 3, "only {passed} have passed it");
    drop(half);
    let began = large.read_until("data: ").await;
    assert!(began.starts_with("HTTP/1.1 200"), "{began}");
    let answer = small.read_until("[DONE]").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(rig.worker.stats().preemptions, 0);
    drop(large);
    rig.nothing_is_held().await;
}

/// Two requests wait, in two looks one after the other: one that has just come may show before it starts.
async fn both_wait(rig: &Rig) {
    let mut looks = 0;
    while looks < 3 {
        looks = if waiting(rig).await == 2 { looks + 1 } else { 0 };
        tokio::task::yield_now().await;
    }
}

/// Two workers with about half of their blocks free: a prompt that only both together have room for does not start, and two that
/// each has room for do.
#[tokio::test]
async fn the_freest_worker_bounds_one_request() {
    let mut setup = setup();
    // One thread, so that its round robin gives each worker one of two.
    (setup.threads, setup.more_workers) = (1, 1);
    let rig = Rig::start(setup).await;
    let _sidecar = watched(&rig).await;
    let mut halves = Vec::new();
    for _ in 0..2 {
        let mut half = send(&rig, "acme", &of_tokens(700, 400)).await;
        assert!(half.read_until("data: ").await.starts_with("HTTP/1.1 200"));
        halves.push(half);
    }
    let running = [&rig.worker, &rig.others[0]].map(|worker| worker.stats().running);
    assert_eq!(running, [1, 1], "the proxy has given each one");
    free_blocks(&rig, |free| free < 120).await;

    // Unread, a prompt is taken for more than twice of what it is.
    let no_queue = ("x-sluice-no-queue", "true");
    let answer = rig.post("acme", &[no_queue], &of_tokens(550, 4)).await;
    assert_eq!((answer.status().as_u16(), wasm_tests::rig::reason_of(&answer)), (429, "kv_blocks".to_owned()));
    for _ in 0..2 {
        let answer = rig.post("acme", &[no_queue], &of_tokens(150, 2)).await;
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        assert_eq!(status, 200, "{text}; {}", rig.state().await["pools"]["main"]);
    }
    drop(halves);
    rig.nothing_is_held().await;
}

/// Half of the worker's blocks are kept free for one lane: however many streams of the other lane come, they leave that half, and a
/// prompt that takes most of it begins without a wait, with nothing preempted.
/// A cache of 100 blocks of which a request may have half.
#[tokio::test]
async fn a_request_that_needs_more_than_its_share_of_the_largest_cache_is_refused_for_good() {
    let setup = setup().with("/pools/0/kv", json!({"block_size": 16, "headroom": 0.1, "max_share": 0.5}));
    let rig = Rig::start(Setup { wait: Wait::AtHeaders, ..setup }).await;
    let _sidecar = watched(&rig).await;
    assert_eq!(rig.post("acme", &[], &of_tokens(200, 1)).await.status(), 200);
    let answer = rig.post("acme", &[], &of_tokens(1_200, 1)).await;
    assert_eq!((answer.status().as_u16(), wasm_tests::rig::reason_of(&answer).as_str()), (413, "oversize"));
    let refusal = answer.text().await.unwrap();
    assert!(refusal.contains("pools[main].kv.max_share"), "{refusal}");
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn blocks_are_kept_free_for_a_lane_with_a_reserve() {
    let lanes = json!([
        {"name": "oncall", "priority": 1, "reserve": {"share": 0.5, "lend": false}},
        {"name": "chat"},
    ]);
    let mut setup = setup().with("/lanes", lanes).with("/default_lane", json!("chat"));
    setup.wait = Wait::BodyHeld;
    let rig = Rig::start(setup).await;
    let _sidecar = watched(&rig).await;
    let mut streams = Vec::new();
    let body = of_tokens(100, 60);
    loop {
        assert!(streams.len() < 20, "chat is never refused");
        let mut stream = send(&rig, "acme", &body).await;
        if !stream.read_until("\r\n\r\n").await.starts_with("HTTP/1.1 200") {
            break;
        }
        streams.push(stream);
    }
    let refusal = rig.post("acme", &[], &body).await;
    assert_eq!(wasm_tests::rig::reason_of(&refusal), "kv_blocks");
    let refusal = refusal.text().await.unwrap();
    assert!(refusal.contains("lanes[oncall].reserve"), "{refusal}");
    assert!(streams.len() >= 3, "{} streams of ten blocks have half of a hundred", streams.len());

    let body = of_tokens(600, 16).to_string();
    let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-lane", b"oncall")];
    let mut oncall = RawCaller::send(rig.address, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await;
    let began = oncall.read_until("data: ").await;
    assert!(began.starts_with("HTTP/1.1 200"), "{began}");
    let stats = rig.worker.stats();
    assert_eq!((stats.running, stats.preemptions), (streams.len() as u64 + 1, 0), "all have their blocks");
    drop((streams, oncall));
    rig.nothing_is_held().await;
}

/// Two workers that requests are steered to, and a sidecar that believes their last numbers for long.
fn steered(setup: Setup) -> (Setup, Value) {
    let mut setup = setup.with("/pools/0/pick_endpoint", json!(true)).with("/pools/0/stale", json!({"hold": "10m"}));
    (setup.wait, setup.more_workers, setup.steered) = (Wait::AtHeaders, 1, true);
    let scrape = json!({"interval": "20ms", "timeout": "5s", "stale_after": "20m", "down_after": "20m"});
    (setup, json!({"scrape": scrape}))
}

/// Starts streams that may need 38 blocks, until one is refused, in front of workers that have just been read for the last time;
/// how many run on each worker then, and the status and the reason.
async fn start_until_refused(rig: &Rig) -> ([u64; 2], u16, String) {
    [&rig.worker, &rig.others[0]].into_iter().for_each(|worker| worker.set_faults([worker_sim::Fault::HangMetrics]));
    let mut streams = Vec::new();
    for _ in 0..20 {
        let body = of_tokens(80, 590).to_string();
        let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-no-queue", b"true")];
        let mut stream = RawCaller::send(rig.address, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await;
        let answer = stream.read_until("\r\n\r\n").await;
        if !answer.starts_with("HTTP/1.1 200") {
            let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
            let reason = answer.lines().find_map(|line| line.strip_prefix("x-sluice-reason: "));
            let workers = [&rig.worker, &rig.others[0]];
            let running = || workers.map(|worker| worker.stats().running);
            eventually("all that were let in run", async || match running().iter().sum::<u64>() {
                all if all == streams.len() as u64 => Ok(()),
                all => Err(all.to_string()),
            })
            .await;
            let running = running();
            drop(streams);
            rig.nothing_is_held().await;
            return (running, status, reason.unwrap_or_default().to_owned());
        }
        streams.push(stream);
    }
    panic!("none of 20 was refused")
}

/// Between two scrapes a worker is given no more than its free blocks, though the other has room for a part of the next.
#[tokio::test]
async fn a_steered_request_fits_the_worker_that_it_goes_to() {
    let (setup, more) = steered(setup());
    let rig = Rig::start(setup).await;
    let _sidecar = watched_with(&rig, more).await;
    assert_eq!(start_until_refused(&rig).await, ([2, 2], 429, "kv_blocks".to_owned()));
}

/// Between two scrapes a worker is given no request once what it was given makes it busy.
#[tokio::test]
async fn a_worker_is_busy_by_what_it_was_given_since_its_numbers_were_read() {
    let (mut setup, mut more) = steered(setup());
    setup = setup.with("/pools/0/kv", Value::Null);
    more["busy"] = json!({"active_decode_blocks_threshold": 0.85});
    let rig = Rig::start(setup).await;
    let _sidecar = watched_with(&rig, more).await;
    assert_eq!(start_until_refused(&rig).await, ([3, 3], 503, "all_busy".to_owned()));
}

/// While the metrics page of one worker hangs, the other is given what its own numbers show to be free.
#[tokio::test]
async fn a_page_that_hangs_holds_back_nothing_at_another_worker() {
    let (setup, more) = steered(setup());
    let rig = Rig::start(setup).await;
    let _sidecar = watched_with(&rig, more).await;
    rig.worker.set_faults([worker_sim::Fault::HangMetrics]);
    let start = async |prompt, output| {
        let body = of_tokens(prompt, output).to_string();
        let headers: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-sluice-no-queue", b"true")];
        let mut stream = RawCaller::send(rig.address, &request_bytes(CHAT, &headers, body.as_bytes(), true)).await;
        let answer = stream.read_until("\r\n\r\n").await;
        (stream, answer)
    };
    // 80 blocks, of which 55 are the prompt's.
    let large = [start(880, 400).await, start(880, 400).await];
    assert!(large.iter().all(|(_, answer)| answer.starts_with("HTTP/1.1 200")));
    let running = || [&rig.worker, &rig.others[0]].map(|worker| worker.stats().running);
    eventually("each has one", async || if running() == [1, 1] { Ok(()) } else { Err(format!("{:?}", running())) })
        .await;
    free_blocks(&rig, |free| free < 150).await;
    // 30 blocks: 20 are left at the first, whose page says 100, and 40 at the second.
    let small = std::cell::RefCell::new(None);
    eventually("a small one starts once its page shows the large one", async || {
        let (stream, answer) = start(440, 32).await;
        let is_let_in = answer.starts_with("HTTP/1.1 200");
        small.replace(is_let_in.then_some(stream));
        is_let_in.then_some(()).ok_or(answer)
    })
    .await;
    eventually("it runs there", async || if running() == [1, 2] { Ok(()) } else { Err(format!("{:?}", running())) })
        .await;
    let (_, answer) = start(440, 32).await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("x-sluice-reason: kv_blocks"), "{answer}");
    drop((large, small));
    rig.nothing_is_held().await;
}

/// A worker whose engine stops saying how many blocks it has counts as having none free, and both state page and metric tell.
#[tokio::test]
async fn a_worker_that_hides_its_blocks_counts_as_full() {
    let mut setup = setup();
    setup.more_workers = 1;
    let rig = Rig::start(setup).await;
    let _sidecar = watched(&rig).await;
    rig.others[0].set_faults([worker_sim::Fault::NoCacheSize]);
    free_blocks(&rig, |free| free <= 101).await;
    assert_eq!(rig.state().await["pools"]["main"]["view"]["kv_unknown_workers"], 1);
    rig.counts("sluice_kv_unknown_workers", &[("pool", "main")], 1).await;
}

/// A policy that does not know the engine's block size refuses nothing that fits, and the log says which size counts; it also says
/// when no worker reports blocks any more.
#[tokio::test]
async fn the_block_size_is_the_engines_and_the_log_says_what_counts() {
    let mut setup = setup();
    setup.wait = Wait::AtHeaders;
    setup.worker.block_size = 32;
    let rig = Rig::start(setup).await;
    let _sidecar = watched(&rig).await;
    // 150 blocks of 16 tokens, 75 of 32.
    let answer = rig.post("acme", &[], &of_tokens(2_400, 2)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    let logs = async |sentence: &str| {
        eventually("the log says so", async || {
            let log = rig.envoy.log();
            log.contains(sentence).then_some(()).ok_or_else(|| sentence.to_owned())
        })
        .await;
    };
    logs("pool main: kv.block_size is 16, its workers report 32 tokens in a block, which counts").await;
    assert_eq!(rig.state().await["pools"]["main"]["view"]["kv_block_size"], 32);
    rig.worker.set_faults([worker_sim::Fault::NoCacheSize]);
    logs("no live worker of pool main reports its KV blocks, so nothing is measured against them").await;
    rig.nothing_is_held().await;
}
