//! The eyes of Sluice: reads the metrics of GPU workers and tells every proxy what they can take.
//!
//! Pure modules decide, with the time as an argument: [`page`] and [`engines`] read a metrics page, [`table`] turns samples
//! into pool reports, [`courier`] decides when a proxy is told and under which generation, [`thresholds`] merges what an
//! operator changes, [`check`] reads configurations over. The modules around them do the I/O; [`discovery`] follows the
//! workers that come and go. [`Sidecar::start`] runs the whole in this process.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

mod backoff;
pub mod check;
mod client;
mod conductor;
pub mod config;
mod connections;
pub mod courier;
pub mod discovery;
pub mod engines;
mod excerpt;
mod fetch;
mod hardware;
mod metrics;
mod nvml;
pub mod page;
mod prometheus;
mod pull;
mod push;
pub mod reading;
mod scrape;
mod server;
mod shared;
mod sidecar;
pub mod table;
pub mod thresholds;
mod told;

pub use config::{Config, ConfigError};
pub use sidecar::{Sidecar, StartError};
