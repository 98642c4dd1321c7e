//! Priority bands, and what gives a request its own.

use std::sync::Arc;

use super::Cap;
use super::pool::ModelPattern;
use crate::ledger::LaneKey;
use crate::units::Millis;

pub use crate::config::{BudgetUnit, Order};

/// A named priority band.
#[derive(Clone, Debug, PartialEq)]
pub struct Lane {
    /// As configured.
    pub name: String,
    /// In records.
    pub key: LaneKey,
    /// Its place among the lanes; 0 is the highest.
    pub position: usize,
    /// Higher is served first.
    pub priority: i32,
    /// Position of the first lane of the same priority: lanes of one priority share one virtual time, and one order over their tenants.
    pub level: usize,
    /// The level in records: key of that first lane.
    pub level_key: LaneKey,
    /// It admits while its pool's saturation is below this: the lowest ceiling of it and of the lanes of a higher priority.
    pub ceiling: Option<Ceiling>,
    /// Part of each pool that is kept for it.
    pub reserve: Option<Reserve>,
    /// Climb of its waiters.
    pub aging: Option<Aging>,
    /// What it may hold of what its pool has left.
    pub dispatch_budget: Option<DispatchBudget>,
    /// Where its requests wait; without it none does.
    pub queue: Option<QueueLimits>,
    /// True where its requests may be evicted while their answer has not begun.
    pub preemptible: bool,
    /// Time that the prompts in front of its own may take, itself included, by the goals of the lanes of a higher priority.
    pub prompts: Option<PromptsWithin>,
}

/// The longest that workers may take to read the prompts they have been sent, and its place in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptsWithin {
    /// Half of the smallest goal: the other half is for the wait, the prompt and the step of the request that has the goal.
    pub time: Millis,
    /// Place in the configuration, such as `lanes[interactive].ttft_goal`.
    pub knob: Arc<str>,
}

/// A highest saturation, and its place in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Ceiling {
    /// 1 is a full pool.
    pub saturation: f64,
    /// Such as `lanes[batch].ceiling`.
    pub knob: Arc<str>,
}

/// A part of each pool for a lane, and its place in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Reserve {
    /// Share of a pool's capacity and of its usable KV blocks.
    pub share: Option<f64>,
    /// Requests, where the share comes to less.
    pub requests: u64,
    /// True where others may use what the lane does not.
    pub lend: bool,
    /// Place in the configuration, such as `lanes[interactive].reserve`.
    pub knob: Arc<str>,
}

/// Sums and shares that a person means to be exact may come out a little beside.
const ROUNDING: f64 = 1e-6;

impl Reserve {
    /// R before other lanes are seen: the larger of the number and the share of a capacity.
    fn of(&self, capacity: u64) -> u64 {
        self.share_of(capacity).max(self.requests)
    }

    /// The share of something, rounded up; 0 without one.
    #[must_use]
    pub fn share_of(&self, whole: u64) -> u64 {
        self.share.map_or(0, |share| (whole as f64 * share - ROUNDING).ceil() as u64)
    }
}

/// How waiters climb to higher lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aging {
    /// One step for each time that they have waited so long; more than 0.
    pub after: Millis,
    /// Positions of the lanes that they climb to, one of each higher priority, lowest first.
    pub path: Vec<usize>,
    /// Starts of waiters above the default lane, of the last [`LAST_STARTS`](crate::ledger::LAST_STARTS) of a pool.
    pub most_of_last_starts: u32,
}

/// At most `max` × (D − `baseline_ppm`) of a pool, where D is what its saturation leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DispatchBudget {
    /// Share of the pool that is left alone, in millionths; below a million.
    pub baseline_ppm: u64,
    /// What is counted.
    pub unit: BudgetUnit,
    /// In that unit. `None` only for requests: then it is the pool's cap on requests in flight, which every pool has.
    pub max: Option<u64>,
    /// Such as `lanes[batch].dispatch_budget`.
    pub knob: Arc<str>,
}

/// What may wait of a lane, over all worker threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Requests.
    pub max_requests: Cap,
    /// Their estimated tokens.
    pub max_tokens: Option<Cap>,
    /// The bytes of their bodies.
    pub max_bytes: Option<Cap>,
    /// How long.
    pub max_wait: Millis,
    /// Such as `lanes[batch].queue.max_wait`.
    pub max_wait_knob: Arc<str>,
    /// Who starts first of one tenant's.
    pub order: Order,
    /// Waiters of the lane beyond which the shortest goes first among tenants too.
    pub across_tenants_after: Option<u64>,
}

/// Named priority bands, highest first; there is always one.
#[derive(Clone, Debug, PartialEq)]
pub struct Lanes {
    pub(super) highest: Arc<Lane>,
    pub(super) others: Vec<Arc<Lane>>,
    pub(super) default: usize,
}

impl Lanes {
    /// Every lane, highest first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Lane>> {
        std::iter::once(&self.highest).chain(&self.others)
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.iter().position(|lane| lane.name == name)
    }

    /// The lane at a position; the lowest for one beyond.
    #[must_use]
    pub fn at(&self, position: usize) -> &Arc<Lane> {
        match position.checked_sub(1) {
            None => &self.highest,
            Some(place) => self.others.get(place).or(self.others.last()).unwrap_or(&self.highest),
        }
    }

    /// Position of the lane of a key; of one that is not there, that of the default lane.
    #[must_use]
    pub fn position_of(&self, key: LaneKey) -> usize {
        self.iter().position(|lane| lane.key == key).unwrap_or(self.default)
    }

    /// Position of the lane that a waiter which came for a lane may count as whatever else starts, of those up to `band`: the default lane
    /// for one that has climbed above it, its own where that is not lower.
    #[must_use]
    pub fn freely_climbed(&self, lane: usize, band: usize) -> usize {
        let (own, default) = (self.at(lane), self.default_lane());
        let free = if own.level > default.level { default } else { own };
        if self.at(band).level < free.level { free.position } else { band }
    }

    /// Level of the lane of a key, see [`Lane::level`].
    #[must_use]
    pub fn level_of(&self, key: LaneKey) -> usize {
        self.at(self.position_of(key)).level
    }

    /// Every lane with a reserve, highest first, and R: the requests of a capacity that are reserved for it, cut from the lowest lane up to
    /// what there is. Shares that come to less than the whole leave one place at least.
    pub fn reserves(&self, capacity: u64) -> impl Iterator<Item = (&Lane, &Reserve, u64)> {
        let all = || self.iter().filter_map(|lane| Some((&**lane, lane.reserve.as_ref()?)));
        // Why a place left: in a small pool shares that are rounded up would keep all of it, and lower lanes would never start.
        let shares: f64 = all().filter_map(|(_, reserve)| reserve.share).sum();
        let leaves_some = shares < 1.0 - ROUNDING && all().all(|(_, reserve)| reserve.requests == 0);
        let mut left = capacity.saturating_sub(u64::from(leaves_some));
        all().map(move |(lane, reserve)| {
            let reserved = reserve.of(capacity).min(left);
            left = left.saturating_sub(reserved);
            (lane, reserve, reserved)
        })
    }

    /// The lane whose place among the others a waiter has that came for one lane and counts as another, where what is kept is concerned: a
    /// waiter that has climbed above the default lane leaves free what the default lane does.
    #[must_use]
    pub fn keeps_as(&self, lane: usize, band: usize) -> &Lane {
        self.at(self.freely_climbed(lane, band))
    }

    /// Position of the lane of requests whose objective is not listed, where nothing else gives them one: the highest of no positive priority.
    #[must_use]
    pub fn of_unknown_objectives(&self) -> Option<usize> {
        self.iter().position(|lane| lane.priority <= 0)
    }

    /// True where some lane's goal for first tokens binds others.
    #[must_use]
    pub fn have_goals(&self) -> bool {
        self.iter().any(|lane| lane.prompts.is_some())
    }

    /// Of requests that nothing gives another one.
    #[must_use]
    pub fn default_lane(&self) -> &Arc<Lane> {
        self.at(self.default)
    }
}

/// Gives a lane to requests that ask for none.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LaneRule {
    pub(super) model: Option<ModelPattern>,
    pub(super) path_prefix: Option<String>,
    pub(super) lane: usize,
}

/// What the rules say of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleSays {
    /// This lane, whatever the model.
    Lane(usize),
    /// Nothing, whatever the model.
    Nothing,
    /// It takes the model to know.
    AskModel,
}

/// The first rule that fits. `model` is `None` while the body has not been read, and `Some(None)` when it names none.
pub(super) fn first_rule(rules: &[LaneRule], path: &str, model: Option<Option<&str>>) -> RuleSays {
    for rule in rules {
        if rule.path_prefix.as_ref().is_some_and(|prefix| !path.starts_with(prefix.as_str())) {
            continue;
        }
        match (&rule.model, model) {
            (None, _) => return RuleSays::Lane(rule.lane),
            (Some(_), None) => return RuleSays::AskModel,
            (Some(pattern), Some(Some(model))) if pattern.strength(model).is_some() => {
                return RuleSays::Lane(rule.lane);
            }
            (Some(_), Some(_)) => {}
        }
    }
    RuleSays::Nothing
}
