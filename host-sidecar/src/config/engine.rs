//! `pools[].engine`: whose metrics page a pool's workers show.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::checks::{Errors, join};
use super::raw::{Part, Unknown};
use crate::engines::Engine;
use crate::engines::custom::{Mapping, Source};
use crate::engines::routed::Routed;
use crate::engines::sheet::{Limit, Load};

/// An engine is its name, or an object when metrics have to be mapped.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "an engine is a name or an object with `custom` or `name`")]
pub enum Raw {
    Name(String),
    Object(Box<RawObject>),
}

#[derive(Debug, Deserialize)]
pub struct RawObject {
    custom: Option<Part<RawMapping>>,
    name: Option<Part<String>>,
    active_decode_blocks: Option<Part<RawSource>>,
    rank_label: Option<Part<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct RawMapping {
    rank_label: Option<Part<String>>,
    running: Option<Part<RawSource>>,
    waiting: Option<Part<RawSource>>,
    kv_used_share: Option<Part<RawSource>>,
    kv_used_blocks: Option<Part<RawSource>>,
    active_decode_blocks: Option<Part<RawSource>>,
    kv_total_blocks: Option<Part<RawSource>>,
    prefill_tokens: Option<Part<RawSource>>,
    block_size: Option<Part<RawSource>>,
    max_num_seqs: Option<Part<RawSource>>,
    max_num_batched_tokens: Option<Part<RawSource>>,
    max_model_len: Option<Part<RawSource>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// A source is the name of a metric, or an object when there is more to say.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "the name of a metric or an object with `metric`")]
enum RawSource {
    Metric(String),
    Object(RawSourceObject),
}

#[derive(Debug, Deserialize)]
struct RawSourceObject {
    metric: Option<Part<String>>,
    labels: Option<Part<BTreeMap<String, String>>>,
    value_label: Option<Part<String>>,
    scale: Option<Part<f64>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// Whose page it is; `None` when that shows on the page itself.
pub fn check(errors: &mut Errors, path: &str, part: Option<Part<Raw>>) -> Option<Engine> {
    match errors.take(path, part)? {
        Raw::Name(name) if name == "auto" => None,
        Raw::Name(name) => named(errors, path, &name, "auto, "),
        Raw::Object(object) if object.name.is_some() => routed(errors, path, *object),
        Raw::Object(object) => {
            errors.unknown(path, &object.unknown);
            for (name, is_set) in [
                ("active_decode_blocks", object.active_decode_blocks.is_some()),
                ("rank_label", object.rank_label.is_some()),
            ] {
                if is_set {
                    errors.add(
                        join(path, name),
                        "is for an engine by its `name`; beside `custom` it belongs inside of that",
                    );
                }
            }
            let path = join(path, "custom");
            let raw = errors.require(&path, object.custom)?;
            Some(Engine::Custom(Arc::new(mapping(errors, &path, raw))))
        }
    }
}

/// The engine of that name. `others` are names that mean something else there, for the message.
fn named(errors: &mut Errors, path: &str, name: &str, others: &str) -> Option<Engine> {
    let engine = Engine::NAMED.into_iter().find(|engine| engine.name() == name);
    if engine.is_none() {
        let names = Engine::NAMED.map(|engine| engine.name()).join(", ");
        errors.add(path, format!("{name:?} is no engine; it must be {others}{names}, or an object with `custom`"));
    }
    engine
}

/// An engine by its name, with a router's count on its page.
fn routed(errors: &mut Errors, path: &str, object: RawObject) -> Option<Engine> {
    errors.unknown(path, &object.unknown);
    if object.custom.is_some() {
        errors.add(path, "exactly one of custom and name must be set");
        return None;
    }
    let at = join(path, "name");
    let name = errors.require(&at, object.name)?;
    let engine = named(errors, &at, &name, "");
    if engine == Some(Engine::Dynamo) {
        errors.add(&at, "a Dynamo frontend's own count is read without being mapped; write `engine: dynamo`");
    }
    let rank_label = label(errors, &join(path, "rank_label"), object.rank_label);
    let at = join(path, "active_decode_blocks");
    if object.active_decode_blocks.is_none() {
        errors.add(&at, "missing");
    }
    let active_decode_blocks = source(errors, &at, object.active_decode_blocks)?;
    Some(Engine::Routed(Arc::new(Routed { engine: engine?, active_decode_blocks, rank_label })))
}

fn mapping(errors: &mut Errors, path: &str, raw: RawMapping) -> Mapping {
    errors.unknown(path, &raw.unknown);
    let rank_label = label(errors, &join(path, "rank_label"), raw.rank_label);
    let loads = sources(
        errors,
        path,
        [
            (Load::Running.name(), Load::Running, raw.running),
            (Load::Waiting.name(), Load::Waiting, raw.waiting),
            (Load::KvShare.name(), Load::KvShare, raw.kv_used_share),
            (Load::KvUsed.name(), Load::KvUsed, raw.kv_used_blocks),
            (Load::ActiveDecodeBlocks.name(), Load::ActiveDecodeBlocks, raw.active_decode_blocks),
            (Load::KvTotal.name(), Load::KvTotal, raw.kv_total_blocks),
            (Load::PrefillTokens.name(), Load::PrefillTokens, raw.prefill_tokens),
        ],
    );
    let limits = sources(
        errors,
        path,
        [
            (Limit::BlockSize.name(), Limit::BlockSize, raw.block_size),
            (Limit::MaxNumSeqs.name(), Limit::MaxNumSeqs, raw.max_num_seqs),
            (Limit::MaxNumBatchedTokens.name(), Limit::MaxNumBatchedTokens, raw.max_num_batched_tokens),
            (Limit::MaxModelLen.name(), Limit::MaxModelLen, raw.max_model_len),
        ],
    );
    if ![Load::Running, Load::Waiting, Load::KvShare, Load::KvUsed].iter().any(|load| loads.contains_key(load)) {
        errors.add(
            path,
            "one of running, waiting, kv_used_share and kv_used_blocks must be set: nothing else tells load",
        );
    }
    Mapping {
        rank_label,
        loads: loads.into_iter().filter_map(|(load, source)| Some((load, source?))).collect(),
        limits: limits.into_iter().filter_map(|(limit, source)| Some((limit, source?))).collect(),
    }
}

/// What is written, with `None` for what is wrong.
fn sources<K: Ord, const N: usize>(
    errors: &mut Errors,
    path: &str,
    fields: [(&str, K, Option<Part<RawSource>>); N],
) -> BTreeMap<K, Option<Source>> {
    let written = fields.into_iter().filter(|(_, _, part)| part.is_some());
    written.map(|(name, key, part)| (key, source(errors, &join(path, name), part))).collect()
}

fn source(errors: &mut Errors, path: &str, part: Option<Part<RawSource>>) -> Option<Source> {
    let raw = match errors.take(path, part)? {
        RawSource::Metric(name) => {
            let metric = metric(errors, path, name)?;
            return Some(Source { metric, labels: BTreeMap::new(), value_label: None, scale: 1.0 });
        }
        RawSource::Object(raw) => raw,
    };
    errors.unknown(path, &raw.unknown);
    let at = join(path, "metric");
    let metric = errors.require(&at, raw.metric).and_then(|name| metric(errors, &at, name));
    let at = join(path, "labels");
    let labels = errors.take(&at, raw.labels).unwrap_or_default();
    for name in labels.keys().filter(|name| !is_label(name)) {
        errors.add(&at, no_label(name));
    }
    let value_label = label(errors, &join(path, "value_label"), raw.value_label);
    let scale = errors.take(&join(path, "scale"), raw.scale).unwrap_or(1.0);
    if !(scale.is_finite() && scale > 0.0) {
        errors.add(join(path, "scale"), format!("{scale} must be a finite number above 0"));
    }
    Some(Source { metric: metric?, labels, value_label, scale })
}

fn metric(errors: &mut Errors, path: &str, name: String) -> Option<String> {
    let is_name = is_word(&name, |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
    if !is_name {
        errors.add(path, format!("{name:?} is no name of a metric, which has letters, digits, `_` and `:`"));
    }
    is_name.then_some(name)
}

fn label(errors: &mut Errors, path: &str, part: Option<Part<String>>) -> Option<String> {
    let name = errors.take(path, part)?;
    if !is_label(&name) {
        errors.add(path, no_label(&name));
    }
    Some(name)
}

fn no_label(name: &str) -> String {
    format!("{name:?} is no name of a label, which has letters, digits and `_`")
}

fn is_label(name: &str) -> bool {
    is_word(name, |byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn is_word(name: &str, is_inside: impl Fn(u8) -> bool) -> bool {
    name.bytes().next().is_some_and(|first| !first.is_ascii_digit()) && name.bytes().all(is_inside)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(engine: &str) -> Result<Option<Engine>, Vec<String>> {
        let text = format!(
            "proxies: [{{url: 'http://p:1', token: t}}]\npools: [{{name: a, workers: ['w:1'], engine: {engine}}}]\n"
        );
        match Config::parse(&text) {
            Ok(mut config) => Ok(config.pools.remove(0).engine),
            Err(errors) => Err(errors.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn engines_are_named() {
        assert_eq!(parse("auto"), Ok(None));
        for engine in Engine::NAMED {
            assert_eq!(parse(engine.name()), Ok(Some(engine)));
        }
        assert_eq!(
            parse("vlm").unwrap_err(),
            [
                "pools[0].engine: \"vlm\" is no engine; it must be auto, vllm, sglang, triton, trtllm, tgi, llamacpp, dynamo, \
              or an object with `custom`"
            ]
        );
    }

    #[test]
    fn every_field_of_a_mapping_is_read() {
        let engine = parse(
            "{custom: {rank_label: shard, running: busy_slots, waiting: {metric: queue, labels: {state: waiting}},
              kv_used_share: {metric: 'eng:cache', scale: 0.01}, kv_used_blocks: u, active_decode_blocks: a, kv_total_blocks: t, prefill_tokens: p,
              block_size: {metric: info, value_label: block}, max_num_seqs: s, max_num_batched_tokens: b, max_model_len: l}}",
        );
        let Ok(Some(Engine::Custom(mapping))) = engine else { panic!("{engine:?}") };
        assert_eq!(mapping.rank_label.as_deref(), Some("shard"));
        assert_eq!((mapping.loads.len(), mapping.limits.len()), (7, 4));
        assert_eq!(mapping.loads[&Load::Waiting].labels["state"], "waiting");
        assert_eq!(mapping.loads[&Load::KvShare].scale, 0.01);
        assert_eq!(mapping.limits[&Limit::BlockSize].value_label.as_deref(), Some("block"));
        let metrics = mapping.loads.values().chain(mapping.limits.values()).map(|source| source.metric.as_str());
        assert_eq!(
            metrics.collect::<Vec<_>>(),
            ["busy_slots", "queue", "eng:cache", "u", "t", "a", "p", "info", "s", "b", "l"]
        );
    }

    #[test]
    fn every_mistake_of_a_mapping_is_reported_with_its_path() {
        let found = parse(
            "{colour: red, custom: {ranks: 2, rank_label: 'a b', running: '1st', waiting: {label: x},
              kv_used_share: {metric: cache, labels: {'x:y': '1', n: 1}, scale: 0}, kv_used_blocks: 7,
              prefill_tokens: {metric: m, labels: {'': v}, value_label: '', scale: .nan}}}",
        )
        .unwrap_err();
        let at = "pools[0].engine.custom";
        let expected = [
            "pools[0].engine.colour: no such field".to_owned(),
            format!("{at}.ranks: no such field"),
            format!("{at}.rank_label: \"a b\" is no name of a label"),
            format!("{at}.running: \"1st\" is no name of a metric"),
            format!("{at}.waiting.label: no such field"),
            format!("{at}.waiting.metric: missing"),
            format!("{at}.kv_used_share.labels.n: invalid type"),
            format!("{at}.kv_used_share.scale: 0 must be a finite number above 0"),
            format!("{at}.kv_used_blocks: the name of a metric or an object"),
            format!("{at}.prefill_tokens.labels: \"\" is no name of a label"),
            format!("{at}.prefill_tokens.value_label: \"\" is no name of a label"),
            format!("{at}.prefill_tokens.scale: NaN must be"),
        ];
        for expected in &expected {
            assert!(found.iter().any(|error| error.starts_with(expected)), "{expected:?} is not in {found:#?}");
        }
        assert_eq!(found.len(), expected.len(), "{found:#?}");
    }

    #[test]
    fn a_routers_count_is_read_beside_an_engine_by_its_name() {
        let engine =
            parse("{name: sglang, active_decode_blocks: {metric: blocks, labels: {w: a}}, rank_label: dp_rank}");
        let Ok(Some(Engine::Routed(routed))) = engine else { panic!("{engine:?}") };
        assert_eq!((&routed.engine, routed.active_decode_blocks.metric.as_str()), (&Engine::Sglang, "blocks"));
        assert_eq!(routed.rank_label.as_deref(), Some("dp_rank"));
        for (written, expected) in [
            ("{name: vllm}", "engine.active_decode_blocks: missing"),
            ("{name: auto, active_decode_blocks: b}", "engine.name: \"auto\" is no engine"),
            ("{name: dynamo, active_decode_blocks: b}", "engine.name: a Dynamo frontend's own count is read"),
            ("{name: vllm, custom: {running: r}, active_decode_blocks: b}", "engine: exactly one of custom and name"),
            ("{custom: {running: r}, active_decode_blocks: b}", "engine.active_decode_blocks: is for an engine by its"),
        ] {
            let found = parse(written).unwrap_err();
            assert!(matches!(&found[..], [one] if one.starts_with(&format!("pools[0].{expected}"))), "{found:?}");
        }
    }

    #[test]
    fn a_mapping_that_tells_no_load_and_an_object_without_one_are_mistakes() {
        let found = parse("{custom: {kv_total_blocks: t, max_model_len: l}}").unwrap_err();
        assert!(found[0].starts_with("pools[0].engine.custom: one of running, waiting"), "{found:?}");
        assert_eq!(parse("{}").unwrap_err(), ["pools[0].engine.custom: missing"]);
        assert!(parse("3").unwrap_err()[0].starts_with("pools[0].engine: an engine is a name or an object"));
    }
}
