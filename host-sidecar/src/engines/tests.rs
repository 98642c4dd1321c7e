//! Every adapter against every page, the expected numbers worked out by hand from what stands on it.

use admission_core::view::RankReport;

use super::*;
use crate::reading::{Gpu, Limits};

macro_rules! page {
    ($name:literal) => {
        include_str!(concat!("../../tests/pages/", $name, ".prom"))
    };
}

const VLLM_IDLE: &str = page!("vllm-0.32-idle");
const VLLM_BUSY: &str = page!("vllm-0.32-small-kv-busy");
const VLLM_TWO: &str = page!("vllm-0.32-two-engines-busy");
const SGLANG: &str = page!("sglang-documentation");
const SGLANG_TWO: &str = page!("sglang-0.5.11-two-ranks");
const SGLANG_LABELS: &str = page!("sglang-0.5.9-labelled-pages");
const TRITON: &str = page!("triton-readme");
const TRITON_GPUS: &str = page!("triton-25.08-gpus");
const TRTLLM: &str = page!("trtllm-serve-1.2");
const TRTLLM_OLD: &str = page!("trtllm-serve-1.0");
const TGI: &str = page!("tgi-3");
const LLAMACPP: &str = page!("llamacpp-b6000");
const LLAMACPP_OLD: &str = page!("llamacpp-b4000");
const DYNAMO_WORKER: &str = page!("dynamo-1.0-worker");
const DYNAMO_TWO: &str = page!("dynamo-1.0-worker-two-ranks");
const DYNAMO_FRONTEND: &str = page!("dynamo-1.0-frontend");
const DYNAMO_VLLM: &str = page!("dynamo-1.0-worker-with-vllm");
const DCGM: &str = page!("dcgm-3.3");
const DCGM_README: &str = page!("dcgm-readme");
const LMDEPLOY: &str = page!("lmdeploy-0.9");

/// What a page says that is recognised by itself.
fn auto(page: &str) -> Reading {
    Reader::default().read(None, page).unwrap()
}

fn requests(rank: u32, running: u64, waiting: u64) -> RankReport {
    RankReport { rank, running: Some(running), waiting: Some(waiting), ..RankReport::default() }
}

fn blocks(used: u64, total: u64, rest: RankReport) -> RankReport {
    RankReport { kv_used_blocks: Some(used), kv_total_blocks: Some(total), ..rest }
}

fn share(used: f64, rest: RankReport) -> RankReport {
    RankReport { kv_used_share: Some(used), ..rest }
}

fn prefill(tokens: u64, rest: RankReport) -> RankReport {
    RankReport { prefill_tokens: Some(tokens), ..rest }
}

#[test]
fn vllm_as_captured() {
    let limits = Limits { block_size: Some(128), ..Limits::default() };
    let reading = auto(VLLM_IDLE);
    assert_eq!((&reading.engine, reading.limits), (&Engine::Vllm, limits));
    assert_eq!(reading.ranks, [blocks(0, 16_384, requests(0, 0, 0))], "no request has finished: no mean prompt");
    // 0.923 077 × 40 = 36.9; 4 waiting × 408 tokens ÷ 136 requests = 12.
    assert_eq!(auto(VLLM_BUSY).ranks, [prefill(12, blocks(37, 40, requests(0, 4, 4)))]);
    // 80 blocks ÷ 2 engines; 0.102 564 × 40 = 4.1; 1 waiting × 3 tokens ÷ 1 request = 3, of engine 1 none has finished.
    let two = auto(VLLM_TWO);
    assert_eq!(two.ranks, [prefill(3, blocks(4, 40, requests(0, 2, 1))), blocks(4, 40, requests(1, 2, 1))]);
    assert_eq!((two.limits, two.hardware), (limits, vec![]));
}

#[test]
fn vllm_in_small() {
    let ranks = |page| auto(page).ranks;
    assert_eq!(ranks(page!("vllm-idle")), [blocks(0, 2_048, requests(0, 0, 0))]);
    // 0.9003 × 640 = 576.2; 6 waiting × 48,000 ÷ 32 = 9,000.
    assert_eq!(ranks(page!("vllm-busy")), [prefill(9_000, blocks(576, 640, requests(0, 8, 6)))]);
    // 1,000 blocks ÷ 2; 0.9 and 0.11 of 500; 2 × 400 ÷ 4 = 200.
    let two = [prefill(200, blocks(450, 500, requests(0, 5, 2))), blocks(55, 500, requests(1, 1, 0))];
    assert_eq!(ranks(page!("vllm-two-engines")), two);
    // 0.25 × 1,200 = 300; 1 × 640 ÷ 10 = 64.
    assert_eq!(ranks(page!("vllm-0.6-older-name")), [prefill(64, blocks(300, 1_200, requests(0, 3, 1)))]);
    let one = RankReport { running: Some(2), kv_total_blocks: Some(400), ..RankReport::default() };
    let doubtful = auto(page!("vllm-not-numbers"));
    assert_eq!(doubtful.ranks, [one], "waiting is −1, the use and the tokens of prompts are NaN");
    assert_eq!(doubtful.doubts, ["kv_used_share", "prompt_tokens", "waiting"]);
    let sizing = "vllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.5\nvllm:cache_config_info{num_gpu_blocks=\"None\"} 1\n";
    assert_eq!(ranks(sizing), [share(0.5, RankReport { running: Some(1), ..RankReport::default() })]);
}

#[test]
fn sglang_as_documented_and_with_ranks() {
    let reading = auto(SGLANG);
    assert_eq!((&reading.engine, reading.limits), (&Engine::Sglang, Limits::default()));
    assert_eq!(reading.ranks, [share(0.28, requests(0, 162, 2_826))], "no pages, no count of requests");
    let two = auto(SGLANG_TWO);
    let limits = Limits { block_size: Some(64), max_model_len: Some(131_072), ..Limits::default() };
    assert_eq!(two.limits, limits);
    // Rank 0 is told by tp_rank 0 and 1, rank 1 by 2 and 3: the lower of each. 0.75 × 6,912 = 5,184 and 0.1 × 6,910 = 691;
    // 200,000 tokens ÷ 80 requests = 2,500 a prompt, × 4 waiting; in rank 1 none waits.
    assert_eq!(
        two.ranks,
        [prefill(10_000, blocks(5_184, 6_912, requests(0, 12, 4))), blocks(691, 6_910, requests(1, 7, 0))]
    );
    let labelled = auto(SGLANG_LABELS);
    assert_eq!(labelled.ranks, [blocks(5_574, 11_147, requests(0, 3, 0))], "0.5 × 11,147 = 5,573.5");
    assert_eq!(labelled.limits, Limits { block_size: Some(64), ..Limits::default() });
}

#[test]
fn triton_as_documented_and_with_gpus() {
    let reading = auto(TRITON);
    assert_eq!((&reading.engine, &reading.hardware), (&Engine::Triton, &vec![]));
    // `scheduled` 1, `waiting` 1; 1 of `max` 6,239 blocks, whatever `fraction` says; `total_context_tokens` 0 is measured.
    assert_eq!(reading.ranks, [prefill(0, blocks(1, 6_239, requests(0, 1, 1)))]);
    assert_eq!(reading.limits, Limits { block_size: Some(64), max_num_seqs: Some(512), ..Limits::default() });
    let gpus = auto(TRITON_GPUS);
    assert_eq!(gpus.ranks, [share(0.3, requests(0, 10, 3))]);
    assert_eq!(
        gpus.hardware,
        [Gpu {
            uuid: Some("GPU-11111111-2222-3333-4444-555555555555".into()),
            utilization: Some(0.93),
            memory_used_bytes: Some(68_719_476_736),
            memory_total_bytes: Some(85_899_345_920),
            ..Gpu::default()
        }]
    );
}

#[test]
fn two_models_on_one_triton_are_unknown() {
    let page = "nv_trt_llm_request_metrics{model=\"a\",request_type=\"waiting\"} 1\n\
                nv_trt_llm_request_metrics{model=\"b\",request_type=\"waiting\"} 2\n";
    assert_eq!(read(&Engine::Triton, page), Err(PageError::NoLoad));
}

#[test]
fn trtllm_serve_in_both_builds() {
    let reading = auto(TRTLLM);
    assert_eq!(reading.engine, Engine::Trtllm);
    assert_eq!(reading.ranks, [prefill(3_072, blocks(5_001, 8_000, requests(0, 24, 5)))]);
    let limits = Limits {
        block_size: Some(32),
        max_num_seqs: Some(64),
        max_num_batched_tokens: Some(8_192),
        max_model_len: None,
    };
    assert_eq!(reading.limits, limits);
    assert_eq!(auto(TRTLLM_OLD).ranks, [share(0.25, RankReport::default())]);
}

#[test]
fn tgi_tells_requests_alone() {
    let reading = auto(TGI);
    assert_eq!((reading.engine, reading.limits), (Engine::Tgi, Limits::default()));
    assert_eq!(reading.ranks, [prefill(640, requests(0, 8, 5))], "5 × 32,000 ÷ 250");
}

#[test]
fn llamacpp_tells_a_share_or_nothing_of_its_cache() {
    assert_eq!(auto(LLAMACPP).engine, Engine::Llamacpp);
    assert_eq!(auto(LLAMACPP).ranks, [requests(0, 4, 46)]);
    assert_eq!(auto(LLAMACPP_OLD).ranks, [share(0.491_063, requests(0, 2, 1))]);
}

#[test]
fn a_routers_count_stands_beside_what_the_engine_says() {
    let source = |metric: &str| custom::Source {
        metric: metric.into(),
        labels: [("worker".to_owned(), "a".to_owned())].into(),
        value_label: None,
        scale: 1.0,
    };
    let routed = |rank_label: Option<&str>| {
        let active_decode_blocks = source("router_active_blocks");
        let rank_label = rank_label.map(str::to_owned);
        Engine::Routed(Arc::new(Routed { engine: Engine::Vllm, active_decode_blocks, rank_label }))
    };
    let own = read(&Engine::Vllm, VLLM_IDLE).unwrap();
    let count = "router_active_blocks{worker=\"a\"} 37\nrouter_active_blocks{worker=\"b\"} 99\n";
    let page = format!("{VLLM_IDLE}{count}");
    let both = read(&routed(None), &page).unwrap();
    assert_eq!((both.engine.name(), both.limits), ("vllm", own.limits));
    let mut expected = own.ranks.clone();
    expected[0].active_decode_blocks = Some(37);
    assert_eq!(both.ranks, expected);
    assert_eq!(read(&routed(None), VLLM_IDLE).unwrap().ranks, own.ranks, "without the router there is one signal");
    let by_rank =
        "router_active_blocks{worker=\"a\",engine=\"0\"} 5\nrouter_active_blocks{worker=\"a\",engine=\"1\"} 6\n";
    let two = format!("{VLLM_TWO}{by_rank}");
    let counts = |rank_label| {
        let ranks = read(&routed(rank_label), &two).unwrap().ranks;
        ranks.iter().map(|rank| rank.active_decode_blocks).collect::<Vec<_>>()
    };
    assert_eq!(counts(Some("engine")), [Some(5), Some(6)]);
    assert_eq!(counts(None), [None, None], "which rank is meant?");
    let stranger = format!("{VLLM_IDLE}router_active_blocks{{worker=\"a\",engine=\"7\"}} 5\n");
    assert_eq!(read(&routed(Some("engine")), stranger).unwrap().ranks, own.ranks, "the engine has no such rank");
}

#[test]
fn dynamo_workers_and_frontends() {
    let worker = auto(DYNAMO_WORKER);
    assert_eq!((worker.engine, worker.limits), (Engine::Dynamo, Limits::default()));
    let running = |running| RankReport { running, ..RankReport::default() };
    assert_eq!(worker.ranks, [blocks(8_192, 16_384, running(Some(17)))], "0.5 × 16,384; `generate` alone counts");
    let rank_1 = RankReport { rank: 1, ..share(0.75, running(None)) };
    assert_eq!(auto(DYNAMO_TWO).ranks, [blocks(250, 1_000, running(None)), rank_1], "17 requests, but in which rank?");
    let frontend = auto(DYNAMO_FRONTEND);
    let ranks = [RankReport {
        prefill_tokens: Some(900),
        active_decode_blocks: Some(12_000),
        kv_total_blocks: Some(16_384),
        ..requests(0, 28, 12)
    }];
    assert_eq!(frontend.ranks, ranks, "40 in flight, of which 12 have no token yet");
    let second = "dynamo_frontend_worker_active_prefill_tokens{dp_rank=\"0\",worker_id=\"8\"} 40\n";
    let blocks_of_second = "dynamo_frontend_worker_active_decode_blocks{dp_rank=\"0\",worker_id=\"8\"} 700\n";
    let two = auto(&format!("{DYNAMO_FRONTEND}{second}{blocks_of_second}"));
    let least = (two.ranks[0].prefill_tokens, two.ranks[0].active_decode_blocks);
    assert_eq!(least, (Some(40), Some(700)), "it is busy when its last worker is");
    let apart = [("prefill", 50, 0), ("prefill", 70, 0), ("decode", 0, 800), ("decode", 0, 900)].iter().enumerate();
    let apart: String = apart
        .flat_map(|(id, (kind, tokens, blocks))| {
            let of = |what, value| {
                format!("dynamo_frontend_worker_active_{what}{{worker_id=\"{id}\",worker_type=\"{kind}\"}} {value}\n")
            };
            [of("prefill_tokens", tokens), of("decode_blocks", blocks)]
        })
        .collect();
    let apart = auto(&format!("dynamo_frontend_inflight_requests 9\ndynamo_frontend_queued_requests 1\n{apart}"));
    let least = (apart.ranks[0].prefill_tokens, apart.ranks[0].active_decode_blocks);
    assert_eq!(least, (Some(50), Some(800)), "workers that decode read no prompts, and the others hold no blocks");
    let limits = Limits {
        block_size: Some(16),
        max_num_seqs: Some(256),
        max_num_batched_tokens: Some(8_192),
        max_model_len: Some(32_768),
    };
    assert_eq!(frontend.limits, limits);
    let engine = auto(DYNAMO_VLLM);
    assert_eq!((engine.engine, engine.ranks), (Engine::Vllm, vec![share(0.5, requests(0, 8, 1))]));
}

#[test]
fn dcgm_tells_gpus_and_parts_of_them() {
    const MIB: u64 = 1 << 20;
    let whole = |index, uuid: &str| Gpu { index: Some(index), uuid: Some(uuid.into()), ..Gpu::default() };
    let part = |instance, utilization, used| Gpu {
        mig_instance: Some(instance),
        utilization,
        memory_used_bytes: Some(used * MIB),
        ..whole(2, "GPU-c")
    };
    assert_eq!(
        dcgm::read(DCGM).unwrap(),
        [
            Gpu {
                utilization: Some(0.97),
                memory_used_bytes: Some(73_000 * MIB),
                // 73,000 + 8,000 + 559.
                memory_total_bytes: Some(81_559 * MIB),
                ..whole(0, "GPU-a")
            },
            whole(1, "GPU-b"),
            part(1, Some(0.625), 30_000),
            part(2, None, 100),
        ]
    );
    assert_eq!(dcgm::read(DCGM_README), Err(PageError::NoGpu), "clocks and temperatures alone");
    assert_eq!(dcgm::read(VLLM_IDLE), Err(PageError::NoGpu));
}

#[test]
fn a_mapping_reads_an_engine_that_is_not_known() {
    let source =
        |metric: &str| custom::Source { metric: metric.into(), labels: [].into(), value_label: None, scale: 1.0 };
    let mapping = Mapping {
        rank_label: Some("engine".into()),
        loads: [
            (Load::Running, source("lmdeploy:num_requests_running")),
            (Load::Waiting, source("lmdeploy:num_requests_waiting")),
            (Load::KvShare, source("lmdeploy:gpu_cache_usage_perc")),
        ]
        .into(),
        limits: [].into(),
    };
    let engine = Engine::Custom(Arc::new(mapping));
    assert_eq!(
        read(&engine, LMDEPLOY).unwrap().ranks,
        [share(0.88, requests(0, 16, 7)), share(0.0625, requests(1, 2, 0))]
    );
    assert_eq!(read(&engine, VLLM_IDLE), Err(PageError::NoLoad));
}

#[test]
fn a_mapping_filters_scales_and_reads_labels() {
    let cache = custom::Source {
        metric: "cache_percent".into(),
        labels: [("tier".into(), "gpu".into()), ("mark".into(), "a\nb".into())].into(),
        value_label: None,
        scale: 0.01,
    };
    let size =
        custom::Source { metric: "settings".into(), labels: [].into(), value_label: Some("block".into()), scale: 2.0 };
    let mapping = Mapping {
        rank_label: None,
        loads: [(Load::KvShare, cache)].into(),
        limits: [(sheet::Limit::BlockSize, size)].into(),
    };
    let engine = Engine::Custom(Arc::new(mapping));
    let others =
        "cache_percent{tier=\"cpu\",mark=\"a\\nb\"} 90\ncache_percent{tier=\"gpu\"} 80\nsettings{block=\"8\"} 1\n";
    assert_eq!(read(&engine, others), Err(PageError::NoLoad));
    let page = format!("{others}cache_percent{{pod=\"x\",mark=\"a\\nb\",tier=\"gpu\"}} 25\n");
    let reading = read(&engine, &page).unwrap();
    assert_eq!(reading.ranks, [share(0.25, RankReport::default())]);
    assert_eq!(reading.limits, Limits { block_size: Some(16), ..Limits::default() });
}

#[test]
fn what_stands_twice_counts_only_when_it_is_the_same() {
    let running = |page: &str| read(&Engine::Llamacpp, page).map(|reading| reading.ranks[0].running);
    let other = "llamacpp:requests_deferred 1\n";
    assert_eq!(
        running(&format!("{other}llamacpp:requests_processing 3\nllamacpp:requests_processing 3\n")),
        Ok(Some(3))
    );
    assert_eq!(running(&format!("{other}llamacpp:requests_processing 3\nllamacpp:requests_processing 4\n")), Ok(None));
    assert_eq!(running("llamacpp:requests_processing 3\nllamacpp:requests_processing 4\n"), Err(PageError::NoLoad));
}

#[test]
fn what_a_page_as_captured_says_is_believed() {
    let pages = [
        VLLM_IDLE,
        VLLM_BUSY,
        VLLM_TWO,
        SGLANG,
        SGLANG_TWO,
        SGLANG_LABELS,
        TRITON,
        TRITON_GPUS,
        TRTLLM,
        TRTLLM_OLD,
        TGI,
        LLAMACPP,
        LLAMACPP_OLD,
        DYNAMO_WORKER,
        DYNAMO_TWO,
        DYNAMO_FRONTEND,
        DYNAMO_VLLM,
    ];
    for page in pages {
        assert!(auto(page).doubts.is_empty(), "{:?} of {page}", auto(page).doubts);
    }
}

#[test]
fn doubts_of_sums_and_differences_are_doubts_of_what_they_tell() {
    let doubts = |page: &str| auto(page).doubts;
    let sglang = "sglang:num_running_reqs 1\nsglang:prompt_tokens_total 100\nsglang:num_requests_total -3\n";
    assert_eq!(doubts(sglang), ["prompts"]);
    let frontend = "dynamo_frontend_inflight_requests NaN\ndynamo_frontend_queued_requests 2\n";
    assert_eq!(doubts(frontend), ["running"]);
    let both = "dynamo_component_inflight_requests 4\ndynamo_frontend_inflight_requests 4\ndynamo_frontend_queued_requests -2\n";
    assert_eq!(doubts(both), ["waiting"], "the worker tells by itself how many it has");
}

#[test]
fn a_page_that_ends_in_the_middle_of_a_line_is_doubtful() {
    let doubts = |page: &str| {
        let mut reader = Reader::default();
        reader.begin();
        reader.push(None, page.as_bytes());
        reader.end(None).unwrap().doubts
    };
    assert_eq!(doubts("vllm:num_requests_running 1\nvllm:num_requests_wai"), ["last_line"]);
    assert!(doubts("vllm:num_requests_running 1\n# EOF").is_empty());
    assert!(doubts("vllm:num_requests_running 1\n").is_empty());
}

#[test]
fn pages_of_others_and_of_none_are_refused() {
    let garbage = include_str!("../../tests/corpus/exposition/bad-gateway.prom");
    for (page, error) in [
        ("", PageError::UnknownEngine),
        ("vllm:num_preemptions_total 3\n", PageError::UnknownEngine),
        (garbage, PageError::NoLoad),
    ] {
        assert_eq!(Reader::default().read(None, page), Err(error));
        for engine in Engine::NAMED {
            assert_eq!(read(&engine, page), Err(PageError::NoLoad), "{}", engine.name());
        }
    }
    assert_eq!(read(&Engine::Sglang, VLLM_BUSY), Err(PageError::NoLoad));
    let many: String = (0..300).map(|rank| format!("vllm:num_requests_running{{engine=\"{rank}\"}} 1\n")).collect();
    assert_eq!(read(&Engine::Vllm, &many), Err(PageError::TooManyRanks));
    let many: String = (0..300).map(|gpu| format!("DCGM_FI_DEV_GPU_UTIL{{gpu=\"{gpu}\"}} 1\n")).collect();
    assert_eq!(dcgm::read(&many), Err(PageError::TooManyRanks));
    let endless = "vllm:num_requests_running 1\n".repeat(100_000);
    assert_eq!(read(&Engine::Vllm, &endless), Err(PageError::TooLong));
    assert_eq!(Reader::default().read(None, &endless), Err(PageError::TooLong));
    let endless = "DCGM_FI_DEV_GPU_UTIL{gpu=\"0\"} 1\n".repeat(100_000);
    assert_eq!(dcgm::read(&endless), Err(PageError::TooLong));
}

#[test]
fn a_worker_that_changes_its_engine_is_recognised_anew() {
    let mut reader = Reader::default();
    assert_eq!(reader.read(None, "<html>\n"), Err(PageError::UnknownEngine));
    assert_eq!(reader.read(None, VLLM_IDLE).unwrap().engine, Engine::Vllm);
    assert_eq!(reader.read(None, "<html>\n"), Err(PageError::NoLoad), "still that engine's");
    assert_eq!(reader.read(None, SGLANG).unwrap().engine, Engine::Sglang);
    assert_eq!(reader.read(Some(&Engine::Vllm), SGLANG), Err(PageError::NoLoad), "configured is configured");
    assert_eq!(reader.read(Some(&Engine::Vllm), VLLM_IDLE).unwrap().engine, Engine::Vllm);
    assert_eq!(reader.read(None, SGLANG).unwrap().engine, Engine::Sglang);
}

#[test]
fn an_engine_whose_gauges_appear_beside_dynamos_is_recognised() {
    let mut reader = Reader::default();
    assert_eq!(reader.read(None, DYNAMO_WORKER).unwrap().engine, Engine::Dynamo);
    assert_eq!(reader.read(None, DYNAMO_VLLM).unwrap().engine, Engine::Vllm);
    assert_eq!(reader.read(None, DYNAMO_WORKER).unwrap().engine, Engine::Dynamo);
}

/// What a server sends that is asked for the names of the page's engine.
fn excerpt(page: &str, names: &[&str]) -> String {
    let name_of = |line: &str| line.split(['{', ' ']).next().unwrap_or_default().to_owned();
    page.split_inclusive('\n').filter(|line| names.contains(&name_of(line).as_str())).collect()
}

#[test]
fn the_series_that_are_asked_for_say_all_that_the_page_says() {
    for page in [VLLM_IDLE, VLLM_BUSY, VLLM_TWO, SGLANG, SGLANG_TWO, SGLANG_LABELS, TRTLLM, TRTLLM_OLD] {
        let whole = auto(page);
        let names = whole.engine.names();
        assert!(names.iter().all(|name| whole.engine.wants(name)) && names.len() >= 7);
        let part = excerpt(page, &names);
        assert!(part.len() < page.len());
        assert_eq!(auto(&part), whole);
    }
    for engine in [Engine::Triton, Engine::Tgi, Engine::Llamacpp, Engine::Dynamo] {
        assert!(engine.names().is_empty(), "{} is not written by Python's client", engine.name());
    }
}

#[test]
fn names_are_found_on_the_page_read_last() {
    let mut reader = Reader::default();
    reader.begin();
    reader.push(None, VLLM_BUSY.as_bytes());
    reader.end(None).unwrap();
    let names = Engine::Vllm.names();
    let found = reader.found(&names);
    assert_eq!(names.len() - found.len(), 1, "an older name of the KV share is not on it");
    assert!(!found.contains(&"vllm:gpu_cache_usage_perc"));
    reader.begin();
    assert!(reader.found(&names).is_empty());
}

#[test]
fn a_page_names_the_models_that_its_numbers_are_of() {
    let page = "vllm:num_requests_running{model_name=\"org/base\"} 1\nvllm:num_requests_waiting{model_name=\"org/base\"} 0\n\
                vllm:num_requests_running{model_name=\"adapter\",engine=\"1\"} 2\nvllm:unread{model_name=\"unread\"} 1\n";
    assert_eq!(auto(page).models, ["adapter", "org/base"]);
    assert_eq!(auto("tgi_queue_size 2\ntgi_batch_current_size 1\n").models, [""; 0]);
}
