//! An attacker that wants to be judged by other rules than its route's.

use serde_json::{Value, json};
use wasm_tests::bootstrap::{route_without_prefix, virtual_hosts};
use wasm_tests::caller::{CHAT, chat};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, reason_of};

/// An attacker on a route of strict rules sends a header by which another route might have been chosen: its own route's rules hold.
#[tokio::test]
async fn headers_of_the_platform_take_no_rule_off() {
    let own = |name: &str, rules: Value| {
        let mut route = route_without_prefix(&format!("/{name}/"), "workers");
        route["name"] = json!(name);
        route["metadata"] = json!({"filter_metadata": {"sluice": rules}});
        route
    };
    let rules = || json!({"tier": "trial", "pool": "trial", "lane": "batch"});
    let mut named = rules();
    named["match"] = json!({"route_name": "by-name"});
    let mut setup = Setup::new(1, Wait::AtHeaders)
        .with("/tiers", json!({"trial": {"requests_per_minute": 1}}))
        .with("/lanes", json!([{"name": "standard"}, {"name": "batch", "priority": -10}]))
        .with("/routes", json!([named]));
    setup.policy["pools"]
        .as_array_mut()
        .unwrap()
        .push(json!({"name": "trial", "models": ["unheard-of"], "max_in_flight": 9}));
    setup.virtual_hosts = virtual_hosts(&[own("by-metadata", rules()), own("by-name", json!({"mode": "enforce"}))]);
    let rig = Rig::start(setup).await;
    let headers = [
        ("x-sluice-invented", "1"),
        ("x-sluice-pool", "main"),
        ("x-sluice-tenant", "acme"),
        ("x-gateway-destination-endpoint", "127.0.0.1:1"),
    ];
    for (number, header) in headers.into_iter().enumerate() {
        for route in ["by-metadata", "by-name"] {
            let at = format!("{header:?} on {route}");
            let tenant = format!("evil-{number}-{route}");
            let (path, body) = (format!("/{route}{CHAT}"), chat(MODEL, 1, false).to_string());
            let post = async || rig.post_to(&path, &tenant, &[header], body.clone()).await;
            assert_eq!(post().await.status(), 200, "{at}");
            assert_eq!(rig.seen("x-sluice-pool").as_deref(), Some("trial"), "{at}: it goes where its route leads");
            assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("batch"), "{at}");
            let again = post().await;
            assert_eq!((again.status().as_u16(), reason_of(&again).as_str()), (429, "tenant_request_rate"), "{at}");
        }
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
