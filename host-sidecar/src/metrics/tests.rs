use admission_core::view::{RankReport, Role, ViewAnswer};

use super::*;
use crate::discovery::{Condition, Member};
use crate::engines::Engine;
use crate::reading::{Limits, Reading};
use crate::table::{Table, Way};

const NOW: Duration = Duration::from_millis(1);

const CONFIG: &str = r#"
proxies: [{url: "http://p:1", token: t}]
pools:
- name: a
  saturation: {kv_cache_util_threshold: 0.6}
  dispatch_budget: {prometheus: {url: "http://prom:9090", query: "vector(1)"}, max_concurrency: 10}
  workers: ["w:1", {address: "d:1", draining: true}]
  discover: [{file: {path: /workers.yaml}}]
"#;

fn reading(ranks: Vec<RankReport>, hardware: Vec<Gpu>) -> Reading {
    let limits = Limits { max_model_len: Some(4_096), ..Limits::default() };
    Reading { engine: Engine::Vllm, ranks, limits, doubts: Vec::new(), models: Vec::new(), hardware }
}

fn gpu() -> Gpu {
    Gpu { index: Some(3), memory_used_bytes: Some(60), memory_total_bytes: Some(80), ..Gpu::default() }
}

/// Ends a scrape of each worker with what `result` says of its address.
fn scrape(table: &mut Table, result: impl Fn(&str) -> Result<Reading, &'static str>) {
    let workers: Vec<_> = table.targets().map(|target| target.worker).collect();
    for worker in workers {
        let scrape = table.begin_scrape(&worker, Duration::ZERO);
        table.end_scrape(scrape, result(&worker.address), Duration::ZERO);
    }
}

fn page(scraped: bool) -> String {
    let config = Config::parse(CONFIG).unwrap();
    let mut table = Table::new(&config);
    let counters = Counters::new(&config);
    if scraped {
        let rank = |used| RankReport {
            kv_used_blocks: used,
            kv_total_blocks: Some(100),
            running: Some(3),
            waiting: used.map(|_| 1),
            ..Default::default()
        };
        scrape(&mut table, |address| match address {
            "w:1" => Ok(reading(vec![rank(Some(20)), rank(Some(40))], vec![gpu()])),
            _ => Ok(reading(vec![rank(None)], vec![])),
        });
        counters.of_scrapes("a").scraped("ok", Duration::from_millis(3));
        counters.pushed("http://p:1", "refused");
        counters.looked("a", "file:/workers.yaml", "ok");
        counters.queried("a", false);
        counters.configured(false);
        counters.unauthorized();
        let proxy = table.register("http://p:1", Way::Pushed);
        let answer = ViewAnswer { queued: [("a".into(), 7)].into(), ..ViewAnswer::default() };
        table.said(proxy, &answer, Duration::ZERO, Some(Vec::new()));
    }
    let local = Gpu { utilization: Some(0.5), ..Gpu { index: Some(0), ..gpu() } };
    let now = Duration::from_millis(1_500);
    counters.page(&table.snapshot(now), &[local], now).unwrap()
}

#[test]
fn numbers_beyond_any_engine_break_nothing() {
    let config =
        Config::parse(r#"{proxies: [{url: "http://p:1", token: t}], pools: [{name: a, workers: ["w:1"]}]}"#).unwrap();
    let mut table = Table::new(&config);
    let rank = RankReport { running: Some(u64::MAX), waiting: Some(u64::MAX), ..RankReport::default() };
    scrape(&mut table, |_| Ok(reading(vec![rank.clone(), rank.clone()], vec![])));
    let page = Counters::new(&config).page(&table.snapshot(NOW), &[], NOW).unwrap();
    assert!(page.contains("sluice_sidecar_worker_running{pool=\"a\",worker=\"w:1\"} 36893488147419"), "{page}");
}

#[test]
fn every_series_of_the_page() {
    let page = page(true);
    for line in [
        "scrapes_total{pool=\"a\",result=\"ok\"} 1",
        "scrapes_total{pool=\"a\",result=\"timeout\"} 0",
        "scrape_seconds_bucket{le=\"0.005\",pool=\"a\"} 1",
        "pushes_total{proxy=\"http://p:1\",result=\"refused\"} 1",
        "discovery_lookups_total{pool=\"a\",source=\"file:/workers.yaml\",result=\"ok\"} 1",
        "discovery_lookups_total{pool=\"a\",source=\"file:/workers.yaml\",result=\"timeout\"} 0",
        "budget_queries_total{pool=\"a\",result=\"failed\"} 1",
        "configurations_total{result=\"refused\"} 1",
        "unauthorized_requests_total 1",
        "scrape_silence_seconds 1.5",
        "worker_up{pool=\"a\",worker=\"d:1\"} 1.0",
        "worker_draining{pool=\"a\",worker=\"d:1\"} 1.0",
        "worker_draining{pool=\"a\",worker=\"w:1\"} 0.0",
        "worker_busy{pool=\"a\",worker=\"w:1\"} 0.0",
        "worker_kv_used_ratio{pool=\"a\",worker=\"w:1\"} 0.3",
        "worker_running{pool=\"a\",worker=\"w:1\"} 6.0",
        "worker_waiting{pool=\"a\",worker=\"w:1\"} 2.0",
        "worker_limit{pool=\"a\",worker=\"w:1\",limit=\"max_model_len\"} 4096.0",
        "worker_scrape_age_seconds{pool=\"a\",worker=\"w:1\"} 1.5",
        "proxy_view_age_seconds{proxy=\"http://p:1\"} 1.5",
        "pool_workers{pool=\"a\"} 2.0",
        "pool_live_workers{pool=\"a\"} 1.0",
        "pool_free_workers{pool=\"a\"} 1.0",
        "pool_failing_workers{pool=\"a\"} 0.0",
        "pool_saturation_ratio{pool=\"a\"} 0.5",
        "pool_running{pool=\"a\"} 6.0",
        "pool_waiting{pool=\"a\"} 2.0",
        "pool_proxy_queue{pool=\"a\"} 7.0",
        "pool_kv_used_ratio{pool=\"a\"} 0.3",
        "pool_dispatch_budget_ratio{pool=\"a\"} 0.3",
        "pool_dispatch_budget_source_available{pool=\"a\",source=\"prometheus\"} 0.0",
        "pool_dispatch_budget_source_available{pool=\"a\",source=\"proxy_queue\"} 1.0",
        "gpu_memory_used_bytes{pool=\"a\",worker=\"w:1\",gpu=\"3\"} 60.0",
        "gpu_memory_total_bytes{pool=\"\",worker=\"\",gpu=\"0\"} 80.0",
        "gpu_utilization_ratio{pool=\"\",worker=\"\",gpu=\"0\"} 0.5",
    ] {
        let line = format!("sluice_sidecar_{line}");
        let close = |found: &str| {
            let parts = |line: &str| line.rsplit_once(' ').map(|(name, value)| (name.to_owned(), value.parse::<f64>()));
            match (parts(found), parts(&line)) {
                (Some((name, Ok(value))), Some((wanted, Ok(expected)))) => {
                    name == wanted && (value - expected).abs() < 1e-9
                }
                _ => false,
            }
        };
        assert!(page.lines().any(close), "{line} is not in\n{page}");
    }
    assert!(!page.contains("kv_used_ratio{pool=\"a\",worker=\"d:1\"}"), "an unknown ratio is no ratio");
    assert!(!page.contains("worker_waiting{pool=\"a\",worker=\"d:1\"}"), "nor is an unknown queue an empty one");
    assert!(!page.contains("limit=\"max_num_seqs\""), "nor is a limit that is not told nothing");
    assert!(page.ends_with("# EOF\n"));
}

#[test]
fn why_a_worker_cannot_be_read_is_a_label() {
    let config = Config::parse(CONFIG).unwrap();
    let mut table = Table::new(&config);
    scrape(&mut table, |_| Err("timeout"));
    let page = Counters::new(&config).page(&table.snapshot(NOW), &[], NOW).unwrap();
    assert!(page.contains("worker_failing{pool=\"a\",worker=\"w:1\",cause=\"timeout\"} 1.0"), "{page}");
    assert!(page.contains("pool_failing_workers{pool=\"a\"} 2.0"), "{page}");
    assert!(page.contains("worker_up{pool=\"a\",worker=\"w:1\"} 0.0"), "{page}");
}

#[test]
fn what_is_wrong_with_workers_is_there_only_while_it_is() {
    let config = Config::parse(
        r#"{proxies: [{url: "http://p:1", token: t}], pools: [{name: a, saturation: {detector: concurrency, mode: tokens},
            workers: ["w:1", "w:2"], discover: [{file: {path: /w}}]}]}"#,
    );
    let config = config.unwrap();
    let mut table = Table::new(&config);
    let not_ready = Member {
        address: "w:3".into(),
        condition: Condition::NotReady,
        metrics_url: "http://w:3/metrics".into(),
        hardware_url: None,
        role: Role::Both,
    };
    table.found("a", "file:/w", Found { members: Some(vec![not_ready]), error: None });
    let rank = RankReport { kv_used_blocks: Some(3), kv_total_blocks: Some(9), ..RankReport::default() };
    let read = |table: &mut Table, doubtful: bool| {
        scrape(table, |address| {
            let mut reading = reading(vec![rank.clone()], vec![]);
            if address == "w:1" {
                reading.limits.block_size = Some(16);
            } else if doubtful {
                reading.doubts = vec!["running", "last_line"];
            }
            Ok(reading)
        });
        Counters::new(&config).page(&table.snapshot(NOW), &[], NOW).unwrap()
    };
    let page = read(&mut table, true);
    for line in [
        "worker_doubtful{pool=\"a\",worker=\"w:2\",number=\"running\"} 1.0",
        "worker_doubtful{pool=\"a\",worker=\"w:3\",number=\"last_line\"} 1.0",
        "worker_not_ready{pool=\"a\",worker=\"w:3\"} 1.0",
        "pool_unmeasured_workers{pool=\"a\"} 1.0",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("worker_doubtful{pool=\"a\",worker=\"w:1\""), "{page}");
    assert_eq!(page.matches("worker_not_ready{").count(), 1, "{page}");
    assert!(!read(&mut table, false).contains("worker_doubtful{"));
}

#[test]
fn series_of_the_configuration_are_there_from_the_start_and_go_with_it() {
    let before = page(false);
    assert!(before.contains("sluice_sidecar_pushes_total{proxy=\"http://p:1\",result=\"taken\"} 0"), "{before}");
    let config = Config::parse(CONFIG).unwrap();
    let counters = Counters::new(&config);
    let scrapes = counters.of_scrapes("a");
    let other = "{proxies: [{url: 'http://p:2', token: t}], pools: [{name: b, workers: ['w:1']}]}";
    let other = Config::parse(other).unwrap();
    counters.configure(&other);
    // What was under way for what has gone.
    scrapes.scraped("ok", NOW);
    counters.of_scrapes("a").scraped("ok", NOW);
    counters.pushed("http://p:1", "taken");
    counters.looked("a", "file:/workers.yaml", "ok");
    counters.queried("a", true);
    let after = counters.page(&Table::new(&other).snapshot(NOW), &[], NOW).unwrap();
    assert!(!after.contains("http://p:1") && !after.contains("pool=\"a\""), "{after}");
    assert!(after.contains("sluice_sidecar_pushes_total{proxy=\"http://p:2\",result=\"taken\"} 0"), "{after}");
}

#[test]
fn a_thousand_workers_of_a_pool_are_listed_and_all_are_counted() {
    let workers: Vec<_> = (1..=1_050).map(|port| format!("w:{port}")).collect();
    let text = format!("{{proxies: [{{url: 'http://p:1', token: t}}], pools: [{{name: a, workers: {workers:?}}}]}}");
    let config = Config::parse(&text).unwrap();
    let mut table = Table::new(&config);
    scrape(&mut table, |_| Ok(reading(vec![RankReport { running: Some(1), ..RankReport::default() }], vec![])));
    let page = Counters::new(&config).page(&table.snapshot(NOW), &[], NOW).unwrap();
    assert_eq!(page.matches("sluice_sidecar_worker_up{").count(), 1_000);
    assert!(page.contains("sluice_sidecar_pool_workers{pool=\"a\"} 1050.0"));
    assert!(page.contains("sluice_sidecar_pool_running{pool=\"a\"} 1050.0"));
}

#[test]
fn the_readme_lists_every_metric() {
    let readme = include_str!("../../README.md");
    for line in page(true).lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
        assert!(readme.contains(&format!("| `{name}` |")), "{name} is not in the README");
    }
}
