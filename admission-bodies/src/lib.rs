//! What passes between callers and workers, read as it passes: requests, answers, and the quantities found in them.
//!
//! All that is done for each byte is here, and nothing else. Pure like the core: no I/O, clock, randomness or globals, and nothing
//! here panics.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)
)]

mod find;
pub mod request;
pub mod units;
pub mod usage;

/// Bytes of a body for one token, where only its size is known: JSON around English text.
pub const BYTES_PER_TOKEN: u64 = 4;
