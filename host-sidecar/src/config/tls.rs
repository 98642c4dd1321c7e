//! How the other end of an `https://` URL is known, and how it knows this one.

use std::path::PathBuf;

use rustls::pki_types::DnsName;
use serde::Deserialize;

use super::checks::{Errors, join};
use super::raw::{Part, Unknown};

/// Whom to trust and who to be. Without anything the system's roots are trusted and no certificate is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// PEM with the only authorities that are trusted; the system's where there is none.
    pub ca_file: Option<PathBuf>,
    /// What is shown to a server that asks who calls.
    pub client_certificate: Option<ClientCertificate>,
    /// The name that the server's certificate must have, where it is not the host of the URL.
    pub server_name: Option<String>,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// PEM with the certificate, those of intermediate authorities behind it.
    pub certificate_file: PathBuf,
    /// PEM with the private key.
    pub key_file: PathBuf,
}

impl Tls {
    /// Every file that a client is built from.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        let own = self.client_certificate.iter().flat_map(|own| [&own.certificate_file, &own.key_file]);
        self.ca_file.iter().chain(own)
    }
}

/// [`Tls`] as it is written.
#[derive(Debug, Deserialize)]
pub struct RawTls {
    ca_file: Option<Part<String>>,
    client_certificate: Option<Part<RawClientCertificate>>,
    server_name: Option<Part<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct RawClientCertificate {
    certificate_file: Option<Part<String>>,
    key_file: Option<Part<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The meaning of `tls` at `path`, which is for URLs that begin with `https://` alone: `is_used` says whether there is one.
pub fn tls(errors: &mut Errors, path: &str, part: Option<Part<RawTls>>, is_used: bool) -> Tls {
    let Some(raw) = errors.take(path, part) else { return Tls::default() };
    errors.unknown(path, &raw.unknown);
    if !is_used {
        errors.add(path, "is only for a URL that begins with https://");
    }
    let ca_file = errors.take(&join(path, "ca_file"), raw.ca_file).map(PathBuf::from);
    let at = join(path, "client_certificate");
    let own = errors.take(&at, raw.client_certificate);
    let client_certificate = own.and_then(|own| {
        errors.unknown(&at, &own.unknown);
        let certificate = errors.require(&join(&at, "certificate_file"), own.certificate_file);
        let key = errors.require(&join(&at, "key_file"), own.key_file);
        Some(ClientCertificate { certificate_file: certificate?.into(), key_file: key?.into() })
    });
    let at = join(path, "server_name");
    let server_name = errors.take(&at, raw.server_name);
    if let Some(name) = server_name.as_deref().filter(|name| DnsName::try_from(*name).is_err()) {
        errors.add(at, format!("{name:?} is not a DNS name"));
    }
    Tls { ca_file, client_certificate, server_name }
}
