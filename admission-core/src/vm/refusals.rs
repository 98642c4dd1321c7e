//! Answers as news of workers: which worker serves what, and which refusal says that a worker is busy.

use std::collections::BTreeMap;

use super::{LeaseId, Vm, view_of};
use crate::hash;
use crate::ledger::{Ledger, RefusedKey, TallyKey};
use crate::policy::Pool;
use crate::request::Api;
use crate::store::{self, Store};
use crate::units::{Millis, Time};
use crate::view::WorkerKey;

/// A request that a worker has answered.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// API that was called.
    pub api: Api,
    /// Model as the request names it, if its body was read.
    pub model: Option<&'a str>,
    /// Place of its tenant's ledger.
    pub tenant_key: &'a str,
}

/// A reason for which a worker has not served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// The worker has answered with a status that means that it has too much to do.
    Refused,
    /// The proxy could not connect to it.
    Unreachable,
}

/// Kinds of requests at workers beyond which those are forgotten that were not served for long: workers come and go.
const MANY: usize = 4_096;

/// Time after which they are forgotten then.
const LONG: Millis = Millis(600_000);

/// Kinds of requests that workers have served, as far as this VM has seen: as many as pools have entries of `models`, APIs and workers.
#[derive(Debug, Default)]
pub(super) struct Served {
    /// Time of the last one, by hashes of a kind and a worker.
    last: BTreeMap<u64, Time>,
    /// Kinds of which the proxy was asked since the last tick which worker had served them, by the same hashes of no worker.
    asked: BTreeMap<u64, Time>,
}

impl Sent<'_> {
    /// Kind of request that a worker can serve or not: an API of a model, by the entry of the pool's `models` that it fits.
    fn kind(&self, pool: &Pool) -> u64 {
        self.kind_of(pool.model_label(self.model), pool)
    }

    /// The kind of any request of the API, for one whose body was not read.
    fn any_kind(&self, pool: &Pool) -> u64 {
        self.kind_of("", pool)
    }

    fn kind_of(&self, label: &str, pool: &Pool) -> u64 {
        let api = hash::spread(self.api as u64) ^ hash::stable(pool.name.as_bytes());
        hash::spread(hash::stable(label.as_bytes()) ^ api)
    }
}

/// A kind of request at a worker.
fn of(kind: u64, worker: WorkerKey) -> u64 {
    hash::spread(kind ^ worker.0)
}

impl Served {
    /// The time of another tick has come.
    pub(super) fn tick(&mut self, now: Time) {
        self.asked.clear();
        if self.last.len() >= MANY {
            self.last.retain(|_, at| now.since(*at) < LONG);
        }
    }

    fn note(&mut self, sent: &Sent<'_>, pool: &Pool, worker: WorkerKey, now: Time) {
        for kind in [sent.kind(pool), sent.any_kind(pool)] {
            self.last.insert(of(kind, worker), now);
        }
    }

    /// Time at which a worker last served the like.
    fn last(&self, sent: &Sent<'_>, pool: &Pool, worker: WorkerKey) -> Option<Time> {
        let kind = if sent.model.is_some() { sent.kind(pool) } else { sent.any_kind(pool) };
        self.last.get(&of(kind, worker)).copied()
    }
}

impl Vm {
    /// Notes that a request was answered well, and says whether [`served_by`](Self::served_by) is to hear which worker did. A lease knows
    /// its worker where requests are steered; elsewhere only the proxy does.
    // Why not each time: it costs a host call, and what one worker has served it serves the next time too.
    pub fn served(&mut self, lease: LeaseId, sent: &Sent<'_>, now: Time) -> bool {
        let Some(lease) = self.leases.get(lease) else { return false };
        match lease.worker {
            Some(TallyKey(worker)) => {
                self.served.note(sent, &lease.pool, WorkerKey(worker), now);
                false
            }
            None => self.served.asked.insert(sent.kind(&lease.pool), now).is_none(),
        }
    }

    /// Notes which worker has served a request.
    pub fn served_by(&mut self, pool: &Pool, worker: &str, sent: &Sent<'_>, now: Time) {
        self.served.note(sent, pool, WorkerKey::of(worker), now);
    }

    /// Notes that a worker has not served a request. It then counts as busy until the next view, or for a second; and if it has refused,
    /// no lane with a dispatch budget starts anything until the next view.
    ///
    /// A refusal says so only of a worker that has served the like before, the same API and model, and only where the worker has not refused the
    /// same tenant just before and served others since: a caller that finds what a worker always refuses could else keep it from all others. A
    /// worker that the view does not call free is left as it is; so is the record when others are faster, since the next refusal says it again.
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
        let served = self.served.last(sent, pool, worker);
        if refused && served.is_none() {
            return;
        }
        let tenant = RefusedKey(hash::stable(sent.tenant_key.as_bytes()));
        let Some(view) = view_of(store, pool) else { return };
        let is_free = self.workers.of(store, pool, &view).is_some_and(|workers| workers.is_free(address));
        let marked = store::update(store, &pool.key, |ledger: &mut Ledger| {
            if refused && !ledger.is_news_of(worker, tenant, served.unwrap_or_default(), now) {
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
