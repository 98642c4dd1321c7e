//! Fit of requests into the free KV blocks of the workers.

use super::*;

#[test]
fn blocks_are_fitted_less_headroom_and_less_what_the_scrape_has_not_seen() {
    let mut picture = picture(r#""max_in_flight": 99, "kv": {"headroom": 0.1}"#);
    assert_eq!(picture.decide(&ask(640, 0)), Ok(()), "40 of 50 free blocks less 10 of headroom");
    assert_eq!(picture.refusal(&ask(641, 0)), (Reason::KvBlocks, 41, 40));
    picture.hold_in_pool(2, 320);
    assert_eq!(picture.refusal(&ask(640, 0)), (Reason::KvBlocks, 40, 20), "20 blocks admitted since the scrape");
    picture.scrape();
    assert_eq!(picture.decide(&ask(640, 0)), Ok(()), "the next scrape has seen them");
    picture.hold_in_pool(1, 160);
    assert_eq!(picture.refusal(&ask(640, 0)), (Reason::KvBlocks, 40, 30));
    let amount = Amount { requests: 2, tokens: Tokens(320), blocks: Blocks(20) };
    picture.pool.refund(&picture.members, picture.holder, LANE, amount);
    picture.pool.unbegin(&picture.members, picture.holder, Begun { blocks: Blocks(20), ..Begun::default() });
    let what = "what the scrape has seen frees nothing when it ends: the next scrape shows that";
    assert_eq!(picture.refusal(&ask(640, 0)), (Reason::KvBlocks, 40, 30), "{what}");
}

#[test]
fn the_freest_cache_bounds_one_request_and_the_sum_bounds_all() {
    let mut picture = picture(r#""max_in_flight": 99, "kv": {"headroom": 0.0}"#);
    let each = KvBlocks { total: Blocks(100), free: Blocks(55) };
    let all = KvBlocks { total: Blocks(200), free: Blocks(110) };
    picture.view().kv = Some(PoolKv { all, freest: Some(each), largest: Blocks(100) });
    assert_eq!(picture.refusal(&ask(60 * 16, 0)), (Reason::KvBlocks, 60, 55), "no cache has so many free");
    for _ in 0..2 {
        assert_eq!(picture.decide(&ask(50 * 16, 0)), Ok(()));
        picture.hold_in_pool(1, 50 * 16);
    }
    assert_eq!(picture.refusal(&ask(50 * 16, 0)), (Reason::KvBlocks, 50, 10));
    assert_eq!(picture.decide(&ask(10 * 16, 0)), Ok(()), "the sum leaves 10");
}

#[test]
fn more_blocks_than_there_could_ever_be_are_oversize_once_read() {
    let picture = picture(r#""max_in_flight": 9, "kv": {"headroom": 0.1}"#);
    assert_eq!(picture.refusal(&ask(980, 0)), (Reason::KvBlocks, 62, 40));
    let rules = Rules { tenant: picture.policy.limits("nobody"), ..picture.rules() };
    let decide = |ask: &Ask, free| {
        let mut view = picture.view.clone().unwrap();
        view.kv = Some(one_cache(100, free));
        let known = Known { view: Some(&view), ..Known::default() };
        decide(ask, rules, &picture.turn(), known, picture.held(), NOW).err().map(|refusal| refusal.reason)
    };
    assert_eq!(decide(&ask(90 * 16, 0), 100), None, "as large as there is room for");
    let large = ask(91 * 16, 0);
    assert_eq!(decide(&large, 100), Some(Reason::Oversize));
    let guess = Ask { prompt_read: false, ..large };
    assert_eq!(
        (decide(&guess, 100), decide(&guess, 99)),
        (None, Some(Reason::KvBlocks)),
        "room for the largest is enough"
    );
}

#[test]
fn blocks_have_the_size_that_the_engines_report() {
    let mut picture = picture(r#""max_in_flight": 9, "kv": {"block_size": 16, "headroom": 0.0}"#);
    assert_eq!(picture.refusal(&ask(850, 0)), (Reason::KvBlocks, 54, 50));
    picture.view().block_size = Some(32);
    assert_eq!(picture.decide(&ask(850, 0)), Ok(()), "27 of 32 tokens");
    picture.view().block_size = Some(8);
    assert_eq!(picture.refusal(&ask(408, 0)), (Reason::KvBlocks, 51, 50));
}

#[test]
fn the_log_says_when_blocks_are_counted_otherwise_or_not_at_all() {
    let notice = |pool: &str, change: &dyn Fn(&mut ViewSummary)| {
        let mut picture = picture(&format!(r#""max_in_flight": 9 {pool}"#));
        change(picture.view());
        kv_notice(picture.rules().pool, picture.view.as_ref().unwrap())
    };
    let kv = r#", "kv": {"block_size": 16}"#;
    assert_eq!(notice(kv, &|_| {}), None, "no engine reports its block size");
    assert_eq!(notice(kv, &|view| view.block_size = Some(16)), None);
    assert!(notice(kv, &|view| view.block_size = Some(32)).unwrap().contains("report 32"));
    assert!(notice(kv, &|view| view.kv = None).unwrap().contains("no live worker of pool p"));
    assert_eq!(notice("", &|view| (view.kv, view.block_size) = (None, Some(32))), None, "it counts no blocks");
}
