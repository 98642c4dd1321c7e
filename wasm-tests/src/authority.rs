//! Certificates that tests make for themselves.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::{Value, json};

/// Somebody with a certificate.
pub struct Identity {
    /// The certificate, in DER.
    pub der: Vec<u8>,
    /// The certificate, in PEM.
    pub pem: String,
    /// Its key.
    pub key: KeyPair,
}

/// Who signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// One that nobody has heard of.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = distinguished("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate"))
    }

    /// Its own certificate, in DER.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        self.0.der()
    }

    /// Its own certificate, in PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate on these names.
    ///
    /// # Panics
    /// When no key can be made.
    #[must_use]
    pub fn issue(&self, names: &[SanType]) -> Identity {
        let mut params = CertificateParams::default();
        // A name equal to its issuer's would make it look like a certificate that signs itself.
        params.distinguished_name = distinguished("somebody");
        params.subject_alt_names = names.to_vec();
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { der: certificate.der().to_vec(), pem: certificate.pem(), key }
    }

    /// A listener's end of a connection, under this name. Certificates of callers are asked for and checked; whether one
    /// without any may come says `required`.
    #[must_use]
    pub fn transport_socket(&self, name: &str, required: bool) -> Value {
        let own = self.issue(&[dns(name)]);
        json!({
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
                "require_client_certificate": required,
                "common_tls_context": {
                    "tls_certificates": [{
                        "certificate_chain": {"inline_string": own.pem},
                        "private_key": {"inline_string": own.key.serialize_pem()},
                    }],
                    "validation_context": {"trusted_ca": {"inline_string": self.pem()}},
                },
            },
        })
    }
}

/// A host's name in a certificate.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().expect("a name"))
}

/// A URI in a certificate.
///
/// # Panics
/// When it is none.
#[must_use]
pub fn uri(uri: &str) -> SanType {
    SanType::URI(uri.try_into().expect("a URI"))
}

fn distinguished(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
