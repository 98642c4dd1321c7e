//! What the control listener does: take views, show the state.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::directory::Directory;
use crate::keys::{Keys, SHARED_TENANT_SLOTS};
use crate::ledger::{Amount, LaneKey, Ledger};
use crate::members::Members;
use crate::policy::{Control, is_name};
use crate::record::{Record, Sections, Writer};
use crate::store::{self, Store, StoreError};
use crate::units::Time;
use crate::view::{PoolReport, VIEW_VERSION, ViewAnswer, ViewDocument, ViewRefusal, ViewSummary, Workers};

#[cfg(test)]
mod tests;

/// Path that takes views.
pub const VIEW_PATH: &str = "/sluice/v1/view";

/// Path that shows the state.
pub const STATE_PATH: &str = "/sluice/v1/state";

/// Most pools in one view: each becomes a key that stays.
const MAX_POOLS: usize = 1_024;

const SECTION_HEAD: u8 = 1;
const SECTION_DOCUMENT: u8 = 2;

/// The view that stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StandingView {
    epoch: u64,
    generation: u64,
    received: Time,
    document: Vec<u8>,
    unknown: Sections,
}

impl Record for StandingView {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.section(SECTION_HEAD, |out| {
            out.u64(self.epoch);
            out.u64(self.generation);
            out.u64(self.received.0);
        });
        writer.section(SECTION_DOCUMENT, |out| out.bytes(&self.document));
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut view = Self::default();
        view.unknown = Sections::read(bytes, |tag, mut reader| {
            match tag {
                SECTION_HEAD => {
                    (view.epoch, view.generation, view.received) = (reader.u64()?, reader.u64()?, Time(reader.u64()?))
                }
                SECTION_DOCUMENT => view.document = reader.rest().to_vec(),
                _ => return Some(false),
            }
            Some(true)
        })?;
        Some(view)
    }
}

/// Why a view was not taken.
#[derive(Clone, Debug, PartialEq)]
pub enum NotTaken {
    /// It is not a view (status 400).
    Malformed(String),
    /// Another one stands (status 409).
    Older(ViewRefusal),
    /// The record could not be changed (status 503).
    Store(StoreError),
}

/// Takes a posted view, if its generation follows within its epoch, its epoch is higher, or the view that stands is
/// older than `hold`: two sidecars during a rollout do not fight.
///
/// # Errors
/// [`NotTaken`]. Nothing has changed then, but with [`NotTaken::Store`], after which the next generation is to be pushed.
pub fn take_view(store: &impl Store, control: &Control, body: &[u8], now: Time) -> Result<ViewAnswer, NotTaken> {
    let document = parse(body).map_err(NotTaken::Malformed)?;
    let taken = store::update(store, &control.keys.view(), |standing: &mut StandingView| {
        let follows = document.epoch > standing.epoch
            || document.epoch == standing.epoch && document.generation > standing.generation
            || document.epoch != standing.epoch && now.since(standing.received) > control.hold;
        if !follows {
            return Err((standing.epoch, standing.generation));
        }
        standing.epoch = document.epoch;
        standing.generation = document.generation;
        standing.received = now;
        standing.document = body.to_vec();
        Ok(())
    });
    match taken.map_err(NotTaken::Store)? {
        Ok(()) => publish(store, &control.keys, &document, now).map_err(NotTaken::Store),
        Err((epoch, generation)) => Err(NotTaken::Older(ViewRefusal {
            error: format!(
                "generation {} of epoch {} does not follow generation {generation} of epoch {epoch}",
                document.generation, document.epoch
            ),
            epoch: Some(epoch),
            generation: Some(generation),
        })),
    }
}

fn parse(body: &[u8]) -> Result<ViewDocument, String> {
    let document: ViewDocument = serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(body))
        .map_err(|error| error.to_string())?;
    if document.version != VIEW_VERSION {
        return Err(format!("version {} is not {VIEW_VERSION}, the only one understood", document.version));
    }
    if document.pools.len() > MAX_POOLS {
        return Err(format!("{} pools are more than {MAX_POOLS}", document.pools.len()));
    }
    match document.pools.keys().find(|name| !is_name(name)) {
        Some(name) => Err(format!("pools: {name:?} is not the name of a pool")),
        None => Ok(document),
    }
}

/// Writes the records that requests read, as long as the document stands: another push may have overtaken this one.
fn publish(store: &impl Store, keys: &Keys, document: &ViewDocument, now: Time) -> Result<ViewAnswer, StoreError> {
    let mut admitted = BTreeMap::new();
    for (name, pool) in &document.pools {
        publish_pool(store, keys, document, (name, pool), now)?;
        admitted.insert(name.clone(), store::read::<Ledger>(store, &keys.pool(name))?.0.admitted());
    }
    Ok(ViewAnswer { epoch: document.epoch, generation: document.generation, admitted })
}

/// The workers go before the summary. Neither record ever goes back to an overtaken document, so whoever reads the
/// summary first and the workers then finds them of the same document or of a later one, and can tell by their epoch and
/// generation; never of one before.
fn publish_pool(
    store: &impl Store,
    keys: &Keys,
    document: &ViewDocument,
    (name, pool): (&str, &PoolReport),
    now: Time,
) -> Result<(), StoreError> {
    let workers = Workers::new(document, pool).encode();
    publish_record(store, keys, document, &keys.workers_of(name), &workers)?;
    let summary = ViewSummary::new(document, pool, now).encode();
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

/// Everything that is counted and known, as JSON.
///
/// # Errors
/// A record that is not Sluice's.
pub fn state(store: &impl Store, keys: &Keys, now: Time) -> Result<Value, StoreError> {
    let members: Members = store::read(store, &keys.members())?.0;
    let directory: Directory = store::read(store, &keys.directory())?.0;
    let view: StandingView = store::read(store, &keys.view())?.0;
    let mut pools = BTreeMap::new();
    for name in &directory.pools {
        let ledger: Ledger = store::read(store, &keys.pool(name))?.0;
        let summary = store.read(&keys.view_of(name)).0.and_then(|bytes| ViewSummary::decode(&bytes));
        pools.insert(name, pool_state(&ledger, &members, &directory, summary.as_ref(), now));
    }
    let mut tenants = BTreeMap::new();
    for name in &directory.tenants {
        let ledger: Ledger = store::read(store, &keys.tenant(name))?.0;
        tenants.insert(name, amount(ledger.held(&members)));
    }
    let mut shared = BTreeMap::new();
    for slot in 0..SHARED_TENANT_SLOTS {
        let ledger: Ledger = store::read(store, &keys.shared_tenant(slot))?.0;
        let held = ledger.held(&members);
        if !held.is_zero() {
            shared.insert(slot.to_string(), amount(held));
        }
    }
    let live: Vec<Value> = members
        .iter()
        .map(|member| json!({"slot": member.holder.slot, "epoch": member.holder.epoch, "heartbeat": member.heartbeat}))
        .collect();
    Ok(json!({
        "members": live, "pools": pools, "tenants": tenants, "shared_tenants": shared, "view": view_state(&view, now),
    }))
}

fn pool_state(
    ledger: &Ledger,
    members: &Members,
    directory: &Directory,
    view: Option<&ViewSummary>,
    now: Time,
) -> Value {
    let columns: Vec<Value> = ledger
        .live(members)
        .map(|column| {
            json!({
                "slot": column.holder.slot, "epoch": column.holder.epoch,
                "lane": lane_name(directory, column.lane), "held": amount(column.held),
            })
        })
        .collect();
    let view = view.map(|view| {
        json!({
            "age_ms": now.since(view.received).0, "generation": view.generation,
            "live_workers": view.live_workers, "free_workers": view.free_workers,
            "saturation": view.saturation,
            "kv_total_blocks": view.kv.map(|kv| kv.total), "kv_free_blocks": view.kv.map(|kv| kv.free),
        })
    });
    let between_releases = ledger.drain().time_for(1).map(|time| time.0);
    json!({
        "held": amount(ledger.held(members)), "columns": columns, "admitted": ledger.admitted(),
        "ms_between_releases": between_releases, "view": view,
    })
}

fn lane_name(directory: &Directory, key: LaneKey) -> String {
    let name = directory.lanes.iter().find(|name| LaneKey::of(name) == key);
    name.cloned().unwrap_or_else(|| format!("#{:08x}", key.0))
}

fn amount(held: Amount) -> Value {
    json!({"requests": held.requests, "tokens": held.tokens, "blocks": held.blocks})
}

fn view_state(view: &StandingView, now: Time) -> Value {
    if view.document.is_empty() {
        return Value::Null;
    }
    let document: Value = serde_json::from_slice(&view.document).unwrap_or_default();
    json!({
        "epoch": view.epoch, "generation": view.generation, "age_ms": now.since(view.received).0, "document": document,
    })
}
