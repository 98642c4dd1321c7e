//! Pools as several proxies name them.

use super::*;

/// Each proxy says how many wait for the pool that it serves.
#[test]
fn a_pool_that_several_proxies_serve_is_named_when_that_begins() {
    let mut setting = setting();
    let says = |setting: &mut Setting, proxy: usize, pool: &str, at: Duration| {
        let answer = ViewAnswer { queued: [(pool.into(), 0)].into(), ..ViewAnswer::default() };
        let named = setting.table.said(setting.proxies[proxy], &answer, at, None);
        named.shared.iter().map(|(pool, proxies)| (pool.to_string(), *proxies)).collect::<Vec<_>>()
    };
    let row =
        |setting: &Setting, at| setting.table.snapshot(at).pools.into_iter().find(|row| &*row.name == "a").unwrap();
    assert_eq!(says(&mut setting, 0, "a", ms(0)), []);
    assert_eq!(says(&mut setting, 1, "b", ms(0)), [], "it serves another");
    assert_eq!(says(&mut setting, 1, "a", ms(100)), [("a".to_owned(), 2)]);
    assert_eq!((says(&mut setting, 0, "a", ms(200)), row(&setting, ms(200)).proxies), (vec![], 2));
    assert_eq!((says(&mut setting, 0, "a", ms(10_200)), row(&setting, ms(10_200)).proxies), (vec![], 1));
    assert_eq!(says(&mut setting, 1, "a", ms(10_300)), [("a".to_owned(), 2)], "again");
}

#[test]
fn a_pool_that_a_proxy_needs_and_the_configuration_lacks_is_named_once() {
    let mut setting = setting();
    let says = |setting: &mut Setting, proxy: usize, needs: &[&str]| {
        let needs = needs.iter().map(|pool| (*pool).to_owned()).collect();
        let answer = ViewAnswer { needs, ..ViewAnswer::default() };
        setting.table.said(setting.proxies[proxy], &answer, ms(0), None).unknown
    };
    let unknown = |setting: &Setting, proxy: usize| {
        setting.table.proxies().nth(proxy).unwrap().unknown.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(says(&mut setting, 0, &["a"]), [""; 0]);
    assert_eq!(says(&mut setting, 0, &["a", "aa", "c"]), ["aa", "c"]);
    assert_eq!(says(&mut setting, 1, &["aa"]), [""; 0], "it has been said");
    assert_eq!((unknown(&setting, 0), unknown(&setting, 1)), (vec!["aa".into(), "c".into()], vec!["aa".to_owned()]));
    says(&mut setting, 0, &["a"]);
    assert_eq!(
        (unknown(&setting, 0), unknown(&setting, 1)),
        (vec![], vec!["aa".to_owned()]),
        "the proxy's policy was mended"
    );
}
