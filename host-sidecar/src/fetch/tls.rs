//! From files to what TLS needs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};

use crate::config::Tls;

/// There are some hundred, in files of their own: read once, however many clients trust them.
static SYSTEM: OnceLock<RootCertStore> = OnceLock::new();

/// Why there is no TLS: what is wrong, and in which file.
#[derive(Debug)]
pub enum TlsError {
    /// A file cannot be read, or holds no PEM of its kind.
    File {
        /// Which.
        path: PathBuf,
        /// A sentence.
        problem: String,
    },
    /// The files do not go together.
    Unusable(rustls::Error),
}

/// What connections are made under.
pub fn config(tls: &Tls) -> Result<ClientConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = versions.map_err(TlsError::Unusable)?.with_root_certificates(roots(tls.ca_file.as_deref())?);
    match &tls.client_certificate {
        None => Ok(builder.with_no_client_auth()),
        Some(own) => {
            let chain = certificates(&own.certificate_file)?;
            let key = PrivateKeyDer::from_pem_file(&own.key_file).map_err(|error| wrong(&own.key_file, error))?;
            builder.with_client_auth_cert(chain, key).map_err(TlsError::Unusable)
        }
    }
}

/// The name that certificates must have, if it is not that of the URL.
pub fn server_name(tls: &Tls) -> Option<ServerName<'static>> {
    tls.server_name.clone().and_then(|name| ServerName::try_from(name).ok())
}

/// Those of the file alone. A system without any is no error: then no `https://` URL is trusted, and says so.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, TlsError> {
    let Some(path) = ca_file else { return Ok(SYSTEM.get_or_init(system).clone()) };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| wrong(path, error))?;
    }
    Ok(roots)
}

fn system() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let certificates = read.map_err(|error| wrong(path, error))?;
    match certificates.is_empty() {
        true => Err(wrong(path, "it holds no certificate in PEM")),
        false => Ok(certificates),
    }
}

fn wrong(path: &Path, problem: impl fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), problem: problem.to_string() }
}

impl fmt::Display for TlsError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, problem } => write!(out, "cannot use {}: {problem}", path.display()),
            Self::Unusable(error) => write!(out, "the certificate and its key cannot be used: {error}"),
        }
    }
}

impl std::error::Error for TlsError {}
