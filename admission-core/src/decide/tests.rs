use super::*;
use crate::ledger::{Begun, LaneKey, TallyKey};
use crate::members::Holder;
use crate::policy::{Plugin, Policy};
use crate::units::Millis;
use crate::view::{Admitted, Credit, KvBlocks, PoolKv, WorkerKey};

mod blocks;
mod budgets;
mod ceilings;
mod reserves;
mod steering;

const LANE: LaneKey = LaneKey(1);
const NOW: Time = Time(10_000);

/// One picture to decide on; each test changes what it is about.
struct Picture {
    policy: Policy,
    view: Option<ViewSummary>,
    workers: Option<Workers>,
    tenant: Ledger,
    pool: Ledger,
    members: Members,
    holder: Holder,
}

/// KV blocks of a pool whose only worker has one cache.
fn one_cache(total: u64, free: u64) -> PoolKv {
    let all = KvBlocks { total: Blocks(total), free: Blocks(free) };
    PoolKv { all, freest: Some(all), largest: all.total }
}

fn picture(pool: &str) -> Picture {
    let json = format!(
        r#"{{"tenants": {{"acme": {{"max_in_flight": 4, "max_tokens_in_flight": 1000}}}}, "pools": [{{"name": "p", {pool}}}]}}"#
    );
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    let mut members = Members::default();
    let holder = members.join().unwrap();
    let view = ViewSummary {
        epoch: 1,
        generation: 1,
        received: NOW,
        live_workers: 2,
        free_workers: 2,
        kv: Some(one_cache(100, 50)),
        ..ViewSummary::default()
    };
    let (tenant, pool) = (Ledger::default(), Ledger::default());
    Picture { policy: *policy, view: Some(view), workers: None, tenant, pool, members, holder }
}

/// The same, with lanes of its own.
fn lanes(lanes: &str) -> Picture {
    let json = format!(r#"{{"lanes": [{lanes}], "pools": [{{"name": "p", "max_in_flight": 9}}]}}"#);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    Picture { policy: *policy, ..picture(r#""max_in_flight": 9"#) }
}

impl Picture {
    fn decide(&self, ask: &Ask) -> Result<(), Refusal> {
        self.place(ask).map(|endpoint| assert_eq!(endpoint, None))
    }

    fn place(&self, ask: &Ask) -> Result<Option<Endpoint>, Refusal> {
        let classes = self.rules().pool.classes_of(None, ask.longest_prompt);
        let known = Known { view: self.view.as_ref(), workers: self.workers.as_ref(), can_be_steered: true };
        let rules = Rules { classes: &classes, ..self.rules() };
        decide(ask, rules, &self.turn(), known, self.held(), NOW)
    }

    fn turn(&self) -> Turn<'_> {
        Turn {
            band: self.rules().lane,
            has_climbed_far: false,
            flow: 0,
            urgency: NOW.0,
            bytes: 0,
            waits_in: None,
            behind_its_like: None,
            sub: None,
        }
    }

    fn rules(&self) -> Rules<'_> {
        let lane = self.policy.lanes().last().unwrap();
        let (pool, lanes) = (self.policy.only_pool().unwrap(), self.policy.line_up());
        Rules { tenant: self.policy.limits("acme"), pool, lane, lanes, classes: &[] }
    }

    fn held(&self) -> Held<'_> {
        Held { tenant: &self.tenant, pool: &self.pool, members: &self.members }
    }

    fn refusal(&self, ask: &Ask) -> (Reason, u64, u64) {
        let refusal = self.decide(ask).unwrap_err();
        let (measured, allowed) = refusal.limit.map_or((0, 0), |limit| (limit.measured, limit.allowed));
        (refusal.reason, measured, allowed)
    }

    fn hold_in_pool(&mut self, requests: u64, tokens: u64) {
        let amount = Amount { requests, tokens: Tokens(tokens), blocks: Tokens(tokens).blocks_of(16) };
        self.pool.admit(&self.members, self.holder, LANE, amount);
        let begun =
            Begun { since: self.pool.acknowledged(), blocks: amount.blocks, tokens: amount.tokens, ..Begun::default() };
        self.pool.begin(&self.members, self.holder, begun);
    }

    /// A view comes whose scrapes began after all that is admitted.
    fn scrape(&mut self) {
        let now = Time(NOW.0 + self.pool.acknowledged() * 1_000);
        let (Ok(credit) | Err(credit)) = self.pool.acknowledge(&self.members, 0, now);
        self.view().credit = credit;
    }

    fn view(&mut self) -> &mut ViewSummary {
        self.view.as_mut().unwrap()
    }
}

fn ask(prompt: u64, output: u64) -> Ask {
    Ask {
        prompt: Tokens(prompt),
        longest_prompt: Tokens(prompt),
        output: Tokens(output),
        output_limit: Some(Tokens(output)),
        prompt_read: true,
        sequences: 1,
    }
}

#[test]
fn an_ordinary_request_is_admitted() {
    assert_eq!(picture(r#""max_in_flight": 1"#).decide(&ask(100, 100)), Ok(()));
}

#[test]
fn what_can_never_fit_is_told_so() {
    let picture = picture(r#""max_in_flight": 1, "max_prompt_tokens": 100, "max_model_len": 150"#);
    assert_eq!(picture.decide(&ask(100, 50)), Ok(()), "exactly as large as allowed");
    assert_eq!(picture.refusal(&ask(101, 1)), (Reason::Oversize, 101, 100));
    assert_eq!(picture.refusal(&ask(100, 51)), (Reason::Oversize, 151, 150));
    assert_eq!(picture.decide(&ask(101, 1)).unwrap_err().retry, Retry::Never);
    let guessed = Ask { prompt_read: false, ..ask(500, 51) };
    assert_eq!(picture.decide(&guessed), Ok(()), "a guess from the content length proves nothing");
}

#[test]
fn more_tokens_than_a_tenant_may_ever_hold_is_oversize() {
    let picture = picture(r#""max_in_flight": 1"#);
    assert_eq!(picture.refusal(&ask(900, 101)), (Reason::Oversize, 1_001, 1_000));
}

#[test]
fn a_guess_is_cut_down_to_what_could_fit() {
    let picture = picture(r#""max_in_flight": 1, "max_prompt_tokens": 700, "max_model_len": 650"#);
    let (limits, pool) = (picture.policy.limits("acme"), picture.policy.only_pool().unwrap());
    let cut = |ask: Ask| {
        let cut = ask.at_most_what_fits(limits, pool);
        (cut.prompt, cut.output)
    };
    let guess = Ask {
        prompt: Tokens(5_000),
        longest_prompt: Tokens(5_000),
        output: Tokens(100),
        output_limit: None,
        prompt_read: false,
        sequences: 0,
    };
    assert_eq!(cut(guess), (Tokens(550), Tokens(100)));
    assert_eq!(picture.decide(&guess.at_most_what_fits(limits, pool)), Ok(()));
    assert_eq!(cut(Ask { output: Tokens(990), ..guess }), (Tokens(0), Tokens(650)));
    assert_eq!(cut(Ask { prompt_read: true, ..guess }), (Tokens(5_000), Tokens(100)), "what was read stays");
}

#[test]
fn a_request_has_so_many_answers_at_most() {
    let with = |limits: &str, sequences| picture(limits).decide(&Ask { sequences, ..ask(10, 10) });
    let refused = |limits: &str, sequences| {
        let limit = with(limits, sequences).unwrap_err().limit.unwrap();
        (limit.knob.to_string(), limit.measured, limit.allowed)
    };
    let (plain, four) = (r#""max_in_flight": 9"#, r#""max_in_flight": 9, "max_sequences": 4"#);
    assert_eq!((with(plain, 256), with(four, 4)), (Ok(()), Ok(())));
    assert_eq!(refused(plain, 257), ("pools[p].max_sequences".to_owned(), 257, 256));
    assert_eq!(refused(four, 5), ("pools[p].max_sequences".to_owned(), 5, 4));
}

#[test]
fn absurd_asks_leave_what_others_hold_alone() {
    let mut picture = picture(r#""max_in_flight": 99"#);
    picture.hold_in_pool(1, 160);
    let absurd = Ask {
        prompt: Tokens(u64::MAX),
        longest_prompt: Tokens(5_000),
        output: Tokens(u64::MAX),
        output_limit: None,
        prompt_read: true,
        sequences: 1,
    };
    let amount = absurd.amount(1);
    for _ in 0..1_000 {
        picture.pool.charge(&picture.members, picture.holder, LANE, amount);
    }
    for _ in 0..1_000 {
        picture.pool.refund(&picture.members, picture.holder, LANE, amount);
    }
    assert_eq!(picture.pool.held(&picture.members).tokens, Tokens(160));
}

#[test]
fn a_fresh_view_without_a_live_worker_is_not_overload() {
    let mut picture = picture(r#""max_in_flight": 1"#);
    picture.view().live_workers = 0;
    picture.view().free_workers = 0;
    assert_eq!(picture.refusal(&ask(1, 1)).0, Reason::NoWorkers);
}

#[test]
fn all_busy_is_shed() {
    let mut picture = picture(r#""max_in_flight": 1"#);
    picture.view().free_workers = 0;
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::AllBusy, 2, 1));
}

#[test]
fn tenant_caps_stand_before_pool_caps() {
    let mut picture = picture(r#""max_in_flight": 1"#);
    picture.hold_in_pool(1, 16);
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::PoolRequests, 2, 1));
    let amount = Amount { requests: 4, tokens: Tokens(400), blocks: Blocks(25) };
    picture.tenant.charge(&picture.members, picture.holder, LANE, amount);
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::TenantRequests, 5, 4));
}

#[test]
fn tenant_tokens_count_prompt_and_output() {
    let mut picture = picture(r#""max_in_flight": 9"#);
    let amount = Amount { requests: 1, tokens: Tokens(800), blocks: Blocks(50) };
    picture.tenant.charge(&picture.members, picture.holder, LANE, amount);
    assert_eq!(picture.decide(&ask(100, 100)), Ok(()));
    assert_eq!(picture.refusal(&ask(100, 101)), (Reason::TenantTokens, 1_001, 1_000));
}

#[test]
fn the_cap_for_each_worker_follows_the_live_workers() {
    let mut picture = picture(r#""max_in_flight_per_worker": 3"#);
    picture.hold_in_pool(5, 0);
    assert_eq!(picture.decide(&ask(1, 1)), Ok(()));
    picture.hold_in_pool(1, 0);
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::PoolRequests, 7, 6));
    picture.view().live_workers = 1;
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::PoolRequests, 7, 3));
}

#[test]
fn a_restarted_proxy_counts_all_it_holds_until_the_next_scrape() {
    let mut picture = picture(r#""max_in_flight": 9, "kv": {"headroom": 0.0}"#);
    picture.view().credit = Credit { admitted: Admitted { requests: 900, blocks: 9_000 }, held: Some(90) };
    picture.hold_in_pool(1, 640);
    assert_eq!(picture.refusal(&ask(176, 0)), (Reason::KvBlocks, 11, 10));
}

#[test]
fn of_several_prompts_the_longest_must_fit() {
    let picture = picture(r#""max_in_flight": 9, "max_model_len": 100, "max_prompt_tokens": 90"#);
    let batch = Ask { longest_prompt: Tokens(90), ..ask(900, 10) };
    assert_eq!(picture.decide(&batch), Ok(()));
    assert_eq!(picture.refusal(&Ask { longest_prompt: Tokens(91), ..batch }), (Reason::Oversize, 91, 90));
}

#[test]
fn growth_is_held_against_tokens_and_blocks_but_not_against_requests() {
    let mut picture = picture(r#""max_in_flight": 1, "kv": {"headroom": 0.0}"#);
    // More requests than its cap allows since the policy has changed.
    let amount = Amount { requests: 5, tokens: Tokens(900), blocks: Blocks(10) };
    picture.tenant.charge(&picture.members, picture.holder, LANE, amount);
    let view = picture.view.clone();
    let known = Known { view: view.as_ref(), ..Known::default() };
    let grow = |tokens, blocks| {
        let by = Amount { requests: 0, tokens: Tokens(tokens), blocks: Blocks(blocks) };
        let grown = may_grow(by, (Blocks(blocks + 40), None, LANE), picture.rules(), known, picture.held(), NOW);
        grown.err().map(|refusal| refusal.reason)
    };
    assert_eq!((grow(100, 1), grow(101, 1), grow(1, 51)), (None, Some(Reason::TenantTokens), Some(Reason::KvBlocks)));
    assert_eq!(grow(1, 61), Some(Reason::Oversize), "101 of 100 blocks in all");
    picture.tenant.charge(&picture.members, picture.holder, LANE, Amount { tokens: Tokens(900), ..Amount::default() });
    let none = Amount::default();
    assert_eq!(
        may_grow(none, (Blocks(10), None, LANE), picture.rules(), known, picture.held(), NOW),
        Ok(()),
        "needs nothing"
    );
}

#[test]
fn credit_is_never_more_than_what_is_still_held() {
    let mut picture = picture(r#""max_in_flight": 99, "kv": {"headroom": 0.0}"#);
    picture.hold_in_pool(1, 640);
    assert_eq!(picture.refusal(&ask(176, 0)), (Reason::KvBlocks, 11, 10));
    let amount = Amount { requests: 1, tokens: Tokens(640), blocks: Blocks(40) };
    picture.pool.release(&picture.members, picture.holder, LANE, amount, Millis(1));
    picture.pool.unbegin(&picture.members, picture.holder, Begun { blocks: Blocks(40), ..Begun::default() });
    assert_eq!(picture.decide(&ask(176, 0)), Ok(()));
}

#[test]
fn a_stale_view_never_opens_the_gate_wider_than_its_policy() {
    let old = Time(NOW.0 - 5_001);
    for (pool, allowed) in [
        (r#""max_in_flight": 2, "max_in_flight_per_worker": 9"#, Some(2)),
        (r#""max_in_flight": 4, "max_in_flight_per_worker": 1"#, None),
        (r#""max_in_flight_per_worker": 1"#, Some(2)),
        (r#""max_in_flight": 2, "stale": {"then": "admit"}"#, Some(2)),
        (r#""max_in_flight_per_worker": 1, "stale": {"then": "admit"}"#, None),
    ] {
        let mut picture = picture(pool);
        picture.view().received = old;
        picture.view().free_workers = 0;
        assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "an old busy set halts nothing");
        picture.hold_in_pool(2, 0);
        match allowed {
            Some(limit) => assert_eq!(picture.refusal(&ask(1, 1)), (Reason::PoolRequests, 3, limit), "{pool}"),
            None => assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "{pool}"),
        }
    }
}

#[test]
fn a_stale_view_of_dead_workers_halts_only_a_pool_without_a_cap_of_its_own() {
    for (pool, reason) in [
        (r#""max_in_flight": 2, "max_in_flight_per_worker": 9"#, None),
        (r#""max_in_flight_per_worker": 9"#, Some(Reason::StaleView)),
    ] {
        let mut picture = picture(pool);
        picture.view().received = Time(NOW.0 - 5_001);
        picture.view().live_workers = 0;
        picture.view().free_workers = 0;
        assert_eq!(picture.decide(&ask(1, 1)).err().map(|refusal| refusal.reason), reason, "{pool}");
    }
}

#[test]
fn a_missing_view_halts_only_pools_whose_local_caps_are_unknown() {
    for (pool, reason) in [
        (r#""max_in_flight": 2"#, None),
        (r#""max_in_flight_per_worker": 2"#, Some(Reason::StaleView)),
        (r#""max_in_flight": 2, "stale": {"then": "reject"}"#, Some(Reason::StaleView)),
        (r#""stale": {"then": "admit"}"#, None),
    ] {
        let mut picture = picture(pool);
        picture.view = None;
        assert_eq!(picture.decide(&ask(1, 1)).err().map(|refusal| refusal.reason), reason, "{pool}");
    }
}

#[test]
fn advice_follows_the_measured_pace() {
    let mut picture = picture(r#""max_in_flight": 1"#);
    picture.hold_in_pool(1, 0);
    assert_eq!(picture.decide(&ask(1, 1)).unwrap_err().retry, Retry::After(Millis(0)), "nothing measured");
    for _ in 1..40 {
        picture.hold_in_pool(1, 0);
        let amount = Amount { requests: 1, ..Amount::default() };
        picture.pool.release(&picture.members, picture.holder, LANE, amount, Millis(4_000));
    }
    assert_eq!(picture.decide(&ask(1, 1)).unwrap_err().retry, Retry::After(Millis(4_000)));
    picture.hold_in_pool(2, 0);
    assert_eq!(
        picture.decide(&ask(1, 1)).unwrap_err().retry,
        Retry::After(Millis(4_000)),
        "three of three have to end"
    );
}

#[test]
fn advice_for_tokens_follows_how_many_average_requests_have_to_end() {
    let mut picture = picture(r#""max_in_flight": 9"#);
    let amount = Amount { requests: 1, tokens: Tokens(250), blocks: Blocks(16) };
    for _ in 0..40 {
        picture.tenant.charge(&picture.members, picture.holder, LANE, amount);
        picture.tenant.release(&picture.members, picture.holder, LANE, amount, Millis(4_000));
    }
    for _ in 0..3 {
        picture.tenant.charge(&picture.members, picture.holder, LANE, amount);
    }
    let pause = |tokens| match picture.decide(&ask(tokens, 0)).unwrap_err().retry {
        Retry::After(pause) => pause.0,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (pause(251), pause(500), pause(501), pause(750)),
        (1_334, 1_334, 2_667, 2_667),
        "4 s of three at a time"
    );
}

#[test]
fn a_class_has_limits_of_its_own() {
    let mut picture = picture(
        r#""max_in_flight": 9, "max_prompt_tokens": 1000, "classes": [
            {"name": "long", "min_prompt_tokens": 100, "max_in_flight": 2, "max_model_len": 400},
            {"name": "named", "models": ["x*"], "max_in_flight": 1}]"#,
    );
    let long = picture.rules().pool.classes[0].key;
    picture.pool.tally(&picture.members, picture.holder, long, 1);
    assert_eq!(picture.decide(&ask(100, 1)), Ok(()), "the second of two");
    picture.pool.tally(&picture.members, picture.holder, long, 1);
    assert_eq!(picture.refusal(&ask(100, 1)), (Reason::ClassRequests, 3, 2));
    assert_eq!(picture.decide(&ask(99, 1)), Ok(()), "not of the class");
    assert_eq!(picture.refusal(&ask(100, 301)), (Reason::Oversize, 401, 400));
    let names = |model, prompt| {
        let classes = picture.rules().pool.classes_of(model, Tokens(prompt));
        classes.iter().map(|class| class.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((names(Some("x-1"), 99), names(Some("y"), 100)), (vec!["named".to_owned()], vec!["long".to_owned()]));
}

fn workers(free: &[(&str, bool)]) -> Workers {
    let seen = free.iter().map(|(address, free)| crate::view::Seen {
        address: (*address).to_owned(),
        key: WorkerKey::of(address),
        is_ip_and_port: true,
        free: *free,
        live: true,
        load: 0,
        kv_permille: 0,
        takes: crate::view::Takes::default(),
    });
    Workers { epoch: 1, generation: 1, list: seen.collect() }
}

#[test]
fn workers_that_have_just_refused_are_as_good_as_busy() {
    let mut picture = picture(r#""max_in_flight": 9"#);
    let lately = Time(NOW.0 - 100);
    picture.pool.mark(WorkerKey::of("a"), (1, 1), lately);
    assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "one of two");
    picture.pool.mark(WorkerKey::of("b"), (1, 1), lately);
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::AllBusy, 2, 1));
    let detail = |picture: &Picture| picture.decide(&ask(1, 1)).unwrap_err().detail;
    assert!(matches!(detail(&picture), Detail::Fixed(why) if why.contains("refused")));
    picture.view().free_workers = 0;
    picture.view().generation = 2;
    assert_eq!(detail(&picture), Detail::None, "the view itself says that none is free");
    picture.view().free_workers = 2;
    assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "the next view knows better");
}

#[test]
fn a_steered_request_goes_to_the_freest_worker_below_its_cap() {
    let (a, b, c) = ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80");
    let mut picture = picture(r#""max_in_flight_per_worker": 2, "pick_endpoint": true"#);
    picture.view().free_workers = 2;
    picture.view().live_workers = 3;
    picture.workers = Some(workers(&[(a, true), (b, true), (c, false)]));
    let header = |picture: &Picture| picture.place(&ask(1, 1)).unwrap().map(|endpoint| endpoint.header);
    assert_eq!(header(&picture), Some(format!("{a},{b}")));
    let at = |address| TallyKey::worker(WorkerKey::of(address));
    picture.pool.tally(&picture.members, picture.holder, at(a), 1);
    assert_eq!(header(&picture), Some(format!("{b},{a}")));
    picture.pool.tally(&picture.members, picture.holder, at(b), 2);
    assert_eq!(header(&picture), Some(a.to_owned()));
    picture.pool.mark(WorkerKey::of(a), (1, 1), NOW);
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::PoolRequests, 3, 2), "a has refused, b holds its cap, c is busy");
    picture.view().received = Time(0);
    assert_eq!(header(&picture), None, "of an old view no worker is chosen");
}

#[test]
fn tenants_are_told_apart_in_line() {
    assert_ne!(line::flow_of("sluice/1/tenant/acme"), line::flow_of("sluice/1/tenant/zeta"));
}
