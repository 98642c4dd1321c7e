//! Dispatch budgets, and the numbers from which proxies work them out.

use super::*;

#[test]
fn a_dispatch_budget_comes_from_the_first_source_that_knows() {
    let budget = "dispatch_budget: {max_concurrency: 10, prometheus: {url: 'http://q', query: q}}, workers:";
    let mut setting = setting_of(&FOUND.replace("workers:", budget).replace(", discover: [{file: {path: /w}}]", ""));
    let of = |setting: &Setting| setting.pool("a", ms(0)).dispatch_budget;
    assert_eq!(of(&setting), Some(0.0), "nobody knows");
    let ranks = vec![RankReport { running: Some(4), waiting: Some(3), ..RankReport::default() }];
    setting.table.end_scrape(setting.begin("a1:1", ms(0)), Ok(reading(ranks)), ms(0));
    assert_eq!(of(&setting), Some(0.7), "3 of 10 wait in the worker");
    let answer = ViewAnswer { queued: [("a".into(), 1)].into(), ..ViewAnswer::default() };
    setting.table.said(setting.proxies[0], &answer, ms(0), Some(Vec::new()));
    assert_eq!(of(&setting), Some(0.9), "1 of 10 waits in the only proxy that was heard");
    setting.table.said(setting.proxies[1], &answer, ms(0), Some(Vec::new()));
    assert_eq!(of(&setting), Some(0.8), "1 of 10 waits in each of the two proxies");
    let before = setting.table.revision().numbers;
    setting.table.saw_budget("a", Some(0.25));
    assert_eq!(of(&setting), Some(0.25));
    assert_eq!(setting.table.revision().numbers, before + 1);
    setting.table.saw_budget("a", None);
    assert_eq!(of(&setting), Some(0.8));
    let later = |setting: &Setting, at| setting.table.snapshot(ms(at)).pools[0].queued;
    setting.table.said(setting.proxies[1], &answer, ms(5_000), None);
    assert_eq!((later(&setting, 9_999), later(&setting, 10_000)), (Some(2), Some(1)), "who is silent holds nothing");
    setting.table.said(setting.proxies[0], &ViewAnswer::default(), ms(10_000), None);
    assert_eq!(later(&setting, 10_000), Some(1), "who does not name the pool has none waiting for it");
    setting.table.forget(setting.proxies[1]);
    assert_eq!(later(&setting, 10_000), Some(0), "nor does who has gone");
}

#[test]
fn a_proxy_is_told_what_waits_in_the_others() {
    let mut setting = setting();
    setting.settle();
    let answer = |queued: u64, demand: Option<u64>| ViewAnswer {
        queued: [("a".into(), queued)].into(),
        demand: demand.map(|demand| [("a".into(), demand)].into()),
        ..ViewAnswer::default()
    };
    let [first, second] = setting.proxies;
    let others = |setting: &Setting, proxy: ProxyId, at: u64| {
        let pool = setting.table.told_to(proxy, ms(at)).remove(0);
        (&*pool.name == "a").then_some((pool.others.proxies, pool.others.demand)).unwrap()
    };
    assert_eq!(others(&setting, first, 0), (0, 0), "no other was heard");
    setting.table.said(first, &answer(500, Some(3)), ms(0), None);
    setting.table.said(second, &answer(40, None), ms(1), None);
    assert_eq!(others(&setting, first, 1), (1, 40), "a filter that counts nothing apart");
    assert_eq!(others(&setting, second, 1), (1, 3), "500 wait, most of them for their own lane's budget");
    assert_eq!(others(&setting, second, 10_000), (0, 0), "it has been silent for 10 s");
}

#[test]
fn engines_that_all_tell_their_batch_tell_that_of_the_pool() {
    let mut setting = setting();
    setting.settle();
    let batch = |setting: &Setting| setting.table.told_to(setting.proxies[0], ms(0)).remove(0).batch;
    let told =
        |max_num_seqs| Reading { limits: Limits { max_num_seqs, ..Limits::default() }, ..reading(vec![rank(1)]) };
    setting.table.end_scrape(setting.begin("a1:1", ms(0)), Ok(told(Some(48))), ms(0));
    assert_eq!(batch(&setting), None, "one does not");
    setting.table.end_scrape(setting.begin("a2:1", ms(0)), Ok(told(Some(16))), ms(0));
    assert_eq!(batch(&setting), Some(64));
}

#[test]
fn engines_that_agree_on_their_block_size_tell_it_for_the_pool() {
    let mut setting = setting();
    setting.settle();
    let size = |setting: &Setting| setting.table.told_to(setting.proxies[0], ms(0)).remove(0).block_size;
    let says = |block_size| Reading { limits: Limits { block_size, ..Limits::default() }, ..reading(vec![rank(1)]) };
    setting.table.end_scrape(setting.begin("a1:1", ms(0)), Ok(says(Some(32))), ms(0));
    assert_eq!(size(&setting), Some(32), "the other does not report it");
    setting.table.end_scrape(setting.begin("a2:1", ms(0)), Ok(says(Some(64))), ms(0));
    assert_eq!(size(&setting), None, "two differ");
    setting.table.end_scrape(setting.begin("a2:1", ms(0)), Ok(says(Some(32))), ms(0));
    assert_eq!(size(&setting), Some(32));
}
