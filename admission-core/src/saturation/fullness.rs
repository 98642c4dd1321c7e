//! What each worker adds to how full its pool is.

use super::UNKNOWN;
use crate::view::Role;

/// How full one worker is: what it has in hand against what it may, in whatever its detector counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fullness {
    held: f64,
    most: f64,
    is_measured: bool,
}

impl Fullness {
    /// So much is held of what may be, which is above 0. What is not known is exactly full.
    pub(super) fn new(held: Option<f64>, most: f64) -> Self {
        Self { held: held.unwrap_or(most * UNKNOWN), most, is_measured: held.is_some() }
    }

    /// As a share of what may be, 0 and above.
    pub fn share(self) -> f64 {
        self.held / self.most
    }

    /// Whether the worker tells all that its detector counts.
    pub fn is_measured(self) -> bool {
        self.is_measured
    }

    /// The worse of two shares, each of which counts for as much as that of any other worker.
    pub(super) fn worse(self, other: Self) -> Self {
        let is_measured = self.is_measured && other.is_measured;
        Self { held: self.share().max(other.share()), most: 1.0, is_measured }
    }
}

/// Saturation of a pool, given its live workers: all that those of a stage have in hand over all that they may, of the fuller
/// stage. Always finite.
pub fn saturation(live: impl Iterator<Item = (Role, Fullness)>) -> f64 {
    let (mut prefills, mut decodes) = (Stage::default(), Stage::default());
    for (role, worker) in live {
        if role.prefills() {
            prefills.add(worker);
        }
        if role.decodes() {
            decodes.add(worker);
        }
    }
    // A threshold close to nothing divides beyond what a number holds; that is the fullest there is, not unknown.
    prefills.share().max(decodes.share()).min(f64::MAX)
}

/// Requests and KV blocks that alone would bring a pool from empty to full, given those of its live workers: the sum over the
/// workers that generate, `None` where no worker's is known.
pub fn full(live: impl Iterator<Item = (Role, (Option<u64>, Option<u64>))>) -> (Option<u64>, Option<u64>) {
    let sum = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
        (Some(sum), Some(more)) => Some(sum.saturating_add(more)),
        (sum, more) => sum.or(more),
    };
    let decoding = live.filter(|(role, _)| role.decodes());
    decoding.fold((None, None), |(requests, blocks), (_, worker)| (sum(requests, worker.0), sum(blocks, worker.1)))
}

#[derive(Default)]
struct Stage {
    held: f64,
    most: f64,
}

impl Stage {
    fn add(&mut self, worker: Fullness) {
        self.held += worker.held;
        self.most += worker.most;
    }

    fn share(&self) -> f64 {
        if self.most > 0.0 { self.held / self.most } else { UNKNOWN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_as_full_as_its_fuller_stage() {
        let of = |workers: &[(Role, f64)]| {
            saturation(workers.iter().map(|(role, held)| (*role, Fullness::new(Some(*held), 1.0))))
        };
        assert_eq!(of(&[(Role::Both, 0.0), (Role::Both, 2.0)]), 1.0, "one stage: the mean of 0 and 2");
        assert_eq!(of(&[(Role::Prefill, 2.0), (Role::Decode, 0.0)]), 2.0);
        assert_eq!(of(&[(Role::Prefill, 0.0), (Role::Decode, 1.0)]), 1.0);
        assert_eq!(of(&[(Role::Prefill, 0.0), (Role::Decode, 0.0), (Role::Both, 2.0)]), 1.0, "it is in both");
        assert_eq!(of(&[(Role::Decode, 0.0)]), 1.0, "nobody reads prompts");
        assert_eq!(of(&[]), 1.0);
        assert_eq!(of(&[(Role::Both, f64::INFINITY), (Role::Both, 1.0)]), f64::MAX, "the fullest there is");
    }

    #[test]
    fn sums_are_compared_with_sums() {
        let workers = [Fullness::new(Some(50.0), 100.0), Fullness::new(Some(10.0), 20.0), Fullness::new(None, 40.0)];
        assert_eq!(workers.map(Fullness::share), [0.5, 0.5, 1.0]);
        assert_eq!(saturation(workers.into_iter().map(|worker| (Role::Both, worker))), 0.625, "100 of 160");
        let hybrid = workers.map(|worker| worker.worse(Fullness::new(Some(3.0), 4.0)));
        assert_eq!(hybrid.map(Fullness::share), [0.75, 0.75, 1.0]);
        assert_eq!(hybrid.map(Fullness::is_measured), [true, true, false]);
    }
}
