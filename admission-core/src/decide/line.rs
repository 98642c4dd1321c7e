//! Nobody barges: of the requests that could start now, the first in line starts, over all worker threads.

use std::collections::{BTreeMap, BTreeSet};

use super::sight::Scene;
use super::{Held, Known, Rules};
use crate::ask::Ask;
use crate::gather::gather;
use crate::hash;
use crate::ledger::{Blocked, Counted, FlowKey, Head, LAST_STARTS, LaneKey, Order, Part, Starts, SubFlow};
use crate::members::Holder;
use crate::outcome::{Detail, Reason, Refusal};
use crate::policy::{self, Lane, Lanes, Pool};
use crate::units::{Blocks, Millis, Time, Tokens};

/// Where a request stands in line.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The lane that it counts as after what it has climbed, whose ceiling, budget and reserve it is held to.
    pub band: &'a Lane,
    /// True for a waiter that has climbed above the default lane, whatever it counts as.
    pub has_climbed_far: bool,
    /// Names its tenant.
    pub flow: u64,
    /// Part of its tenant's requests that it belongs to, where a header names one.
    pub sub: Option<SubFlow>,
    /// Among its tenant's; lower goes first.
    pub urgency: u64,
    /// Size of its body, as far as it is known.
    pub bytes: u64,
    /// The VM in which it waits; `None` for one that has just come.
    pub waits_in: Option<Holder>,
    /// Blocks that the least of those like it needs that wait in its own VM before it; `None` where none does.
    pub behind_its_like: Option<Blocks>,
}

/// Place in line: lower goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Its lane has all that is reserved for it, or nothing is.
    above_reserve: bool,
    level: usize,
    tag: u64,
    /// Urgency of the first of its tenant, which is another's where a header parts the tenant's requests: its own place is among those.
    first: u64,
    /// Tenant and tag of its sub-flow.
    within: Option<(u64, u64)>,
    urgency: u64,
    /// Only to tell two apart.
    slot: u16,
}

/// A request that has just come is behind one that waits and is like it.
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
        policy::Order::Fcfs => arrived.0,
        policy::Order::Edf => arrived.0.saturating_add(deadline.map_or(queue.max_wait.0, |deadline| deadline.0)),
        policy::Order::ShortestFirst => ask.cost().tokens.0,
    }
}

/// All who wait for a pool, as far as their VMs say.
pub struct Line<'a> {
    scene: Scene<'a>,
    order: Ordering,
}

/// Values that the places of all waiters depend on.
struct Ordering {
    /// Of one tenant's heads each says what its VM last saw of the tenant's tag. The highest is the newest but for what has
    /// been given back since, so it goes for all of them, and among them urgency alone decides.
    tags: BTreeMap<(u64, usize), u64>,
    /// Tag of its sub-flow and urgency of each tenant's first head, where a header parts its requests.
    firsts: BTreeMap<(u64, usize), (u64, u64)>,
    /// Highest tag that a VM has seen of each sub-flow of a tenant: the newest, as of the tenants.
    within: BTreeMap<(u64, usize, SubFlow), u64>,
    below_reserve: BTreeSet<LaneKey>,
    /// Lanes in which the shortest request goes first among tenants.
    across_tenants: BTreeMap<LaneKey, Near>,
}

/// Fair tags that count as one, from the lowest of a lane on.
#[derive(Clone, Copy, Debug)]
struct Near {
    lowest: u64,
    span: u64,
}

/// Span of fair tags within which the shortest request of a lane goes first, whichever tenant's it is; 0 where tenants take turns.
#[must_use]
pub fn span_across_tenants(lane: &Lane, Counted { ledger, members }: Counted<'_>) -> u64 {
    let after = lane.queue.as_ref().and_then(|queue| queue.across_tenants_after);
    after.map_or(0, |after| ledger.span_beyond(lane.key, after, members))
}

impl Near {
    /// The tag that a tag counts as.
    fn of(self, tag: u64) -> u64 {
        if tag > self.lowest && tag - self.lowest < self.span { self.lowest } else { tag }
    }
}

impl<'a> Line<'a> {
    /// True where no limit of the lane that a waiter counts as keeps it, and all like it, from starting.
    #[must_use]
    pub fn is_open_for(&self, head: &Head) -> bool {
        self.scene.is_open_for(head)
    }

    /// The line as a record shows it.
    #[must_use]
    pub fn of(pool: &'a Pool, lanes: &'a Lanes, known: Known<'a>, counted: Counted<'a>, now: Time) -> Self {
        let scene = Scene::of(pool, lanes, known, counted, now);
        Self { order: Ordering::of(&scene), scene }
    }

    /// The VM whose waiter is to start next, if its lane lets it; `except` is not asked.
    #[must_use]
    pub fn next(&self, except: Option<Holder>) -> Option<Holder> {
        let others = self.scene.heads().filter(|(holder, _)| Some(*holder) != except);
        let open = others.filter(|(_, head)| self.scene.is_open_for(head));
        open.min_by_key(|(holder, head)| self.place(*holder, head)).map(|(holder, _)| holder)
    }

    /// The starts that bound waiters above the default lane, see [`crate::ledger::Ledger::climbed_starts`]; `None` where nothing does.
    #[must_use]
    pub fn climbers_bound(&self) -> Option<u32> {
        climbers_bound(&self.scene)
    }

    /// Rank of a waiter of this VM.
    #[must_use]
    pub fn rank(&self, head: &Head) -> Rank {
        self.place(Holder { slot: 0, epoch: 0 }, head)
    }

    fn place(&self, holder: Holder, head: &Head) -> Rank {
        self.order.place(self.scene.lanes, holder, head)
    }
}

impl Ordering {
    fn of(scene: &Scene<'_>) -> Self {
        let (mut tags, mut within) = (BTreeMap::new(), BTreeMap::new());
        for (_, head) in scene.heads() {
            let flow = (head.flow, scene.lanes.level_of(head.band));
            let tag = tags.entry(flow).or_insert(head.tag);
            *tag = head.tag.max(*tag);
            if let Some((sub, tag)) = head.within {
                let highest = within.entry((flow.0, flow.1, sub)).or_insert(tag);
                *highest = tag.max(*highest);
            }
        }
        let near = |lane: &Lane| {
            let span = span_across_tenants(lane, scene.ledger.counted(scene.members));
            let own = tags.iter().filter(|((_, level), _)| *level == lane.level).map(|(_, tag)| *tag);
            Some((lane.key, Near { lowest: own.min()?, span })).filter(|_| span > 0)
        };
        let across_tenants = gather(scene.lanes.iter().filter_map(|lane| near(lane)));
        let below_reserve = gather(scene.below_reserve().map(|lane| lane.key));
        let mut order = Self { tags, firsts: BTreeMap::new(), within, below_reserve, across_tenants };
        scene.heads().for_each(|(_, head)| order.note_first(scene.lanes, head));
        order
    }

    /// Adds a request that is not among the heads, given what its tenant's tags are now, in place of what VMs last saw of them.
    fn add(&mut self, scene: &Scene<'_>, head: &Head, starts: &Starts) {
        let flow = (head.flow, scene.lanes.level_of(head.band));
        let own = self.within.iter_mut().filter(|((tenant, level, _), _)| (*tenant, *level) == flow);
        own.for_each(|((.., sub), tag)| *tag = starts.within(Some(*sub)));
        self.firsts.remove(&flow);
        let others = scene.heads().map(|(_, other)| other).filter(|other| other.flow == head.flow);
        others.chain([head]).for_each(|head| self.note_first(scene.lanes, head));
    }

    fn note_first(&mut self, lanes: &Lanes, head: &Head) {
        let level = lanes.level_of(head.band);
        if let Some(tag) = self.within(level, head) {
            let first = self.firsts.entry((head.flow, level)).or_insert((tag, head.urgency));
            *first = (tag, head.urgency).min(*first);
        }
    }

    /// Tag of a head's sub-flow.
    fn within(&self, level: usize, head: &Head) -> Option<u64> {
        let (sub, tag) = head.within?;
        let highest = self.within.get(&(head.flow, level, sub)).copied();
        Some(highest.map_or(tag, |highest| tag.max(highest)))
    }

    fn place(&self, lanes: &Lanes, holder: Holder, head: &Head) -> Rank {
        let level = lanes.level_of(head.band);
        // Why not of one that has climbed there: it is counted in the lane that it came for, so it would never use the reserve up.
        let has_reserve = head.lane == head.band && self.below_reserve.contains(&head.band);
        let tag = self.tags.get(&(head.flow, level)).map_or(head.tag, |tag| head.tag.max(*tag));
        // Why not of one that has climbed there: its urgency may be another lane's, and no size.
        let near = self.across_tenants.get(&head.band).filter(|_| head.lane == head.band);
        let within = self.within(level, head).map(|tag| (head.flow, tag));
        // Why none for others: each is the first of its tenant in its VM, and urgency decides among these.
        let first = within.and_then(|_| self.firsts.get(&(head.flow, level)));
        Rank {
            above_reserve: !has_reserve,
            level,
            tag: near.map_or(tag, |near| near.of(tag)),
            first: first.map_or(head.urgency, |(_, urgency)| *urgency),
            within,
            urgency: head.urgency,
            slot: holder.slot,
        }
    }
}

/// Nobody waits for the pool who comes first and could start. Who is kept back only by a limit of a lane of their own holds
/// back nobody.
pub(super) fn first_in_line(
    scene: &Scene<'_>,
    turn: &Turn<'_>,
    tokens: Tokens,
    rules: Rules<'_>,
    held: Held<'_>,
) -> Result<(), Refusal> {
    // A VM names only the first of its waiters to the others. Behind that one may wait some whose tenant has got back so much
    // since that a newcomer of it would go before both.
    let keeps_as = scene.lanes.keeps_as(rules.lane.position, turn.band.position);
    let fits = |least| scene.free().is_none_or(|free| least <= free.of_lane(scene, keeps_as));
    if turn.behind_its_like.is_some_and(fits) {
        return Err(behind(Reason::OthersFirst, held.pool.counted(held.members)));
    }
    if held.pool.nobody_waits() {
        return Ok(());
    }
    let flow = FlowKey::of(&scene.pool.key, turn.band.level_key);
    let starts = held.tenant.starts(flow, held.pool.virtual_time(turn.band.level_key));
    let head = Head {
        band: turn.band.key,
        lane: rules.lane.key,
        flow: turn.flow,
        tag: starts.tag,
        urgency: turn.urgency,
        tokens,
        bytes: turn.bytes,
        within: turn.sub.map(|sub| (sub, starts.within(turn.sub))),
    };
    let mine = turn.waits_in.unwrap_or(Holder { slot: LAST, epoch: 0 });
    let mut order = Ordering::of(scene);
    order.add(scene, &head, &starts);
    let rank = order.place(scene.lanes, mine, &head);
    let others = scene.heads().filter(|(holder, _)| Some(*holder) != turn.waits_in);
    let before = others.filter(|(holder, head)| order.place(scene.lanes, *holder, head) < rank);
    let waits = |head: &Head| scene.is_open_for(head) && !scene.lets_pass_for_prompts(head, turn.band);
    let mut open = before.filter(|(_, head)| waits(head));
    if open.next().is_some() { Err(behind(Reason::OthersFirst, held.pool.counted(held.members))) } else { Ok(()) }
}

/// A waiter that has climbed above the default lane counts as of that lane only while those like it are within their share of the last
/// starts, or no request could start that came for a lane above the default one.
pub(super) fn within_aging_share(scene: &Scene<'_>, turn: &Turn<'_>, rules: Rules<'_>) -> Result<(), Refusal> {
    let free = scene.lanes.freely_climbed(rules.lane.position, turn.band.position);
    let most = rules.lane.aging.as_ref().map_or(LAST_STARTS, |aging| aging.most_of_last_starts);
    if turn.band.position < free && climbers_bound(scene).is_some_and(|starts| starts >= most) {
        return Err(behind(Reason::OthersFirst, scene.ledger.counted(scene.members)));
    }
    Ok(())
}

/// Starts of waiters that had climbed above the default lane, of the last ones; `None` where those may start whatever that is: no request
/// could start that came for a lane above the default one.
fn climbers_bound(scene: &Scene<'_>) -> Option<u32> {
    let default = scene.lanes.default_lane().level;
    let came_for_it = |head: &Head| head.lane == head.band && scene.lanes.position_of(head.band) < default;
    let mut higher = scene.heads().filter(|(_, head)| came_for_it(head) && scene.is_open_for(head));
    higher.next().map(|_| scene.ledger.climbed_starts())
}

/// Nobody of the same tenant waits for the tenant's own caps who comes first.
pub(super) fn first_of_its_tenant(turn: &Turn<'_>, rules: Rules<'_>, held: Held<'_>) -> Result<(), Refusal> {
    let part = turn.sub.map(|sub| Part { flow: FlowKey::of(&rules.pool.key, turn.band.level_key), sub });
    let mine = Blocked { band: turn.band.key, urgency: turn.urgency, part };
    let others = held.tenant.blocked(held.members).filter(|(holder, _)| Some(*holder) != turn.waits_in);
    let others: Vec<(Holder, Blocked)> = others.collect();
    let order = Order::of(others.iter().map(|(_, first)| *first).chain([mine]));
    let tag = |part: Part| held.tenant.tag_within(part.flow, part.sub);
    let place = |slot: u16, first: &Blocked| (rules.lanes.level_of(first.band), order.place(first, tag), slot);
    let own_place = place(turn.waits_in.map_or(LAST, |holder| holder.slot), &mine);
    let mut before = others.iter().filter(|(holder, first)| place(holder.slot, first) < own_place);
    if before.next().is_some() { Err(behind(Reason::OwnFirst, held.tenant.counted(held.members))) } else { Ok(()) }
}

fn behind(reason: Reason, counted: Counted<'_>) -> Refusal {
    Refusal { reason, limit: None, detail: Detail::None, retry: super::advice(Some(counted), 1), place: None }
}
