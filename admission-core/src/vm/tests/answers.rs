//! What answers make of leases and budgets.

use super::*;

fn with(limits: &str) -> Proxy {
    let json = format!(
        r#"{{"tenants": {{"acme": {{"tokens_per_minute": {{"rate": 1, "burst": 100000}}{limits}}}}},
            "pools": [{{"name": "p", "max_in_flight": 99, "kv": {{"block_size": 16}}, "stale": {{"then": "admit"}}}}]}}"#
    );
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) }
}

/// Of the requests of these tests, which ask for 100 prompt tokens and 60 of output.
fn spent_by(limits: &str, usage: Usage) -> u64 {
    let proxy = with(limits);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    vm.release(&*proxy.store, lease, usage, proxy.now);
    100_000 - tokens_left(&proxy)
}

#[test]
fn what_an_answer_does_not_show_stays_as_estimated() {
    let served = |prompt: Option<u64>, output: Option<u64>| {
        Usage::Served(Served { prompt: prompt.map(Tokens), cached: Tokens(0), output: output.map(Tokens) })
    };
    assert_eq!(spent_by("", served(None, None)), 160);
    assert_eq!(spent_by("", served(None, Some(7))), 107, "a stream cut off after seven deltas");
    assert_eq!(spent_by("", served(Some(30), None)), 90);
    assert_eq!(spent_by("", served(Some(30), Some(7))), 37);
    assert_eq!(spent_by("", served(Some(30), Some(0))), 30);
}

#[test]
fn cached_prompt_tokens_cost_what_the_tenant_pays_for_them() {
    let served = |cached| Usage::Served(Served { cached: Tokens(cached), ..Served::whole(Tokens(100), Tokens(20)) });
    assert_eq!(spent_by("", served(80)), 120, "all of a token, if not said");
    assert_eq!(spent_by(r#", "cached_token_cost": 0.1"#, served(80)), 20 + 8 + 20);
    assert_eq!(spent_by(r#", "cached_token_cost": 0.1"#, served(85)), 15 + 9 + 20, "a part counts whole");
    assert_eq!(spent_by(r#", "cached_token_cost": 0"#, served(80)), 20 + 20);
    assert_eq!(spent_by(r#", "cached_token_cost": 0"#, served(5_000)), 20, "no more than the prompt");
    assert_eq!(spent_by(r#", "cached_token_cost": 0"#, Usage::AsEstimated), 160);
}

#[test]
fn a_tier_says_what_cached_tokens_cost_and_a_tenant_may_differ() {
    let json = r#"{"tiers": {"gold": {"cached_token_cost": 0.25}, "route": {"max_in_flight": 3}},
        "tenants": {"acme": {"tier": "gold"}, "zeta": {"tier": "gold", "cached_token_cost": 0.5}},
        "pools": [{"name": "p", "max_in_flight": 9}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    let cost = |tenant| policy.limits(tenant).cached_cost;
    assert_eq!((cost("acme"), cost("zeta"), cost("nobody")), (Some(250), Some(500), None));
}

#[test]
fn a_lease_grows_with_its_answer_in_both_records_and_gives_all_of_it_back() {
    let proxy = with(r#", "max_tokens_in_flight": 170"#);
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    let holds = |tokens: u64, when: &str| {
        let amount = Amount { requests: 1, tokens: Tokens(tokens), blocks: Tokens(tokens).blocks_of(16) };
        assert_eq!((proxy.tenant(), proxy.pool()), (amount, amount), "{when}");
    };
    let mut look = |output| vm.overdraw(&*proxy.store, lease, Tokens(output), proxy.now).unwrap();
    let stands = |grown, reserved| Overdraft { grown: Tokens(grown), reserved: Tokens(reserved) };
    let writes = proxy.store.writes.get();
    assert_eq!((look(1), look(60)), (stands(0, 60), stands(0, 60)));
    assert_eq!(proxy.store.writes.get(), writes, "within the estimate nothing is written");
    assert_eq!(look(61), stands(65, 125));
    holds(100 + 125, "over the tenant's cap of tokens");
    assert_eq!((look(125), proxy.store.writes.get()), (stands(0, 125), writes + 2));
    assert_eq!(look(126), stands(67, 192));
    assert_eq!(look(10_000), stands(10_832, 11_024), "by no more than a step ahead");
    holds(100 + 11_024, "far beyond");
    assert_eq!(tokens_left(&proxy), 100_000 - 160, "budgets are settled at the end");
    assert_eq!(proxy.admit(&mut vm, "acme"), Err(Reason::TenantTokens));
    vm.release(&*proxy.store, lease, Usage::Served(Served::whole(Tokens(100), Tokens(10_000))), proxy.now);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
    assert_eq!(tokens_left(&proxy), 100_000 - 10_100);
    assert_eq!(vm.overdraw(&*proxy.store, lease, Tokens(99_999), proxy.now), None, "it has ended");
    assert_eq!(proxy.pool(), Amount::default());
}

#[test]
fn a_long_stream_changes_records_seldom() {
    let proxy = with("");
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    let (before, mut reserved, mut grown) = (proxy.store.writes.get(), Tokens(0), 0);
    for output in 1..=10_000 {
        if Tokens(output) > reserved {
            let overdraft = vm.overdraw(&*proxy.store, lease, Tokens(output), proxy.now).unwrap();
            (reserved, grown) = (overdraft.reserved, grown + overdraft.grown.0);
        }
    }
    assert_eq!(proxy.pool().tokens.0, 160 + grown);
    let writes = proxy.store.writes.get() - before;
    assert!(writes < 2 * 20, "{writes} for 10,000 tokens");
}

#[test]
fn a_correction_after_an_overdraft_sets_what_is_held_and_what_it_costs() {
    let proxy = with("");
    for (prompt, output) in [(100, 60), (100, 100), (10, 5), (400, 60)] {
        let mut vm = proxy.vm();
        let before = tokens_left(&proxy);
        let lease = proxy.admit(&mut vm, "acme").unwrap();
        vm.overdraw(&*proxy.store, lease, Tokens(120), proxy.now).unwrap();
        vm.correct(&*proxy.store, lease, &ask(prompt, output), proxy.rules("acme", "p"), proxy.now).unwrap();
        assert_eq!(proxy.pool().tokens, Tokens(prompt + output));
        assert_eq!(before - tokens_left(&proxy), prompt + output);
        vm.overdraw(&*proxy.store, lease, Tokens(output + 1), proxy.now).unwrap();
        assert_eq!(proxy.pool().tokens, Tokens(prompt + output + 65));
        vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
        assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
        assert_eq!(before - tokens_left(&proxy), prompt + output);
    }
}

#[test]
fn a_little_too_much_is_kept_to_the_end_and_settled_then() {
    let proxy = with("");
    for (prompt, writes, held) in [(100, 0, 160), (80, 0, 160), (79, 2, 139), (101, 2, 161)] {
        let mut vm = proxy.vm();
        let before = tokens_left(&proxy);
        let lease = proxy.admit(&mut vm, "acme").unwrap();
        let written = proxy.store.writes.get();
        vm.correct(&*proxy.store, lease, &ask(prompt, 60), proxy.rules("acme", "p"), proxy.now).unwrap();
        assert_eq!((proxy.store.writes.get() - written, proxy.pool().tokens), (writes, Tokens(held)), "{prompt}");
        vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
        assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
        assert_eq!(before - tokens_left(&proxy), prompt + 60, "by what the body proved, not by the guess");
    }
}

#[test]
fn what_has_grown_is_void_with_its_vm_and_charged_again_when_it_comes_back() {
    let mut proxy = with("");
    let (mut stalled, mut other) = (proxy.vm(), proxy.vm());
    let lease = proxy.admit(&mut stalled, "acme").unwrap();
    proxy.ticks(&mut [&mut stalled, &mut other], 1);
    stalled.overdraw(&*proxy.store, lease, Tokens(200), proxy.now).unwrap();
    let held = proxy.pool();
    assert_eq!(held.tokens, Tokens(100 + 200 + 140));
    proxy.ticks(&mut [&mut other], DEAD_AFTER_TICKS + 1);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()), "fenced");
    // It grows once more before it knows.
    stalled.overdraw(&*proxy.store, lease, Tokens(1_000), proxy.now).unwrap();
    assert_eq!(proxy.pool(), Amount::default(), "under an epoch that is void");
    proxy.ticks(&mut [&mut other, &mut stalled], 1);
    let held = proxy.pool();
    assert_eq!((held.requests, held.tokens), (1, Tokens(100 + 1_000 + 940)));
    assert_eq!(proxy.tenant(), held);
    stalled.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    assert_eq!((proxy.tenant(), proxy.pool()), (Amount::default(), Amount::default()));
}

#[test]
fn growth_that_others_are_faster_than_comes_later_and_only_once() {
    let mut proxy = with("");
    let mut vm = proxy.vm();
    let lease = proxy.admit(&mut vm, "acme").unwrap();
    proxy.store.fail_on("pool/p", store::MAX_ATTEMPTS);
    vm.overdraw(&*proxy.store, lease, Tokens(100), proxy.now).unwrap();
    assert_eq!((proxy.tenant().tokens, proxy.pool().tokens), (Tokens(264), Tokens(160)));
    assert!(proxy.admit(&mut vm, "acme").is_ok(), "it keeps nobody out");
    proxy.ticks(&mut [&mut vm], 1);
    assert_eq!(proxy.pool().tokens, Tokens(264 + 160));
    proxy.store.fail_on("pool/p", store::MAX_ATTEMPTS);
    vm.overdraw(&*proxy.store, lease, Tokens(500), proxy.now).unwrap();
    vm.release(&*proxy.store, lease, Usage::AsEstimated, proxy.now);
    proxy.ticks(&mut [&mut vm], 1);
    assert_eq!((proxy.tenant().tokens, proxy.pool().tokens), (Tokens(160), Tokens(160)), "in the order they came");
}
