//! A GPU inference worker without a GPU.
//!
//! The worker answers the OpenAI and Anthropic APIs as vLLM does: it batches sequences continuously, computes prompts in chunks,
//! hands out KV blocks, preempts when they run out, and publishes vLLM's metrics page. Only the tokens are made up,
//! and time passes by a formula ([`StepCost`]).
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), worker_sim::StartError> {
//! use worker_sim::{Config, Worker};
//!
//! let worker = Worker::start(Config { max_num_seqs: 4, ..Config::default() }).await?;
//! println!("POST {}/v1/chat/completions", worker.url());
//! assert_eq!(worker.stats().requests, 0);
//! worker.stop().await;
//! # Ok(()) }
//! ```
//!
//! [`fleet`] serves the metrics pages of many workers and nothing else.

pub mod engine;
pub mod fleet;

mod api;
mod arrivals;
mod config;
mod cost;
mod excerpt;
mod histogram;
mod hub;
mod page;
mod server;
mod stats;

pub use arrivals::{Arrival, Arrivals};
pub use config::{Config, ConfigError, Fault};
pub use cost::StepCost;
pub use server::{StartError, Worker};
pub use stats::Stats;
