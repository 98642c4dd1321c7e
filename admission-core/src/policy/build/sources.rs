//! Who a request may be from.

use super::{Checker, SHA256_OF_NOTHING, check_header, check_tenant_name, sha256_digits};
use crate::config::{ApiKeySource, Config, TenantSource};
use crate::identity::{ApiKeys, Source, UriName};
use crate::platform;

pub(super) fn sources(configs: &[TenantSource], check: &mut Checker<'_>) -> Vec<Source> {
    let sources = configs.iter().enumerate();
    sources.filter_map(|(index, config)| tenant_source(&format!("tenant.sources[{index}]"), config, check)).collect()
}

pub(super) fn tier_sources(config: &Config, check: &mut Checker<'_>) -> Vec<Source> {
    let mut sources = Vec::new();
    for (index, source) in config.tenant.tier_sources.iter().enumerate() {
        let path = format!("tenant.tier_sources[{index}]");
        if source.certificate.is_some() || source.api_key.is_some() {
            check.problem(&path, "a tier comes from `metadata` or a `header`");
        }
        sources.extend(tenant_source(&path, source, check));
    }
    if !sources.is_empty() && config.tiers.is_empty() {
        check.problem("tenant.tier_sources", "needs `tiers`, one of which they are to name");
    }
    sources
}

fn tenant_source(path: &str, config: &TenantSource, check: &mut Checker<'_>) -> Option<Source> {
    match config {
        TenantSource { metadata: Some(keys), certificate: None, header: None, api_key: None } => {
            if keys.len() < 2 || keys.iter().any(String::is_empty) {
                check.problem(format!("{path}.metadata"), "must be the namespace of a filter and at least one key");
            }
            Some(Source::Metadata(keys.clone()))
        }
        TenantSource { metadata: None, certificate: Some(config), header: None, api_key: None } => {
            Some(Source::Certificate(UriName { after: config.after.clone() }))
        }
        TenantSource { metadata: None, certificate: None, header: Some(header), api_key: None } => {
            check_source_header(format!("{path}.header"), header, check);
            Some(Source::Header(header.to_ascii_lowercase()))
        }
        TenantSource { metadata: None, certificate: None, header: None, api_key: Some(config) } => {
            check_source_header(format!("{path}.api_key.header"), &config.header, check);
            Some(Source::ApiKey(api_keys(&format!("{path}.api_key"), config, check)))
        }
        _ => {
            if check.shape == 0 {
                check.problem(path, "must have exactly one of `metadata`, `certificate`, `header` and `api_key`");
            }
            None
        }
    }
}

fn check_source_header(path: String, header: &str, check: &mut Checker<'_>) {
    if header.to_ascii_lowercase().starts_with(platform::PREFIX) {
        check.problem(
            path,
            "headers beginning with x-sluice- are removed from every request, so it would never be seen",
        );
    } else {
        check_header(path, header, check);
    }
}

fn api_keys(path: &str, config: &ApiKeySource, check: &mut Checker<'_>) -> ApiKeys {
    // Whoever writes a key in place of its digest must not find it in a log, so an entry is called by its tenant.
    let place = format!("{path}.sha256");
    let mut keys = Vec::new();
    for (digits, tenant) in &config.sha256 {
        check_tenant_name(&place, tenant, check);
        match sha256_digits(digits) {
            Some(digest) if Some(digest) == sha256_digits(SHA256_OF_NOTHING) => {
                let message = format!("that of {tenant:?} is the SHA-256 of no bytes at all: the key was empty");
                check.problem(place.clone(), message);
            }
            Some(digest) if keys.iter().any(|(other, _)| *other == digest) => {
                check.problem(place.clone(), format!("that of {tenant:?} stands here twice, in other letters"));
            }
            Some(digest) => keys.push((digest, tenant.clone())),
            None => {
                let message = format!("that of {tenant:?} must be 64 hexadecimal digits, the SHA-256 of its key");
                check.problem(place.clone(), message);
            }
        }
    }
    ApiKeys::new(config.header.to_ascii_lowercase(), config.prefix.clone(), keys)
}
