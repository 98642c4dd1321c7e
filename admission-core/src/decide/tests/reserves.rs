//! Parts of a pool that are kept for lanes.

use super::budgets::lanes_of;
use super::*;

/// Defaults of SGLang's gateway for a capacity of 256, as numbers.
const FOUR: &str = r#"{"name": "system", "priority": 30, "reserve": {"requests": 32}},
    {"name": "interactive", "priority": 20, "reserve": {"requests": 128}},
    {"name": "default", "priority": 10, "reserve": {"requests": 26}}, {"name": "bulk"}"#;

#[test]
fn lower_lanes_leave_free_what_is_kept_for_higher_ones() {
    for (lane, may_hold) in [("bulk", 70), ("default", 96), ("interactive", 224), ("system", 256)] {
        let mut picture = lanes_of(256, FOUR);
        assert_eq!(picture.start_all(lane), may_hold, "{lane} in an idle pool");
        let full = picture.may_start(lane).unwrap_err();
        let (knob, measured) =
            if lane == "system" { ("pools[p].max_in_flight", 257) } else { ("lanes[system].reserve", may_hold + 1) };
        let limit = full.limit.unwrap();
        assert_eq!((&*limit.knob, limit.measured, limit.allowed), (knob, measured, may_hold));
        assert_eq!(full.reason == Reason::Reserved, lane != "system");
    }
}

#[test]
fn what_a_lane_holds_of_its_reserve_is_no_longer_kept_for_it() {
    let mut picture = lanes_of(256, FOUR);
    picture.hold("interactive", 150);
    assert_eq!(picture.start_all("bulk"), 48, "256 - 150 - 32 - 26");
    assert_eq!((picture.start_all("default"), picture.start_all("interactive")), (26, 0));
    assert_eq!((picture.start_all("system"), picture.start_all("bulk")), (32, 0));
    picture.end("interactive", 30);
    assert_eq!(picture.start_all("bulk"), 22, "its reserve of 128 lacks eight");
    assert_eq!(picture.start_all("interactive"), 8);
}

#[test]
fn reserves_are_cut_from_the_lowest_lane_up_to_what_there_is() {
    for (lane, may_hold) in [("bulk", 0), ("default", 0), ("interactive", 96), ("system", 128)] {
        assert_eq!(lanes_of(128, FOUR).start_all(lane), may_hold, "{lane} where 32 and 96 are kept of 128");
    }
}

#[test]
fn shares_are_rounded_up_and_leave_one_place_where_they_are_not_the_whole() {
    let lanes =
        |share: f64| format!(r#"{{"name": "a", "priority": 1, "reserve": {{"share": {share}}}}}, {{"name": "b"}}"#);
    let left = |capacity, share| lanes_of(capacity, &lanes(share)).start_all("b");
    assert_eq!([left(24, 0.2), left(100, 0.07), left(8, 0.125), left(9, 0.125)], [19, 93, 7, 7]);
    assert_eq!([left(1, 0.125), left(2, 0.9), left(2, 1.0)], [1, 1, 0]);
    let both = r#"{"name": "a", "priority": 1, "reserve": {"share": 0.5, "requests": 3}}, {"name": "b"}"#;
    assert_eq!([4, 6, 20].map(|capacity| lanes_of(capacity, both).start_all("b")), [1, 3, 10], "the larger of both");
}

#[test]
fn what_is_lent_and_what_lanes_of_no_higher_priority_keep_is_free_for_all() {
    let lent = r#"{"name": "a", "priority": 1, "queue": {}, "reserve": {"share": 0.5, "lend": true}}, {"name": "b"}"#;
    assert_eq!(lanes_of(8, lent).start_all("b"), 8);
    let bare = r#"{"name": "a", "priority": 1, "queue": {}, "reserve": 0.5}, {"name": "b"}"#;
    assert_eq!(lanes_of(8, bare).start_all("b"), 8);
    let equal = r#"{"name": "a", "reserve": {"share": 0.5}}, {"name": "b"}"#;
    assert_eq!(lanes_of(8, equal).start_all("b"), 8);
    let lower = r#"{"name": "a", "priority": 1}, {"name": "b", "reserve": {"share": 0.5}}"#;
    assert_eq!(lanes_of(8, lower).start_all("a"), 8);
}

/// 90 usable blocks of 100, of which 18 are kept for the higher lane.
fn blocks(free: u64) -> Picture {
    let json = r#"{"default_lane": "a", "lanes": [{"name": "a", "priority": 1, "reserve": {"share": 0.2}}, {"name": "b"}],
        "pools": [{"name": "p", "max_in_flight": 50, "kv": {"headroom": 0.1}}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    let mut picture = Picture { policy: *policy, ..picture(r#""max_in_flight": 50"#) };
    picture.view().kv = Some(one_cache(100, free));
    picture
}

/// The decision on a request that came for a lane and counts as another.
fn start(picture: &Picture, (lane, band): (&str, &str), ask: &Ask) -> Result<(), Refusal> {
    let named = |name: &str| picture.policy.lanes().find(|known| known.name == name).unwrap();
    let rules = Rules { lane: named(lane), ..picture.rules() };
    let turn = Turn { band: named(band), ..picture.turn() };
    let known = Known { view: picture.view.as_ref(), ..Known::default() };
    decide(ask, rules, &turn, known, picture.held(), NOW).map(drop)
}

#[test]
fn who_has_climbed_above_the_default_lane_leaves_free_what_the_default_lane_does() {
    let lanes = r#"{"name": "a", "priority": 2, "reserve": {"requests": 3}}, {"name": "b", "priority": 1, "reserve": {"requests": 2}},
        {"name": "c", "queue": {}, "aging": {"after": "1s"}}"#;
    let mut picture = lanes_of(8, lanes);
    let json =
        format!(r#"{{"default_lane": "b", "lanes": [{lanes}], "pools": [{{"name": "p", "max_in_flight": 8}}]}}"#);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    picture.policy = *policy;
    let starts =
        |picture: &Picture, band: &str| start(picture, ("c", band), &ask(1, 1)).map_err(|refused| refused.reason);
    picture.hold("c", 3);
    assert_eq!(
        [starts(&picture, "c"), starts(&picture, "b")],
        [Err(Reason::Reserved), Ok(())],
        "three and two are kept"
    );
    picture.hold("c", 2);
    assert_eq!([starts(&picture, "b"), starts(&picture, "a")], [Err(Reason::Reserved), Err(Reason::Reserved)]);
    assert_eq!(start(&picture, ("a", "a"), &ask(1, 1)), Ok(()), "they are there for those that come for the lane");
}

#[test]
fn a_worker_that_tells_nothing_may_have_more_blocks_than_all_the_others() {
    let mut picture = picture(r#""max_in_flight": 9, "kv": {"headroom": 0.0}"#);
    picture.view().kv = Some(one_cache(20, 20));
    picture.view().kv_unknown = 1;
    assert_eq!(picture.refusal(&ask(50 * 16, 0)), (Reason::KvBlocks, 50, 20));
    let guess = Ask { prompt_read: false, ..ask(50 * 16, 0) };
    assert_eq!(picture.refusal(&guess), (Reason::KvBlocks, 50, 20));
}

#[test]
fn what_has_climbed_grows_by_the_room_that_it_was_let_in_by() {
    let mut picture = blocks(100);
    picture.view().kv = Some(one_cache(100, 40));
    let lane = picture.policy.lanes().last().unwrap();
    let rules = Rules { lane, ..picture.rules() };
    let known = Known { view: picture.view.as_ref(), ..Known::default() };
    let by = Amount { blocks: Blocks(20), ..Amount::default() };
    let grows = |band| may_grow(by, (Blocks(60), None, LaneKey::of(band)), rules, known, picture.held(), NOW).is_ok();
    assert_eq!(
        (grows("a"), grows("b")),
        (true, false),
        "30 are free, 18 of them kept from those that count as the lower lane"
    );
}

#[test]
fn a_share_keeps_as_large_a_share_of_the_usable_blocks() {
    let mut picture = blocks(100);
    let may_start = |picture: &Picture, lane: &str, blocks: u64| {
        let refused = start(picture, (lane, lane), &ask(blocks * 16, 0)).err()?;
        let limit = refused.limit.unwrap();
        Some((refused.reason, limit.knob.to_string(), limit.measured, limit.allowed))
    };
    let reserve = || "lanes[a].reserve".to_owned();
    assert_eq!(may_start(&picture, "b", 72), None);
    assert_eq!(may_start(&picture, "a", 90), None);
    assert_eq!(may_start(&picture, "b", 73), Some((Reason::KvBlocks, reserve(), 73, 72)), "more workers may come");
    let guess = Ask { prompt_read: false, ..ask(500 * 16, 0) };
    assert_eq!(start(&picture, ("b", "b"), &guess).err(), None, "a guess needs no more than its lane could have");
    picture.view().kv = Some(one_cache(100, 60));
    assert_eq!(may_start(&picture, "b", 32), None, "50 are usable, 18 of them are kept");
    assert_eq!(may_start(&picture, "b", 33), Some((Reason::KvBlocks, reserve(), 33, 32)));
    let headroom = "pools[p].kv.headroom".to_owned();
    assert_eq!(may_start(&picture, "b", 51), Some((Reason::KvBlocks, headroom, 51, 32)), "there are not so many");
    let amount = Amount { requests: 1, tokens: Tokens(160), blocks: Blocks(10) };
    picture.pool.admit(&picture.members, picture.holder, LaneKey::of("a"), amount);
    assert_eq!(may_start(&picture, "b", 42), None, "the higher lane holds ten of its eighteen");
}
