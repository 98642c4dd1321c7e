//! Whose a request is taken to be.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use wasm_tests::caller::chat;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait};

const SECRET: &[u8] = b"a secret that this test has made up, long enough";

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
    let jwks = json!({"keys": [{"kty": "oct", "alg": "HS256", "kid": "test", "k": URL_SAFE_NO_PAD.encode(SECRET)}]});
    setup.filters_before = vec![json!({
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"test": {
                "issuer": "test", "payload_in_metadata": "payload", "local_jwks": {"inline_string": jwks.to_string()},
            }},
            "rules": [{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": [
                {"provider_name": "test"}, {"allow_missing": {}},
            ]}}}],
        },
    })];
    let rig = Rig::start(setup).await;
    let token = token(&json!({"iss": "test", "tenant": "acme", "exp": 4_000_000_000_u64}), SECRET);
    assert_eq!(tenant(&rig, &[("authorization", &format!("Bearer {token}"))]).await, "acme");
    assert_eq!(tenant(&rig, &[]).await, "nobody", "no token, and headers are not asked");
    for odd in [json!({"no": "text"}), json!("two\r\nx-evil: lines"), json!(7), json!(["a"]), json!(null)] {
        let token = self::token(&json!({"iss": "test", "tenant": odd, "exp": 4_000_000_000_u64}), SECRET);
        tenant(&rig, &[("authorization", &format!("Bearer {token}"))]).await;
        assert!(!rig.worker.stats().last_headers.contains_key("x-evil"), "{odd}");
    }
    let forged = self::token(
        &json!({"iss": "test", "tenant": "acme", "exp": 4_000_000_000_u64}),
        b"another secret, just as long as it",
    );
    let answer = rig.post("x", &[("authorization", &format!("Bearer {forged}"))], &chat(MODEL, 1, false)).await;
    assert_eq!(answer.status(), 401, "the authentication filter's own refusal");
    rig.nothing_trapped().await;
}

fn token(claims: &Value, secret: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signed = format!("{}.{}", part(&json!({"alg": "HS256", "kid": "test", "typ": "JWT"})), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key");
    mac.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}
