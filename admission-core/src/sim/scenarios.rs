//! The scenarios by name: what an operator fears, as data.

use serde_json::{Value, json};

use super::{Eyes, Load, Luck, Make, Returns, Scenario, Stream, Trouble};

mod chaos;

pub use chaos::chaos;

/// Name of the scenario that the seed itself makes up.
pub const CHAOS: &str = "chaos";

/// Under which the tables in `tables/` were written.
pub const TABLE_SEED: u64 = 1;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;

/// Every scenario that is the same for every seed but for chance.
#[must_use]
pub fn all() -> Vec<Scenario> {
    vec![
        triple_burst(),
        short_burst(),
        flood(),
        weights(),
        long_documents(),
        batch_under_flood(),
        aged_backlog(),
        claims(),
        whole_pool(),
        retry_storm(),
        worker_loss(),
        scale_from_zero(),
        priority_inversion(),
    ]
}

/// The scenario of a name, [`CHAOS`] among them.
#[must_use]
pub fn named(name: &str, seed: u64) -> Option<Scenario> {
    if name == CHAOS {
        return Some(chaos(seed));
    }
    all().into_iter().find(|scenario| scenario.name == name)
}

/// Three workers that serve about 17 chats a second together, behind four threads.
fn base(name: &str, about: &str) -> Scenario {
    Scenario {
        name: name.to_owned(),
        about: about.to_owned(),
        policy: policy(json!({})),
        next_policy: None,
        vms: 4,
        workers: vec![Make::default(); 3],
        eyes: Eyes::default(),
        streams: Vec::new(),
        lasts: MINUTE,
        troubles: Vec::new(),
        luck: Luck::default(),
    }
}

/// Three lanes over a pool of 48, and what a scenario sets otherwise.
fn policy(other: Value) -> Value {
    let mut policy = json!({
        "lanes": [
            {"name": "interactive", "priority": 100, "reserve": 0.25, "queue": {"max_requests": 64, "max_wait": "2s"}},
            {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "10s"}},
            {"name": "batch", "priority": -10, "queue": {"max_requests": 512, "max_wait": "120s"},
             "aging": {"after": "30s", "to": "standard"}},
        ],
        "tenants": {"acme": {}, "zeta": {}, "noisy": {}, "reports": {}},
        "pools": [{"name": "llama", "max_in_flight": 48, "kv": {"block_size": 16, "headroom": 0.1}}],
    });
    if let (Some(policy), Value::Object(other)) = (policy.as_object_mut(), other) {
        policy.extend(other);
    }
    policy
}

fn per_second(rate: f64) -> Load {
    Load::PerSecond(vec![(0, rate)])
}

fn triple_burst() -> Scenario {
    let burst = |normal: f64| Load::PerSecond(vec![(0, normal), (MINUTE, 5.0 * normal), (11 * MINUTE, normal)]);
    Scenario {
        streams: vec![
            Stream {
                name: "chat",
                lane: "interactive",
                load: burst(4.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
            Stream {
                name: "agents",
                tenant: "zeta",
                load: burst(5.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
            Stream { name: "nightly", tenant: "reports", lane: "batch", load: per_second(1.0), ..Stream::default() },
        ],
        lasts: 12 * MINUTE,
        ..base("triple-burst", "a minute at half load, ten at three times what there is, a minute at half load")
    }
}

fn short_burst() -> Scenario {
    let burst = |normal: f64| Load::PerSecond(vec![(0, normal), (20 * SECOND, 5.0 * normal), (30 * SECOND, normal)]);
    Scenario {
        streams: vec![
            Stream {
                name: "chat",
                lane: "interactive",
                load: burst(4.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
            Stream {
                name: "agents",
                tenant: "zeta",
                load: burst(4.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
        ],
        lasts: 2 * MINUTE,
        ..base(
            "short-burst",
            "ten seconds at more than twice what there is; who is refused comes back once, when it is told to",
        )
    }
}

fn flood() -> Scenario {
    Scenario {
        streams: vec![
            Stream { name: "flood", tenant: "noisy", load: per_second(60.0), ..Stream::default() },
            Stream { name: "acme", tenant: "acme", load: per_second(3.0), ..Stream::default() },
            Stream { name: "zeta", tenant: "zeta", load: per_second(3.0), ..Stream::default() },
        ],
        lasts: 2 * MINUTE,
        ..base("flood", "one tenant asks for four times what there is, two others for a fifth each")
    }
}

fn weights() -> Scenario {
    let callers = || Load::Callers(60, 240 * SECOND);
    let tenants = json!({"acme": {"weight": 4}, "zeta": {"weight": 1}});
    let lanes = json!([{"name": "standard", "queue": {"max_requests": 256, "max_wait": "240s"}}]);
    Scenario {
        policy: policy(json!({"tenants": tenants, "lanes": lanes})),
        streams: vec![
            Stream { name: "heavy", load: callers(), prompt: (50, 100), output: (1, 80), ..Stream::default() },
            Stream {
                name: "light",
                tenant: "zeta",
                load: callers(),
                prompt: (400, 900),
                output: (180, 200),
                ..Stream::default()
            },
        ],
        lasts: 240 * SECOND,
        ..base(
            "weights",
            "two tenants always wait, one weighs four times as much and uses less than was expected, the other asks for more",
        )
    }
}

fn long_documents() -> Scenario {
    Scenario {
        streams: vec![
            Stream { name: "chat", lane: "interactive", load: per_second(6.0), ..Stream::default() },
            Stream {
                name: "documents",
                tenant: "reports",
                load: per_second(0.6),
                prompt: (6_000, 14_000),
                output: (200, 400),
                ..Stream::default()
            },
        ],
        lasts: 3 * MINUTE,
        ..base(
            "long-documents",
            "prompts of 6,000 to 14,000 tokens among short chats; blocks, not requests, are what is short",
        )
    }
}

/// One worker; a tenant always has a request in line that fits it only when it is almost empty.
fn whole_pool() -> Scenario {
    let callers = |count| Load::Callers(count, 4 * MINUTE);
    let mut policy = policy(json!({}));
    policy["pools"][0]["max_in_flight"] = json!(Make::default().sequences);
    Scenario {
        policy,
        workers: vec![Make::default()],
        streams: vec![
            Stream { name: "chat", load: callers(40), ..Stream::default() },
            Stream {
                name: "whole",
                tenant: "reports",
                load: callers(4),
                prompt: (24_000, 27_000),
                output: (100, 200),
                ..Stream::default()
            },
        ],
        lasts: 4 * MINUTE,
        ..base("whole-pool", "requests that need almost all blocks of the pool beside chats; both always wait")
    }
}

/// Batch work that climbs to the highest lane, as in shipped policies.
fn aged_backlog() -> Scenario {
    let mut policy = policy(json!({"default_lane": "standard"}));
    policy["lanes"][2]["aging"] = json!({"after": "5s"});
    policy["lanes"][2]["queue"]["max_wait"] = json!("30s");
    Scenario {
        streams: vec![
            Stream { name: "chat", lane: "interactive", load: per_second(30.0), ..Stream::default() },
            // Why no longer: all that waits is to have ended while chats still come.
            Stream {
                name: "nightly",
                tenant: "reports",
                lane: "batch",
                load: Load::PerSecond(vec![(0, 6.0), (60 * SECOND, 0.0)]),
                ..Stream::default()
            },
        ],
        policy,
        lasts: 95 * SECOND,
        ..base("aged-backlog", "a backlog of batch work climbs to the lane of chats that ask for twice what there is")
    }
}

/// A tenant that claims long answers for a minute and takes almost none; then it and another want all there is.
fn claims() -> Scenario {
    let from = |at: u64, rate: f64| Load::PerSecond(vec![(0, 0.0), (at, rate)]);
    let minute = Load::PerSecond(vec![(0, 5.0), (MINUTE, 0.0)]);
    let claimer = || Stream { tenant: "noisy", ..Stream::default() };
    Scenario {
        streams: vec![
            Stream { name: "polite", load: from(MINUTE, 40.0), ..Stream::default() },
            Stream { name: "claims", load: minute, output: (1, 3), claim: Some(4_000), ..claimer() },
            Stream { name: "earnest", load: from(MINUTE, 40.0), ..claimer() },
        ],
        lasts: 3 * MINUTE,
        ..base(
            "claims",
            "a tenant claims much and takes little for a minute, then asks for as much as another, which is more than there is",
        )
    }
}

fn batch_under_flood() -> Scenario {
    Scenario {
        streams: vec![
            Stream { name: "chat", lane: "interactive", load: per_second(30.0), ..Stream::default() },
            Stream { name: "nightly", tenant: "reports", lane: "batch", load: per_second(0.5), ..Stream::default() },
        ],
        lasts: 4 * MINUTE,
        ..base("batch-under-flood", "batch work while chats ask for twice what there is; aging lets it through")
    }
}

fn retry_storm() -> Scenario {
    let storm = Returns::Regardless { times: 20, after: 100 };
    Scenario {
        streams: vec![
            Stream { name: "storm", tenant: "noisy", load: per_second(25.0), returns: storm, ..Stream::default() },
            Stream {
                name: "polite",
                tenant: "acme",
                load: per_second(5.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
        ],
        lasts: MINUTE,
        ..base("retry-storm", "who is refused asks again after 100 ms, twenty times; a polite tenant beside it")
    }
}

fn worker_loss() -> Scenario {
    Scenario {
        streams: vec![
            Stream {
                name: "chat",
                lane: "interactive",
                load: per_second(6.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
            Stream {
                name: "agents",
                tenant: "zeta",
                load: per_second(6.0),
                returns: Returns::AsAdvised,
                ..Stream::default()
            },
        ],
        policy: policy(json!({"pools": [
            {"name": "llama", "max_in_flight_per_worker": 16, "pick_endpoint": true, "kv": {"headroom": 0.1}}]})),
        lasts: 90 * SECOND,
        troubles: vec![(30 * SECOND, Trouble::WorkerDown(0)), (60 * SECOND, Trouble::WorkerUp(0))],
        ..base(
            "worker-loss",
            "one of three workers is gone for half a minute, at two thirds of the load there is room for",
        )
    }
}

fn scale_from_zero() -> Scenario {
    let lanes = json!([{"name": "standard", "queue": {"max_requests": 128, "max_wait": "40s"}}]);
    Scenario {
        policy: policy(json!({"lanes": lanes, "pools": [
            {"name": "llama", "max_in_flight_per_worker": 16, "hold_when_empty": "30s", "kv": {"headroom": 0.1}}]})),
        streams: vec![Stream { load: per_second(3.0), ..Stream::default() }],
        lasts: MINUTE,
        troubles: vec![
            (0, Trouble::WorkerDown(0)),
            (0, Trouble::WorkerDown(1)),
            (0, Trouble::WorkerDown(2)),
            (20 * SECOND, Trouble::WorkerUp(0)),
            (25 * SECOND, Trouble::WorkerUp(1)),
        ],
        ..base("scale-from-zero", "no worker at first; the first one comes after 20 s, and who has waited is served")
    }
}

fn priority_inversion() -> Scenario {
    let lanes = json!([
        {"name": "interactive", "priority": 100, "queue": {"max_requests": 64, "max_wait": "2s"}},
        {"name": "standard", "priority": 0, "queue": {"max_requests": 128, "max_wait": "10s"}},
        {"name": "batch", "priority": -10, "ceiling": 2.0, "preemptible": true,
         "queue": {"max_requests": 512, "max_wait": "120s"}},
    ]);
    let tenants = json!({"acme": {}, "zeta": {}, "reports": {}, "noisy": {"max_in_flight": 24}});
    let bursts = (0..6).flat_map(|n| [(n * 10 * SECOND, 0.0), (n * 10 * SECOND + 5 * SECOND, 12.0)]).collect();
    Scenario {
        policy: policy(json!({"lanes": lanes, "tenants": tenants})),
        streams: vec![
            Stream {
                name: "large",
                lane: "interactive",
                load: Load::PerSecond(bursts),
                prompt: (2_000, 4_000),
                ..Stream::default()
            },
            Stream {
                name: "small",
                tenant: "zeta",
                lane: "batch",
                load: per_second(20.0),
                prompt: (10, 50),
                ..Stream::default()
            },
            Stream { name: "own batch", tenant: "noisy", lane: "batch", load: per_second(10.0), ..Stream::default() },
            Stream {
                name: "own chat",
                tenant: "noisy",
                lane: "interactive",
                load: per_second(1.0),
                ..Stream::default()
            },
        ],
        ..base(
            "priority-inversion",
            "small batch requests could slip past large interactive ones, and fill their own tenant's cap",
        )
    }
}
