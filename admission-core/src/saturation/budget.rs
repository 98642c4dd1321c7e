//! What a pool has to spare for work that can wait: the cascade of llm-d's asynchronous processor.

use serde::{Deserialize, Serialize};

use super::WorkerLoad;
use crate::view::RankReport;

/// A number that a dispatch budget is worked out of. *Workers* are the live ones that tell the number, and at least one
/// must.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetSource {
    /// A query to Prometheus, whose result is the budget itself.
    Prometheus,
    /// 1 − requests that wait in the proxies ÷ (workers × `max_concurrency`).
    ProxyQueue,
    /// 1 − mean of the requests that wait in a worker ÷ `max_concurrency`.
    WorkerQueue,
    /// 1 − requests that run ÷ (workers × `max_concurrency`).
    Running,
}

/// How a dispatch budget is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRule {
    /// Asked in this order; the first that has a sample is believed.
    pub sources: Vec<BudgetSource>,
    /// Requests that a worker takes at once, at least 1. Far above what it really takes, the budget never falls.
    pub max_concurrency: u64,
}

/// What the sources other than the workers last said.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BudgetSamples {
    /// The result of the query, as long as it may be believed.
    pub prometheus: Option<f64>,
    /// Requests that wait in the proxies heard of late; unknown while there is none.
    pub proxy_queue: Option<u64>,
}

impl BudgetSource {
    /// Every source, in the order in which they are asked where nothing else is said.
    pub const ALL: [Self; 4] = [Self::Prometheus, Self::ProxyQueue, Self::WorkerQueue, Self::Running];

    /// As written in a configuration and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Prometheus => "prometheus",
            Self::ProxyQueue => "proxy_queue",
            Self::WorkerQueue => "worker_queue",
            Self::Running => "running",
        }
    }
}

impl BudgetRule {
    /// The budget by one source, 0 to 1; `None` when it has no sample.
    pub fn by<'a>(
        &self,
        source: BudgetSource,
        live: impl Iterator<Item = WorkerLoad<'a>>,
        samples: &BudgetSamples,
    ) -> Option<f64> {
        let most = self.max_concurrency.max(1) as f64;
        let spare = match source {
            BudgetSource::Prometheus => samples.prometheus?,
            BudgetSource::ProxyQueue => {
                let workers = Some(live.count()).filter(|count| *count > 0)?;
                1.0 - samples.proxy_queue? as f64 / (workers as f64 * most)
            }
            BudgetSource::WorkerQueue => 1.0 - mean_of(live, |rank| rank.waiting)? / most,
            BudgetSource::Running => 1.0 - mean_of(live, |rank| rank.running)? / most,
        };
        spare.is_finite().then(|| spare.clamp(0.0, 1.0))
    }

    /// The budget by the first source that has a sample. Without any it is nothing: what can wait does, until
    /// somebody measures.
    pub fn budget<'a>(&self, live: impl Iterator<Item = WorkerLoad<'a>> + Clone, samples: &BudgetSamples) -> f64 {
        self.sources.iter().find_map(|source| self.by(*source, live.clone(), samples)).unwrap_or(0.0)
    }
}

/// Mean over the workers of what their ranks tell together; workers that do not tell are left out.
fn mean_of<'a>(live: impl Iterator<Item = WorkerLoad<'a>>, count: impl Fn(&RankReport) -> Option<u64>) -> Option<f64> {
    let (mut sum, mut workers) = (0.0, 0.0);
    for worker in live.filter(|worker| !worker.ranks.is_empty()) {
        let told = worker.ranks.iter().try_fold(0.0, |sum, rank| Some(sum + count(rank)? as f64));
        let Some(told) = told else { continue };
        sum += told;
        workers += 1.0;
    }
    (workers > 0.0).then(|| sum / workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> BudgetRule {
        BudgetRule { sources: BudgetSource::ALL.to_vec(), max_concurrency: 10 }
    }

    fn rank(running: Option<u64>, waiting: Option<u64>) -> [RankReport; 1] {
        [RankReport { running, waiting, ..RankReport::default() }]
    }

    fn load(ranks: &[RankReport]) -> WorkerLoad<'_> {
        WorkerLoad { ranks, ..WorkerLoad::default() }
    }

    fn budget(workers: &[[RankReport; 1]], samples: BudgetSamples) -> f64 {
        rule().budget(workers.iter().map(|ranks| load(ranks)), &samples)
    }

    #[test]
    fn the_first_source_with_a_sample_is_believed() {
        let none = BudgetSamples::default();
        // Five pods of ten run 15 in all: F = 0.3, D = 0.7.
        let running = [3; 5].map(|running| rank(Some(running), None));
        assert_eq!(budget(&running, none), 0.7);
        let waiting = [rank(Some(9), Some(4)), rank(Some(9), Some(0))];
        assert_eq!(budget(&waiting, none), 0.8, "2 wait on average, which goes before what runs");
        let queued = BudgetSamples { proxy_queue: Some(5), ..none };
        assert_eq!(budget(&waiting, queued), 0.75, "5 of 2 × 10");
        let said = BudgetSamples { prometheus: Some(0.25), ..queued };
        assert_eq!(budget(&waiting, said), 0.25);
    }

    #[test]
    fn what_says_nothing_is_passed_over_and_nothing_at_all_is_no_budget() {
        let workers = [rank(Some(5), None), rank(None, None)];
        for said in [f64::NAN, f64::INFINITY] {
            let samples = BudgetSamples { prometheus: Some(said), proxy_queue: None };
            assert_eq!(budget(&workers, samples), 0.5, "{said}; the second worker tells nothing and is left out");
        }
        assert_eq!(budget(&[rank(None, None)], BudgetSamples::default()), 0.0);
        assert_eq!(budget(&[], BudgetSamples { proxy_queue: Some(0), ..BudgetSamples::default() }), 0.0, "no worker");
    }

    #[test]
    fn budgets_stay_between_nothing_and_all() {
        let said = |value| BudgetSamples { prometheus: Some(value), ..BudgetSamples::default() };
        assert_eq!(budget(&[], said(7.0)), 1.0);
        assert_eq!(budget(&[], said(-7.0)), 0.0);
        assert_eq!(budget(&[rank(None, Some(u64::MAX))], BudgetSamples::default()), 0.0);
    }
}
