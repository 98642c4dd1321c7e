//! Policies that chaos changes between, and what each of them allows.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use serde_json::{Value, json};

use testkit::parts::{MODEL, POOL};

use super::script::WORKERS;

/// The tenants that policies name.
pub const TENANTS: [&str; 3] = ["acme", "globex", "guest"];

/// The tenant with a cap of tokens.
pub const WITH_TOKENS: &str = "acme";

/// Longest wait of any lane, in milliseconds.
pub const LONGEST_WAIT_MS: u64 = 2_500;

/// Time for which a view is fresh.
pub const VIEW_HOLD: Duration = Duration::from_secs(2);

/// The lane with a ceiling, which is the default.
pub const STANDARD: &str = "standard";

/// Saturation at which it starts nothing more.
const CEILING: f64 = 0.7;

/// Requests with which a worker counts as full.
pub const FULL_WORKER: u64 = 8;

/// Requests in flight that the ceiling lets through, the last one included, while all workers live.
pub const MOST_BELOW_CEILING: u64 = (CEILING * (FULL_WORKER * WORKERS as u64) as f64).ceil() as u64;

/// The lane with a dispatch budget.
pub const BATCH: &str = "batch";

/// Share of the pool that it leaves free.
pub const BASELINE: f64 = 0.25;

/// Time after which a waiter of it counts as of the lane above.
pub const AGES_AFTER: Duration = Duration::from_secs(1);

/// Lanes of which the highest that a policy has may be reserved a part of the pool.
pub const HIGHEST: [&str; 2] = ["urgent", "interactive"];

/// The share that is reserved.
const RESERVE: f64 = 0.2;

/// A policy by what was drawn for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draw {
    pub caps: Caps,
    /// Nothing is refused.
    pub shadow: bool,
    pub wait: Wait,
    /// How many wait in a lane, and how long in milliseconds; without it none has a queue.
    queue: Option<(u64, u64)>,
    /// A higher lane may take the place of a request whose answer has not begun.
    preemptible: bool,
    /// There is a lane more, above all others.
    urgent: bool,
}

/// In which of the three places requests wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// At the headers, decided by a guess; what it is charged is put right once its body has been read.
    Unread,
    /// At the headers, decided once the body has been read.
    AtHeaders,
    /// Behind the headers, decided once the body has been read.
    BodyHeld,
}

/// What is allowed at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caps {
    /// Requests of all.
    pub pool: u64,
    /// Requests of the pool that are kept for the highest lane; 0 where what is reserved is lent.
    pub kept: u64,
    /// Requests of each tenant that is named.
    pub tenants: BTreeMap<&'static str, u64>,
    /// Requests of everybody else, each.
    pub others: u64,
    /// Tokens of [`WITH_TOKENS`].
    pub tokens: u64,
}

impl Draw {
    /// The one everything begins and ends with.
    pub fn first() -> Self {
        let tenants = BTreeMap::from([("acme", 12), ("globex", 6), ("guest", 2)]);
        Self {
            caps: Caps { pool: 28, kept: reserved(28), tenants, others: 3, tokens: 4_000 },
            shadow: false,
            wait: Wait::AtHeaders,
            queue: Some((24, 1_500)),
            preemptible: true,
            urgent: false,
        }
    }

    /// Another one.
    pub fn any(random: &mut Rng) -> Self {
        let tenants = [("acme", random.u64(3..=16)), ("globex", random.u64(1..=10)), ("guest", random.u64(1..=4))];
        let pool = random.u64(8..=40);
        let kept = if random.bool() { reserved(pool) } else { 0 };
        Self {
            caps: Caps {
                pool,
                kept,
                tenants: tenants.into(),
                others: random.u64(1..=4),
                tokens: random.u64(1_000..=6_000),
            },
            shadow: random.u8(..8) == 0,
            wait: random.choice([Wait::AtHeaders, Wait::Unread, Wait::BodyHeld]).unwrap_or(Wait::Unread),
            queue: (random.u8(..5) > 0).then(|| (random.u64(2..=40), random.u64(300..=LONGEST_WAIT_MS))),
            preemptible: random.bool(),
            urgent: random.u8(..3) == 0,
        }
    }

    /// The filter's configuration.
    pub fn policy(&self) -> Value {
        let mut tenants: serde_json::Map<String, Value> =
            self.caps.tenants.iter().map(|(name, cap)| ((*name).to_owned(), json!({"max_in_flight": cap}))).collect();
        tenants.insert("*".into(), json!({"max_in_flight": self.caps.others}));
        if let Some(limits) = tenants.get_mut(WITH_TOKENS) {
            limits["max_tokens_in_flight"] = self.caps.tokens.into();
        }
        let mut policy = json!({
            "mode": if self.shadow { "shadow" } else { "enforce" },
            "header_pause": self.header_pause(),
            "tenant": {"sources": [{"header": "x-tenant-id"}], "default": "anonymous"},
            "tenants": tenants,
            "lanes": self.lanes(),
            "default_lane": STANDARD,
            "lane_header": "x-sluice-lane",
            "pools": [{
                "name": POOL, "models": [format!("{MODEL}*")],
                "max_in_flight": self.caps.pool, "max_in_flight_per_worker": 10,
                "max_model_len": 8_192, "expected_output_tokens": 60,
                "kv": {"block_size": 16, "headroom": 0.1},
                "stale": {"hold": format!("{}ms", VIEW_HOLD.as_millis()), "then": "local_caps"},
            }],
        });
        // As shipped, but where headers have gone before the body has named the pool.
        policy["pools"][0]["pick_endpoint"] = (self.wait != Wait::BodyHeld).into();
        if let (true, Some(pools)) = (self.wait != Wait::Unread, policy["pools"].as_array_mut()) {
            // So that the pool hangs on what the body says.
            pools.push(json!({"name": "other", "models": ["other-model"], "max_in_flight": 1}));
        }
        policy
    }

    /// Whether the proxy is to hold headers until the body has been read.
    pub fn header_pause(&self) -> bool {
        self.wait == Wait::AtHeaders
    }

    fn lanes(&self) -> Vec<Value> {
        let mut lanes = vec![
            json!({"name": HIGHEST[1], "priority": 100}),
            json!({"name": STANDARD, "priority": 0, "ceiling": CEILING}),
            json!({"name": BATCH, "priority": -10, "ceiling": 5.0, "dispatch_budget": {"baseline": BASELINE}}),
        ];
        if self.urgent {
            lanes.insert(0, json!({"name": HIGHEST[0], "priority": 200}));
        }
        if let Some((max_requests, max_wait)) = self.queue {
            for lane in &mut lanes {
                lane["queue"] = json!({"max_requests": max_requests, "max_wait": format!("{max_wait}ms")});
            }
            if let Some(lowest) = lanes.last_mut() {
                lowest["preemptible"] = self.preemptible.into();
                lowest["aging"] = json!({"after": format!("{}s", AGES_AFTER.as_secs()), "to": STANDARD});
            }
        }
        let lend = self.caps.kept == 0;
        if self.queue.is_some() || !lend {
            lanes[0]["reserve"] = json!({"share": RESERVE, "lend": lend});
        }
        lanes
    }

    /// The policy with a mistake, of which there are some.
    pub fn mistaken(&self, mistake: usize) -> String {
        let mut policy = self.policy();
        match mistake % 4 {
            0 => policy["tenants"]["acme"]["max_in_flight"] = json!(0),
            1 => policy["pools"][0]["max_in_fligth"] = json!(10),
            2 => policy["tenants"]["acme"]["tier"] = json!("no such tier"),
            _ => return "{\"pools\": [".into(),
        }
        policy.to_string()
    }
}

/// Requests that are reserved of a pool.
fn reserved(pool: u64) -> u64 {
    (RESERVE * pool as f64).ceil() as u64
}

impl Caps {
    /// Requests that a tenant may have at once.
    pub fn of(&self, tenant: &str) -> u64 {
        self.tenants.get(tenant).copied().unwrap_or(self.others)
    }
}

#[cfg(test)]
mod tests {
    use admission_core::policy::Plugin;

    use super::*;

    #[test]
    fn what_is_drawn_is_a_policy_and_what_is_mistaken_is_none() {
        let mut random = Rng::with_seed(1);
        for draw in std::iter::repeat_with(|| Draw::any(&mut random)).take(200).chain([Draw::first()]) {
            let policy = draw.policy().to_string();
            assert!(matches!(Plugin::parse(policy.as_bytes()), Ok(Plugin::Filter(_))), "{policy}");
            for mistake in 0..4 {
                assert!(Plugin::parse(draw.mistaken(mistake).as_bytes()).is_err());
            }
        }
    }
}
