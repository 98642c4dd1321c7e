//! The admission decision of Sluice, pure: no I/O, clock, randomness or globals, and nothing here panics.
//!
//! Start with [`decide`]; [`ledger`] holds what is counted, [`view`] what is known of the workers.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

pub mod answer;
pub mod arrival;
pub mod ask;
pub mod attributes;
pub mod budget;
pub mod config;
pub mod control;
pub mod decide;
pub mod directory;
pub mod endpoint;
pub mod estimate;
#[cfg(all(test, not(target_family = "wasm")))]
mod examples;
pub mod family;
pub mod forecast;
pub mod gather;
pub mod hash;
pub mod headers;
pub mod identity;
pub mod intake;
pub mod keys;
pub mod ledger;
pub mod log;
pub mod members;
pub mod metrics;
pub mod outcome;
pub mod pairs;
pub mod platform;
pub mod policy;
pub mod problem;
pub mod queue;
pub mod record;
pub mod route_metadata;
pub mod routes;
pub mod saturation;
#[cfg(feature = "sim")]
pub mod sim;
pub mod store;
pub mod stream;
pub mod strip;
pub mod tags;
pub mod terms;
pub mod unnamed;
pub mod view;
pub mod vm;

pub use admission_bodies::{request, units, usage};
