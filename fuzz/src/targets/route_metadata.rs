//! A route's metadata, as bytes of a proxy.
//!
//! Bytes that begin with `#` are lines of `name=value`, from which pairs are laid out as a proxy does; others are taken as they
//! are.
//! - What is read holds every pair, and laid out again it is the same bytes, where all is text and no name stands twice.
//! - Its problems are named, or it makes a route; which of two spellings of the same pairs is read makes no difference.
//! - Of a caller who may have chosen the route, its metadata says nothing but what is stricter.

use std::sync::OnceLock;

use admission_core::config::Mode;
use admission_core::pairs;
use admission_core::policy::{Place, Plugin, Policy};
use admission_core::route_metadata::object;
use serde_json::Value;

use crate::proxy;

/// See the head of this file.
pub fn target(data: &[u8]) {
    match data.strip_prefix(b"#") {
        None => read(data),
        Some(lines) => {
            let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let pairs: Vec<_> = lines
                .map(|line| {
                    let end = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
                    (&line[..end], line.get(end + 1..).unwrap_or_default())
                })
                .collect();
            let bytes = proxy::pairs(&pairs);
            assert!(object(&bytes).is_ok(), "{pairs:?}");
            read(&bytes);
        }
    }
}

fn read(bytes: &[u8]) {
    let object = match object(bytes) {
        Ok(object) => object,
        Err(problems) => return assert_eq!(problems.len(), 1, "{problems:?}"),
    };
    let Value::Object(fields) = &object else { panic!("{object} is no object") };
    let places = pairs::places(bytes).unwrap_or_default();
    let texts: Option<Vec<(&str, &str)>> = places
        .iter()
        .map(|(name, value)| {
            Some((str::from_utf8(&bytes[name.clone()]).ok()?, str::from_utf8(&bytes[value.clone()]).ok()?))
        })
        .collect();
    for (name, value) in texts.iter().flatten() {
        let times = texts.iter().flatten().filter(|(other, _)| other == name).count();
        let expected = match (*name, *value) {
            ("enabled", "\0") => Value::Bool(false),
            ("enabled", "\u{1}") => Value::Bool(true),
            (_, text) => Value::from(text),
        };
        assert!(times > 1 || fields.get(*name) == Some(&expected), "{name:?} of {object}");
    }
    if let Some(texts) = texts {
        let pairs: Vec<_> = texts.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
        assert_eq!(proxy::pairs(&pairs), bytes);
    }
    route(object);
}

fn route(object: Value) {
    let policy = policy();
    let route = match policy.route_of_metadata(object.clone()) {
        Ok(route) => route,
        Err(problems) => {
            assert!(!problems.is_empty() && problems.iter().all(|problem| !problem.message.is_empty()), "{object}");
            return;
        }
    };
    let place = |spoofed| Place { route_name: None, virtual_host: None, path: "/v1/chat/completions", spoofed };
    let (trusted, spoofed) = (policy.route(place(false), route.clone()), policy.route(place(true), route.clone()));
    assert_eq!(trusted, route, "nothing else says anything of that place: {object}");
    let Value::Object(fields) = &object else { return };
    let says = |name: &str| fields.get(name).is_some_and(|value| !value.is_null());
    let named = (says("enabled"), says("mode"), says("pool"), says("tier"));
    let is = (route.enabled.is_some(), route.mode.is_some(), route.pool.is_some(), route.tier.is_some());
    assert_eq!(named, is, "{object}");
    assert_eq!((&spoofed.pool, &spoofed.tier), (&route.pool, &None), "{object}");
    assert_eq!(spoofed.enabled, route.enabled.filter(|enabled| *enabled), "{object}");
    assert!(spoofed.mode.is_none_or(|mode| mode == Mode::Enforce), "{object}");
}

fn policy() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| {
        let json = r#"{"lanes": [{"name": "interactive"}, {"name": "standard"}, {"name": "batch"}],
            "tiers": {"small": {"max_in_flight": 1}},
            "pools": [{"name": "llama", "max_in_flight": 9}, {"name": "embed", "models": ["e5*"], "max_in_flight": 9}]}"#;
        match Plugin::parse(json.as_bytes()) {
            Ok(Plugin::Filter(policy)) => *policy,
            other => panic!("{other:?}"),
        }
    })
}
