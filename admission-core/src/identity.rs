//! Whose request it is.
//!
//! Sources are asked in order; the first that yields a name wins. Each is something that callers cannot choose: what an
//! authentication filter has found, the certificate of the connection, a header that the proxy sets, a key they hold.

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::hash;

/// Longest name of a tenant that is told to workers as it is, in bytes.
const LONGEST_TENANT: usize = 128;

/// Where a tenant's name may come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A value that an earlier filter left in the request's dynamic metadata: the filter's namespace, then keys.
    Metadata(Vec<String>),
    /// A URI in the certificate of the connection.
    Certificate(UriName),
    /// A request header, in lower case.
    Header(String),
    /// A key, known by its digest only.
    ApiKey(ApiKeys),
}

/// Which part of a certificate's URI names the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UriName {
    /// What the URI must begin with; the name is the segment that follows. Without it the whole URI is the name.
    pub after: Option<String>,
}

impl UriName {
    /// The name in a URI.
    ///
    /// ```
    /// use admission_core::identity::UriName;
    ///
    /// let name = UriName { after: Some("spiffe://cluster.local/ns/".into()) };
    /// assert_eq!(name.of("spiffe://cluster.local/ns/acme/sa/web"), Some("acme"));
    /// assert_eq!(name.of("spiffe://elsewhere/ns/acme/sa/web"), None);
    /// ```
    #[must_use]
    pub fn of<'a>(&self, uri: &'a str) -> Option<&'a str> {
        let name = match &self.after {
            Some(prefix) => uri.strip_prefix(prefix.as_str())?.split('/').next()?,
            None => uri,
        };
        (!name.is_empty()).then_some(name)
    }
}

/// Keys by the SHA-256 of each.
#[derive(Clone, PartialEq)]
pub struct ApiKeys {
    /// The header they come in, in lower case.
    pub header: String,
    /// What stands before the key in that header, such as `Bearer `.
    pub prefix: String,
    keys: Vec<([u8; 32], String)>,
}

impl ApiKeys {
    pub(crate) fn new(header: String, prefix: String, keys: Vec<([u8; 32], String)>) -> Self {
        Self { header, prefix, keys }
    }

    /// The key in a value of the header, behind the prefix; schemes such as `Bearer` are the same in any case.
    #[must_use]
    pub fn key<'a>(&self, value: &'a [u8]) -> Option<&'a [u8]> {
        let (prefix, key) = value.split_at_checked(self.prefix.len())?;
        (prefix.eq_ignore_ascii_case(self.prefix.as_bytes()) && !key.trim_ascii().is_empty()).then_some(key)
    }

    /// The tenant whose key a value of the header carries.
    #[must_use]
    pub fn tenant_of(&self, value: &[u8]) -> Option<&str> {
        self.tenant(&Sha256::digest(self.key(value)?).into())
    }

    /// The tenant of a key's digest. Every key is compared to its last byte, so the time taken tells nothing of them.
    fn tenant(&self, digest: &[u8; 32]) -> Option<&str> {
        let mut found = None;
        for (key, tenant) in &self.keys {
            if bool::from(key.ct_eq(digest)) {
                found = Some(tenant.as_str());
            }
        }
        found
    }
}

impl fmt::Debug for ApiKeys {
    /// Digests of weak keys can be guessed, so they are not shown either.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ApiKeys")
            .field("header", &self.header)
            .field("keys", &self.keys.len())
            .finish_non_exhaustive()
    }
}

/// The name of a tenant by what a source says; `None` of nothing, or of nothing but blanks.
///
/// Whatever is no plain text is escaped: it still tells one tenant from another, and cannot break the header that tells
/// the worker. A text with a backslash is escaped too, or it could pass for one that was.
///
/// ```
/// use admission_core::identity::tenant_name;
///
/// assert_eq!(tenant_name(b" acme ").as_deref(), Some("acme"));
/// assert_eq!(tenant_name(b"a\nb").as_deref(), Some(r"a\nb"));
/// ```
#[must_use]
pub fn tenant_name(value: &[u8]) -> Option<String> {
    let value = value.trim_ascii();
    let plain = str::from_utf8(value).ok().filter(|text| !text.chars().any(|sign| sign.is_control() || sign == '\\'));
    let name = plain.map_or_else(|| value.escape_ascii().to_string(), str::to_owned);
    match name.char_indices().find(|(end, _)| *end >= LONGEST_TENANT) {
        // The rest still tells one tenant from another.
        Some((end, _)) => Some(format!("{}#{:016x}", name.get(..end)?, hash::stable(value))),
        None => (!name.is_empty()).then_some(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_digest_and_never_shown() {
        let keys = ApiKeys::new(
            "authorization".into(),
            "Bearer ".into(),
            vec![([1; 32], "acme".into()), ([2; 32], "zeta".into())],
        );
        assert_eq!((keys.tenant(&[2; 32]), keys.tenant(&[3; 32])), (Some("zeta"), None));
        let mut almost = [1; 32];
        almost[31] = 0;
        assert_eq!(keys.tenant(&almost), None);
        assert!(!format!("{keys:?}").contains("acme"));
    }

    #[test]
    fn a_uri_names_by_its_segment_or_whole() {
        let whole = UriName { after: None };
        assert_eq!((whole.of("spiffe://a/b"), whole.of("")), (Some("spiffe://a/b"), None));
        let segment = UriName { after: Some("spiffe://a/".into()) };
        assert_eq!(
            (segment.of("spiffe://a/b"), segment.of("spiffe://a/"), segment.of("spiffe://a//b")),
            (Some("b"), None, None)
        );
    }
}
