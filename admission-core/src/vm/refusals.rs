//! Answers as news of workers: which worker serves what, and which refusal says that a worker is busy.

use std::collections::BTreeSet;

use super::{LeaseId, Vm, view_of};
use crate::hash;
use crate::ledger::{Ledger, RequestKey, TallyKey};
use crate::policy::Pool;
use crate::request::Api;
use crate::store::{self, Store};
use crate::units::Time;
use crate::view::WorkerKey;

/// Kinds of requests, each at one worker, that are remembered at most; beyond that all are learned again.
const MOST_SERVED: usize = 4_096;

/// A request that a worker has answered.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// API that was called.
    pub api: Api,
    /// Model as the request names it, if its body was read.
    pub model: Option<&'a str>,
    /// Place of its tenant's ledger.
    pub tenant_key: &'a str,
    /// Shape of its body, see [`Asked::shape`](crate::intake::Asked::shape); 0 where it was not read.
    pub shape: u64,
}

/// A reason for which a worker has not served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The worker has answered with a status that means that it has too much to do.
    Refused,
    /// The proxy could not connect to it.
    Unreachable,
}

/// Workers and the kinds of requests that they have served, as far as this VM has seen.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Hashes of a kind and a worker.
    by: BTreeSet<u64>,
    /// Kinds of which the proxy was asked since the last tick which worker had served them.
    asked: BTreeSet<u64>,
}

impl Sent<'_> {
    /// Kind of request that a worker can serve or not: an API of a model.
    fn kind(&self) -> u64 {
        let name = self.model.unwrap_or_default();
        hash::spread(hash::stable(name.as_bytes()) ^ hash::spread(self.api as u64))
    }

    fn key(&self) -> RequestKey {
        RequestKey(hash::spread(hash::stable(self.tenant_key.as_bytes()) ^ hash::spread(self.shape)))
    }
}

/// A kind of request at a worker.
fn of(kind: u64, worker: WorkerKey) -> u64 {
    hash::spread(kind ^ worker.0)
}

impl Served {
    /// The time of another tick has come.
    pub(super) fn tick(&mut self) {
        self.asked.clear();
    }

    fn note(&mut self, kind: u64, worker: WorkerKey) {
        if self.by.len() >= MOST_SERVED {
            self.by.clear();
        }
        self.by.insert(of(kind, worker));
    }
}

impl Vm {
    /// Notes that a request was answered well, and says whether [`served_by`](Self::served_by) is to hear which worker did. A lease knows
    /// its worker where requests are steered; elsewhere only the proxy does.
    // Why not each time: it costs two host calls, and what one worker has served it serves the next time too.
    pub fn served(&mut self, lease: LeaseId, sent: &Sent<'_>) -> bool {
        let kind = sent.kind();
        match self.leases.get(&lease).and_then(|lease| lease.worker) {
            Some(TallyKey(worker)) => {
                self.served.note(kind, WorkerKey(worker));
                false
            }
            None => self.served.asked.insert(kind),
        }
    }

    /// Notes which worker has served a request.
    pub fn served_by(&mut self, worker: &str, sent: &Sent<'_>) {
        self.served.note(sent.kind(), WorkerKey::of(worker));
    }

    /// Notes that a worker has not served a request. It then counts as busy until the next view, or for a second; and if it has refused,
    /// no lane with a dispatch budget starts anything until the next view.
    ///
    /// A refusal says so only of a worker that has served the like before, the same API and model, and of a request that it has not
    /// refused just before: a caller that finds what a worker always refuses could else keep it from all others. A worker that the
    /// view does not call free is left as it is; so is the record when others are faster, since the next refusal says it again.
    pub fn unserved(
        &mut self,
        store: &impl Store,
        pool: &Pool,
        address: &str,
        how: Unserved,
        sent: &Sent<'_>,
        now: Time,
    ) {
        let worker = WorkerKey::of(address);
        let refused = how == Unserved::Refused;
        if refused && !self.served.by.contains(&of(sent.kind(), worker)) {
            return;
        }
        let Some(view) = view_of(store, pool) else { return };
        let is_free = self.workers.of(store, pool, &view).is_some_and(|workers| workers.is_free(address));
        let marked = store::update(store, &pool.key, |ledger: &mut Ledger| {
            if refused && !ledger.is_news_of(worker, sent.key(), now) {
                return Ok::<(), std::convert::Infallible>(());
            }
            if refused {
                ledger.note_refusal(view.stamp());
            }
            if is_free {
                ledger.mark(worker, view.stamp(), now);
            }
            Ok(())
        });
        drop(marked);
    }
}
