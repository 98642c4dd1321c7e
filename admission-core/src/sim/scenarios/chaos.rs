//! A scenario that a seed makes up: some policy, some load, and everything going wrong at once.

use serde_json::{Value, json};

use super::SECOND;
use crate::sim::{Eyes, Load, Luck, Make, Returns, Scenario, Stream};

const TENANTS: [&str; 3] = ["acme", "zeta", "noisy"];
const KEYS: [&str; 3] = ["one", "other", "third"];
const LANES: [&str; 3] = ["interactive", "standard", "batch"];

/// Twelve seconds of it.
#[must_use]
pub fn chaos(seed: u64) -> Scenario {
    let rng = &mut fastrand::Rng::with_seed(seed ^ 0x5eed);
    let lanes = rng.usize(1..=LANES.len());
    let policy = policy(lanes, rng);
    let luck = luck(rng);
    Scenario {
        name: super::CHAOS.to_owned(),
        about: "a policy, a load and troubles that the seed makes up".to_owned(),
        next_policy: luck.reloads.then(|| changed(&policy, rng)),
        policy,
        vms: rng.usize(1..=4),
        workers: (0..rng.usize(1..=3)).map(|_| worker(rng)).collect(),
        eyes: Eyes {
            every: rng.u64(50..500),
            late: (0, rng.u64(1..400)),
            sidecars: 1 + u64::from(rng.u8(..4) == 0),
            ..Eyes::default()
        },
        streams: parted((0..rng.usize(1..=5)).map(|_| stream(lanes, rng)).collect(), seed),
        lasts: 12 * SECOND,
        troubles: Vec::new(),
        luck,
    }
}

fn policy(lanes: usize, rng: &mut fastrand::Rng) -> Value {
    let default_lane = LANES[rng.usize(..lanes)];
    let apart = if rng.u8(..4) == 0 { 0 } else { 100 };
    // Lanes of one priority have one order.
    let order = (apart == 0).then(|| order(rng));
    let lanes: Vec<Value> = (0..lanes).map(|place| lane(place, (lanes, apart), order, rng)).collect();
    let mut tenants = json!({});
    for name in TENANTS {
        tenants[name] = tenant(rng);
    }
    let mut pool =
        json!({"name": "p", "max_in_flight": rng.u32(2..40), "stale": {"hold": format!("{}ms", rng.u32(400..5_000))}});
    if rng.bool() {
        pool["kv"] = json!({"headroom": 0.1});
    }
    if rng.bool() {
        pool["max_in_flight_per_worker"] = json!(rng.u32(1..20));
        pool["pick_endpoint"] = json!(rng.bool());
    }
    if rng.u8(..3) == 0 {
        pool["hold_when_empty"] = json!("3s");
    }
    if let Some(size) = pool["max_in_flight"].as_u64().filter(|size| size % 2 == 0) {
        pool["queue"] = json!({"max_requests": size});
    }
    json!({"lanes": lanes, "default_lane": default_lane, "tenants": tenants, "pools": [pool]})
}

/// The same lanes, tenants and pool under other limits, some of them wider, some narrower, some gone.
fn changed(policy: &Value, rng: &mut fastrand::Rng) -> Value {
    let mut next = policy.clone();
    let pool = &mut next["pools"][0];
    pool["max_in_flight"] = json!(rng.u32(2..40));
    pool["stale"]["hold"] = json!(format!("{}ms", rng.u32(400..5_000)));
    if pool["max_in_flight_per_worker"].is_number() {
        pool["max_in_flight_per_worker"] = json!(rng.u32(1..20));
    }
    for tenant in next["tenants"].as_object_mut().into_iter().flat_map(|tenants| tenants.values_mut()) {
        *tenant = self::tenant(rng);
    }
    for lane in next["lanes"].as_array_mut().into_iter().flatten() {
        lane["queue"]["max_wait"] = json!(format!("{}ms", rng.u32(200..8_000)));
        lane["queue"]["max_requests"] = json!(rng.u32(1..80));
        if !lane["reserve"].is_null() {
            lane["reserve"] = reserve(rng);
        }
        if lane["aging"].is_object() {
            lane["aging"]["after"] = json!(format!("{}ms", rng.u32(300..4_000)));
        }
    }
    next
}

/// Lent or kept, and a share or a number.
fn reserve(rng: &mut fastrand::Rng) -> Value {
    let (share, lend) = (f64::from(rng.u32(1..34)) / 100.0, rng.bool());
    match rng.u8(..4) {
        0 => json!({"requests": rng.u32(1..12), "lend": lend}),
        _ => json!({"share": share, "lend": lend}),
    }
}

fn tenant(rng: &mut fastrand::Rng) -> Value {
    let mut tenant = json!({"weight": rng.u32(1..6)});
    if rng.bool() {
        tenant["max_in_flight"] = json!(rng.u32(1..20));
    }
    if rng.u8(..3) == 0 {
        tenant["max_tokens_in_flight"] = json!(rng.u32(1_000..20_000));
    }
    tenant
}

fn order(rng: &mut fastrand::Rng) -> &'static str {
    ["fcfs", "edf", "shortest_first"][rng.usize(..3)]
}

fn lane(place: usize, (count, apart): (usize, i64), order: Option<&'static str>, rng: &mut fastrand::Rng) -> Value {
    let order = order.unwrap_or_else(|| self::order(rng));
    let max_wait = format!("{}ms", rng.u32(200..8_000));
    let mut lane = json!({
        "name": LANES[place], "priority": 100 - apart * place as i64,
        "queue": {"max_requests": rng.u32(1..80), "max_wait": max_wait, "order": order},
    });
    if order == "shortest_first" {
        lane["queue"]["across_tenants_after"] = json!(4 * place);
    }
    if rng.bool() {
        lane["reserve"] = reserve(rng);
    }
    if place > 0 && rng.bool() {
        lane["aging"] =
            json!({"after": format!("{}ms", rng.u32(300..4_000)), "share": f64::from(rng.u8(1..40)) / 100.0});
        if rng.bool() && apart > 0 {
            lane["aging"]["to"] = json!(LANES[place - 1]);
        }
    }
    if place > 0 && rng.u8(..3) == 0 {
        lane["ceiling"] = json!(rng.u32(3..15) as f64 / 10.0);
    }
    if place + 1 == count && place > 0 && rng.u8(..3) == 0 {
        lane["preemptible"] = json!(true);
    }
    if place > 0 && rng.u8(..4) == 0 {
        lane["dispatch_budget"] = json!({"baseline": rng.u32(5..40) as f64 / 100.0});
    }
    lane
}

fn worker(rng: &mut fastrand::Rng) -> Make {
    Make { sequences: rng.usize(4..20), blocks: rng.u64(300..3_000), ..Make::default() }
}

fn stream(lanes: usize, rng: &mut fastrand::Rng) -> Stream {
    let returns = match rng.u8(..3) {
        0 => Returns::Never,
        1 => Returns::AsAdvised,
        _ => Returns::Regardless { times: rng.u32(1..6), after: rng.u64(20..500) },
    };
    let load = match rng.u8(..3) {
        0 => Load::Callers(rng.u32(1..40), 10 * SECOND),
        _ => Load::PerSecond(vec![
            (0, rng.f64() * 20.0),
            (rng.u64(1_000..6_000), rng.f64() * 50.0),
            (8_000, rng.f64() * 10.0),
        ]),
    };
    let longest = if rng.u8(..4) == 0 { 3_000 } else { 400 };
    Stream {
        name: "some",
        tenant: TENANTS[rng.usize(..TENANTS.len())],
        lane: LANES[rng.usize(..lanes)],
        load,
        prompt: (10, rng.u64(50..longest)),
        output: (1, rng.u64(5..80)),
        claim: (rng.u8(..4) == 0).then(|| rng.u64(80..2_000)),
        ttft: rng.bool().then(|| rng.u64(100..6_000)),
        patience: rng.bool().then(|| rng.u64(50..5_000)),
        returns,
        can_be_steered: rng.u8(..4) > 0,
        key: None,
    }
}

/// Streams, each with a key in every third scenario.
fn parted(streams: Vec<Stream>, seed: u64) -> Vec<Stream> {
    let rng = &mut fastrand::Rng::with_seed(seed ^ 0xfa1e);
    if rng.u8(..3) > 0 {
        return streams;
    }
    streams.into_iter().map(|stream| Stream { key: Some(KEYS[rng.usize(..KEYS.len())]), ..stream }).collect()
}

fn luck(rng: &mut fastrand::Rng) -> Luck {
    let some = |rng: &mut fastrand::Rng, most: f64| if rng.bool() { rng.f64() * most } else { 0.0 };
    Luck {
        wake_us: (20, if rng.u8(..8) == 0 { 2_000_000 } else { rng.u64(100..4_000) }),
        wakes_lost: some(rng, 1.0),
        interrupted: some(rng, 0.5),
        conflicting: some(rng, 0.003),
        stalls: some(rng, 15.0),
        deaths: some(rng, 10.0),
        silences: some(rng, 8.0),
        losses: some(rng, 8.0),
        wakes_misdirected: some(rng, 0.5),
        wakes_doubled: some(rng, 0.5),
        dies_within: some(rng, 0.002),
        fenced_within: some(rng, 0.002),
        meddled_with: some(rng, 0.2),
        clock_steps: some(rng, 8.0),
        views_lie: some(rng, 0.3),
        pages_hang: some(rng, 0.6),
        views_of_changes: some(rng, 1.0),
        sidecar_restarts: some(rng, 8.0),
        reloads: rng.bool(),
    }
}
