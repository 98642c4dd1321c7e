//! How long a step of the engine takes.

use std::time::Duration;

use crate::engine::Load;

/// The price list of a step: a fixed part, and parts for what the step computes. All in microseconds.
///
/// ```
/// use std::time::Duration;
/// use worker_sim::{StepCost, engine::Load};
///
/// let cost = StepCost { base_us: 8000.0, per_prefill_token_us: 50.0, per_sequence_us: 100.0, per_kv_block_us: 0.5 };
/// let load = Load { prefill_tokens: 20, decoding: 10, kv_blocks: 2000 };
/// assert_eq!(cost.of(load), Duration::from_millis(8 + 1 + 1 + 1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepCost {
    /// Every step: kernel launches and reading the weights once.
    pub base_us: f64,
    /// For every prompt token computed: arithmetic.
    pub per_prefill_token_us: f64,
    /// For every sequence decoding: sampling and its share of the arithmetic.
    pub per_sequence_us: f64,
    /// For every KV block held by a decoding sequence: attention reads it all.
    pub per_kv_block_us: f64,
}

impl StepCost {
    /// The time a step with this load takes.
    pub fn of(&self, load: Load) -> Duration {
        let micros = self.base_us
            + self.per_prefill_token_us * load.prefill_tokens as f64
            + self.per_sequence_us * load.decoding as f64
            + self.per_kv_block_us * load.kv_blocks as f64;
        Duration::from_nanos((micros * 1000.0).round() as u64)
    }
}
