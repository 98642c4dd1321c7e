use std::collections::BTreeMap;

use admission_core::view::{Admitted, RankReport, Role, WorkerReport, WorkerState};

use super::*;
use crate::config::Config;
use crate::courier::{Begun, Stamp};
use crate::discovery::{Condition, LookError};
use crate::engines::Engine;
use crate::reading::Limits;
use crate::told::Told;

mod budgets;
mod credits;
mod proxies;
mod thresholds;
mod unreadable;

const DOWN_AFTER: Duration = ms(2_000);
const CONFIG: &str = r#"
proxies: [{url: "http://p:1", token: t}]
scrape: {stale_after: 1s, down_after: 2s, timeout: 1h}
pools:
- name: a
  model: model-a
  busy: {active_decode_blocks_threshold: 0.85}
  saturation: {queue_depth_threshold: 5, kv_cache_util_threshold: 0.5}
  workers: ["a1:1", "a2:1"]
- {name: b, workers: [{address: "b1:1", draining: true}]}
"#;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A table with two proxies.
struct Setting {
    table: Table,
    proxies: [ProxyId; 2],
}

fn setting_of(text: &str) -> Setting {
    let mut table = Table::new(&Config::parse(text).unwrap());
    let proxies = ["p1", "p2"].map(|name| table.register(name, Way::Pushed));
    Setting { table, proxies }
}

fn setting() -> Setting {
    setting_of(CONFIG)
}

fn rank(used: u64) -> RankReport {
    RankReport { waiting: Some(0), kv_used_blocks: Some(used), kv_total_blocks: Some(100), ..RankReport::default() }
}

fn reading(ranks: Vec<RankReport>) -> Reading {
    Reading {
        engine: Engine::Vllm,
        ranks,
        limits: Limits::default(),
        doubts: Vec::new(),
        models: Vec::new(),
        hardware: Vec::new(),
    }
}

fn member(address: &str) -> Member {
    Member {
        address: address.into(),
        condition: Condition::Ready,
        metrics_url: format!("http://{address}/metrics"),
        hardware_url: None,
        role: Role::Both,
    }
}

/// What a proxy is told that holds nothing.
fn told(table: &Table, proxy: ProxyId, now: Duration) -> BTreeMap<String, PoolReport> {
    let begun = Begun { stamp: Stamp { epoch: 1, generation: 1 }, numbers_are_due: true };
    Told::default().document(begun, table.revision(), &table.told_to(proxy, now)).document.pools
}

fn found(members: &[Member]) -> Found {
    Found { members: Some(members.to_vec()), error: None }
}

impl Setting {
    fn id(&self, address: &str) -> WorkerId {
        self.table.targets().find(|target| &*target.worker.address == address).unwrap().worker
    }

    fn begin(&self, address: &str, at: Duration) -> Scrape {
        self.table.begin_scrape(&self.id(address), at)
    }

    /// A good scrape that takes no time.
    fn scrape(&mut self, address: &str, used: u64, at: Duration) {
        self.scrape_reading(address, reading(vec![rank(used)]), at);
    }

    fn scrape_reading(&mut self, address: &str, reading: Reading, at: Duration) {
        self.table.end_scrape(self.begin(address, at), Ok(reading), at);
    }

    fn fail(&mut self, address: &str, at: Duration) {
        self.fail_by("timeout", address, at);
    }

    fn fail_by(&mut self, cause: Cause, address: &str, at: Duration) {
        self.table.end_scrape(self.begin(address, at), Err(cause), at);
    }

    fn settle(&mut self) {
        for address in ["a1:1", "a2:1", "b1:1"] {
            self.scrape(address, 1, ms(0));
        }
    }

    fn pool(&self, name: &str, now: Duration) -> PoolReport {
        self.table.snapshot(now).pools.into_iter().find(|row| *row.name == *name).unwrap().report
    }

    fn worker(&self, address: &str, now: Duration) -> WorkerReport {
        let workers = self.table.snapshot(now).pools.into_iter().flat_map(|row| row.report.workers).collect::<Vec<_>>();
        workers.into_iter().find(|worker| worker.address == address).unwrap()
    }

    fn taken(&mut self, proxy: usize, requests: u64, at: Duration) {
        let admitted = Admitted { requests, blocks: requests * 10 };
        let answer = ViewAnswer { admitted: [("a".into(), admitted)].into(), ..ViewAnswer::default() };
        self.table.said(self.proxies[proxy], &answer, at, Some(Vec::new()));
    }

    fn request_thresholds(
        &mut self,
        request: &ThresholdRequest,
        now: Duration,
    ) -> Result<ModelThresholds, ThresholdError> {
        let Requested { thresholds, set } = self.table.requested_thresholds(request)?;
        for (pool, over) in set {
            self.table.set_thresholds(&pool, &over, now);
        }
        Ok(thresholds)
    }

    fn credit(&self, proxy: usize, now: Duration) -> u64 {
        told(&self.table, self.proxies[proxy], now)["a"].admitted.requests
    }
}

#[test]
fn nothing_is_told_of_a_pool_until_all_its_workers_have_been_tried() {
    let mut setting = setting();
    let names = |setting: &Setting| told(&setting.table, setting.proxies[0], ms(10)).into_keys().collect::<Vec<_>>();
    assert!(names(&setting).is_empty() && !setting.table.has_settled());
    assert_eq!(setting.table.unsettled().next().unwrap(), "pool a: worker a1:1 has not been scraped yet");
    setting.scrape("b1:1", 1, ms(0));
    assert_eq!(names(&setting), ["b"]);
    setting.fail("a1:1", ms(10));
    setting.fail("a2:1", ms(10));
    assert_eq!(names(&setting), ["a", "b"], "a bad try is a try");
    assert_eq!(setting.table.unsettled().count(), 0);
    let report = setting.worker("a1:1", ms(10));
    assert_eq!((report.state, report.busy, report.ranks.len()), (WorkerState::Down, false, 0));
    assert_eq!(report.cause.as_deref(), Some("timeout"));
}

#[test]
fn failed_scrapes_keep_the_last_good_numbers_until_patience_ends() {
    let mut setting = setting();
    setting.settle();
    setting.scrape("a1:1", 40, ms(100));
    let before = setting.table.revision();
    setting.fail("a1:1", ms(1_099));
    assert_eq!(setting.table.revision(), before, "an older number is no news");
    let report = setting.worker("a1:1", ms(2_099));
    assert_eq!(
        (report.state, report.scraped_ms_ago, report.cause.as_deref()),
        (WorkerState::Up, 1_999, Some("timeout"))
    );
    assert_eq!(report.ranks, [rank(40)]);
    setting.fail("a1:1", ms(2_100));
    assert_eq!(setting.worker("a1:1", ms(2_100)).state, WorkerState::Down);
    assert_eq!(setting.table.revision().states, before.states + 1);
    setting.scrape("a1:1", 41, ms(2_200));
    let report = setting.worker("a1:1", ms(2_200));
    assert_eq!((report.state, report.cause), (WorkerState::Up, None), "one good scrape is enough");
}

#[test]
fn stale_numbers_are_held_or_count_as_full_as_configured() {
    let full = CONFIG.replace("model: model-a", "when_stale: full");
    for (text, saturation, busy) in [(CONFIG, 0.5, false), (full.as_str(), 0.75, true)] {
        let mut setting = setting_of(text);
        setting.scrape("a1:1", 25, ms(0));
        setting.scrape("a2:1", 25, ms(500));
        assert_eq!(setting.pool("a", ms(999)).saturation, Some(0.5));
        let stale = setting.pool("a", ms(1_000));
        assert_eq!(stale.saturation, Some(saturation), "{text}");
        assert_eq!(stale.workers.iter().map(|worker| worker.busy).collect::<Vec<_>>(), [busy, false]);
        assert_eq!(stale.workers[0].state, WorkerState::Up, "stale is not down");
    }
}

#[test]
fn the_age_counts_from_the_begin_of_the_scrape() {
    let mut setting = setting();
    let begun = setting.begin("a1:1", ms(100));
    setting.table.end_scrape(begun, Ok(reading(vec![rank(1)])), ms(180));
    assert_eq!(setting.worker("a1:1", ms(200)).scraped_ms_ago, 100);
}

#[test]
fn states_and_numbers_are_counted_apart() {
    let mut setting = setting();
    setting.settle();
    let up = setting.table.revision();
    setting.scrape("a1:1", 1, ms(100));
    assert_eq!(setting.table.revision(), up, "the same page again");
    setting.scrape("a1:1", 85, ms(200));
    assert_eq!(setting.table.revision(), Revision { numbers: up.numbers + 1, ..up }, "at the threshold is free");
    setting.scrape("a1:1", 86, ms(300));
    let busy = Revision { states: up.states + 1, numbers: up.numbers + 2, ..up };
    assert_eq!(setting.table.revision(), busy);
    assert!(setting.worker("a1:1", ms(300)).busy);
}

#[test]
fn a_busy_worker_stays_so_until_it_is_clearly_below_its_threshold() {
    let mut setting = setting();
    setting.settle();
    setting.scrape("a1:1", 86, ms(100));
    let busy = setting.table.revision().states;
    // Free again at 0.85 × (1 − 0.05) = 0.8075.
    for (at, used) in [(200, 85), (300, 86), (400, 81)] {
        setting.scrape("a1:1", used, ms(at));
        assert!(setting.worker("a1:1", ms(at)).busy, "{used}");
    }
    assert_eq!(setting.table.revision().states, busy, "it does not flap");
    setting.scrape("a1:1", 80, ms(500));
    assert!(!setting.worker("a1:1", ms(500)).busy);
}

#[test]
fn saturation_is_that_of_the_live_workers() {
    let mut setting = setting();
    let of = |setting: &Setting, pool: &str, now| setting.pool(pool, now).saturation;
    assert_eq!(of(&setting, "a", ms(0)), Some(1.0), "no worker is live");
    setting.scrape("a1:1", 25, ms(0));
    assert_eq!(of(&setting, "a", ms(0)), Some(0.5), "0.25 used at the pool's own 0.5");
    setting.scrape("a2:1", 75, ms(100));
    assert_eq!(of(&setting, "a", ms(100)), Some(1.0), "0.5 and 1.5");
    assert_eq!(of(&setting, "a", DOWN_AFTER), Some(1.5), "the first is down");
    setting.scrape("b1:1", 0, ms(100));
    assert_eq!(of(&setting, "b", ms(100)), Some(1.0), "one that drains takes nothing, however empty it is");
    let other = CONFIG.replace("kv_cache_util_threshold: 0.5", "kv_cache_util_threshold: 1");
    setting.table.configure(&Config::parse(&other).unwrap());
    assert_eq!(of(&setting, "a", DOWN_AFTER), Some(0.75), "another rule holds before the next scrape");
}

#[test]
fn a_worker_beyond_its_headroom_is_spared_while_another_takes_more() {
    let mut setting = setting_of(&CONFIG.replace("0.5}", "0.5, headroom: 0.2}"));
    let busy = |setting: &Setting| setting.pool("a", ms(0)).workers.iter().map(|one| one.busy).collect::<Vec<_>>();
    setting.scrape("a1:1", 59, ms(0));
    setting.scrape("a2:1", 10, ms(0));
    assert_eq!(busy(&setting), [false, false], "1.18 is below 1.2");
    setting.scrape("a1:1", 60, ms(0));
    assert_eq!(busy(&setting), [true, false]);
    let before = setting.table.revision().states;
    setting.scrape("a1:1", 58, ms(0));
    assert_eq!(busy(&setting), [true, false], "1.16 is not 5 % below 1.2");
    assert_eq!(setting.table.revision().states, before);
    setting.scrape("a1:1", 56, ms(0));
    assert_eq!(busy(&setting), [false, false], "1.12 is");
    assert_eq!(setting.table.revision().states, before + 1, "which is told at once");
    setting.scrape("a1:1", 60, ms(0));
    setting.scrape("a2:1", 70, ms(0));
    assert_eq!(busy(&setting), [false, false], "when all are beyond it none is spared");
    setting.scrape("a2:1", 90, ms(0));
    assert_eq!(busy(&setting), [false, true], "but what is busy by the busy rule stays so");
}

#[test]
fn workers_go_with_the_word_of_their_own_source_whatever_another_does() {
    let text = CONFIG.replace(r#"workers: ["a1:1", "a2:1"]"#, "discover: [{file: {path: f}}, {file: {path: g}}]");
    let mut setting = setting_of(&text);
    let addresses = |setting: &Setting| setting.table.targets().filter(|target| *target.worker.pool == *"a").count();
    for pod in 0..5 {
        setting.table.found("a", "file:f", found(&[member(&format!("pod-{pod}:1"))]));
        assert_eq!(addresses(&setting), 1, "though file:g never speaks");
    }
    setting.table.found("a", "file:g", found(&[member("other:1")]));
    setting.table.found("a", "file:f", found(&[]));
    assert_eq!(addresses(&setting), 1);
}

#[test]
fn time_that_nobody_looked_makes_no_worker_older() {
    // The next try ends within 300 ms, if anybody tries at all.
    let mut setting = setting_of(&CONFIG.replace("timeout: 1h", "timeout: 200ms"));
    setting.settle();
    let state = |setting: &Setting, at| setting.worker("a1:1", ms(at)).state;
    assert!(setting.table.is_attended(ms(1_300)) && !setting.table.is_attended(ms(1_301)));
    assert_eq!(state(&setting, 1_300), WorkerState::Up);
    assert_eq!(state(&setting, 60_000), WorkerState::Up, "as after a pause of the whole process");
    setting.fail("a1:1", ms(60_000));
    assert_eq!(state(&setting, 60_000), WorkerState::Down, "somebody has looked");
    assert!(setting.table.is_attended(ms(61_300)));
    let before = setting.table.revision().states;
    setting.scrape("a1:1", 1, ms(60_100));
    assert_eq!((state(&setting, 60_100), setting.table.revision().states), (WorkerState::Up, before + 1));
}

#[test]
fn a_scrape_that_a_pause_interrupts_turns_no_worker_down() {
    for result in [Ok(reading(vec![rank(1)])), Err("timeout")] {
        let mut setting = setting_of(&CONFIG.replace("timeout: 1h", "timeout: 200ms"));
        setting.settle();
        let scrape = setting.begin("a1:1", ms(100));
        setting.table.end_scrape(scrape, result, ms(60_000));
        assert_eq!(setting.worker("a1:1", ms(60_000)).state, WorkerState::Up);
        setting.fail("a1:1", ms(60_100));
        assert_eq!(setting.worker("a1:1", ms(60_100)).state, WorkerState::Down, "somebody has looked since");
    }
}

#[test]
fn a_worker_that_time_alone_has_turned_down_is_told_up_at_once() {
    let mut setting = setting();
    setting.settle();
    let before = setting.table.revision().states;
    assert_eq!(setting.worker("a1:1", DOWN_AFTER).state, WorkerState::Down, "a heartbeat has told that");
    setting.scrape("a1:1", 1, DOWN_AFTER);
    assert_eq!(setting.table.revision().states, before + 1);
}

#[test]
fn a_draining_worker_drains_while_it_answers() {
    let mut setting = setting();
    setting.scrape("b1:1", 1, ms(0));
    assert_eq!(setting.worker("b1:1", ms(0)).state, WorkerState::Draining);
    assert_eq!(setting.worker("b1:1", DOWN_AFTER).state, WorkerState::Down);
}

const FOUND: &str = r#"
proxies: [{url: "http://p:1", token: t}]
pools: [{name: a, workers: ["a1:1"], discover: [{file: {path: /w}}]}]
"#;

#[test]
fn workers_come_and_go_as_their_source_says() {
    let mut setting = setting_of(FOUND);
    let addresses =
        |setting: &Setting| setting.table.targets().map(|target| target.worker.address.to_string()).collect::<Vec<_>>();
    setting.scrape("a1:1", 1, ms(0));
    assert_eq!(
        setting.table.unsettled().collect::<Vec<_>>(),
        ["pool a: file:/w has not said yet which workers there are"]
    );
    let error = Some(LookError::Timeout);
    setting.table.found("a", "file:/w", Found { members: None, error: error.clone() });
    assert!(!setting.table.has_settled(), "that it cannot say is no word");

    let before = setting.table.revision();
    setting.table.found("a", "file:/w", found(&[member("f1:1"), member("f2:1")]));
    assert_eq!(addresses(&setting), ["a1:1", "f1:1", "f2:1"]);
    assert_eq!(setting.table.revision().targets, before.targets + 1);
    assert_eq!(setting.pool("a", ms(0)).workers.len(), 1, "of the others nothing has been measured");
    setting.scrape("f1:1", 1, ms(0));
    setting.scrape("f2:1", 1, ms(0));
    assert!(setting.table.has_settled());

    let kept = setting.id("f1:1");
    setting.table.found("a", "file:/w", Found { members: None, error });
    assert_eq!(addresses(&setting).len(), 3, "the last word stands");
    let draining = Member { condition: Condition::Draining, ..member("f1:1") };
    let not_ready = Member { condition: Condition::NotReady, ..member("f2:1") };
    setting.table.found("a", "file:/w", found(&[draining, not_ready]));
    assert_eq!(setting.id("f1:1"), kept, "it is the same worker");
    assert_eq!(setting.worker("f1:1", ms(0)).state, WorkerState::Draining);
    assert_eq!(setting.worker("f2:1", ms(0)).state, WorkerState::Down, "however well it answers");

    let begun = setting.begin("f1:1", ms(10));
    setting.table.found("a", "file:/w", found(&[]));
    assert_eq!(addresses(&setting), ["a1:1"]);
    assert!(!setting.table.end_scrape(begun, Ok(reading(vec![rank(9)])), ms(20)), "it is gone");
    setting.table.found("a", "file:/w", found(&[member("f1:1")]));
    assert_ne!(setting.id("f1:1"), kept, "one that comes again is another");
    let of_the_one_before = setting.table.begin_scrape(&kept, ms(30));
    assert!(!setting.table.end_scrape(of_the_one_before, Ok(reading(vec![rank(9)])), ms(40)));
    assert_eq!(setting.pool("a", ms(40)).workers.len(), 1, "nothing is known of the new one yet");
}

#[test]
fn a_pool_whose_last_worker_has_gone_lacks_no_look() {
    let mut setting = setting_of(&FOUND.replace(r#"workers: ["a1:1"], "#, ""));
    setting.table.found("a", "file:/w", found(&[member("f1:1")]));
    setting.scrape("f1:1", 1, ms(0));
    let begun = setting.begin("f1:1", ms(10));
    setting.table.found("a", "file:/w", found(&[]));
    assert!(!setting.table.end_scrape(begun, Ok(reading(vec![rank(1)])), ms(20)));
    assert!(setting.table.is_attended(Duration::from_secs(3_600)), "there is nobody to look at");
}

#[test]
fn what_is_listed_goes_before_what_is_found_at_the_same_address() {
    let mut setting = setting_of(FOUND);
    setting.table.found("a", "file:/w", found(&[Member { condition: Condition::Draining, ..member("a1:1") }]));
    setting.scrape("a1:1", 1, ms(0));
    assert_eq!(setting.worker("a1:1", ms(0)).state, WorkerState::Up);
}

#[test]
fn another_configuration_keeps_what_is_known_of_what_stays() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 5, ms(0));
    let kept = setting.id("a1:1");
    let set = ThresholdRequest {
        model: "model-a".into(),
        active_decode_blocks_threshold: Some(0.4),
        ..ThresholdRequest::default()
    };
    setting.request_thresholds(&set, ms(0)).unwrap();
    let other = CONFIG.replace(r#""a2:1"]"#, r#""a3:1"]"#).replace("- {name: b", "- {name: c");
    setting.table.configure(&Config::parse(&other).unwrap());
    assert_eq!(setting.id("a1:1"), kept);
    let told = told(&setting.table, setting.proxies[0], ms(1));
    assert_eq!(told.keys().collect::<Vec<_>>(), ["a"], "nothing is known of pool c");
    assert_eq!(told["a"].workers.len(), 1, "nor of a3");
    assert_eq!(
        setting.table.thresholds()[0].thresholds.active_decode_blocks_threshold,
        Some(0.4),
        "as set at run time"
    );
    let third = other.replace("0.85", "0.9");
    setting.table.configure(&Config::parse(&third).unwrap());
    assert_eq!(setting.table.thresholds()[0].thresholds.active_decode_blocks_threshold, Some(0.9), "a new word counts");
}

#[test]
fn nobody_goes_while_a_new_source_has_not_spoken() {
    let mut setting = setting();
    setting.settle();
    let moved = CONFIG.replace(r#"workers: ["a1:1", "a2:1"]"#, "discover: [{file: {path: /w}}]");
    setting.table.configure(&Config::parse(&moved).unwrap());
    let told = |setting: &Setting| {
        let workers = setting.pool("a", ms(0)).workers;
        workers.into_iter().map(|worker| worker.address).collect::<Vec<_>>()
    };
    assert_eq!(told(&setting), ["a1:1", "a2:1"], "the pool is not told empty");
    let kept = setting.id("a2:1");
    setting.table.found("a", "file:/w", found(&[member("a2:1")]));
    assert_eq!(told(&setting), ["a2:1"]);
    assert_eq!(setting.id("a2:1"), kept, "and what stays is the same worker");
}

#[test]
fn a_worker_whose_page_moves_is_not_gone_meanwhile() {
    let mut setting = setting();
    setting.settle();
    let (kept, begun) = (setting.id("a1:1"), setting.begin("a1:1", ms(0)));
    let used = |setting: &Setting| setting.worker("a1:1", ms(1)).ranks[0].kv_used_blocks;
    let before = used(&setting);
    let moved = CONFIG.replace(r#"["a1:1", "a2:1"]"#, "[{address: 'a1:1', metrics_url: 'http://a1:9/m'}, 'a2:1']");
    setting.table.configure(&Config::parse(&moved).unwrap());
    let target = setting.table.targets().find(|target| &*target.worker.address == "a1:1").unwrap();
    assert_eq!(target.metrics_url, "http://a1:9/m");
    assert_ne!(target.worker, kept, "its scrapes begin anew");
    assert_eq!(
        (setting.worker("a1:1", ms(1)).state, used(&setting)),
        (WorkerState::Up, before),
        "what it said is held"
    );
    setting.table.end_scrape(begun, Ok(reading(vec![rank(99)])), ms(2));
    assert_eq!(used(&setting), before, "the old page counts no more");
}

#[test]
fn headroom_leaves_somebody_in_each_stage() {
    let text = CONFIG
        .replace("0.5}", "0.5, headroom: 0.2}")
        .replace(r#"["a1:1", "a2:1"]"#, "[{address: 'a1:1', role: prefill}, {address: 'a2:1', role: decode}]");
    let mut setting = setting_of(&text);
    setting.scrape("a1:1", 1, ms(0));
    setting.scrape("a2:1", 70, ms(0));
    let busy = setting.pool("a", ms(0)).workers.into_iter().map(|one| one.busy).collect::<Vec<_>>();
    assert_eq!(busy, [false, false], "an idle worker that reads prompts is no use without one that decodes");
}
