//! Requests that are steered: what a worker was given since its numbers were read.

use super::*;
use crate::view::Takes;

const A: &str = "10.0.0.1:80";
const B: &str = "10.0.0.2:80";

/// A pool that steers, with this cap.
fn steered(cap: &str) -> Policy {
    let kv = r#""kv": {"block_size": 16, "headroom": 0.0}"#;
    let json = format!(r#"{{"pools": [{{"name": "p", {cap}, "pick_endpoint": true, {kv}}}]}}"#);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    *policy
}

/// Two free workers that have so many of 1,000 blocks free, and are busy once they hold so many more.
fn two(free: [u64; 2], until_busy: Option<u64>) -> Picture {
    let mut picture = picture(r#""max_in_flight": 99"#);
    picture.policy = steered(r#""max_in_flight": 99"#);
    let blocks = |free| KvBlocks { total: Blocks(1_000), free: Blocks(free) };
    let freest = blocks(free[0].max(free[1]));
    let all = KvBlocks { total: Blocks(2_000), free: Blocks(free[0] + free[1]) };
    picture.view().kv = Some(PoolKv { all, freest: Some(freest), largest: Blocks(1_000) });
    let mut seen = workers(&[(A, true), (B, true)]);
    for (seen, free) in seen.list.iter_mut().zip(free) {
        seen.takes = Takes { kv: Some((blocks(free), blocks(free))), until_busy, admitted: None };
    }
    picture.workers = Some(seen);
    picture
}

/// A request of so many blocks.
fn of_blocks(blocks: u64) -> Ask {
    ask(16 * blocks, 0)
}

impl Picture {
    /// A view comes in which only the numbers of one worker are new; its scrape began after all that is admitted.
    fn scrape_one(&mut self, worker: usize) {
        let before = self.view().credit;
        self.scrape();
        let now = std::mem::replace(&mut self.view().credit, before);
        self.workers.as_mut().unwrap().list[worker].takes.admitted = Some(now.admitted.requests);
    }

    /// Starts a request; the worker it was steered to, or why it does not start.
    fn start_steered(&mut self, blocks: u64) -> Result<&'static str, Reason> {
        let endpoint = self.place(&of_blocks(blocks)).map_err(|refusal| refusal.reason)?.unwrap();
        let amount = of_blocks(blocks).amount(16);
        let worker = Some(endpoint.worker);
        let begun = Begun { since: self.pool.acknowledged(), blocks: amount.blocks, worker, ..Begun::default() };
        self.pool.admit(&self.members, self.holder, LANE, amount);
        self.pool.tally(&self.members, self.holder, endpoint.worker, 1);
        self.pool.begin(&self.members, self.holder, begun);
        Ok(if endpoint.header.starts_with(A) { A } else { B })
    }
}

#[test]
fn a_request_fits_one_worker_with_what_that_was_given_since() {
    let mut picture = two([550, 550], None);
    assert_eq!(picture.start_steered(750), Err(Reason::KvBlocks));
    assert_eq!((picture.start_steered(500), picture.start_steered(500)), (Ok(A), Ok(B)));
    assert_eq!(picture.start_steered(100), Err(Reason::KvBlocks), "50 are left at each");
    assert_eq!(picture.start_steered(50), Ok(A));
    picture.scrape();
    assert_eq!(picture.start_steered(100), Ok(B), "the numbers of the next view say what is free");
}

#[test]
fn a_request_goes_where_it_fits_though_another_worker_has_less_to_do() {
    let mut picture = two([100, 400], None);
    let list = &mut picture.workers.as_mut().unwrap().list;
    list[1].load = 5;
    assert_eq!(picture.start_steered(50), Ok(A), "the least loaded");
    assert_eq!(picture.start_steered(60), Ok(B), "50 are left at the other");
    let header = picture.place(&of_blocks(300)).unwrap().unwrap().header;
    assert_eq!(header, B, "nor is the other named for a second try");
    assert_eq!(picture.refusal(&of_blocks(350)), (Reason::KvBlocks, 350, 340));
}

#[test]
fn a_worker_that_was_given_what_makes_it_busy_is_not_chosen() {
    let mut picture = two([900, 900], Some(101));
    assert_eq!(picture.start_steered(100), Ok(A));
    assert_eq!(picture.start_steered(100), Ok(B));
    assert_eq!(picture.start_steered(1), Ok(A), "exactly at the threshold is free");
    assert_eq!((picture.start_steered(100), picture.start_steered(1)), (Ok(B), Err(Reason::AllBusy)));
    let refusal = picture.decide(&of_blocks(1)).unwrap_err();
    assert!(matches!(refusal.detail, Detail::Fixed(why) if why.contains("given")), "{refusal:?}");
    picture.scrape();
    assert_eq!(picture.start_steered(1), Ok(A), "a view that has seen all of it says who is free");
}

#[test]
fn a_worker_is_judged_by_its_own_scrape_while_the_page_of_another_hangs() {
    let mut picture = two([900, 900], Some(101));
    assert_eq!((picture.start_steered(101), picture.start_steered(101)), (Ok(A), Ok(B)));
    assert_eq!(picture.start_steered(1), Err(Reason::AllBusy));
    picture.scrape_one(1);
    assert_eq!(picture.start_steered(101), Ok(B), "its numbers show what it was given, and it is free by them");
    assert_eq!(picture.start_steered(1), Err(Reason::AllBusy), "nothing is known of the other");
    let seen = |picture: &mut Picture, admitted| picture.workers.as_mut().unwrap().list[1].takes.admitted = admitted;
    seen(&mut picture, Some(900));
    assert_eq!(picture.start_steered(1), Err(Reason::AllBusy), "that is the count of the proxy before it restarted");
    picture.scrape();
    seen(&mut picture, Some(0));
    assert_eq!(picture.start_steered(1), Ok(A), "a view shows at least what all of its scrapes have seen");
}

#[test]
fn growth_is_held_against_what_a_worker_has_not_shown_yet() {
    let mut picture = two([100, 100], None);
    assert_eq!(picture.start_steered(90), Ok(A));
    let grow = |picture: &Picture, blocks| {
        let by = Amount { blocks: Blocks(blocks), ..Amount::default() };
        let known = Known { view: picture.view.as_ref(), workers: picture.workers.as_ref(), can_be_steered: true };
        let worker = Some(TallyKey::worker(crate::view::WorkerKey::of(A)));
        may_grow(by, (Blocks(90), worker, LANE), picture.rules(), known, picture.held(), NOW).is_ok()
    };
    assert_eq!([10, 11].map(|blocks| grow(&picture, blocks)), [true, false]);
    assert_eq!(picture.start_steered(60), Ok(B));
    picture.scrape_one(0);
    assert_eq!(
        [100, 101].map(|blocks| grow(&picture, blocks)),
        [true, false],
        "its numbers show the 90, the sum does too"
    );
}

#[test]
fn a_free_worker_that_is_listed_by_a_name_leaves_the_choice_to_the_proxy() {
    let mut picture = two([900, 900], Some(1));
    let mut named = workers(&[("gpu.local:80", true)]).list.remove(0);
    named.is_ip_and_port = false;
    picture.workers.as_mut().unwrap().list.push(named);
    let header = picture.place(&of_blocks(1)).unwrap().unwrap().header;
    assert_eq!(header, format!("{A},{B}"), "a name is not written");
    assert_eq!((picture.start_steered(1), picture.start_steered(1)), (Ok(A), Ok(B)));
    assert_eq!(picture.place(&of_blocks(1)), Ok(None), "both that have an address are busy");
    picture.workers.as_mut().unwrap().list[2].free = false;
    assert_eq!(picture.start_steered(1), Err(Reason::AllBusy));
}

#[test]
fn a_worker_at_its_cap_has_no_room_and_one_that_hides_its_blocks_neither() {
    let mut picture = two([100, 900], None);
    picture.policy = steered(r#""max_in_flight_per_worker": 1"#);
    assert_eq!(picture.start_steered(400), Ok(B));
    assert_eq!(picture.refusal(&of_blocks(200)), (Reason::KvBlocks, 200, 100), "the other has room and holds its cap");
    assert_eq!(picture.start_steered(100), Ok(A));
    assert_eq!(picture.start_steered(1), Err(Reason::PoolRequests));

    let mut picture = two([550, 550], None);
    picture.workers.as_mut().unwrap().list[0].takes.kv = Some(Default::default());
    assert_eq!((picture.start_steered(300), picture.start_steered(200)), (Ok(B), Ok(B)));
    assert_eq!(picture.start_steered(100), Err(Reason::KvBlocks));
}

#[test]
fn a_worker_whose_engine_never_reports_blocks_takes_what_all_have_room_for() {
    let mut picture = two([550, 550], None);
    picture.workers.as_mut().unwrap().list[0].takes.kv = None;
    assert_eq!((picture.start_steered(700), picture.start_steered(300)), (Ok(A), Ok(B)));
    assert_eq!(picture.start_steered(101), Err(Reason::KvBlocks), "100 are left in all");
}
