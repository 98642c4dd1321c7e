//! Whose a request is taken to be.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wasm_tests::caller::chat;
use wasm_tests::jwt;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait};

/// The tenant that the worker was told of; the request must have been served.
async fn tenant(rig: &Rig, headers: &[(&str, &str)]) -> String {
    let answer = rig.post("from-header", headers, &chat(MODEL, 1, false)).await;
    assert_eq!(answer.status(), 200, "{}", answer.text().await.unwrap());
    rig.worker.stats().last_headers["x-sluice-tenant"].clone()
}

fn setup(sources: Value) -> Setup {
    Setup::new(1, Wait::Unread).with("/tenant", json!({"sources": sources, "default": "nobody"}))
}

#[tokio::test]
async fn a_key_names_its_tenant_and_is_never_logged() {
    let digest = hex::encode(Sha256::digest("sk-live-123"));
    let key = json!({"api_key": {"header": "Authorization", "prefix": "Bearer ", "sha256": {digest: "acme"}}});
    let rig = Rig::start(setup(json!([key, {"header": "x-tenant-id"}]))).await;
    assert_eq!(tenant(&rig, &[("authorization", "Bearer sk-live-123")]).await, "acme");
    assert_eq!(tenant(&rig, &[("authorization", "bearer sk-live-123")]).await, "acme", "a scheme in any case");
    for unknown in ["Bearer sk-live-124", "Bearer ", "sk-live-123", ""] {
        assert_eq!(tenant(&rig, &[("authorization", unknown)]).await, "from-header", "{unknown:?}: the next source");
    }
    assert!(!rig.envoy.log().contains("sk-live"));
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_verified_claim_names_the_tenant() {
    let mut setup = setup(json!([{"metadata": ["envoy.filters.http.jwt_authn", "payload", "tenant"]}]));
    setup.filters_before = vec![jwt::filter(&json!({}))];
    let rig = Rig::start(setup).await;
    let token = jwt::token(&json!({"iss": "test", "tenant": "acme", "exp": 4_000_000_000_u64}));
    assert_eq!(tenant(&rig, &[("authorization", &format!("Bearer {token}"))]).await, "acme");
    assert_eq!(tenant(&rig, &[]).await, "nobody", "no token, and headers are not asked");
    for odd in [json!({"no": "text"}), json!("two\r\nx-evil: lines"), json!(7), json!(["a"]), json!(null)] {
        let token = jwt::token(&json!({"iss": "test", "tenant": odd, "exp": 4_000_000_000_u64}));
        tenant(&rig, &[("authorization", &format!("Bearer {token}"))]).await;
        assert!(!rig.worker.stats().last_headers.contains_key("x-evil"), "{odd}");
    }
    let forged = jwt::forged(&json!({"iss": "test", "tenant": "acme", "exp": 4_000_000_000_u64}));
    let answer = rig.post("x", &[("authorization", &format!("Bearer {forged}"))], &chat(MODEL, 1, false)).await;
    assert_eq!(answer.status(), 401, "the authentication filter's own refusal");
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_verified_claim_gives_a_tenant_that_is_not_listed_its_tier() {
    let claim = |name: &str| json!([{"metadata": ["envoy.filters.http.jwt_authn", "payload", name]}]);
    let mut setup = Setup::new(2, Wait::Unread)
        .patient()
        .with("/tenant", json!({"sources": claim("tenant"), "tier_sources": claim("plan"), "default": "unproven"}))
        .with("/tiers", json!({"paid": {"max_in_flight": 3}, "free": {"max_in_flight": 1}}))
        .with("/tenants", json!({"acme": {"max_in_flight": 2}, "*": {"tier": "free"}}));
    setup.filters_before = vec![jwt::filter(&json!({}))];
    let rig = Rig::start(setup).await;
    let bearer = |tenant: &str, plan: Value| {
        let claims = json!({"iss": "test", "tenant": tenant, "plan": plan, "exp": 4_000_000_000_u64});
        format!("Bearer {}", jwt::token(&claims))
    };
    let cases = [
        ("cust-1", json!("paid"), 3),
        ("cust-2", json!("free"), 1),
        ("cust-3", json!("made-up"), 1),
        ("cust-4", json!(["paid"]), 1),
        ("acme", json!("paid"), 2),
    ];
    for (tenant, plan, most) in cases {
        let token = bearer(tenant, plan.clone());
        let headers = [("authorization", token.as_str())];
        let mut held = Vec::new();
        while let Ok(caller) = rig.try_endless("ignored", &headers).await {
            held.push(caller);
        }
        assert_eq!(held.len(), most, "{tenant} {plan}");
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
