//! Views, as sidecars push them to a proxy, one after the other.
//!
//! Each line of the input is one body behind two letters: `a` or `b` for the VM that takes it, in capitals where two writes
//! conflict meanwhile, and a digit for the seconds since the line before.
//! - A body is taken exactly when it is a view that follows the one that stands; else nothing that is shared has changed.
//! - What is shared then says of each pool what the whole view says: the document, or what it makes of its base.
//! - Who says that it holds what stands can take a change of it.
//! - A change between two views makes the one of the other.
//! - The state page can be made of what is shared.

use std::collections::{BTreeMap, BTreeSet};

use admission_core::control::{NotTaken, Receiver, Taken, pull, state};
use admission_core::keys::Keys;
use admission_core::store::Store;
use admission_core::units::{Millis, Time};
use admission_core::view::{
    Admitted, Credit, PoolReport, Receipt, VIEW_VERSION, ViewDocument, ViewSummary, WorkerReport, Workers, changes,
};

use crate::store::Memory;

type Pools = BTreeMap<String, PoolReport>;

/// Age at which any other view may take the place of the one that stands.
const HOLD: Millis = Millis(5_000);

/// One input of so many, by its length, asks for the state page too, which reads 17,000 records.
const PAGES: usize = 16;

/// Most pools of a view.
const MAX_POOLS: usize = 1_024;

/// See the head of this file.
pub fn target(data: &[u8]) {
    let mut world = World::new();
    for line in data.split(|byte| *byte == b'\n') {
        if let [who, step, body @ ..] = line {
            world.take(*who, *step, body);
        }
    }
    world.ask();
    if data.len().is_multiple_of(PAGES) {
        world.show();
    }
}

/// A proxy of two VMs, and what should be known there.
struct World {
    store: Memory,
    keys: Keys,
    vms: [Vm; 2],
    now: Time,
    /// Epoch, generation and arrival of the view that stands.
    stands: Option<(u64, u64, Time)>,
}

struct Vm {
    receiver: Receiver,
    /// The last view that it took, if nothing has been refused since.
    holds: Option<ViewDocument>,
    /// All that it took, by epoch and generation.
    taken: BTreeMap<(u64, u64), ViewDocument>,
}

impl World {
    fn new() -> Self {
        let keys = Keys::new("n");
        let vm = || Vm { receiver: Receiver::new(keys.clone(), HOLD), holds: None, taken: BTreeMap::new() };
        Self { store: Memory::default(), vms: [vm(), vm()], keys, now: Time(1), stands: None }
    }

    fn take(&mut self, who: u8, step: u8, body: &[u8]) {
        let seconds = u64::from(step.saturating_sub(b'0').min(9));
        self.now = Time(self.now.0 + seconds * 1_000);
        let before = self.store.values();
        self.store.conflicts.set(if who.is_ascii_uppercase() { 2 } else { 0 });
        let vm = &mut self.vms[usize::from(who.eq_ignore_ascii_case(&b'b'))];
        let result = vm.receiver.take(&self.store, body, self.now);
        self.store.conflicts.set(0);
        let document = view(body);
        assert_eq!(document.is_none(), matches!(result, Err(NotTaken::Malformed(_))), "{result:?}");
        let Some(document) = document else { return assert_eq!(self.store.values(), before) };
        match result {
            Ok(taken) => self.took(who, document, &taken, &before),
            Err(refused) => self.refused(who, &document, &refused, &before),
        }
    }

    fn follows(&self, document: &ViewDocument) -> bool {
        self.stands.is_none_or(|(epoch, generation, received)| {
            document.epoch > epoch
                || document.epoch == epoch && document.generation > generation
                || document.epoch != epoch && self.now.since(received) > HOLD
        })
    }

    fn took(&mut self, who: u8, document: ViewDocument, taken: &Taken, before: &BTreeMap<String, Vec<u8>>) {
        let is_first = self.stands.is_none() && (document.epoch, document.generation) == (0, 0);
        assert!(self.follows(&document) && !is_first, "{document:?} does not follow {:?}", self.stands);
        let vm = &mut self.vms[usize::from(who.eq_ignore_ascii_case(&b'b'))];
        let whole = match document.base {
            None => document,
            Some(base) => {
                let base = vm.taken.get(&(document.epoch, base)).unwrap_or_else(|| panic!("no base: {document:?}"));
                changed(base.clone(), document)
            }
        };
        let (epoch, generation) = (whole.epoch, whole.generation);
        assert_eq!((taken.answer.epoch, taken.answer.generation), (epoch, generation));
        assert!(taken.answer.admitted.keys().eq(whole.pools.keys()) && taken.wakes.is_empty());
        let after = self.store.values();
        let mut written = BTreeSet::from([self.keys.view()]);
        // Nothing is ever admitted here.
        let receipt =
            Receipt { at: self.now, acknowledged: Credit { held: Some(0), ..Credit::default() }, ..Receipt::default() };
        for (name, pool) in &whole.pools {
            let summary = ViewSummary::new(&whole, pool, &receipt);
            assert_eq!(after.get(&self.keys.view_of(name)), Some(&summary.encode()), "{name} of {whole:?}");
            assert!(summary.free_workers <= summary.live_workers, "{summary:?}");
            let workers = Workers::new(&whole, pool, Admitted::default());
            assert_eq!(after.get(&self.keys.workers_of(name)), Some(&workers.encode()), "{name} of {whole:?}");
            let takes = after.get(&self.keys.worker_blocks_of(name));
            assert_eq!(takes, Some(&workers.encode_takes()), "{name} of {whole:?}");
            let keys = [Keys::view_of, Keys::workers_of, Keys::worker_blocks_of];
            written.extend(keys.map(|key| key(&self.keys, name)));
        }
        let others = |values: &BTreeMap<String, Vec<u8>>| {
            values.clone().into_iter().filter(|(key, _)| !written.contains(key)).collect::<Vec<_>>()
        };
        assert_eq!(others(&after), others(before), "nothing else is written");
        if let Some(before) = &vm.holds {
            check_changes(before, &whole);
        }
        vm.taken.insert((epoch, generation), whole.clone());
        vm.holds = Some(whole);
        self.stands = Some((epoch, generation, self.now));
    }

    fn refused(&mut self, who: u8, document: &ViewDocument, why: &NotTaken, before: &BTreeMap<String, Vec<u8>>) {
        assert_eq!(&self.store.values(), before, "{why:?}");
        let follows = self.follows(document);
        let vm = &mut self.vms[usize::from(who.eq_ignore_ascii_case(&b'b'))];
        let held = vm
            .holds
            .as_ref()
            .is_some_and(|held| (held.epoch, Some(held.generation)) == (document.epoch, document.base));
        match why {
            NotTaken::Older(refusal) => {
                let stands = self.stands.map_or((0, 0), |(epoch, generation, _)| (epoch, generation));
                assert_eq!((refusal.epoch, refusal.generation), (Some(stands.0), Some(stands.1)));
                assert!(
                    !follows || self.stands.is_none() && stands == (document.epoch, document.generation),
                    "{document:?}"
                );
            }
            NotTaken::Baseless(refusal) => {
                assert!(refusal.needs_whole && document.base.is_some() && !held, "{document:?}")
            }
            other => panic!("{other:?}"),
        }
        if document.base.is_some() {
            vm.holds = None;
        }
    }

    fn ask(&self) {
        let names: BTreeSet<&str> = self
            .vms
            .iter()
            .flat_map(|vm| vm.taken.values())
            .flat_map(|view| view.pools.keys().map(String::as_str))
            .collect();
        for vm in &self.vms {
            let names = names.iter().copied();
            let question = pull::question(&self.store, &vm.receiver, "x".to_owned(), names, Millis(9), self.now);
            let question = question.unwrap_or_else(|error| panic!("{error}"));
            let have = question.have.map(|have| (have.epoch, have.generation));
            assert_eq!(have, self.stands.map(|(epoch, generation, _)| (epoch, generation)));
            let (Some((epoch, generation)), false) = (have, question.needs_whole) else { continue };
            let Some(next) = generation.checked_add(1) else { continue };
            let nothing_new = ViewDocument {
                version: VIEW_VERSION,
                epoch,
                generation: next,
                base: Some(generation),
                pools: Pools::new(),
            };
            let body = serde_json::to_vec(&nothing_new).unwrap_or_default();
            let (store, mut receiver) = (self.store.clone(), vm.receiver.clone());
            let taken = receiver.take(&store, &body, self.now);
            assert!(taken.is_ok(), "{taken:?}");
        }
        assert!(self.store.read(&self.keys.view()).0.is_some() == self.stands.is_some());
    }

    fn show(&self) {
        if let Err(error) = state(&self.store, &self.keys, self.now) {
            panic!("{error}");
        }
    }
}

/// A body that is a view.
fn view(body: &[u8]) -> Option<ViewDocument> {
    let view: ViewDocument = serde_json::from_slice(body).ok()?;
    let is_name = |name: &String| {
        let is_sign = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
        (1..=128).contains(&name.len()) && name.chars().all(is_sign)
    };
    let removes = view.pools.values().any(|pool| !pool.removed.is_empty());
    let is_view = view.version == VIEW_VERSION
        && view.pools.len() <= MAX_POOLS
        && view.pools.keys().all(is_name)
        && (view.base.is_some() || !removes);
    is_view.then_some(view)
}

/// What a change makes of its base: of each pool that it names the workers that were there and are not removed, each as the
/// change has it where it does, then those that are new, by their addresses.
fn changed(base: ViewDocument, change: ViewDocument) -> ViewDocument {
    let mut pools = base.pools;
    for (name, news) in change.pools {
        let Some(old) = pools.remove(&name) else {
            pools.insert(name, PoolReport { removed: Vec::new(), ..news });
            continue;
        };
        let mut by_address: BTreeMap<String, WorkerReport> = BTreeMap::new();
        for worker in &news.workers {
            by_address.insert(worker.address.clone(), worker.clone());
        }
        let mut workers = Vec::new();
        for worker in old.workers.into_iter().filter(|worker| !news.removed.contains(&worker.address)) {
            workers.push(by_address.remove(&worker.address).unwrap_or(worker));
        }
        workers.extend(by_address.into_values());
        pools.insert(name, PoolReport { workers, removed: Vec::new(), ..news });
    }
    ViewDocument { base: None, pools, ..change }
}

fn check_changes(before: &ViewDocument, now: &ViewDocument) {
    let is_plain = |view: &ViewDocument| {
        view.pools.values().all(|pool| {
            let addresses: BTreeSet<&str> = pool.workers.iter().map(|worker| worker.address.as_str()).collect();
            addresses.len() == pool.workers.len()
        })
    };
    if !is_plain(before) || !is_plain(now) {
        return;
    }
    if let Some(pools) = changes(&before.pools, &now.pools) {
        let mut made = before.clone();
        made.apply(ViewDocument { base: Some(before.generation), pools, ..now.clone() });
        assert_eq!(said(&made.pools), said(&now.pools), "{before:?} and {now:?}");
    }
}

/// In the order of addresses and without ages, which are no news.
fn said(pools: &Pools) -> Pools {
    let mut pools = pools.clone();
    for pool in pools.values_mut() {
        pool.workers.sort_by(|one, other| one.address.cmp(&other.address));
        pool.workers.iter_mut().for_each(|worker| worker.scraped_ms_ago = 0);
    }
    pools
}
