//! What operators write: the plugin's configuration, which is JSON, the sidecar's, which is YAML, and whole files of both.
//!
//! - Each is taken, or refused with problems that say what is wrong; the same text always alike.
//! - What has a field that does not exist is refused, and the field named.
//! - JSON is taken alike however it is laid out, by the plugin and by the sidecar, which reads it as YAML.
//! - What the plugin takes can be asked everything that a request asks.
//! - `check` finds an error in a file of one plugin's configuration exactly where the plugin refuses it.

use admission_core::policy::{Place, Plugin, Policy, Route};
use admission_core::problem::Problem;
use host_sidecar::check::{self, Severity};
use host_sidecar::{Config, ConfigError};
use serde_json::Value;

/// Longest text of which YAML makes the same as JSON: its keys may be no longer.
const LONGEST: usize = 1_000;

/// See the head of this file.
pub fn target(data: &[u8]) {
    let plugin = Plugin::parse(data);
    match &plugin {
        Ok(Plugin::Filter(policy)) => ask(policy),
        Ok(Plugin::Control(control)) => assert!(control.max_view > 0, "{control:?}"),
        Err(problems) => check_problems(problems),
    }
    let value: Option<Value> = serde_json::from_slice(data).ok();
    if let Some(value) = &value {
        let laid_out = serde_json::to_vec_pretty(value).unwrap_or_default();
        assert_eq!(Plugin::parse(&laid_out), plugin, "{value}");
        with_unknown_field(value.clone());
    }
    if let Ok(text) = str::from_utf8(data) {
        sidecar(text, value.as_ref());
        check(text);
    }
}

fn with_unknown_field(mut value: Value) {
    const NAME: &str = "no_such_field";
    let Value::Object(fields) = &mut value else { return };
    fields.insert(NAME.to_owned(), Value::Null);
    let problems = Plugin::parse(value.to_string().as_bytes()).err().unwrap_or_default();
    assert!(problems.iter().any(|problem| problem.to_string().contains(NAME)), "{value}: {problems:?}");
    let errors = Config::from_value(value.clone()).err().unwrap_or_default();
    assert!(errors.iter().any(|error| error.path == NAME), "{value}: {errors:?}");
}

fn check_problems(problems: &[Problem]) {
    assert!(!problems.is_empty());
    for problem in problems {
        assert!(!problem.message.is_empty(), "{problem:?}");
    }
}

fn ask(policy: &Policy) {
    for pool in policy.pools() {
        assert_eq!(policy.pool(&pool.name).map(|found| &found.name), Some(&pool.name));
        let _ = (pool.serves("llama"), pool.family(Some("llama-3")), pool.classes_need_model());
    }
    for tenant in policy.tenant_names().chain(["nobody", ""]) {
        let (limits, key) = (policy.limits(tenant), policy.tenant_key(tenant));
        assert!(!key.is_empty(), "{limits:?}");
    }
    let place = Place { route_name: Some("r"), virtual_host: Some("v"), path: "/v1/chat/completions", spoofed: false };
    let route = policy.route(place, Route::default());
    assert!(route.pool.is_none_or(|pool| policy.pool(&pool.name).is_some()));
    assert!(policy.lanes().next().is_some(), "there is always a lane");
    let _ = policy.pool_for("llama-3.3-70b");
}

fn sidecar(text: &str, json: Option<&Value>) {
    match Config::parse(text) {
        Ok(config) => {
            assert!(!config.pools.is_empty(), "{config:?}");
            config.warnings().iter().for_each(|warning| assert!(!warning.is_empty()));
        }
        Err(errors) => check_errors(&errors),
    }
    let Some(json) = json else { return };
    let plain = json.to_string();
    let is_plain = plain.len() < LONGEST && plain.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain {
        let (by_json, by_yaml) = (Config::from_value(json.clone()), Config::parse(&plain));
        assert_eq!(by_json.is_ok(), by_yaml.is_ok(), "{plain}: {by_json:?} and {by_yaml:?}");
    }
}

fn check_errors(errors: &[ConfigError]) {
    assert!(!errors.is_empty());
    for error in errors {
        assert!(!error.message.is_empty(), "{error:?}");
    }
}

fn check(text: &str) {
    let report = check::text(text);
    for finding in &report.findings {
        assert!(finding.document <= report.documents && !finding.message.is_empty(), "{finding:?}");
    }
    assert!(report.documents > 0 || report.count(Severity::Error) > 0, "{report:?}");
}
