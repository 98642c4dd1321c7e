//! What is printed reads back as the same policy.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::*;
use crate::config::{
    AgingConfig, ApiConfig, ApiKeySource, BodyConfig, BurstyRate, CertificateSource, ClassConfig, Config,
    DispatchBudgetConfig, EndpointPicker, EstimateConfig, FilterRole, KvConfig, LaneConfig, LaneRuleConfig,
    LimitsConfig, Mode, OnRate, OutputEstimate, PoolConfig, PoolQueueConfig, QueueConfig, RateConfig, RejectConfig,
    ReserveConfig, ReserveTerms, RetryAfterConfig, RouteConfig, RouteMatchConfig, StaleConfig, TenantConfig,
    TenantLimitsConfig, TenantSource, TrustConfig, Upgrades, ViewConfig,
};
use crate::family::Family;

fn some<T>(rng: &mut Rng, make: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    rng.bool().then(|| make(rng))
}

fn list<T>(rng: &mut Rng, most: usize, mut make: impl FnMut(&mut Rng, usize) -> T) -> Vec<T> {
    (0..rng.usize(0..=most)).map(|index| make(rng, index)).collect()
}

fn millis(rng: &mut Rng) -> Millis {
    Millis(rng.u64(1..100_000_000))
}

fn mode(rng: &mut Rng) -> Mode {
    if rng.bool() { Mode::Shadow } else { Mode::Enforce }
}

fn rate(rng: &mut Rng) -> RateConfig {
    match rng.bool() {
        true => RateConfig::Even(rng.u64(1..=u64::MAX)),
        false => RateConfig::Bursty(BurstyRate { rate: rng.u64(1..1_000), burst: rng.u64(1..1_000_000) }),
    }
}

fn on_rate(rng: &mut Rng) -> OnRate {
    if rng.bool() { OnRate::Wait } else { OnRate::Refuse }
}

fn share(rng: &mut Rng) -> f64 {
    rng.f64()
}

fn limits(rng: &mut Rng, lane: &str) -> LimitsConfig {
    let (requests_per_minute, tokens_per_minute) = (some(rng, rate), some(rng, rate));
    let has_rate = requests_per_minute.or(tokens_per_minute).is_some();
    LimitsConfig {
        max_in_flight: some(rng, |rng| rng.u32(1..)),
        max_tokens_in_flight: some(rng, |rng| rng.u64(1..)),
        requests_per_minute,
        tokens_per_minute,
        // To wait needs a lane with a queue, which not all of these policies have.
        on_rate: some(rng, |_| OnRate::Refuse).filter(|_| has_rate),
        cached_token_cost: some(rng, share),
        weight: some(rng, |rng| rng.u32(1..=1_000)),
        lane: some(rng, |_| lane.to_owned()),
        max_lane: some(rng, |_| lane.to_owned()),
        mode: some(rng, mode),
    }
}

fn tenant(rng: &mut Rng, lane: &str) -> TenantLimitsConfig {
    let LimitsConfig {
        max_in_flight,
        max_tokens_in_flight,
        requests_per_minute,
        tokens_per_minute,
        on_rate,
        cached_token_cost,
        weight,
        lane,
        max_lane,
        mode,
    } = limits(rng, lane);
    TenantLimitsConfig {
        tier: some(rng, |_| "gold".to_owned()),
        max_in_flight,
        max_tokens_in_flight,
        requests_per_minute,
        tokens_per_minute,
        on_rate,
        cached_token_cost,
        weight,
        lane,
        max_lane,
        mode,
    }
}

fn source(rng: &mut Rng) -> TenantSource {
    let none = TenantSource::default();
    match rng.u8(..4) {
        0 => TenantSource { metadata: Some(vec!["a.filter".into(), "key \"quoted\"".into()]), ..none },
        1 => {
            TenantSource { certificate: Some(CertificateSource { after: some(rng, |_| "spiffe://x/".into()) }), ..none }
        }
        2 => TenantSource { header: Some("x-tenant".into()), ..none },
        _ => TenantSource {
            api_key: Some(ApiKeySource {
                header: "authorization".into(),
                prefix: "Bearer ".into(),
                sha256: [("ab".repeat(32), "acme".to_owned())].into(),
            }),
            ..none
        },
    }
}

fn wait(rng: &mut Rng) -> Millis {
    Millis(rng.u64(1..=3_600_000))
}

fn queue(rng: &mut Rng) -> QueueConfig {
    let orders = [Order::Fcfs, Order::Edf, Order::ShortestFirst];
    let order = orders[rng.usize(..3)];
    QueueConfig {
        max_requests: rng.u64(1..),
        max_tokens: some(rng, |rng| rng.u64(1..)),
        max_bytes: some(rng, |rng| rng.u64(1..1 << 40)),
        max_wait: wait(rng),
        order,
        across_tenants_after: (order == Order::ShortestFirst && rng.bool()).then(|| rng.u64(..)),
    }
}

/// Of at most four lanes, below these.
fn lane(rng: &mut Rng, above: &[LaneConfig]) -> LaneConfig {
    let queue = some(rng, queue);
    let waits = queue.is_some();
    let to = |rng: &mut Rng| above[rng.usize(..above.len())].name.clone();
    let units = [BudgetUnit::Requests, BudgetUnit::Tokens, BudgetUnit::Bytes];
    LaneConfig {
        name: lane_name(above.len()),
        priority: 10 - above.len() as i32 * 7,
        ceiling: some(rng, |rng| share(rng) + 0.1),
        reserve: some(rng, |rng| reserve(rng, waits)),
        aging: (waits && !above.is_empty() && rng.bool()).then(|| AgingConfig {
            after: millis(rng),
            to: some(rng, to),
            share: f64::from(rng.u8(1..=100)) / 100.0,
        }),
        dispatch_budget: some(rng, |rng| {
            let unit = units[rng.usize(..3)];
            let max = (unit != BudgetUnit::Requests || rng.bool()).then(|| rng.u64(1..));
            DispatchBudgetConfig { baseline: share(rng), unit, max }
        }),
        preemptible: above.iter().any(|lane| lane.queue.is_some()) && rng.bool(),
        ttft_goal: some(rng, |rng| Millis(rng.u64(1..=3_600_000))),
        queue,
    }
}

fn reserve(rng: &mut Rng, waits: bool) -> ReserveConfig {
    let part = share(rng) / 4.0 + f64::MIN_POSITIVE;
    let requests = some(rng, |rng| rng.u32(1..));
    match rng.u8(..3) {
        0 if waits => ReserveConfig::Bare(part),
        1 => ReserveConfig::Stated(ReserveTerms { share: None, requests: requests.or(Some(1)), lend: false }),
        _ => ReserveConfig::Stated(ReserveTerms { share: Some(part), requests, lend: waits && rng.bool() }),
    }
}

fn lane_name(index: usize) -> String {
    format!("lane-{index}")
}

fn pool(rng: &mut Rng, index: usize, falls_back: bool) -> PoolConfig {
    let falls_back = falls_back && index > 0;
    let requests_per_second = some(rng, rate);
    PoolConfig {
        name: format!("pool-{index}"),
        models: vec![format!("model-{index}*"), format!("exact/{index}")],
        max_in_flight: Some(rng.u32(1..)),
        max_in_flight_per_worker: some(rng, |rng| rng.u32(1..)),
        on_rate: requests_per_second.and_then(|_| some(rng, on_rate)),
        requests_per_second,
        max_model_len: some(rng, |rng| rng.u64(1..)),
        max_prompt_tokens: some(rng, |rng| rng.u64(1..)),
        max_sequences: rng.u64(1..),
        fallback_only: false,
        expected_output_tokens: rng.u64(1..),
        estimate: EstimateConfig {
            family: some(rng, |rng| Family::ALL[rng.usize(..Family::ALL.len())]),
            output: rng
                .choice([OutputEstimate::Learned, OutputEstimate::Expected, OutputEstimate::MaxTokens])
                .unwrap_or_default(),
            quantile: 1.0 - rng.f64(),
            image_tokens: rng.u64(..),
            recording_tokens: rng.u64(..),
            file_tokens: rng.u64(..),
        },
        kv: some(rng, |rng| {
            let headroom = share(rng);
            KvConfig {
                block_size: rng.u32(1..),
                headroom,
                max_share: some(rng, |rng| (1.0 - headroom) * (1.0 - rng.f64())),
            }
        }),
        classes: list(rng, 2, |rng, index| ClassConfig {
            name: format!("class-{index}"),
            models: list(rng, 1, |_, _| "m*".to_owned()),
            min_prompt_tokens: some(rng, |rng| rng.u64(1..)),
            max_in_flight: Some(rng.u32(1..)),
            max_model_len: some(rng, |rng| rng.u64(1..)),
            max_prompt_tokens: some(rng, |rng| rng.u64(1..)),
        }),
        fallback_pool: falls_back.then(|| "pool-0".to_owned()),
        fallback_on: if falls_back { vec![Reason::AllBusy, Reason::KvBlocks] } else { Vec::new() },
        stale: StaleConfig { hold: millis(rng), then: StalePolicy::LocalCaps },
        busy_statuses: list(rng, 3, |rng, _| rng.u16(400..600)),
        pick_endpoint: rng.bool(),
        queue: PoolQueueConfig { max_requests: some(rng, |rng| rng.u64(1..)), max_bytes: rng.u64(1..1 << 40) },
        hold_when_empty: None,
    }
}

fn route(rng: &mut Rng, lane: &str) -> RouteConfig {
    RouteConfig {
        matches: Some(RouteMatchConfig {
            route_name: some(rng, |_| "route".to_owned()),
            virtual_host: some(rng, |_| "host:443".to_owned()),
            path_prefix: Some("/v1/".to_owned()),
        }),
        enabled: Some(rng.bool()),
        mode: some(rng, mode),
        api: some(rng, |_| ApiConfig::Pooling),
        upgrades: some(rng, |_| Upgrades::Refuse),
        background: some(rng, |rng| rng.bool()),
        pool: some(rng, |_| "pool-0".to_owned()),
        lane: some(rng, |_| lane.to_owned()),
        max_lane: some(rng, |_| lane.to_owned()),
        tier: some(rng, |_| "gold".to_owned()),
    }
}

fn config(rng: &mut Rng) -> Config {
    let mut lanes = Vec::new();
    for _ in 0..rng.usize(1..=4) {
        lanes.push(lane(rng, &lanes));
    }
    let last = lane_name(lanes.len() - 1);
    let queues = lanes.iter().any(|lane| lane.queue.is_some());
    let header_pause = rng.bool();
    let unknown = TenantLimitsConfig { tier: None, weight: Some(1), ..tenant(rng, &last) };
    let tenants = [("acme", tenant(rng, &last)), ("*", unknown)];
    let min = Millis(rng.u64(0..5_000));
    Config {
        role: FilterRole::Filter,
        mode: mode(rng),
        namespace: "prod.eu".into(),
        header_pause,
        tenant: TenantConfig {
            sources: list(rng, 3, |rng, _| source(rng)),
            default: "nobody".into(),
            tier_sources: list(rng, 2, |_, number| TenantSource {
                header: Some(format!("x-plan-{number}")),
                ..TenantSource::default()
            }),
        },
        tiers: [("gold".to_owned(), LimitsConfig { max_in_flight: Some(9), on_rate: None, ..limits(rng, &last) })]
            .into(),
        tenants: tenants.into_iter().map(|(name, limits)| (name.to_owned(), limits)).collect(),
        default_lane: some(rng, |_| last.clone()),
        lane_header: some(rng, |_| "X-Lane".to_owned()),
        trust_tags_from: some(rng, |_| TrustConfig { spiffe: vec!["spiffe://cluster.local/ns/edge/*".to_owned()] }),
        fairness_header: some(rng, |_| "X-User".to_owned()),
        objectives: BTreeMap::from([("nightly".to_owned(), last.clone())]),
        lane_rules: list(rng, 2, |rng, _| LaneRuleConfig {
            model: Some("m*".into()),
            path_prefix: some(rng, |_| "/v1".into()),
            lane: last.clone(),
        }),
        // Others leave no pool a choice.
        endpoint_picker: EndpointPicker::Ours,
        tag_body: header_pause && rng.bool(),
        force_usage: header_pause && rng.bool(),
        pools: (0..rng.usize(1..4))
            .map(|index| PoolConfig {
                hold_when_empty: some(rng, wait).filter(|_| queues),
                ..pool(rng, index, header_pause)
            })
            .collect(),
        routes: list(rng, 3, |rng, _| route(rng, &last)),
        view: ViewConfig::default(),
        body: BodyConfig { hold_limit: rng.u64(1..1 << 40) },
        reject: RejectConfig {
            status: Reason::ALL.into_iter().filter(|_| rng.bool()).map(|reason| (reason, 529)).collect(),
            retry_after: RetryAfterConfig { min, max: Millis(min.0 + rng.u64(0..100_000)), jitter: share(rng) },
            batch_url: some(rng, |_| "https://batch.example/v1".to_owned()),
        },
        lanes,
    }
}

#[test]
fn what_is_printed_reads_back_as_the_same_policy() {
    for seed in 0..300 {
        let config = config(&mut Rng::with_seed(seed));
        let mut problems = Vec::new();
        let mut built = build::policy(&config, &mut problems);
        assert_eq!(problems, [], "seed {seed}");
        let printed = serde_json::to_string(&PluginConfig::Filter(Box::new(config.clone()))).unwrap();
        let read: Config = serde_json::from_str(&printed).unwrap();
        assert_eq!(read, config, "seed {seed}: {printed}");
        built.fingerprint = fingerprint::of(printed.as_bytes());
        assert_eq!(Plugin::parse(printed.as_bytes()), Ok(Plugin::Filter(Box::new(built))), "seed {seed}: {printed}");
    }
}

#[test]
fn a_secret_is_printed_nowhere() {
    let json = br#"{"pools": [{"name": "p", "max_in_flight": 1}], "view": {"pull": {"cluster": "c", "token": "open-sesame"}}}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json) else { panic!("a policy") };
    assert_eq!(policy.pull.as_ref().unwrap().token.reveal(), "open-sesame");
    let config: Config = serde_json::from_slice(json).unwrap();
    for printed in [format!("{policy:?} {config:?}"), serde_json::to_string(&config).unwrap()] {
        assert!(!printed.contains("sesame") && printed.contains("(hidden)"), "{printed}");
    }
}

#[test]
fn what_is_wrong_with_a_pull_is_said_without_its_token() {
    let json = r#"{"pools": [{"name": "p", "max_in_flight": 1}], "view": {"pull": {
        "cluster": "", "authority": "a b", "path": "v1", "token": "two words", "wait": "2m", "timeout": "0s"}}}"#;
    let problems: Vec<_> = Plugin::parse(json.as_bytes()).unwrap_err().iter().map(ToString::to_string).collect();
    let paths: Vec<_> = problems.iter().filter_map(|problem| problem.split(':').next()).collect();
    let expected =
        ["cluster", "path", "authority", "token", "wait", "timeout"].map(|field| format!("view.pull.{field}"));
    assert_eq!(paths, expected, "{problems:?}");
    assert!(!problems.iter().any(|problem| problem.contains("two words")), "{problems:?}");
}
