//! What the shared records say, read from outside after a step.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::ledger::{Amount, LaneKey, Ledger};
use crate::members::Members;
use crate::policy::Policy;
use crate::record::Record;
use crate::store::{Store, Version};
use crate::unnamed::ledger_at;
use crate::view::{Admitted, ViewSummary, Workers};

/// The records of one pool and of some tenants.
pub(in crate::sim) struct Books {
    members_key: String,
    members: Read<Members>,
    pool_key: String,
    pool: Read<Ledger>,
    view_key: String,
    workers_keys: [String; 2],
    workers: ([Version; 2], Option<Rc<Workers>>),
    lanes: Vec<LaneKey>,
    tenants: BTreeMap<&'static str, (String, Ledger)>,
}

struct Read<R> {
    version: Version,
    record: R,
}

/// What live VMs hold by the books.
#[derive(Clone, Debug, Default)]
pub(in crate::sim) struct Sight {
    pub(in crate::sim) pool: Amount,
    /// Requests by lane, highest lane first.
    pub(in crate::sim) lanes: Vec<u64>,
    pub(in crate::sim) tenants: BTreeMap<&'static str, Amount>,
    pub(in crate::sim) view: Option<ViewSummary>,
    pub(in crate::sim) workers: Option<Rc<Workers>>,
    pub(in crate::sim) members: Members,
    /// Requests and blocks that VMs have been asked to evict and still hold.
    pub(in crate::sim) asked_to_evict: Amount,
    /// Requests that wait for nothing but the pool, in lanes without a dispatch budget.
    pub(in crate::sim) demand: u64,
    /// All that was ever admitted to the pool.
    pub(in crate::sim) admitted: Admitted,
    /// Requests that were ever evicted.
    pub(in crate::sim) evicted: u64,
}

impl Books {
    pub(in crate::sim) fn of(policy: &Policy, tenants: impl Iterator<Item = &'static str>) -> Self {
        let pool = policy.pools().next();
        let text = |key: Option<&str>| key.unwrap_or_default().to_owned();
        Self {
            members_key: policy.keys.members(),
            members: Read::default(),
            pool_key: text(pool.map(|pool| &*pool.key)),
            pool: Read::default(),
            view_key: text(pool.map(|pool| &*pool.view_key)),
            workers_keys: [text(pool.map(|pool| &*pool.workers_key)), text(pool.map(|pool| &*pool.worker_blocks_key))],
            workers: ([Version::Absent; 2], None),
            lanes: policy.lanes().map(|lane| lane.key).collect(),
            tenants: tenants.map(|name| (name, (policy.tenant_key(name), Ledger::default()))).collect(),
        }
    }

    /// Whose ledger is at this place.
    pub(in crate::sim) fn tenant_of(&self, key: &str) -> Option<&'static str> {
        self.tenants.iter().find(|(_, (own, _))| own == key).map(|(name, _)| *name)
    }

    /// Who waits, by the books: for those who look into a run that went wrong.
    pub(in crate::sim) fn line(&self) -> Vec<String> {
        let members = &self.members.record;
        let heads = self.pool.record.heads(members).map(|(holder, head)| format!("slot {}: {head:?}", holder.slot));
        let blocked = self.tenants.iter().flat_map(|(name, (_, ledger))| {
            let first = ledger.blocked(members);
            first.map(move |(holder, first)| format!("slot {}: of {name} {first:?}", holder.slot))
        });
        heads.chain(blocked).collect()
    }

    pub(in crate::sim) fn look(&mut self, store: &impl Store) -> Sight {
        self.members.renew(store, &self.members_key);
        self.pool.renew(store, &self.pool_key);
        let members = &self.members.record;
        let (mut lanes, mut tenants) = (vec![0; self.lanes.len()], BTreeMap::new());
        for (_, column) in self.pool.record.live(members) {
            if let Some(lane) = self.lanes.iter().position(|key| *key == column.lane) {
                lanes[lane] += column.held.requests;
            }
        }
        for (name, (key, ledger)) in &mut self.tenants {
            *ledger = ledger_at(store, key).unwrap_or_default();
            tenants.insert(*name, ledger.held(members));
        }
        let view = store.read(&self.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes));
        let asked_to_evict = self.pool.record.asked_to_evict(members);
        let (pool, admitted) = (self.pool.record.held(members), self.pool.record.admitted());
        let evicted = self.pool.record.evicted();
        let demand = self.pool.record.demand(members);
        let members = members.clone();
        let workers = self.read_workers(store);
        Sight { pool, lanes, tenants, view, workers, members, asked_to_evict, demand, admitted, evicted }
    }

    fn read_workers(&mut self, store: &impl Store) -> Option<Rc<Workers>> {
        let [list, blocks] = [&self.workers_keys[0], &self.workers_keys[1]].map(|key| store.read(key));
        let versions = [list.1, blocks.1];
        if versions != self.workers.0 {
            let read = list.0.and_then(|bytes| Workers::decode(&bytes));
            let read = read.map(|read| read.with_takes(&blocks.0.unwrap_or_default()));
            self.workers = (versions, read.map(Rc::new));
        }
        self.workers.1.clone()
    }
}

impl<R: Record> Default for Read<R> {
    fn default() -> Self {
        Self { version: Version::Absent, record: R::default() }
    }
}

impl<R: Record> Read<R> {
    fn renew(&mut self, store: &impl Store, key: &str) {
        let (bytes, version) = store.read(key);
        if version != self.version {
            self.record = bytes.and_then(|bytes| R::decode(&bytes)).unwrap_or_default();
            self.version = version;
        }
    }
}
