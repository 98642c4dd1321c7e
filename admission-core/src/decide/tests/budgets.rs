//! Lanes that start what their pool has to spare.

use super::*;

/// A batch lane with a baseline of 0.05, in front of a pool of 96 places whose idle workers were just scraped.
fn batch() -> Picture {
    let mut picture = lanes_of(96, r#"{"name": "batch", "dispatch_budget": {"baseline": 0.05}}, {"name": "other"}"#);
    picture.view().saturation = Some(0.0);
    picture
}

pub(super) fn lanes_of(max_in_flight: u64, lanes: &str) -> Picture {
    let json = format!(r#"{{"lanes": [{lanes}], "pools": [{{"name": "p", "max_in_flight": {max_in_flight}}}]}}"#);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    let mut picture = Picture { policy: *policy, ..picture(r#""max_in_flight": 9"#) };
    let credit = Credit { held: Some(0), ..Credit::default() };
    *picture.view() = ViewSummary { credit, in_hand: Some(0), ..picture.view().clone() };
    picture
}

impl Picture {
    /// Starts requests of a lane until one does not start, 300 at most; how many have started.
    pub(super) fn start_all(&mut self, lane: &str) -> u64 {
        (0..300).take_while(|_| self.start(lane)).count() as u64
    }

    pub(super) fn start(&mut self, lane: &str) -> bool {
        let starts = self.may_start(lane).is_ok();
        if starts {
            self.hold(lane, 1);
        }
        starts
    }

    pub(super) fn may_start(&self, lane: &str) -> Result<(), Refusal> {
        let lane = self.policy.lanes().find(|known| known.name == lane).unwrap();
        let rules = Rules { lane, ..self.rules() };
        let turn = Turn { band: lane, ..self.turn() };
        let known = Known { view: self.view.as_ref(), ..Known::default() };
        decide(&ask(1, 1), rules, &turn, known, self.held(), NOW).map(drop)
    }

    pub(super) fn hold(&mut self, lane: &str, requests: u64) {
        let amount = Amount { requests, tokens: Tokens(2 * requests), blocks: Blocks(requests) };
        self.pool.admit(&self.members, self.holder, LaneKey::of(lane), amount);
    }

    pub(super) fn end(&mut self, lane: &str, requests: u64) {
        let amount = Amount { requests, tokens: Tokens(2 * requests), blocks: Blocks(requests) };
        self.pool.refund(&self.members, self.holder, LaneKey::of(lane), amount);
    }

    /// A scrape that shows all that is held.
    pub(super) fn scrape_all(&mut self, capacity: u64) {
        self.scrape();
        let held = self.pool.held(&self.members).requests;
        self.view().in_hand = Some(held);
        self.view().saturation = Some(held as f64 / capacity as f64);
    }
}

#[test]
fn a_lane_alone_fills_its_pool_up_to_the_baseline() {
    let mut picture = batch();
    assert_eq!(picture.start_all("batch"), 91, "0.95 of 96");
    assert_eq!(picture.may_start("batch").unwrap_err().reason, Reason::DispatchBudget);
    picture.scrape_all(96);
    assert_eq!(picture.start_all("batch"), 0, "5 of 96 are left, and 4.8 are to be");
    picture.end("batch", 5);
    assert_eq!(picture.start_all("batch"), 5, "five that the scrape has seen have ended");
    picture.end("batch", 5);
    picture.scrape_all(96);
    assert_eq!(picture.start_all("batch"), 5, "10 of 96 are left");
}

/// The published example of llm-d's asynchronous processor.
#[test]
fn fifteen_of_fifty_leave_room_for_thirty_at_a_baseline_of_a_tenth() {
    let mut picture = lanes_of(50, r#"{"name": "batch", "dispatch_budget": {"baseline": 0.1}}, {"name": "other"}"#);
    picture.hold("other", 15);
    picture.scrape_all(50);
    for _ in 0..10 {
        assert!(picture.start("other"));
    }
    assert_eq!(picture.start_all("batch"), 20, "30, of which another lane has taken ten since the scrape");
}

#[test]
fn what_waits_for_the_pool_goes_first_and_what_waits_for_a_budget_or_its_tenant_does_not_count() {
    use crate::ledger::{Backlog, Report};
    let waits = |demand| Report {
        waiting: vec![(LaneKey::of("batch"), Backlog { requests: 500, ..Backlog::default() })],
        demand,
        ..Report::default()
    };
    let mut picture = batch();
    picture.pool.publish(&picture.members, picture.holder, &waits(0));
    assert_eq!(picture.start_all("batch"), 91, "a backlog of its own, or of a tenant at its cap, closes nothing");
    let mut picture = batch();
    picture.pool.publish(&picture.members, picture.holder, &waits(40));
    picture.view().demand_elsewhere = 8;
    assert_eq!(picture.start_all("batch"), 43, "48 of 96 wait for the pool, here and elsewhere");
}

#[test]
fn two_proxies_share_what_there_is() {
    let mut picture = batch();
    picture.view().other_proxies = 1;
    assert_eq!(picture.start_all("batch"), 45);
}

#[test]
fn without_a_sidecar_it_goes_on_by_what_this_proxy_holds() {
    let mut picture = batch();
    picture.view = None;
    picture.hold("other", 48);
    assert_eq!(picture.start_all("batch"), 43, "91 in all");
}

#[test]
fn workers_whose_metrics_tell_nothing_leave_it_to_what_this_proxy_holds() {
    let mut picture = batch();
    *picture.view() = ViewSummary { saturation: None, in_hand: None, ..picture.view().clone() };
    picture.hold("other", 48);
    assert_eq!(picture.start_all("batch"), 43, "91 in all");
    picture.end("batch", 3);
    assert_eq!(picture.start_all("batch"), 3);
}

#[test]
fn the_sidecars_own_word_replaces_what_the_numbers_say() {
    let mut picture = batch();
    picture.view().dispatch_budget = Some(0.5);
    assert_eq!(picture.start_all("batch"), 43);
}

#[test]
fn engines_may_tell_the_size_of_the_pool() {
    let mut picture = lanes_of(96, r#"{"name": "batch", "dispatch_budget": {"max": 1000}}"#);
    assert_eq!(picture.start_all("batch"), 92, "beyond that, less than 0.05 of the pool's places would be free");
    let json = r#"{"pools": [{"name": "p", "stale": {"then": "admit"}}], "lanes": [{"name": "batch", "dispatch_budget": {"max": 10}}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else {
        panic!("{json}: {:?}", Plugin::parse(json.as_bytes()).err())
    };
    let mut picture = Picture { policy: *policy, ..picture };
    picture.pool = Ledger::default();
    let refusal = picture.may_start("batch").unwrap_err();
    assert_eq!(refusal.reason, Reason::DispatchBudget);
    assert!(refusal.to_string().contains("no worker's metrics tell how full it is"), "{refusal}");
    picture.view().batch = Some(100);
    assert_eq!(picture.start_all("batch"), 9, "0.95 of ten");
}
