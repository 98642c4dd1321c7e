//! Lanes that admit while their pool is not too full for them.

use super::*;

#[test]
fn a_ceiling_counts_what_was_started_since_the_scrape() {
    let mut picture = lanes(r#"{"name": "a", "ceiling": 0.8}"#);
    *picture.view() = ViewSummary { saturation: Some(0.5), full_requests: Some(10), ..picture.view().clone() };
    picture.hold_in_pool(4, 64);
    picture.scrape();
    picture.hold_in_pool(2, 32);
    assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "0.5 and two of ten");
    picture.hold_in_pool(1, 16);
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::Saturated, 800, 799), "three of ten");
    picture.scrape();
    assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "the next scrape has seen them");
    picture.hold_in_pool(3, 48);
    let ended = Amount { requests: 4, tokens: Tokens(64), blocks: Blocks(4) };
    picture.pool.refund(&picture.members, picture.holder, LANE, ended);
    assert_eq!(picture.decide(&ask(1, 1)), Ok(()), "four of those it has seen have ended");
    *picture.view() = ViewSummary { full_requests: None, full_blocks: Some(10), ..picture.view().clone() };
    assert_eq!(picture.refusal(&ask(1, 1)), (Reason::Saturated, 800, 799), "three blocks of ten, whatever has ended");
}

#[test]
fn a_lane_admits_while_saturation_is_below_its_ceiling() {
    let reason = |picture: &mut Picture, saturation| {
        picture.view().saturation = saturation;
        picture.decide(&ask(1, 1)).err().map(|refusal| refusal.reason)
    };
    let mut ceiling = lanes(r#"{"name": "a", "ceiling": 1.2}"#);
    assert_eq!(reason(&mut ceiling, Some(1.199)), None);
    assert_eq!(reason(&mut ceiling, Some(1.2)), Some(Reason::Saturated));
    assert_eq!(ceiling.refusal(&ask(1, 1)), (Reason::Saturated, 1_200, 1_199));
    assert_eq!(reason(&mut ceiling, None), None, "a sidecar that does not say");
    ceiling.view().saturation = Some(9.0);
    ceiling.view().received = Time(0);
    assert_eq!(ceiling.decide(&ask(1, 1)), Ok(()), "of an old view only what the stale policy says is believed");
    let mut sheddable = lanes(r#"{"name": "a", "priority": -1}"#);
    assert_eq!(
        (reason(&mut sheddable, Some(0.999)), reason(&mut sheddable, Some(1.0))),
        (None, Some(Reason::Saturated))
    );
    assert_eq!(reason(&mut lanes(r#"{"name": "a"}"#), Some(7.0)), None, "others have no ceiling unless given one");
}
