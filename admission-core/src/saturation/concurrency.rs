//! How full a pool is by what its workers have in hand.

use serde::{Deserialize, Serialize};

use super::{Fullness, WorkerLoad};

/// Taken for the most requests of a worker that neither the policy nor the engine tells.
const MAX_CONCURRENCY: u64 = 100;

/// What is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConcurrencyMode {
    /// Requests, running and waiting.
    #[default]
    Requests,
    /// Tokens: those in the KV cache, and prompts that wait.
    Tokens,
    /// The worse of both, worker by worker.
    Hybrid,
}

/// What a worker may have in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyLimits {
    /// What is counted.
    pub mode: ConcurrencyMode,
    /// Most requests of a worker. Without it, what the engine runs at once over all its ranks; where that is unknown, 100.
    pub max_concurrency: Option<u64>,
    /// Most tokens of a worker.
    pub max_token_concurrency: u64,
}

impl Default for ConcurrencyLimits {
    fn default() -> Self {
        Self { mode: ConcurrencyMode::Requests, max_concurrency: None, max_token_concurrency: 1_000_000 }
    }
}

impl ConcurrencyLimits {
    /// Names the first limit that is out of its range.
    ///
    /// # Errors
    /// A sentence with the field and what is allowed.
    pub fn validate(&self) -> Result<(), String> {
        match (self.max_concurrency, self.max_token_concurrency) {
            (Some(0), _) => Err("max_concurrency must be at least 1".into()),
            (_, 0) => Err("max_token_concurrency must be at least 1".into()),
            _ => Ok(()),
        }
    }

    /// How full one worker is.
    pub(super) fn fullness(&self, worker: &WorkerLoad<'_>) -> Fullness {
        match self.mode {
            ConcurrencyMode::Requests => self.requests(worker),
            ConcurrencyMode::Tokens => self.tokens(worker),
            ConcurrencyMode::Hybrid => self.requests(worker).worse(self.tokens(worker)),
        }
    }

    /// Requests and KV blocks that alone would make one worker full.
    pub(super) fn full(&self, worker: &WorkerLoad<'_>) -> (Option<u64>, Option<u64>) {
        let requests = Some(self.most_requests(worker));
        let blocks = worker.block_size.map(|size| self.max_token_concurrency / size.max(1));
        match self.mode {
            ConcurrencyMode::Requests => (requests, None),
            ConcurrencyMode::Tokens => (None, blocks),
            ConcurrencyMode::Hybrid => (requests, blocks),
        }
    }

    fn most_requests(&self, worker: &WorkerLoad<'_>) -> u64 {
        let of_engine = worker.max_num_seqs.map(|seqs| seqs.saturating_mul(worker.ranks.len().max(1) as u64));
        self.max_concurrency.or(of_engine).unwrap_or(MAX_CONCURRENCY).max(1)
    }

    fn requests(&self, worker: &WorkerLoad<'_>) -> Fullness {
        let most = self.most_requests(worker);
        let held = worker.ranks.iter().try_fold(0.0, |sum, rank| {
            let of_rank = rank.running.or(rank.waiting).map(|_| 0.0)?;
            Some(sum + of_rank + rank.running.unwrap_or(0) as f64 + rank.waiting.unwrap_or(0) as f64)
        });
        let is_told = !worker.ranks.is_empty() && !worker.doubts_requests;
        Fullness::new(held.filter(|_| is_told), most as f64)
    }

    fn tokens(&self, worker: &WorkerLoad<'_>) -> Fullness {
        let held = worker.block_size.and_then(|size| {
            worker.ranks.iter().try_fold(0.0, |sum, rank| {
                let cached = rank.kv_used_blocks?.saturating_mul(size);
                Some(sum + cached as f64 + rank.prefill_tokens.unwrap_or(0) as f64)
            })
        });
        let is_told = !worker.ranks.is_empty() && !worker.doubts_tokens;
        Fullness::new(held.filter(|_| is_told), self.max_token_concurrency as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::super::saturation;
    use super::*;
    use crate::view::{RankReport, Role};

    fn rank(running: u64, waiting: u64, used: u64, prefill: u64) -> RankReport {
        RankReport {
            running: Some(running),
            waiting: Some(waiting),
            kv_used_blocks: Some(used),
            kv_total_blocks: Some(1_000),
            prefill_tokens: Some(prefill),
            ..RankReport::default()
        }
    }

    fn load(ranks: &[RankReport]) -> WorkerLoad<'_> {
        WorkerLoad { ranks, block_size: Some(16), ..WorkerLoad::default() }
    }

    fn pool(limits: ConcurrencyLimits, workers: &[WorkerLoad<'_>]) -> f64 {
        saturation(workers.iter().map(|worker| (Role::Both, limits.fullness(worker))))
    }

    fn share(limits: ConcurrencyLimits, worker: &WorkerLoad<'_>) -> f64 {
        limits.fullness(worker).share()
    }

    fn limits(mode: ConcurrencyMode) -> ConcurrencyLimits {
        ConcurrencyLimits { mode, max_concurrency: Some(100), max_token_concurrency: 10_000 }
    }

    #[test]
    fn sums_are_compared_with_sums() {
        // 50 + 25 of 200 requests; 16 × 500 + 16 × 100 + 400 of 20,000 tokens; hybrid: (0.8 + 0.25) / 2.
        let (first, second) = ([rank(40, 10, 500, 0)], [rank(20, 5, 100, 400)]);
        let of = |mode| pool(limits(mode), &[load(&first), load(&second)]);
        assert_eq!(of(ConcurrencyMode::Requests), 0.375);
        assert_eq!(of(ConcurrencyMode::Tokens), 0.5);
        assert_eq!(of(ConcurrencyMode::Hybrid), 0.525);
    }

    #[test]
    fn the_engine_tells_its_own_most_over_all_ranks() {
        let ranks = [rank(30, 0, 0, 0), rank(10, 8, 0, 0)];
        let told = WorkerLoad { max_num_seqs: Some(48), ..load(&ranks) };
        let rule = ConcurrencyLimits::default();
        assert_eq!(share(rule, &told), 0.5, "48 of 2 × 48");
        assert_eq!(share(rule, &load(&ranks)), 0.48, "of 100 where nobody says");
        assert_eq!(share(limits(ConcurrencyMode::Requests), &told), 0.48, "the policy's word goes first");
    }

    #[test]
    fn what_is_not_known_is_full() {
        let silent = [RankReport { kv_used_blocks: Some(1), ..RankReport::default() }];
        let rule = limits(ConcurrencyMode::Requests);
        assert_eq!(share(rule, &load(&silent)), 1.0, "neither running nor waiting is told");
        assert_eq!(share(rule, &load(&[])), 1.0);
        assert_eq!(pool(rule, &[load(&[]), load(&[rank(0, 0, 0, 0)])]), 0.5);
        assert_eq!(pool(rule, &[]), 1.0);
        let no_block_size = WorkerLoad { block_size: None, ..load(&silent) };
        assert_eq!(share(limits(ConcurrencyMode::Tokens), &no_block_size), 1.0);
    }

    #[test]
    fn limits_of_nothing_are_named() {
        assert_eq!(ConcurrencyLimits::default().validate(), Ok(()));
        let none = ConcurrencyLimits { max_concurrency: Some(0), ..ConcurrencyLimits::default() };
        assert!(none.validate().unwrap_err().contains("max_concurrency"));
        let none = ConcurrencyLimits { max_token_concurrency: 0, ..ConcurrencyLimits::default() };
        assert!(none.validate().unwrap_err().contains("max_token_concurrency"));
    }
}
