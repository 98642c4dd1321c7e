//! What the control listener does: take views, show the state.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde::Deserialize;

use crate::directory::Directory;
use crate::gather::gather;
use crate::keys::Keys;
use crate::ledger::Ledger;
use crate::members::Members;
use crate::policy::{Control, is_name};
use crate::record::{Record, Sections, Writer};
use crate::store::{self, Store, StoreError};
use crate::units::{Millis, Time};
use crate::view::{
    Credit, FORM, PoolReport, Receipt, VIEW_VERSION, ViewAnswer, ViewDocument, ViewRefusal, ViewSummary, Workers,
};
use crate::vm::{Note, Wake};

pub mod pull;
mod state;
#[cfg(test)]
mod tests;

pub use state::state;

/// Path that takes views.
pub const VIEW_PATH: &str = "/sluice/v1/view";

/// Path that shows the state.
pub const STATE_PATH: &str = "/sluice/v1/state";

/// Most pools in one view: each becomes a key that stays.
pub const MAX_POOLS: usize = 1_024;

const SECTION_HEAD: u8 = 1;

/// Which view stands. What it says is in the records of its pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StandingView {
    epoch: u64,
    generation: u64,
    received: Time,
    unknown: Sections,
}

/// Time at which the last view has come; `None` before the first.
#[must_use]
pub fn view_received(store: &impl Store, keys: &Keys) -> Option<Time> {
    let (standing, _) = store::read::<StandingView>(store, &keys.view()).ok()?;
    (standing != StandingView::default()).then_some(standing.received)
}

impl Record for StandingView {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.section(SECTION_HEAD, |out| {
            out.u64(self.epoch);
            out.u64(self.generation);
            out.u64(self.received.0);
        });
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut view = Self::default();
        view.unknown = Sections::read(bytes, |tag, mut reader| {
            if tag != SECTION_HEAD {
                return Some(false);
            }
            (view.epoch, view.generation, view.received) = (reader.u64()?, reader.u64()?, Time(reader.u64()?));
            Some(true)
        })?;
        Some(view)
    }
}

/// A view that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// What the sidecar is answered.
    pub answer: ViewAnswer,
    /// For the VMs whose waiters may start now.
    pub wakes: Vec<Wake>,
}

/// Why a view was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum NotTaken {
    /// The body is not a view (status 400).
    Malformed(String),
    /// Another one stands (status 409).
    Older(ViewRefusal),
    /// It changes a view that is not held here (status 409).
    Baseless(ViewRefusal),
    /// The record could not be changed (status 503).
    Store(StoreError),
}

/// Takes views. It keeps the last document, so that the next one need only say what has changed.
///
/// Documents that others have taken meanwhile change nothing about that: a change is always applied to its own base, and
/// which document stands is decided on the shared record alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Receiver {
    keys: Keys,
    hold: Millis,
    last: Option<ViewDocument>,
}

impl Receiver {
    /// Of the records of `keys`, where a view of another sidecar that is older than `hold` may be replaced.
    #[must_use]
    pub fn new(keys: Keys, hold: Millis) -> Self {
        Self { keys, hold, last: None }
    }

    /// Of a control listener.
    #[must_use]
    pub fn of(control: &Control) -> Self {
        Self::new(control.keys.clone(), control.hold)
    }

    /// Takes a view, if its generation follows within its epoch, its epoch is higher, or the view that stands is older than
    /// `hold`: two sidecars during a rollout do not fight.
    ///
    /// # Errors
    /// [`NotTaken`]. Nothing has changed then, but with [`NotTaken::Store`], after which the next generation is to be pushed.
    pub fn take(&mut self, store: &impl Store, body: &[u8], now: Time) -> Result<Taken, NotTaken> {
        let mut document = self.whole(parse(body).map_err(NotTaken::Malformed)?)?;
        self.stand(store, &document, now)?;
        let taken = publish(store, &self.keys, &document, now).map_err(NotTaken::Store)?;
        // Why: the changes of later documents are applied to this one, when the proxy may have admitted as many again.
        document.drop_counts_above(&taken.answer.admitted);
        self.last = Some(document);
        Ok(taken)
    }

    /// The document, or what it makes of its base.
    fn whole(&mut self, document: ViewDocument) -> Result<ViewDocument, NotTaken> {
        let Some(base) = document.base else { return Ok(document) };
        match self.last.take().filter(|last| (last.epoch, last.generation) == (document.epoch, base)) {
            Some(mut whole) => {
                whole.apply(document);
                Ok(whole)
            }
            None => Err(NotTaken::Baseless(ViewRefusal {
                error: format!("generation {base} of epoch {} is not held here; send the whole view", document.epoch),
                needs_whole: true,
                ..ViewRefusal::default()
            })),
        }
    }

    /// Makes the document the one that stands.
    fn stand(&self, store: &impl Store, document: &ViewDocument, now: Time) -> Result<(), NotTaken> {
        let stands = store::update(store, &self.keys.view(), |standing: &mut StandingView| {
            let follows = document.epoch > standing.epoch
                || document.epoch == standing.epoch && document.generation > standing.generation
                || document.epoch != standing.epoch && now.since(standing.received) > self.hold;
            if !follows {
                return Err((standing.epoch, standing.generation));
            }
            (standing.epoch, standing.generation, standing.received) = (document.epoch, document.generation, now);
            Ok(())
        });
        stands.map_err(NotTaken::Store)?.map_err(|(epoch, generation)| {
            NotTaken::Older(ViewRefusal {
                error: format!(
                    "generation {} of epoch {} does not follow generation {generation} of epoch {epoch}",
                    document.generation, document.epoch
                ),
                epoch: Some(epoch),
                generation: Some(generation),
                needs_whole: false,
            })
        })
    }
}

fn parse(body: &[u8]) -> Result<ViewDocument, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    // Why no path to the place, as configurations have: to read views by another way too costs some 20 KB of the module.
    let document = ViewDocument::deserialize(&mut json).map_err(|error| error.to_string())?;
    json.end().map_err(|error| error.to_string())?;
    if document.version != VIEW_VERSION {
        return Err(format!("version {} is not {VIEW_VERSION}, the only one understood", document.version));
    }
    if document.pools.len() > MAX_POOLS {
        return Err(format!("{} pools are more than {MAX_POOLS}", document.pools.len()));
    }
    if document.base.is_none() && document.pools.values().any(|pool| !pool.removed.is_empty()) {
        return Err("pools: `removed` is for a document with a `base`".into());
    }
    match document.pools.keys().find(|name| !is_name(name)) {
        Some(name) => Err(format!("pools: {name:?} is not the name of a pool")),
        None => Ok(document),
    }
}

/// Writes the records that requests read, as long as the document stands: another push may have overtaken this one.
fn publish(store: &impl Store, keys: &Keys, document: &ViewDocument, now: Time) -> Result<Taken, StoreError> {
    let members: Members = store::read(store, &keys.members())?.0;
    let mut answer =
        ViewAnswer { epoch: document.epoch, generation: document.generation, form: FORM, ..ViewAnswer::default() };
    answer.needs = needs(store, keys, &members);
    let mut wakes = Vec::new();
    for (name, pool) in &document.pools {
        let (credit, ledger) = acknowledge(store, keys, name, &members, now)?;
        publish_pool(store, keys, document, name, pool, credit, now)?;
        let key: Rc<str> = keys.pool(name).into();
        answer.admitted.insert(name.clone(), credit.admitted);
        answer.held.extend(credit.held.map(|held| (name.clone(), held)));
        answer.queued.insert(name.clone(), queued_in(&ledger, &members));
        answer.demand.get_or_insert_default().insert(name.clone(), ledger.demand(&members));
        // What has changed may let in many, and who comes first is for those to say who know the lanes.
        let waiting: BTreeSet<u16> = gather(ledger.firsts(&members).map(|(holder, _)| holder.slot));
        wakes.extend(waiting.into_iter().map(|slot| Wake { slot, note: Note::Start(Rc::clone(&key)) }));
    }
    Ok(Taken { answer, wakes })
}

/// Counts of a pool for an answer to a view, and the record that they are noted in.
fn acknowledge(
    store: &impl Store,
    keys: &Keys,
    pool: &str,
    members: &Members,
    now: Time,
) -> Result<(Credit, Ledger), StoreError> {
    let standing = standing_summary(store, keys, pool);
    let seen = standing.map_or(0, |view| view.credit.admitted.requests);
    let (key, mut left) = (keys.pool(pool), Ledger::default());
    let noted = store::update(store, &key, |ledger: &mut Ledger| {
        let credit = ledger.acknowledge(members, seen, now);
        left = ledger.clone();
        credit
    });
    match noted {
        Ok(Ok(credit) | Err(credit)) => Ok((credit, left)),
        // Why no failure: the counts of the last answer are as good, and no view waits for a record that many write.
        Err(StoreError::Contention { .. }) => {
            let ledger = store::read::<Ledger>(store, &key)?.0;
            Ok((ledger.last_acknowledged(), ledger))
        }
        Err(error) => Err(error),
    }
}

/// Pools that the policies of live VMs need views of.
// Why no error where the directory cannot be read: no view waits for it.
fn needs(store: &impl Store, keys: &Keys, members: &Members) -> BTreeSet<String> {
    store::read::<Directory>(store, &keys.directory())
        .map(|(directory, _)| directory.need_views(members))
        .unwrap_or_default()
}

fn standing_summary(store: &impl Store, keys: &Keys, pool: &str) -> Option<ViewSummary> {
    store.read(&keys.view_of(pool)).0.and_then(|bytes| ViewSummary::decode(&bytes))
}

/// Requests that wait for a pool, of live VMs.
fn queued_in(ledger: &Ledger, members: &Members) -> u64 {
    ledger.waiting(members).map(|(_, backlog)| backlog.requests).sum()
}

/// The blocks of the workers go before the workers, and these before the summary. No record ever goes back to an overtaken document, so whoever reads the
/// summary first, then the workers and then their blocks finds these of the same document or of a later one, and can tell by their epoch and
/// generation; never of one before.
fn publish_pool(
    store: &impl Store,
    keys: &Keys,
    document: &ViewDocument,
    name: &str,
    pool: &PoolReport,
    credit: Credit,
    at: Time,
) -> Result<(), StoreError> {
    let before = standing_summary(store, keys, name);
    let workers = Workers::new(document, pool, credit.admitted);
    publish_record(store, keys, document, &keys.worker_blocks_of(name), &workers.encode_takes())?;
    publish_record(store, keys, document, &keys.workers_of(name), &workers.encode())?;
    let summary = ViewSummary::new(document, pool, &Receipt { at, acknowledged: credit, before }).encode();
    publish_record(store, keys, document, &keys.view_of(name), &summary)
}

fn publish_record(
    store: &impl Store,
    keys: &Keys,
    document: &ViewDocument,
    key: &str,
    bytes: &[u8],
) -> Result<(), StoreError> {
    for _ in 0..store::MAX_ATTEMPTS {
        let (_, version) = store.read(key);
        // Read after the version: a push that is taken from here on writes its own record behind this one.
        let standing: StandingView = store::read(store, &keys.view())?.0;
        let overtaken = (standing.epoch, standing.generation) != (document.epoch, document.generation);
        if overtaken || store.write(key, bytes, version).is_ok() {
            return Ok(());
        }
    }
    Err(StoreError::Contention { key: key.to_owned() })
}
