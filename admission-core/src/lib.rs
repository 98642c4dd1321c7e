//! The admission decision of Sluice, pure: no I/O, clock, randomness or globals, and nothing here panics.
//!
//! Start with [`decide`]; [`ledger`] holds what is counted, [`view`] what is known of the workers.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

pub mod saturation;
pub mod units;
pub mod view;
