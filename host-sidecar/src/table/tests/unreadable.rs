//! Workers that answer with pages which cannot be read.

use super::*;

#[test]
fn a_worker_whose_page_cannot_be_read_is_up_with_nothing_known_or_down_as_configured() {
    let down = CONFIG.replace("model: model-a", "when_unreadable: down");
    for (text, is_up) in [(CONFIG, true), (down.as_str(), false)] {
        let mut setting = setting_of(text);
        setting.scrape("a1:1", 90, ms(0));
        setting.scrape("a2:1", 25, ms(0));
        setting.fail_by("page", "a1:1", ms(1_900));
        let held = setting.worker("a1:1", ms(1_999));
        assert_eq!(
            (held.state, held.busy, held.ranks),
            (WorkerState::Up, true, vec![rank(90)]),
            "its last numbers are held"
        );
        let before = setting.table.revision().states;
        setting.scrape("a2:1", 25, ms(2_000));
        setting.fail_by("page", "a1:1", ms(2_000));
        assert!(setting.table.revision().states > before, "that is news");
        let (pool, one) = (setting.pool("a", ms(2_000)), setting.worker("a1:1", ms(2_000)));
        assert_eq!(pool.saturation, Some(0.5), "the other alone is measured");
        let state = if is_up { WorkerState::Up } else { WorkerState::Down };
        assert_eq!((one.state, one.cause.as_deref()), (state, Some("page")), "{text}");
        if is_up {
            assert_eq!((one.busy, one.kv_unreported, one.ranks.len()), (false, false, 0));
        }
    }
}

#[test]
fn where_no_page_can_be_read_nothing_is_said_of_how_full_the_pool_is() {
    let mut setting = setting();
    for address in ["a1:1", "a2:1"] {
        setting.fail_by("too_large", address, ms(0));
    }
    let pool = setting.pool("a", ms(100));
    assert_eq!((pool.saturation, pool.live().count()), (None, 2), "neither has ever been read");
    setting.scrape("a1:1", 25, ms(200));
    assert_eq!(setting.pool("a", ms(200)).saturation, Some(0.5));
}

#[test]
fn a_worker_that_no_longer_answers_goes_down_whatever_its_page_was() {
    let mut setting = setting();
    setting.fail_by("status", "a1:1", ms(0));
    assert_eq!(setting.worker("a1:1", ms(0)).state, WorkerState::Down, "it has never been read");
    setting.scrape("a1:1", 25, ms(0));
    setting.fail_by("status", "a1:1", ms(1_999));
    for at in [2_500, 3_000, 3_998] {
        setting.fail_by("connection", "a1:1", ms(at));
        assert_eq!(setting.worker("a1:1", ms(at)).state, WorkerState::Up);
    }
    setting.fail_by("server_error", "a1:1", ms(3_999));
    assert_eq!(setting.worker("a1:1", ms(3_999)).state, WorkerState::Down);
    setting.fail_by("page", "a1:1", ms(4_100));
    assert_eq!(setting.worker("a1:1", ms(4_100)).state, WorkerState::Up);
}
