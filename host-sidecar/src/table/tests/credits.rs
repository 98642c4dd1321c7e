//! What proxies were known to have admitted when a scrape began.

use super::*;

#[test]
fn the_credit_is_what_was_known_when_the_oldest_scrape_began() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 5, ms(0));
    setting.scrape("a2:1", 1, ms(5));
    let early = setting.begin("a1:1", ms(10));
    setting.taken(0, 9, ms(20));
    setting.scrape("a2:1", 1, ms(30));
    setting.table.end_scrape(early, Ok(reading(vec![rank(1)])), ms(40));
    assert_eq!(setting.credit(0, ms(40)), 5, "a1 was scraped before the answer");
    assert_eq!(setting.credit(1, ms(40)), 0, "the other proxy has answered nothing");
    setting.scrape("a1:1", 1, ms(50));
    assert_eq!(setting.credit(0, ms(50)), 9);
}

#[test]
fn with_no_live_worker_the_latest_credit_is_named() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 5, ms(0));
    assert_eq!(setting.credit(0, ms(0)), 0, "the samples are older");
    assert_eq!(setting.credit(0, DOWN_AFTER), 5);
}

#[test]
fn a_dead_worker_does_not_hold_the_credit_back() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 5, ms(0));
    setting.scrape("a1:1", 1, ms(0));
    setting.taken(0, 50, ms(10));
    setting.scrape("a2:1", 1, ms(1_000));
    assert_eq!(setting.credit(0, ms(1_000)), 5, "its last numbers are held");
    assert_eq!(setting.credit(0, ms(2_000)), 50, "it is down");
}

#[test]
fn a_new_credit_is_news() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 5, ms(10));
    let before = setting.table.revision();
    setting.scrape("a1:1", 1, ms(100));
    assert_eq!(setting.table.revision().numbers, before.numbers + 1);
}

#[test]
fn a_restarted_proxy_loses_the_credit_of_the_one_before() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 1_000, ms(0));
    setting.scrape("a1:1", 1, ms(10));
    setting.scrape("a2:1", 1, ms(10));
    assert_eq!(setting.credit(0, ms(10)), 1_000);
    let before = setting.table.revision();
    setting.taken(0, 3, ms(20));
    assert_eq!(setting.credit(0, ms(20)), 0, "the samples are older than anything known of the new one");
    assert!(setting.table.revision().states > before.states, "and that is told at once");
    setting.scrape("a1:1", 1, ms(30));
    setting.scrape("a2:1", 1, ms(30));
    assert_eq!(setting.credit(0, ms(30)), 3);
}

#[test]
fn a_scrape_that_began_before_a_proxy_restarted_brings_no_credit_back() {
    let mut setting = setting();
    setting.settle();
    setting.taken(0, 1_000, ms(0));
    let early = setting.begin("a1:1", ms(5));
    setting.taken(0, 3, ms(10));
    setting.scrape("a2:1", 1, ms(15));
    setting.table.end_scrape(early, Ok(reading(vec![rank(1)])), ms(20));
    assert_eq!(setting.credit(0, ms(20)), 0);
}
