//! Nobody barges: of the requests that could start now, the first in line starts, over all worker threads.

use super::sight::{Scene, Sight};
use super::{Ask, Held, Known, Rules};
use crate::hash;
use crate::ledger::{FlowKey, Head, Ledger};
use crate::members::{Holder, Members};
use crate::outcome::{Detail, Reason, Refusal};
use crate::policy::{Lane, Lanes, Order, Pool};
use crate::units::{Millis, Time};

/// Where a request stands in line.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The lane it counts as, after what it has climbed.
    pub band: &'a Lane,
    /// Names its tenant.
    pub flow: u64,
    /// Among its tenant's; lower goes first.
    pub urgency: u64,
    /// Size of its body, as far as it is known.
    pub bytes: u64,
    /// The VM in which it waits; `None` for one that has just come.
    pub waits_in: Option<Holder>,
}

/// Place in line: lower goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Its lane has all that is reserved for it, or nothing is.
    above_reserve: bool,
    band: usize,
    tag: u64,
    urgency: u64,
    /// Only to tell two apart.
    slot: u16,
}

/// A request that has just come stands behind one that waits and is like it.
const LAST: u16 = u16::MAX;

/// Names a tenant among those that wait.
#[must_use]
pub fn flow_of(tenant_key: &str) -> u64 {
    hash::stable(tenant_key.as_bytes())
}

/// Which of a tenant's requests goes first: the lowest.
#[must_use]
pub fn urgency(lane: &Lane, ask: &Ask, deadline: Option<Millis>, arrived: Time) -> u64 {
    let Some(queue) = &lane.queue else { return arrived.0 };
    match queue.order {
        Order::Fcfs => arrived.0,
        Order::Edf => arrived.0.saturating_add(deadline.map_or(queue.max_wait.0, |deadline| deadline.0)),
        Order::ShortestFirst => ask.cost().tokens.0,
    }
}

/// The VM whose waiter is to start next, if its lane lets it; `except` is not asked.
#[must_use]
pub fn next_in_line(
    pool: &Pool,
    lanes: &Lanes,
    known: Known<'_>,
    (ledger, members): (&Ledger, &Members),
    except: Option<Holder>,
    now: Time,
) -> Option<Holder> {
    let scene = Scene { pool, lanes, sight: Sight::of(known.view, pool, now), ledger, members };
    let others = ledger.heads(members).filter(|(holder, _)| Some(*holder) != except);
    let open = others.filter(|(_, head)| scene.is_open(lanes.at(lanes.position_of(head.lane))));
    open.min_by_key(|(holder, head)| rank_of(&scene, *holder, head)).map(|(holder, _)| holder)
}

/// Where a request of a lane stands that counts as another one.
#[must_use]
pub fn rank(
    pool: &Pool,
    lanes: &Lanes,
    known: Known<'_>,
    (ledger, members): (&Ledger, &Members),
    head: &Head,
    now: Time,
) -> Rank {
    let scene = Scene { pool, lanes, sight: Sight::of(known.view, pool, now), ledger, members };
    rank_of(&scene, Holder { slot: 0, epoch: 0 }, head)
}

/// Of one tenant's heads each says what its VM last saw of the tenant's tag. The highest is the newest but for what has been
/// given back since, so it goes for all of them, and among them urgency alone decides.
fn rank_of(scene: &Scene<'_>, holder: Holder, head: &Head) -> Rank {
    let lane = scene.lanes.at(scene.lanes.position_of(head.lane));
    let alike = |other: &&Head| other.flow == head.flow && other.band == head.band;
    let heads = scene.ledger.heads(scene.members).map(|(_, other)| other);
    let tag = heads.filter(alike).map(|other| other.tag).fold(head.tag, u64::max);
    Rank {
        above_reserve: !scene.is_below_reserve(lane),
        band: scene.lanes.position_of(head.band),
        tag,
        urgency: head.urgency,
        slot: holder.slot,
    }
}

/// Nobody waits for the pool who comes first and could start. Who is kept back only by a limit of a lane of their own holds
/// back nobody.
pub(super) fn first_in_line(
    scene: &Scene<'_>,
    turn: &Turn<'_>,
    rules: Rules<'_>,
    held: Held<'_>,
) -> Result<(), Refusal> {
    if held.pool.nobody_waits() {
        return Ok(());
    }
    let flow = FlowKey::of(&scene.pool.key, turn.band.key);
    let head = Head {
        band: turn.band.key,
        lane: rules.lane.key,
        flow: turn.flow,
        tag: held.tenant.start_tag(flow, held.pool.virtual_time(turn.band.key)),
        urgency: turn.urgency,
    };
    let mine = turn.waits_in.unwrap_or(Holder { slot: LAST, epoch: 0 });
    let rank = rank_of(scene, mine, &head);
    let others = held.pool.heads(held.members).filter(|(holder, _)| Some(*holder) != turn.waits_in);
    let before = others.filter(|(holder, head)| rank_of(scene, *holder, head) < rank);
    let mut open = before.filter(|(_, head)| scene.is_open(scene.lanes.at(scene.lanes.position_of(head.lane))));
    if open.next().is_some() { Err(behind(Reason::OthersFirst, (held.pool, held.members))) } else { Ok(()) }
}

/// Nobody of the same tenant waits for the tenant's own caps who comes first.
pub(super) fn first_of_its_tenant(turn: &Turn<'_>, rules: Rules<'_>, held: Held<'_>) -> Result<(), Refusal> {
    let mine = (turn.band.position, turn.urgency, turn.waits_in.map_or(LAST, |holder| holder.slot));
    let mut before = held.tenant.blocked(held.members).filter(|(holder, first)| {
        Some(*holder) != turn.waits_in && (rules.lanes.position_of(first.band), first.urgency, holder.slot) < mine
    });
    if before.next().is_some() { Err(behind(Reason::OwnFirst, (held.tenant, held.members))) } else { Ok(()) }
}

fn behind(reason: Reason, counted: (&Ledger, &Members)) -> Refusal {
    Refusal { reason, limit: None, detail: Detail::None, retry: super::advice(Some(counted), 1), place: None }
}
