use std::time::Duration;

use admission_core::view::{Admitted, FORM, RankReport, ViewAnswer, WorkerState};

use super::*;
use crate::config::Config;
use crate::engines::Engine;
use crate::reading::{Limits, Reading};
use crate::table::{ProxyId, Table, Way};

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A table, one proxy, what it was told, and what it then holds.
struct Setting {
    table: Table,
    proxy: ProxyId,
    told: Told,
    held: Option<ViewDocument>,
    generation: u64,
}

fn address(number: usize) -> String {
    format!("w{number:03}:80")
}

impl Setting {
    /// Of so many workers, of which all is told.
    fn of(workers: usize) -> Self {
        Self::stale_after(workers, "1h")
    }

    fn stale_after(workers: usize, stale_after: &str) -> Self {
        let addresses: Vec<_> = (0..workers).map(|number| format!("'{}'", address(number))).collect();
        let config = format!(
            "{{proxies: [{{url: 'http://p:1', token: t}}], scrape: {{stale_after: {stale_after}, down_after: 2h}}, \
             pools: [{{name: p, when_stale: full, busy: {{active_decode_blocks_threshold: 0.85}}, workers: [{}]}}]}}",
            addresses.join(", ")
        );
        let mut table = Table::new(&Config::parse(&config).unwrap());
        let proxy = table.register("p", Way::Pushed);
        let mut setting = Self { table, proxy, told: Told::default(), held: None, generation: 0 };
        (0..workers).for_each(|number| setting.scrape(number, 1, ms(0)));
        setting.tell(true);
        setting
    }

    fn scrape(&mut self, number: usize, used: u64, at: Duration) {
        let target = self.table.targets().find(|target| *target.worker.address == address(number)).unwrap();
        let scrape = self.table.begin_scrape(&target.worker, at);
        let kv = RankReport { kv_used_blocks: Some(used), kv_total_blocks: Some(100), ..RankReport::default() };
        let rank = RankReport { running: Some(used), ..kv };
        let reading = Reading {
            engine: Engine::Vllm,
            ranks: vec![rank],
            limits: Limits::default(),
            doubts: Vec::new(),
            models: Vec::new(),
            hardware: Vec::new(),
        };
        self.table.end_scrape(scrape, Ok(reading), at);
    }

    fn said(&mut self, requests: u64) {
        let admitted = [("p".to_owned(), Admitted { requests, blocks: requests })].into();
        let held = [("p".to_owned(), requests / 2)].into();
        let answer = ViewAnswer { admitted, held, form: FORM, ..ViewAnswer::default() };
        self.told.speak(answer.form);
        self.table.said(self.proxy, &answer, ms(0), Some(Vec::new()));
    }

    /// Tells what is due, and what the document was.
    fn tell(&mut self, numbers_are_due: bool) -> ViewDocument {
        self.generation += 1;
        let begun = Begun { stamp: Stamp { epoch: 7, generation: self.generation }, numbers_are_due };
        let sent = self.told.document(begun, self.table.revision(), &self.table.told_to(self.proxy, ms(50)));
        let document = sent.document.clone();
        match (&mut self.held, document.base) {
            (held, None) => *held = Some(document.clone()),
            (Some(held), Some(base)) => {
                assert_eq!(base, held.generation);
                held.apply(document.clone());
            }
            (None, Some(base)) => panic!("nobody holds {base}"),
        }
        self.told.taken(sent);
        document
    }

    /// Blocks in use of each worker, as the proxy holds them.
    fn held(&self) -> Vec<u64> {
        let workers = &self.held.as_ref().unwrap().pools["p"].workers;
        let mut workers: Vec<_> = workers.iter().collect();
        workers.sort_by(|one, other| one.address.cmp(&other.address));
        workers.iter().map(|worker| worker.ranks[0].kv_used_blocks.unwrap()).collect()
    }

    fn credit(&self) -> u64 {
        self.held.as_ref().unwrap().pools["p"].admitted.requests
    }

    /// Count that comes with the numbers of a worker, as the proxy holds them.
    fn shown_by(&self, number: usize) -> Option<u64> {
        let mut workers = self.held.as_ref().unwrap().pools["p"].workers.iter();
        workers.find(|worker| worker.address == address(number)).unwrap().admitted
    }
}

fn told_of(document: &ViewDocument) -> Vec<&str> {
    document.pools.values().flat_map(|pool| &pool.workers).map(|worker| worker.address.as_str()).collect()
}

#[test]
fn the_whole_is_sent_until_something_is_known_to_be_held() {
    let mut setting = Setting::of(3);
    assert_eq!(setting.held.as_ref().unwrap().base, None);
    let nothing = setting.tell(true);
    assert_eq!((nothing.base, nothing.generation, nothing.pools.len()), (Some(1), 2, 0), "nothing has changed since");
    setting.told.forget();
    let again = setting.tell(false);
    assert_eq!((again.base, told_of(&again).len()), (None, 3));
}

#[test]
fn states_are_told_all_at_once_and_numbers_in_turns() {
    let mut setting = Setting::of(300);
    (0..300).for_each(|number| setting.scrape(number, 2, ms(10)));
    setting.scrape(150, 99, ms(20));
    let state = setting.tell(false);
    assert_eq!(told_of(&state), [address(150)], "the only one whose state has changed, though all numbers have");
    assert!(state.pools["p"].workers[0].busy);

    let mut told = Vec::new();
    for _ in 0..3 {
        let part = setting.tell(true);
        assert!(part.base.is_some() && told_of(&part).len() <= MOST, "{}", told_of(&part).len());
        told.extend(part.pools["p"].workers.iter().map(|worker| worker.address.clone()));
        // Those that have had their turn wait for all others.
        (0..40).for_each(|number| setting.scrape(number, 3, ms(30)));
    }
    told.sort();
    told.dedup();
    assert_eq!(told.len(), 299, "all but the one that was told at once");
    assert_eq!(setting.held()[40..], [[2; 110].as_slice(), &[99], &[2; 149]].concat());
}

#[test]
fn what_is_told_in_parts_is_in_the_end_what_is_known() {
    let mut rng = fastrand::Rng::with_seed(17);
    let mut setting = Setting::of(260);
    let mut known = vec![1; 260];
    for round in 0..200 {
        for _ in 0..rng.usize(..200) {
            let (number, used) = (rng.usize(..260), rng.u64(1..100));
            known[number] = used;
            setting.scrape(number, used, ms(round));
        }
        setting.tell(rng.bool());
        let is_busy = |worker: &WorkerReport| (worker.address.clone(), worker.busy);
        let rows = setting
            .table
            .snapshot(ms(50))
            .pools
            .into_iter()
            .flat_map(|row| row.report.workers)
            .map(|worker| is_busy(&worker));
        let held = setting.held.as_ref().unwrap().pools["p"].workers.iter().map(is_busy);
        assert_eq!(held.collect::<BTreeMap<_, _>>(), rows.collect(), "states are current");
    }
    (0..3).for_each(|_| drop(setting.tell(true)));
    assert_eq!(setting.held(), known);
    assert_eq!(setting.tell(true).pools.len(), 0);
}

#[test]
fn the_credit_is_that_of_the_oldest_numbers_held() {
    let mut setting = Setting::of(300);
    assert_eq!(setting.credit(), 0);
    setting.said(10);
    (0..300).for_each(|number| setting.scrape(number, 1, ms(10)));
    setting.tell(false);
    assert_eq!(setting.credit(), 10, "the same numbers have been seen again since");
    setting.said(20);
    (0..300).for_each(|number| setting.scrape(number, 2, ms(20)));
    for part in 1..=3 {
        setting.tell(true);
        assert_eq!(setting.credit(), if part < 3 { 10 } else { 20 }, "after {part} parts of three");
    }
    setting.said(30);
    (0..300).for_each(|number| setting.scrape(number, 3, ms(30)));
    setting.tell(true);
    assert_eq!(setting.credit(), 20);
    setting.said(25);
    setting.tell(true);
    assert_eq!(setting.credit(), 0, "the proxy has restarted");
}

#[test]
fn each_worker_says_what_its_own_numbers_show() {
    let mut setting = Setting::of(3);
    setting.said(10);
    setting.scrape(1, 2, ms(10));
    setting.tell(true);
    assert_eq!(([0, 1, 2].map(|number| setting.shown_by(number)), setting.credit()), ([None, Some(10), None], 0));
    setting.said(20);
    setting.scrape(1, 2, ms(20));
    assert_eq!(told_of(&setting.tell(true)), [""; 0], "the same numbers again");
    assert_eq!(setting.shown_by(1), Some(10));
    setting.said(15);
    assert_eq!(told_of(&setting.tell(false)), [address(1)], "the proxy has restarted: its count says nothing any more");
    assert_eq!(setting.shown_by(1), None);
}

#[test]
fn workers_that_go_and_come_are_told_at_once() {
    let mut setting = Setting::of(200);
    let without = |setting: &mut Setting, gone: usize| {
        let addresses: Vec<_> =
            (0..200).filter(|number| *number != gone).map(|number| format!("'{}'", address(number))).collect();
        let config = format!(
            "{{proxies: [{{url: 'http://p:1', token: t}}], pools: [{{name: p, workers: [{}]}}]}}",
            addresses.join(", ")
        );
        setting.table.configure(&Config::parse(&config).unwrap());
    };
    without(&mut setting, 70);
    let change = setting.tell(false);
    assert_eq!((change.base.is_some(), &change.pools["p"].removed), (true, &vec![address(70)]));
    without(&mut setting, 71);
    setting.scrape(70, 5, ms(20));
    let change = setting.tell(false);
    assert_eq!((told_of(&change), &change.pools["p"].removed), (vec![address(70).as_str()], &vec![address(71)]));
    let worker = &change.pools["p"].workers[0];
    assert_eq!((worker.state, worker.ranks[0].kv_used_blocks), (WorkerState::Up, Some(5)));
    assert_eq!(setting.held().len(), 199);
}

#[test]
fn the_whole_is_told_where_it_is_hardly_longer() {
    let mut setting = Setting::of(4);
    setting.scrape(0, 2, ms(10));
    assert_eq!(told_of(&setting.tell(true)).len(), 1);
    (0..3).for_each(|number| setting.scrape(number, 5, ms(20)));
    let whole = setting.tell(true);
    assert_eq!((whole.base, told_of(&whole).len()), (None, 4), "of three of four");
}

#[test]
fn fields_of_a_later_form_wait_until_the_proxy_names_it() {
    let mut setting = Setting::of(3);
    let of_second_form = |document: &ViewDocument| {
        let pool = &document.pools["p"];
        (document.base, pool.held, pool.full_blocks)
    };
    assert_eq!(of_second_form(setting.held.as_ref().unwrap()), (None, None, None), "the first document");
    setting.said(10);
    (0..3).for_each(|number| setting.scrape(number, 2, ms(10)));
    let whole = setting.tell(true);
    assert_eq!(of_second_form(&whole), (None, Some(5), Some(240)), "80 of 100 blocks of each fill it");
    setting.scrape(1, 3, ms(20));
    assert!(setting.tell(true).base.is_some());
    setting.told.speak(admission_core::view::FIRST_FORM);
    assert_eq!(of_second_form(&setting.tell(true)), (None, None, None), "another module runs there now");
}

#[test]
fn a_worker_that_hangs_does_not_hold_back_what_is_known_of_the_others() {
    let mut setting = Setting::stale_after(2, "30ms");
    setting.said(10);
    (0..2).for_each(|number| setting.scrape(number, 2, ms(10)));
    setting.said(20);
    setting.scrape(0, 3, ms(30));
    setting.tell(true);
    assert_eq!(setting.credit(), 20, "the numbers of the other are 40 ms old, and count as full");
    assert_eq!(setting.held(), [3, 100], "so none of its blocks is free");
    let mut patient = Setting::of(2);
    patient.said(10);
    (0..2).for_each(|number| patient.scrape(number, 2, ms(10)));
    patient.said(20);
    patient.scrape(0, 3, ms(30));
    patient.tell(true);
    assert_eq!(patient.credit(), 10, "not old yet");
}
