//! What the filter adds to each chunk of a streamed answer, in CPU time of the proxy: `cargo run -p wasm-tests --example
//! stream_cost` prints it as JSON, in microseconds, the median of interleaved rounds. Every chunk is one event of vLLM's shape.

#[cfg(target_family = "wasm")]
fn main() {}

#[cfg(not(target_family = "wasm"))]
#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure::run().await
}

#[cfg(not(target_family = "wasm"))]
mod measure {
    use std::net::SocketAddr;

    use serde_json::json;
    use testkit::envoy::direct_client;
    use wasm_tests::artefacts;
    use wasm_tests::bootstrap::{Plugin, cluster, fixed, listener, worker_routes};
    use wasm_tests::caller::{CHAT, chat};
    use wasm_tests::envoy::Envoy;
    use worker_sim::{Config, Worker};

    type Failure = Box<dyn std::error::Error>;

    const ROUNDS: usize = 5;
    const STREAMS: u32 = 32;
    const TOKENS: u32 = 1_000;

    pub(super) async fn run() -> Result<(), Failure> {
        let config = Config { model: "sim".into(), base_ms: 2.0, per_kv_block_us: 0.0, ..Config::default() };
        let worker = Worker::start(config).await?;
        let code = artefacts::filter();
        let tenants = json!({"*": {"tokens_per_minute": 1_000_000_000}});
        let policy = json!({"tenants": tenants, "pools": [{"name": "main", "max_in_flight": 1_000}]}).to_string();
        let plugin = Plugin { name: "sluice", code: &code, configuration: &policy, header_pause: false };
        let listeners =
            [listener("none", &[], &worker_routes()), listener("filter", &[fixed(&plugin)], &worker_routes())];
        let clusters = ["workers", "resetter"].map(|name| cluster(name, &[worker.address()]));
        let mut envoy = Envoy::alone(1).await;
        envoy.serve(&clusters, &listeners).await;
        let (none, filter) = (envoy.listener("none").await, envoy.listener("filter").await);
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            without.push(per_chunk(&envoy, none).await?);
            with.push(per_chunk(&envoy, filter).await?);
        }
        let (without, with) = (median(&mut without), median(&mut with));
        println!("{}", json!({"none_us": without, "filter_us": with, "added_us": with - without}));
        envoy.stop();
        worker.stop().await;
        Ok(())
    }

    fn median(figures: &mut [f64]) -> f64 {
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or_default()
    }

    /// CPU time of the proxy for each chunk, in microseconds.
    async fn per_chunk(envoy: &Envoy, address: SocketAddr) -> Result<f64, Failure> {
        let client = direct_client()?;
        let before = envoy.cpu_time();
        let mut streams = tokio::task::JoinSet::new();
        for _ in 0..STREAMS {
            let request = client.post(format!("http://{address}{CHAT}")).json(&chat("sim", TOKENS, true));
            streams.spawn(async move { request.send().await?.error_for_status()?.bytes().await });
        }
        while let Some(stream) = streams.join_next().await {
            stream??;
        }
        let spent = envoy.cpu_time().saturating_sub(before);
        Ok(spent.as_secs_f64() * 1e6 / f64::from(STREAMS * TOKENS))
    }
}
