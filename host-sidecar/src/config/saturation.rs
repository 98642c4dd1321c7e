//! `pools[].saturation` and `pools[].dispatch_budget`: how full a pool is, and what it has to spare.

use std::collections::BTreeSet;
use std::time::Duration;

use admission_core::saturation::{
    BudgetRule, BudgetSource, ConcurrencyLimits, ConcurrencyMode, Detector, SaturationRule, UtilizationThresholds,
};
use serde::Deserialize;

use super::TokenSource;
use super::checks::{self, Errors, join};
use super::raw::{Part, Unknown};
use super::tls::{RawTls, Tls, tls};

/// Requests that a worker is taken to handle at once where `max_concurrency` does not say.
const MAX_CONCURRENCY: u64 = 100;
const QUERY_INTERVAL: Duration = Duration::from_secs(5);
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// How a pool's dispatch budget is found.
#[derive(Clone, Debug, PartialEq)]
pub struct DispatchBudget {
    /// The sources and their order.
    pub rule: BudgetRule,
    /// There if the rule names it as a source.
    pub prometheus: Option<PrometheusQuery>,
}

/// A question to a Prometheus, whose answer is a dispatch budget.
#[derive(Clone, Debug, PartialEq)]
pub struct PrometheusQuery {
    /// Base URL, without a slash at the end.
    pub url: String,
    /// PromQL, for one number between 0 and 1: a scalar, or a vector of one sample.
    pub query: String,
    /// From one question to the next. After three without an answer nothing is believed any more.
    pub interval: Duration,
    /// Longest time for an answer.
    pub timeout: Duration,
    /// Shown to it as a bearer token.
    pub token: Option<TokenSource>,
    /// How it is known, where the URL begins with `https://`.
    pub tls: Tls,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    #[default]
    Utilization,
    Concurrency,
}

/// Both detectors' fields; those of the other one are a mistake.
#[derive(Debug, Default, Deserialize)]
pub struct RawSaturation {
    detector: Option<Part<Kind>>,
    headroom: Option<Part<f64>>,
    queue_depth_threshold: Option<Part<f64>>,
    kv_cache_util_threshold: Option<Part<f64>>,
    mode: Option<Part<ConcurrencyMode>>,
    max_concurrency: Option<Part<u64>>,
    max_token_concurrency: Option<Part<u64>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
pub struct RawDispatchBudget {
    sources: Option<Part<Vec<BudgetSource>>>,
    max_concurrency: Option<Part<u64>>,
    prometheus: Option<Part<RawQuery>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct RawQuery {
    url: Option<Part<String>>,
    query: Option<Part<String>>,
    interval: Option<Part<String>>,
    timeout: Option<Part<String>>,
    token: Option<Part<String>>,
    token_file: Option<Part<String>>,
    tls: Option<Part<RawTls>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The meaning of `saturation` at `path`.
pub fn saturation(errors: &mut Errors, path: &str, part: Option<Part<RawSaturation>>) -> SaturationRule {
    let raw = errors.take(path, part).unwrap_or_default();
    errors.unknown(path, &raw.unknown);
    let kind = errors.take(&join(path, "detector"), raw.detector).unwrap_or_default();
    let headroom = errors.take(&join(path, "headroom"), raw.headroom);
    if let Some(share) = headroom.filter(|share| !(share.is_finite() && *share >= 0.0)) {
        errors.add(join(path, "headroom"), format!("is {share}; it must be a finite number of at least 0"));
    }
    let mut only = |is_there: bool, field: &str, detector: &str| {
        if is_there {
            errors.add(join(path, field), format!("is only for `detector: {detector}`"));
        }
    };
    let detector = match kind {
        Kind::Utilization => {
            only(raw.mode.is_some(), "mode", "concurrency");
            only(raw.max_concurrency.is_some(), "max_concurrency", "concurrency");
            only(raw.max_token_concurrency.is_some(), "max_token_concurrency", "concurrency");
            Detector::Utilization(utilization(errors, path, raw.queue_depth_threshold, raw.kv_cache_util_threshold))
        }
        Kind::Concurrency => {
            only(raw.queue_depth_threshold.is_some(), "queue_depth_threshold", "utilization");
            only(raw.kv_cache_util_threshold.is_some(), "kv_cache_util_threshold", "utilization");
            let default = ConcurrencyLimits::default();
            let tokens = errors.take(&join(path, "max_token_concurrency"), raw.max_token_concurrency);
            let limits = ConcurrencyLimits {
                mode: errors.take(&join(path, "mode"), raw.mode).unwrap_or(default.mode),
                max_concurrency: errors.take(&join(path, "max_concurrency"), raw.max_concurrency),
                max_token_concurrency: tokens.unwrap_or(default.max_token_concurrency),
            };
            if let Err(message) = limits.validate() {
                errors.add(path, message);
            }
            Detector::Concurrency(limits)
        }
    };
    SaturationRule { detector, headroom }
}

fn utilization(
    errors: &mut Errors,
    path: &str,
    depth: Option<Part<f64>>,
    share: Option<Part<f64>>,
) -> UtilizationThresholds {
    let default = UtilizationThresholds::default();
    let depth = errors.take(&join(path, "queue_depth_threshold"), depth);
    let share = errors.take(&join(path, "kv_cache_util_threshold"), share);
    let thresholds = UtilizationThresholds {
        queue_depth_threshold: depth.unwrap_or(default.queue_depth_threshold),
        kv_cache_util_threshold: share.unwrap_or(default.kv_cache_util_threshold),
    };
    if let Err(message) = thresholds.validate() {
        errors.add(path, message);
    }
    thresholds
}

/// The meaning of `dispatch_budget` at `path`: without it none is measured.
pub fn dispatch_budget(
    errors: &mut Errors,
    path: &str,
    part: Option<Part<RawDispatchBudget>>,
) -> Option<DispatchBudget> {
    let raw = errors.take(path, part)?;
    errors.unknown(path, &raw.unknown);
    let prometheus = query(errors, &join(path, "prometheus"), raw.prometheus);
    let at = join(path, "sources");
    let sources = errors.take(&at, raw.sources).unwrap_or_else(|| {
        let asked = |source: &BudgetSource| *source != BudgetSource::Prometheus || prometheus.is_some();
        BudgetSource::ALL.into_iter().filter(asked).collect()
    });
    if sources.is_empty() {
        errors.add(&at, "must not be empty");
    }
    if sources.iter().collect::<BTreeSet<_>>().len() < sources.len() {
        errors.add(&at, "must name each source once");
    }
    match (sources.contains(&BudgetSource::Prometheus), &prometheus) {
        (true, None) => errors.add(join(path, "prometheus"), "must be set, since it is one of the sources"),
        (false, Some(_)) => errors.add(join(path, "prometheus"), "is asked only where `sources` names it"),
        _ => {}
    }
    let max_concurrency = errors.take(&join(path, "max_concurrency"), raw.max_concurrency).unwrap_or(MAX_CONCURRENCY);
    if max_concurrency == 0 {
        errors.add(join(path, "max_concurrency"), "must be at least 1");
    }
    Some(DispatchBudget { rule: BudgetRule { sources, max_concurrency }, prometheus })
}

fn query(errors: &mut Errors, path: &str, part: Option<Part<RawQuery>>) -> Option<PrometheusQuery> {
    let raw = errors.take(path, part)?;
    errors.unknown(path, &raw.unknown);
    let at = join(path, "url");
    let url = errors.require(&at, raw.url).and_then(|url| checks::http_url(errors, &at, &url));
    let query = errors.require(&join(path, "query"), raw.query);
    if query.as_deref().is_some_and(str::is_empty) {
        errors.add(join(path, "query"), "must not be empty");
    }
    let interval = errors.duration(&join(path, "interval"), raw.interval, QUERY_INTERVAL);
    let timeout = errors.duration(&join(path, "timeout"), raw.timeout, QUERY_TIMEOUT);
    let token = match (&raw.token, &raw.token_file) {
        (None, None) => None,
        _ => checks::token(errors, path, raw.token, raw.token_file),
    };
    let is_https = url.as_ref().is_none_or(|url| url.scheme() == "https");
    let tls = tls(errors, &join(path, "tls"), raw.tls, is_https);
    Some(PrometheusQuery {
        url: url?.as_str().trim_end_matches('/').to_owned(),
        query: query?,
        interval,
        timeout,
        token,
        tls,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Pool};
    use super::*;

    fn pool(fields: &str) -> Result<Pool, Vec<String>> {
        let text =
            format!("{{proxies: [{{url: 'http://p:1', token: t}}], pools: [{{name: a, workers: ['w:1'], {fields}}}]}}");
        let config = Config::parse(&text).map_err(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>());
        config.map(|config| config.pools.into_iter().next().unwrap())
    }

    #[test]
    fn utilization_is_the_detector_where_nothing_is_said() {
        assert_eq!(pool("model: m").unwrap().saturation, SaturationRule::default());
        let said = pool("saturation: {queue_depth_threshold: 3, headroom: 0.2}").unwrap().saturation;
        let thresholds = UtilizationThresholds { queue_depth_threshold: 3.0, ..Default::default() };
        assert_eq!(said, SaturationRule { detector: Detector::Utilization(thresholds), headroom: Some(0.2) });
    }

    #[test]
    fn concurrency_has_its_own_limits() {
        let said = pool("saturation: {detector: concurrency, mode: hybrid, max_concurrency: 48}").unwrap().saturation;
        let limits = ConcurrencyLimits {
            mode: ConcurrencyMode::Hybrid,
            max_concurrency: Some(48),
            ..ConcurrencyLimits::default()
        };
        assert_eq!(said, SaturationRule { detector: Detector::Concurrency(limits), headroom: None });
    }

    #[test]
    fn fields_of_the_other_detector_and_numbers_out_of_range_are_named() {
        let wrong = pool("saturation: {mode: tokens, headroom: -1}").unwrap_err();
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("pools[0].saturation.headroom: is -1"), "{wrong:?}");
        assert!(wrong[1].contains("saturation.mode: is only for `detector: concurrency`"), "{wrong:?}");
        let wrong =
            pool("saturation: {detector: concurrency, queue_depth_threshold: 5, max_concurrency: 0}").unwrap_err();
        assert!(wrong.iter().any(|error| error.contains("queue_depth_threshold: is only for")), "{wrong:?}");
        assert!(wrong.iter().any(|error| error.contains("max_concurrency must be at least 1")), "{wrong:?}");
        assert!(pool("saturation: {detector: guess}").unwrap_err()[0].contains("saturation.detector"));
    }

    #[test]
    fn a_budget_asks_every_source_it_can() {
        assert_eq!(pool("model: m").unwrap().dispatch_budget, None);
        let budget = pool("dispatch_budget: {}").unwrap().dispatch_budget.unwrap();
        let sources = vec![BudgetSource::ProxyQueue, BudgetSource::WorkerQueue, BudgetSource::Running];
        assert_eq!(budget.rule, BudgetRule { sources, max_concurrency: 100 });
        let asked = pool("dispatch_budget: {prometheus: {url: 'http://prom:9090/', query: 'vector(1)', interval: 1s}}");
        let asked = asked.unwrap().dispatch_budget.unwrap();
        assert_eq!(asked.rule.sources, BudgetSource::ALL);
        let query = asked.prometheus.unwrap();
        assert_eq!(
            (query.url.as_str(), query.interval, query.timeout),
            ("http://prom:9090", QUERY_INTERVAL / 5, QUERY_TIMEOUT)
        );
    }

    #[test]
    fn sources_that_cannot_be_asked_are_mistakes() {
        for (fields, says) in [
            ("dispatch_budget: {sources: []}", "must not be empty"),
            ("dispatch_budget: {sources: [running, running]}", "each source once"),
            ("dispatch_budget: {sources: [prometheus]}", "dispatch_budget.prometheus: must be set"),
            ("dispatch_budget: {sources: [running], prometheus: {url: 'http://p', query: q}}", "only where `sources`"),
            ("dispatch_budget: {prometheus: {url: 'ftp://p', query: ''}}", "prometheus.query: must not be empty"),
            (
                "dispatch_budget: {prometheus: {url: 'http://p', query: q, tls: {}}}",
                "prometheus.tls: is only for a URL",
            ),
            ("dispatch_budget: {max_concurrency: 0}", "must be at least 1"),
            ("dispatch_budget: {sources: [guess]}", "dispatch_budget.sources"),
        ] {
            let wrong = pool(fields).unwrap_err();
            assert!(wrong.iter().any(|error| error.contains(says)), "{fields}: {wrong:?}");
        }
    }
}
