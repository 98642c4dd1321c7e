//! What a crowd of invented tenants and models leaves in the proxy: `cargo run -p wasm-tests --example invented -- 100000` sends so
//! many requests, each of another tenant and for another model, and prints as JSON what the proxy held before and after.

#[cfg(target_family = "wasm")]
fn main() {}

#[cfg(not(target_family = "wasm"))]
#[tokio::main]
async fn main() {
    measure::run().await;
}

#[cfg(not(target_family = "wasm"))]
mod measure {
    use std::time::Instant;

    use serde_json::{Value, json};
    use wasm_tests::bootstrap;
    use wasm_tests::crowd::{self, Held};
    use wasm_tests::echo::Echo;
    use wasm_tests::rig::{Rig, Setup, Wait};

    /// By then half of the records with ledgers of unknown tenants are there.
    const FIRST: u64 = 10_000;

    pub(super) async fn run() {
        let count = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(100_000);
        let echo = Echo::start().await;
        let mut setup = Setup::new(2, Wait::AtHeaders).with("/tenants/*", json!({"requests_per_minute": 1_000_000}));
        setup.clusters.push(("echo", echo.address()));
        setup.virtual_hosts = bootstrap::virtual_hosts(&[bootstrap::route_without_prefix("/", "echo")]);
        let rig = Rig::start(setup).await;
        crowd::invent(rig.address, 0..FIRST).await;
        let before = Held::by(&rig.envoy).await;
        let start = Instant::now();
        let statuses = crowd::invent(rig.address, FIRST..FIRST + count).await;
        let seconds = start.elapsed().as_secs_f64();
        let after = Held::by(&rig.envoy).await;
        let start = Instant::now();
        rig.state().await;
        let state_seconds = start.elapsed().as_secs_f64();
        let statuses: Vec<Value> = statuses.into_iter().map(|(status, count)| json!([status, count])).collect();
        let held = |held: Held| json!({"heap": held.heap, "resident": held.resident, "metrics": held.metrics});
        println!(
            "{}",
            json!({"seconds": seconds, "statuses": statuses, "before": held(before), "after": held(after), "state_seconds": state_seconds})
        );
    }
}
