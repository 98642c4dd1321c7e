//! The sidecar: scrapes workers and says what it saw, by the same rules as the real one.

use std::collections::BTreeMap;

use crate::saturation::{BusyThresholds, SaturationRule, WorkerLoad};
use crate::view::{Admitted, PoolReport, VIEW_VERSION, ViewAnswer, ViewDocument, WorkerState};

use super::workers::Worker;

/// How the sidecar sees.
#[derive(Clone, Copy, Debug)]
pub struct Eyes {
    /// Milliseconds between scrapes.
    pub every: u64,
    /// Milliseconds until a view has arrived, from and to.
    pub late: (u64, u64),
    /// Above which a worker is busy.
    pub busy: BusyThresholds,
}

impl Default for Eyes {
    fn default() -> Self {
        let busy = BusyThresholds { active_decode_blocks_threshold: Some(0.95), ..BusyThresholds::default() };
        Self { every: 200, late: (2, 8), busy }
    }
}

/// What it remembers from one push to the next.
pub(super) struct Sidecar {
    eyes: Eyes,
    pool: String,
    generation: u64,
    admitted: Admitted,
}

impl Sidecar {
    pub(super) fn new(eyes: Eyes, pool: &str) -> Self {
        Self { eyes, pool: pool.to_owned(), generation: 0, admitted: Admitted::default() }
    }

    /// Address of the worker with a number.
    pub(super) fn address(number: usize) -> String {
        format!("10.0.0.{}:8000", number + 1)
    }

    /// A view of the workers as they are now, to be pushed.
    pub(super) fn scrape(&mut self, workers: &[Worker]) -> Vec<u8> {
        let mut reports: Vec<_> =
            workers.iter().enumerate().map(|(number, worker)| worker.report(Self::address(number))).collect();
        for report in &mut reports {
            report.busy = self.eyes.busy.worker_is_busy(&report.ranks, None);
        }
        let live = reports.iter().filter(|report| report.state == WorkerState::Up);
        let saturation = SaturationRule::default().saturation(live.map(|report| WorkerLoad {
            role: report.role,
            ranks: &report.ranks,
            block_size: None,
            max_num_seqs: None,
        }));
        self.generation += 1;
        let pool = PoolReport {
            admitted: self.admitted,
            saturation: Some(saturation),
            workers: reports,
            ..PoolReport::default()
        };
        let pools = BTreeMap::from([(self.pool.clone(), pool)]);
        let document = ViewDocument { version: VIEW_VERSION, epoch: 1, generation: self.generation, base: None, pools };
        serde_json::to_vec(&document).unwrap_or_default()
    }

    /// Takes note of what a push was answered.
    pub(super) fn told(&mut self, answer: &ViewAnswer) {
        if let Some(admitted) = answer.admitted.get(&self.pool) {
            self.admitted = *admitted;
        }
    }
}
