//! Bodies that cannot be held, for want of room.

use super::*;

#[test]
fn a_request_whose_body_has_no_room_is_decided_and_does_not_wait() {
    let policy = policy(TWO_POOLS, false);
    for (rest, ended) in [("", false), ("\"}]}", true)] {
        let mut intake = intake(&policy, None);
        assert!(matches!(intake.body(br#"{"model": "b", "messages": [{"content": "hi"#, false, &policy), Next::Hold));
        intake.hold_no_more();
        let next = intake.body(rest.as_bytes(), ended, &policy);
        assert!(matches!(next, Next::Decide(..)) && !intake.could_wait(), "{ended}");
    }
    let mut intake = intake(&policy, None);
    intake.hold_no_more();
    assert_eq!(reason(intake.body(br#"{"messages": [{"content": "hi"#, false, &policy)), Some(Reason::QueueFull));
}
