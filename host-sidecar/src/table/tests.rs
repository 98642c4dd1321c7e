use super::*;

const DOWN_AFTER: Duration = ms(2_000);

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn pools() -> Vec<config::Pool> {
    let text = r#"
proxies: [{url: "http://p:1", token: t}]
pools:
- name: a
  model: model-a
  busy: {active_decode_blocks_threshold: 0.85}
  saturation: {queue_depth_threshold: 5, kv_cache_util_threshold: 0.5}
  workers: ["a1:1", "a2:1"]
- {name: b, workers: [{address: "b1:1", draining: true}]}
"#;
    config::Config::parse(text).unwrap().pools
}

fn table() -> Table {
    Table::new(&pools(), 2, DOWN_AFTER)
}

fn rank(used: u64) -> Vec<RankReport> {
    vec![RankReport { kv_used_blocks: Some(used), kv_total_blocks: Some(100), ..RankReport::default() }]
}

/// A good scrape that takes no time.
fn scrape(table: &mut Table, worker: usize, used: u64, at: Duration) {
    table.end_scrape(table.begin_scrape(worker, at), Some(rank(used)), at);
}

fn fail(table: &mut Table, worker: usize, at: Duration) {
    table.end_scrape(table.begin_scrape(worker, at), None, at);
}

fn worker(table: &Table, pool: &str, at: usize, now: Duration) -> WorkerReport {
    table.reports(0, now)[pool].workers[at].clone()
}

fn admitted(requests: u64) -> Admitted {
    Admitted { requests, blocks: requests * 10 }
}

fn answer(requests: u64) -> ViewAnswer {
    ViewAnswer { epoch: 1, generation: 1, admitted: [("a".into(), admitted(requests))].into() }
}

fn credit(table: &Table, proxy: usize, now: Duration) -> u64 {
    table.reports(proxy, now)["a"].admitted.requests
}

#[test]
fn a_worker_never_scraped_is_down_and_untried() {
    let mut table = table();
    assert_eq!(table.untried().collect::<Vec<_>>(), ["a1:1", "a2:1", "b1:1"]);
    fail(&mut table, 0, ms(10));
    assert_eq!(table.untried().count(), 2);
    let report = worker(&table, "a", 0, ms(10));
    assert_eq!((report.state, report.busy, report.ranks.len()), (WorkerState::Down, false, 0));
}

#[test]
fn failed_scrapes_keep_the_last_good_numbers_until_patience_ends() {
    let mut table = table();
    scrape(&mut table, 0, 40, ms(100));
    let before = table.revision();
    fail(&mut table, 0, ms(2_099));
    let report = worker(&table, "a", 0, ms(2_099));
    assert_eq!((report.state, report.scraped_ms_ago), (WorkerState::Up, 1_999));
    assert_eq!(report.ranks, rank(40));
    assert_eq!(table.revision(), before, "an older number is no news");
    fail(&mut table, 0, ms(2_100));
    assert_eq!(worker(&table, "a", 0, ms(2_100)).state, WorkerState::Down);
    assert_eq!(table.revision().states, before.states + 1);
    scrape(&mut table, 0, 41, ms(2_200));
    assert_eq!(worker(&table, "a", 0, ms(2_200)).state, WorkerState::Up, "one good scrape is enough");
}

#[test]
fn the_age_counts_from_the_begin_of_the_scrape() {
    let mut table = table();
    let begun = table.begin_scrape(0, ms(100));
    table.end_scrape(begun, Some(rank(1)), ms(180));
    assert_eq!(worker(&table, "a", 0, ms(200)).scraped_ms_ago, 100);
}

#[test]
fn states_and_numbers_are_counted_apart() {
    let mut table = table();
    scrape(&mut table, 0, 10, ms(0));
    let up = table.revision();
    assert_eq!(up, Revision { states: 1, numbers: 1 });
    scrape(&mut table, 0, 10, ms(100));
    assert_eq!(table.revision(), up, "the same page again");
    scrape(&mut table, 0, 85, ms(200));
    assert_eq!(table.revision(), Revision { states: 1, numbers: 2 }, "exactly at the threshold is free");
    scrape(&mut table, 0, 86, ms(300));
    assert_eq!(table.revision(), Revision { states: 2, numbers: 3 });
    assert!(worker(&table, "a", 0, ms(300)).busy);
}

#[test]
fn saturation_is_that_of_the_live_workers() {
    let mut table = table();
    let of = |table: &Table, pool: &str, now| table.reports(0, now)[pool].saturation;
    assert_eq!(of(&table, "a", ms(0)), Some(1.0), "no worker is live");
    scrape(&mut table, 0, 25, ms(0));
    assert_eq!(of(&table, "a", ms(0)), Some(0.5), "0.25 used at the pool's own 0.5");
    scrape(&mut table, 1, 75, ms(100));
    assert_eq!(of(&table, "a", ms(100)), Some(1.0), "0.5 and 1.5");
    assert_eq!(of(&table, "a", DOWN_AFTER), Some(1.5), "the first is down");
    scrape(&mut table, 2, 0, ms(100));
    assert_eq!(of(&table, "b", ms(100)), Some(1.0), "one that drains takes nothing, however empty it is");
    assert_eq!(table.saturations(DOWN_AFTER).collect::<Vec<_>>(), [("a", 1.5), ("b", 1.0)]);
}

#[test]
fn saturation_alone_is_news() {
    let mut table = table();
    scrape(&mut table, 0, 25, ms(0));
    scrape(&mut table, 1, 75, ms(1_900));
    let before = table.revision();
    scrape(&mut table, 1, 75, DOWN_AFTER);
    let after = Revision { numbers: before.numbers + 1, ..before };
    assert_eq!(table.revision(), after, "the other worker has gone, though no scrape of it has ended yet");
    scrape(&mut table, 1, 75, ms(2_100));
    assert_eq!(table.revision(), after, "once");
    scrape(&mut table, 1, 50, ms(2_200));
    assert_eq!(table.revision(), Revision { numbers: after.numbers + 1, ..after }, "once with the ranks that cause it");
    scrape(&mut table, 1, 50, ms(2_300));
    assert_eq!(table.revision().numbers, after.numbers + 1, "and it is noted then");
}

#[test]
fn a_draining_worker_drains_while_it_answers() {
    let mut table = table();
    scrape(&mut table, 2, 1, ms(0));
    assert_eq!(worker(&table, "b", 0, ms(0)).state, WorkerState::Draining);
    assert_eq!(worker(&table, "b", 0, DOWN_AFTER).state, WorkerState::Down);
}

#[test]
fn the_credit_is_what_was_known_when_the_oldest_scrape_began() {
    let mut table = table();
    table.taken(0, &answer(5), ms(0));
    assert_eq!(credit(&table, 0, ms(0)), 5, "with no live worker the latest is named");
    let early = table.begin_scrape(0, ms(10));
    table.taken(0, &answer(9), ms(20));
    scrape(&mut table, 1, 1, ms(30));
    assert_eq!(credit(&table, 0, ms(30)), 9);
    table.end_scrape(early, Some(rank(1)), ms(40));
    assert_eq!(credit(&table, 0, ms(40)), 5, "worker 0 was scraped before the answer");
    assert_eq!(credit(&table, 1, ms(40)), 0, "the other proxy has answered nothing");
    scrape(&mut table, 0, 1, ms(50));
    assert_eq!(credit(&table, 0, ms(50)), 9);
}

#[test]
fn a_dead_worker_does_not_hold_the_credit_back() {
    let mut table = table();
    table.taken(0, &answer(5), ms(0));
    scrape(&mut table, 0, 1, ms(0));
    table.taken(0, &answer(50), ms(10));
    scrape(&mut table, 1, 1, ms(1_000));
    assert_eq!(credit(&table, 0, ms(1_000)), 5);
    assert_eq!(credit(&table, 0, ms(2_000)), 50);
}

#[test]
fn a_new_credit_is_news() {
    let mut table = table();
    scrape(&mut table, 0, 1, ms(0));
    table.taken(0, &answer(5), ms(10));
    let before = table.revision();
    scrape(&mut table, 0, 1, ms(100));
    assert_eq!(table.revision().numbers, before.numbers + 1);
}

#[test]
fn a_restarted_proxy_loses_the_credit_of_the_one_before() {
    let mut table = table();
    table.taken(0, &answer(1_000), ms(0));
    scrape(&mut table, 0, 1, ms(10));
    assert_eq!(credit(&table, 0, ms(10)), 1_000);
    let before = table.revision();
    table.taken(0, &answer(3), ms(20));
    assert_eq!(credit(&table, 0, ms(20)), 0, "the sample is older than anything known of the new one");
    assert!(table.revision().states > before.states, "and that is told at once");
    scrape(&mut table, 0, 1, ms(30));
    assert_eq!(credit(&table, 0, ms(30)), 3);
}

#[test]
fn thresholds_count_at_once_by_the_last_samples() {
    let mut table = table();
    scrape(&mut table, 0, 50, ms(0));
    let before = table.revision().states;
    let set = ThresholdRequest {
        model: "model-a".into(),
        active_decode_blocks_threshold: Some(0.4),
        ..ThresholdRequest::default()
    };
    let now = table.request_thresholds(&set, ms(1)).unwrap();
    assert_eq!(now.thresholds.active_decode_blocks_threshold, Some(0.4));
    assert!(worker(&table, "a", 0, ms(1)).busy);
    assert_eq!(table.revision().states, before + 1);
    let wrong = ThresholdRequest { active_decode_blocks_threshold: Some(2.0), ..set };
    assert!(matches!(table.request_thresholds(&wrong, ms(2)), Err(ThresholdError::OutOfRange(_))));
    assert_eq!(table.thresholds()[0], now, "a refused change leaves what stood");
}

#[test]
fn an_unknown_model_may_be_read_but_not_set() {
    let mut table = table();
    let read = ThresholdRequest { model: "a".into(), ..ThresholdRequest::default() };
    assert_eq!(table.request_thresholds(&read, ms(0)).unwrap().thresholds, BusyThresholds::default());
    let set = ThresholdRequest { active_prefill_tokens_threshold: Some(1), ..read };
    assert_eq!(table.request_thresholds(&set, ms(0)), Err(ThresholdError::UnknownModel("a".into())));
    let named = table.thresholds().into_iter().map(|row| row.model).collect::<Vec<_>>();
    assert_eq!(named, ["model-a", "b"], "a pool without a model is known by its name");
}
