//! The state page.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::StandingView;
use crate::budget::{Budgets, Standing};
use crate::directory::{Directory, Held};
use crate::gather::gather;
use crate::keys::{Keys, SHARED_TENANT_SLOTS, UNNAMED_RECORDS};
use crate::ledger::{Amount, Backlog, FlowKey, LaneKey, Ledger, TallyKey};
use crate::members::Members;
use crate::outcome::Reason;
use crate::store::{self, Conflict, Store, StoreError, Version};
use crate::units::Time;
use crate::unnamed::Unnamed;
use crate::view::{ViewSummary, Workers};

/// Everything that is counted and known, as JSON.
///
/// # Errors
/// A record that is not Sluice's.
pub fn state(store: &impl Store, keys: &Keys, now: Time) -> Result<Value, StoreError> {
    let store = &Found { store, records: Cell::new(0) };
    let members: Members = store::read(store, &keys.members())?.0;
    let directory: Directory = store::read(store, &keys.directory())?.0;
    let view: StandingView = store::read(store, &keys.view())?.0;
    let mut pools = BTreeMap::new();
    for name in &directory.pools {
        let ledger: Ledger = store::read(store, &keys.pool(name))?.0;
        let summary = store.read(&keys.view_of(name)).0.and_then(|bytes| ViewSummary::decode(&bytes));
        let workers = store.read(&keys.workers_of(name)).0.and_then(|bytes| Workers::decode(&bytes));
        let blocks = store.read(&keys.worker_blocks_of(name)).0.unwrap_or_default();
        let workers = workers.map(|workers| workers.with_takes(&blocks));
        let seen = Seen { summary: summary.as_ref(), workers: workers.as_ref() };
        pools.insert(name, pool_state(&ledger, &members, &directory, seen, now));
    }
    let (mut tenants, mut fair_tags) = (BTreeMap::new(), BTreeMap::new());
    for name in &directory.tenants {
        let ledger: Ledger = store::read(store, &keys.tenant(name))?.0;
        tenants.insert(name, tenant_state(&ledger, &members, now));
        let tags = fair_tags_of(&ledger, keys, &directory);
        if !tags.is_empty() {
            fair_tags.insert(name, tags);
        }
    }
    let mut shared = BTreeMap::new();
    for slot in 0..SHARED_TENANT_SLOTS {
        let ledger: Ledger = store::read(store, &keys.shared_tenant(slot))?.0;
        let held = ledger.held(&members);
        if !held.is_zero() {
            shared.insert(slot.to_string(), amount(held));
        }
    }
    let mut unnamed = BTreeMap::new();
    for record in 0..UNNAMED_RECORDS {
        let ledgers: Unnamed = store::read(store, &keys.unnamed_tenants(record))?.0;
        let of_interest =
            ledgers.iter().filter(|(_, ledger)| !ledger.held(&members).is_zero() || ledger.budgets(now).owe());
        unnamed.extend(of_interest.map(|(name, ledger)| (name.to_owned(), tenant_state(&ledger, &members, now))));
    }
    let live: Vec<Value> = members
        .iter()
        .map(|member| json!({"slot": member.holder.slot, "epoch": member.holder.epoch, "heartbeat": member.heartbeat}))
        .collect();
    Ok(json!({
        "members": live, "policies": policies(&directory, &members), "pools": pools, "tenants": tenants, "fair_tags": fair_tags,
        "unnamed_tenants": unnamed, "shared_tenants": shared,
        "view": view_state(&view, now),
        "records": store.records.get(),
    }))
}

/// Policies that VMs decide by, with the slots of these.
fn policies(directory: &Directory, members: &Members) -> Vec<Value> {
    let mut slots: BTreeMap<&Held, Vec<u16>> = BTreeMap::new();
    for (holder, held) in directory.policies(members) {
        slots.entry(held).or_default().push(holder.slot);
    }
    let policies = slots
        .into_iter()
        .map(|(held, slots)| json!({"fingerprint": held.fingerprint, "slots": slots, "shadow": held.shadows}));
    policies.collect()
}

/// Counts the records that are there. Each is read once.
struct Found<'a, S> {
    store: &'a S,
    records: Cell<u64>,
}

impl<S: Store> Store for Found<'_, S> {
    fn read(&self, key: &str) -> (Option<Vec<u8>>, Version) {
        let (value, version) = self.store.read(key);
        self.records.set(self.records.get() + u64::from(value.is_some()));
        (value, version)
    }

    fn write(&self, key: &str, value: &[u8], expected: Version) -> Result<(), Conflict> {
        self.store.write(key, value, expected)
    }
}

/// A tenant's holdings, and what is left of its budgets where it has some.
fn tenant_state(ledger: &Ledger, members: &Members, now: Time) -> Value {
    let mut state = amount(ledger.held(members));
    if let (Value::Object(fields), Some(budgets)) = (&mut state, budgets(ledger, now)) {
        fields.insert("budgets".to_owned(), budgets);
    }
    state
}

fn budgets(ledger: &Ledger, now: Time) -> Option<Value> {
    let Budgets { requests, tokens } = ledger.budgets(now);
    let known = [("requests", requests), ("tokens", tokens)].into_iter().filter_map(|(name, standing)| {
        let Standing { limit, remaining, reset, window } = standing?;
        let left = json!({"limit": limit, "remaining": remaining, "reset_ms": reset.0, "window_ms": window.0});
        Some((name.to_owned(), left))
    });
    let known: Vec<(String, Value)> = known.collect();
    (!known.is_empty()).then(|| Value::Object(known.into_iter().collect()))
}

/// What the sidecar last said of a pool.
#[derive(Clone, Copy)]
struct Seen<'a> {
    summary: Option<&'a ViewSummary>,
    workers: Option<&'a Workers>,
}

fn pool_state(ledger: &Ledger, members: &Members, directory: &Directory, seen: Seen<'_>, now: Time) -> Value {
    let columns: Vec<Value> = ledger
        .live(members)
        .map(|(holder, column)| {
            json!({
                "slot": holder.slot, "epoch": holder.epoch,
                "lane": lane_name(directory, column.lane), "held": amount(column.held),
            })
        })
        .collect();
    let tallied = |key| ledger.tallied(key, members);
    let classes = directory.classes.iter().map(|name| (name, tallied(TallyKey::class(name))));
    let classes: BTreeMap<_, _> = gather(classes.filter(|(_, requests)| *requests > 0));
    let refusing: Vec<_> = seen.summary.into_iter().flat_map(|view| ledger.marked(view.stamp(), now)).collect();
    let credit = seen.summary.map(|view| view.credit).unwrap_or_default();
    let workers = seen.workers.into_iter().flat_map(|workers| &workers.list).map(|worker| {
        let (key, shown) = (TallyKey::worker(worker.key), ledger.seen_at_worker(credit, worker.takes.admitted));
        json!({
            "address": worker.address, "live": worker.live, "free": worker.free,
            "load": worker.load, "kv_permille": worker.kv_permille,
            "refusing": refusing.contains(&worker.key), "steered": tallied(key),
            "unseen_blocks": ledger.unseen_at_worker(key, shown, members),
            "blocks_until_busy": worker.takes.until_busy,
        })
    });
    let workers: Vec<Value> = workers.collect();
    let unseen = |view: &ViewSummary| ledger.unseen(view.credit, members);
    let listed = seen.workers.into_iter().flat_map(|workers| &workers.list);
    let shown = listed.map(|worker| {
        let since = |admitted| {
            let seen = ledger.seen_at_worker(credit, admitted);
            ledger.unseen_at_worker(TallyKey::worker(worker.key), seen, members).0
        };
        since(None).saturating_sub(since(worker.takes.admitted))
    });
    let shown: u64 = shown.sum();
    let view = seen.summary.map(|view| {
        json!({
            "age_ms": now.since(view.received).0, "generation": view.generation,
            "live_workers": view.live_workers, "free_workers": view.free_workers, "other_proxies": view.other_proxies,
            "saturation": view.saturation, "full_requests": view.full_requests, "full_blocks": view.full_blocks,
            "unseen_requests": unseen(view).requests, "unseen_blocks": unseen(view).blocks, "shown_blocks": shown,
            "kv_total_blocks": view.kv.map(|kv| kv.all.total), "kv_free_blocks": view.kv.map(|kv| kv.all.free),
            "kv_freest_blocks": view.kv.and_then(|kv| kv.freest).map(|cache| cache.free),
            "kv_unknown_workers": view.kv_unknown, "kv_block_size": view.block_size,
        })
    });
    let between_releases = ledger.time_to_free(1, members).map(|time| time.0);
    json!({
        "held": amount(ledger.held(members)), "columns": columns, "admitted": ledger.admitted(),
        "waiting": waiting(ledger, members, directory, now),
        "classes": classes, "workers": workers, "ms_between_releases": between_releases, "view": view,
        "prefill": {"tokens": ledger.prompts_being_read(members), "tokens_per_second": ledger.tokens_read_in_a_second()},
        "line_kept_ms": ledger.line_kept_for(now).0, "budgets": budgets(ledger, now),
    })
}

/// Who waits, by lane.
fn waiting(ledger: &Ledger, members: &Members, directory: &Directory, now: Time) -> BTreeMap<String, Value> {
    let mut lanes: BTreeMap<String, Backlog> = BTreeMap::new();
    for (lane, backlog) in ledger.waiting(members) {
        let all = lanes.entry(lane_name(directory, lane)).or_default();
        *all = all.plus(backlog);
    }
    let kept_by = |lane: &str| -> BTreeSet<&str> {
        let of_lane = ledger.kept(members).filter(|kept| lane_name(directory, kept.lane) == lane);
        gather(of_lane.filter_map(|kept| kept.reason).map(Reason::label))
    };
    let for_rates = |lane: &str| -> u64 {
        let of_lane = ledger.rated(members).filter(|(_, key, _)| lane_name(directory, *key) == lane);
        of_lane.fold(0, |sum, (.., rated)| sum.saturating_add(rated.requests))
    };
    gather(lanes.into_iter().map(|(lane, Backlog { requests, tokens, bytes, oldest, aside })| {
        let (oldest_ms, kept_by, for_rates) = (now.since(oldest).0, kept_by(&lane), for_rates(&lane));
        let state = json!({
            "requests": requests, "tokens": tokens, "bytes": bytes, "oldest_ms": oldest_ms,
            "aside": aside, "for_rates": for_rates, "kept_by": kept_by,
        });
        (lane, state)
    }))
}

/// A tenant's fair tags by pool and lane, of those where it has one.
fn fair_tags_of(ledger: &Ledger, keys: &Keys, directory: &Directory) -> BTreeMap<String, u64> {
    let mut tags = BTreeMap::new();
    for pool in &directory.pools {
        for lane in &directory.lanes {
            let tag = ledger.finish_tag(FlowKey::of(&keys.pool(pool), LaneKey::of(lane)));
            if tag > 0 {
                tags.insert(format!("{pool}/{lane}"), tag);
            }
        }
    }
    tags
}

fn lane_name(directory: &Directory, key: LaneKey) -> String {
    let name = directory.lanes.iter().find(|name| LaneKey::of(name) == key);
    name.cloned().unwrap_or_else(|| format!("#{:08x}", key.0))
}

fn amount(held: Amount) -> Value {
    json!({"requests": held.requests, "tokens": held.tokens, "blocks": held.blocks})
}

fn view_state(view: &StandingView, now: Time) -> Value {
    if (view.epoch, view.generation) == (0, 0) {
        return Value::Null;
    }
    json!({"epoch": view.epoch, "generation": view.generation, "age_ms": now.since(view.received).0})
}
