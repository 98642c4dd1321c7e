//! Tokens that an authentication filter before ours verifies.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

const SECRET: &[u8] = b"a secret that this test has made up, long enough";

/// The filter, which verifies tokens of the issuer `test` and lets requests without one pass; its provider has these fields too.
#[must_use]
pub fn filter(provider: &Value) -> Value {
    let jwks = json!({"keys": [{"kty": "oct", "alg": "HS256", "kid": "test", "k": URL_SAFE_NO_PAD.encode(SECRET)}]});
    let mut whole = json!({
        "issuer": "test", "payload_in_metadata": "payload", "local_jwks": {"inline_string": jwks.to_string()},
    });
    for (field, value) in provider.as_object().into_iter().flatten() {
        whole[field] = value.clone();
    }
    json!({
        "name": "envoy.filters.http.jwt_authn",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication",
            "providers": {"test": whole},
            "rules": [{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": [
                {"provider_name": "test"}, {"allow_missing": {}},
            ]}}}],
        },
    })
}

/// A token of these claims, with the filter's secret.
#[must_use]
pub fn token(claims: &Value) -> String {
    signed(claims, SECRET)
}

/// A token of these claims, with another secret.
#[must_use]
pub fn forged(claims: &Value) -> String {
    signed(claims, b"another secret, just as long as it")
}

fn signed(claims: &Value, secret: &[u8]) -> String {
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", part(&json!({"alg": "HS256", "kid": "test", "typ": "JWT"})), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("a key");
    mac.update(text.as_bytes());
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}
