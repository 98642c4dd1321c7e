//! The eyes of Sluice: reads the metrics of GPU workers and tells every proxy what they can take.
//!
//! Pure modules decide, with the time as an argument: [`page`] and [`vllm`] read a metrics page, [`table`] turns samples
//! into pool reports, [`courier`] decides when a proxy is told and under which generation, [`thresholds`] merges what an
//! operator changes, [`check`] reads configurations over. The modules around them do the I/O. [`Sidecar::start`] runs the whole in this process.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

pub mod check;
pub mod config;
pub mod courier;
mod fetch;
mod metrics;
pub mod page;
mod push;
mod scrape;
mod server;
mod shared;
mod sidecar;
pub mod table;
pub mod thresholds;
pub mod vllm;

pub use config::{Config, ConfigError};
pub use sidecar::{Sidecar, StartError};
