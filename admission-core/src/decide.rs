//! The decision.
//!
//! [`decide`] is the whole of it: what a request asks, what is allowed, what is known of the workers and what is held
//! already, in; admit, and where, or a refusal that explains itself, out. It changes nothing. [`crate::vm`] runs it again on newer
//! records until the charge it allows has been written.

use std::sync::Arc;

use crate::ask::Ask;
use crate::budget::NotYet;
use crate::config::StalePolicy;
use crate::endpoint::Endpoint;
use crate::ledger::{Amount, Counted, LaneKey, Ledger, TallyKey};
use crate::members::Members;
use crate::outcome::{Detail, Limit, Reason, Refusal, Retry};
use crate::policy::{Cap, Class, Lane, Lanes, Limits, Pool};
use crate::units::{Blocks, Time, Tokens};
use crate::view::{ViewSummary, Workers};

mod blocks;
mod bounds;
mod line;
mod prompts;
mod reserve;
mod sight;
mod steering;

#[cfg(test)]
mod tests;

pub use blocks::{Room, Rooms, kv_notice, rooms};
pub use bounds::{DISPATCH_BUDGET, Used, bounds};
pub use line::{Line, Rank, Turn, flow_of, span_across_tenants, urgency};

use line::{first_in_line, first_of_its_tenant, within_aging_share};
use sight::{Scene, Sight};

/// What a request is measured against.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Of its tenant.
    pub tenant: &'a Limits,
    /// It goes to.
    pub pool: &'a Arc<Pool>,
    /// Lane that it came for.
    pub lane: &'a Lane,
    /// All there are.
    pub lanes: &'a Arc<Lanes>,
    /// Of the pool, that it belongs to.
    pub classes: &'a [Arc<Class>],
}

impl Rules<'_> {
    /// True where some rate may be waited for.
    #[must_use]
    pub fn has_rates_that_wait(&self) -> bool {
        self.tenant.rates.may_be_waited_for() || self.pool.rates.may_be_waited_for()
    }

    /// True where a request that is refused for this reason may wait for it to pass.
    #[must_use]
    pub fn may_be_waited_for(&self, reason: Reason) -> bool {
        self.tenant.may_be_waited_for(reason) || self.pool.may_be_waited_for(reason)
    }
}

/// What the sidecar last said of the pool.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Its workers in sum.
    pub view: Option<&'a ViewSummary>,
    /// Each of them; only in a pool whose requests are steered.
    pub workers: Option<&'a Workers>,
    /// The request can be steered to one; else the proxy chooses.
    pub can_be_steered: bool,
}

impl Known<'_> {
    /// Workers that read prompts, as the last view of whatever age has them; 1 without any.
    #[must_use]
    pub fn readers(&self) -> u64 {
        self.view.map_or(1, |view| u64::from(view.live_workers).max(1))
    }

    /// Proxies that share the pool, as that view has them; at least 1.
    #[must_use]
    pub fn proxies(&self) -> u64 {
        self.view.map_or(1, |view| u64::from(view.other_proxies).saturating_add(1))
    }

    /// Tokens in a KV block: as the engines report, else as the pool is configured.
    #[must_use]
    pub fn block_size(&self, pool: &Pool) -> u32 {
        self.view.and_then(|view| view.block_size).unwrap_or(pool.block_size)
    }
}

/// What is held, and by whom it counts.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// By the tenant.
    pub tenant: &'a Ledger,
    /// In the pool.
    pub pool: &'a Ledger,
    /// Whose holdings count.
    pub members: &'a Members,
}

/// Whether a request may start now, and at which worker where that is ours to say.
///
/// # Errors
/// The first of these that stands against it: it can never fit; there is no worker; a budget is spent; its tenant holds
/// too much, or has others waiting that come first; all workers are busy; the pool is too full for the lane that it counts as, or
/// that holds what it may, or has as many prompts in front of higher lanes; the pool, a class or every free worker holds too much,
/// or what is left is kept for higher lanes; others wait that come first.
pub fn decide(
    ask: &Ask,
    rules: Rules<'_>,
    turn: &Turn<'_>,
    known: Known<'_>,
    held: Held<'_>,
    now: Time,
) -> Result<Option<Endpoint>, Refusal> {
    let scene = scene(rules, known, held, now);
    let sight = scene.sight;
    let amount = ask.amount(known.block_size(rules.pool));
    fits_ever(ask, rules.tenant, rules.pool, rules.classes)?;
    has_workers(sight, rules)?;
    within_budgets(ask, rules, held, now)?;
    within_tenant_caps(amount, rules, held)?;
    first_of_its_tenant(turn, rules, held)?;
    within_pool(ask, amount, rules, turn, &scene, held)?;
    first_in_line(&scene, turn, amount.tokens, rules, held)?;
    within_aging_share(&scene, turn, rules)?;
    scene.at_a_worker(amount.blocks)
}

/// The lack that keeps a request from starting beside budgets and the requests that come first.
#[must_use]
pub fn lacks_more_than_rates(
    ask: &Ask,
    rules: Rules<'_>,
    turn: &Turn<'_>,
    known: Known<'_>,
    held: Held<'_>,
    now: Time,
) -> Option<Refusal> {
    let scene = scene(rules, known, held, now);
    let amount = ask.amount(known.block_size(rules.pool));
    within_tenant_caps(amount, rules, held).and_then(|()| within_pool(ask, amount, rules, turn, &scene, held)).err()
}

/// Fails where the pool lacks something that a request needs, in whatever order requests start.
fn within_pool(
    ask: &Ask,
    amount: Amount,
    rules: Rules<'_>,
    turn: &Turn<'_>,
    scene: &Scene<'_>,
    held: Held<'_>,
) -> Result<(), Refusal> {
    scene.some_worker_is_free()?;
    scene.below_ceiling(turn.band)?;
    scene.within_dispatch_budget(turn.band, amount, turn.bytes)?;
    scene.reads_prompts_in_time(turn.band, ask.prompt)?;
    within_pool_caps(amount, scene)?;
    within_class_caps(rules.classes, held)?;
    let keeps_as = rules.lanes.keeps_as(rules.lane.position, turn.band.position);
    scene.leaves_reserved(keeps_as)?;
    scene.fits_free_blocks(amount.blocks, ask.prompt_read.then_some(amount.blocks), keeps_as, scene.free())
}

fn scene<'a>(rules: Rules<'a>, known: Known<'a>, held: Held<'a>, now: Time) -> Scene<'a> {
    Scene::of(rules.pool, rules.lanes, known, held.pool.counted(held.members), now)
}

/// Whether a request that was let in by a guess may go on, now that it is known to need `by` more, `whole` in all, and to
/// belong to the classes in `rules` as well. `worker` is the one that it was steered to, `band` the lane that it counted as when it was let in.
///
/// # Errors
/// Its tenant would hold too many tokens, a class too many requests, or the blocks do not fit.
pub fn may_grow(
    by: Amount,
    (whole, worker, band): (Blocks, Option<TallyKey>, LaneKey),
    rules: Rules<'_>,
    known: Known<'_>,
    held: Held<'_>,
    now: Time,
) -> Result<(), Refusal> {
    within_tenant_caps(by, rules, held)?;
    within_class_caps(rules.classes, held)?;
    let scene = scene(rules, known, held, now);
    let keeps_as = rules.lanes.keeps_as(rules.lane.position, rules.lanes.position_of(band));
    scene.fits_free_blocks(by.blocks, Some(whole), keeps_as, scene.free_beside(worker))
}

impl Ask {
    /// A guess cut down to what a request that fits could be at most; what was read stays as it is. So a request that
    /// only looks too large is let in when there is room for the largest, and refused once it has proved too large.
    #[must_use]
    pub fn at_most_what_fits(self, tenant: &Limits, pool: &Pool) -> Self {
        if self.prompt_read {
            return self;
        }
        let limit = |cap: &Option<Cap>| cap.as_ref().map_or(u64::MAX, |cap| cap.limit);
        let whole = limit(&pool.max_model_len).min(limit(&tenant.tokens));
        let output = self.output.0.min(whole);
        let prompt = self.prompt.0.min(limit(&pool.max_prompt_tokens)).min(whole.saturating_sub(output));
        Self { prompt: Tokens(prompt), output: Tokens(output), ..self }
    }
}

/// Whether a request of this size could ever be served; what was not read proves nothing.
///
/// # Errors
/// [`Reason::Oversize`] naming the limit.
pub fn fits_ever(ask: &Ask, tenant: &Limits, pool: &Pool, classes: &[Arc<Class>]) -> Result<(), Refusal> {
    if !ask.prompt_read {
        return Ok(());
    }
    let prompt = ask.longest_prompt;
    let at_its_limit = prompt.plus(ask.output_limit.unwrap_or_default());
    if ask.sequences > pool.max_sequences.limit {
        return Err(oversize(limit(&pool.max_sequences, ask.sequences, "answers")));
    }
    let of_pool_and_tenant = [
        (&pool.max_prompt_tokens, prompt, "prompt tokens"),
        (&pool.max_model_len, at_its_limit, "prompt and output tokens"),
        (&tenant.tokens, ask.prompt.plus(ask.output), "tokens"),
    ];
    let of_classes = classes.iter().flat_map(|class| {
        [
            (&class.max_prompt_tokens, prompt, "prompt tokens"),
            (&class.max_model_len, at_its_limit, "prompt and output tokens"),
        ]
    });
    for (cap, tokens, unit) in of_pool_and_tenant.into_iter().chain(of_classes) {
        if let Some(cap) = cap
            && tokens.0 > cap.limit
        {
            return Err(oversize(limit(cap, tokens.0, unit)));
        }
    }
    Ok(())
}

fn oversize(limit: Limit) -> Refusal {
    Refusal { reason: Reason::Oversize, limit: Some(limit), detail: Detail::None, retry: Retry::Never, place: None }
}

fn has_workers(sight: Sight<'_>, rules: Rules<'_>) -> Result<(), Refusal> {
    let stale = &rules.pool.stale;
    let refuse = |reason, limit, detail| Err(Refusal { reason, limit, detail, retry: advice(None, 1), place: None });
    match sight {
        Sight::Fresh(view) if view.live_workers == 0 => {
            refuse(Reason::NoWorkers, None, Detail::Fixed("the view lists none that is up"))
        }
        Sight::Stale(StalePolicy::Reject, Some((_, age))) => {
            let limit = Limit { knob: Arc::clone(&stale.knob), measured: age.0, allowed: stale.hold.0, unit: "ms" };
            refuse(Reason::StaleView, Some(limit), Detail::Fixed("the view is too old"))
        }
        Sight::Stale(StalePolicy::Reject, None) => refuse(Reason::StaleView, None, not_named(rules.pool)),
        // Without a number of workers a limit for each of them is no limit at all.
        Sight::Stale(StalePolicy::LocalCaps, last)
            if rules.pool.max_in_flight.is_none() && last.is_none_or(|(view, _)| view.live_workers == 0) =>
        {
            let detail = last.map_or_else(
                || not_named(rules.pool),
                |_| Detail::Fixed("no worker is known and the pool has no max_in_flight"),
            );
            refuse(Reason::StaleView, None, detail)
        }
        Sight::Fresh(_) | Sight::Stale(..) => Ok(()),
    }
}

/// Detail of the refusal by a pool that no view names.
fn not_named(pool: &Pool) -> Detail {
    Detail::Text(format!(
        "no view names the pool {:?}: none has come yet, or the sidecar's pools[].name is another",
        pool.name
    ))
}

/// Sentence for the log where the last view, which came then, does not name a pool.
#[must_use]
pub fn view_notice(pool: &Pool, view: Option<&ViewSummary>, came: Option<Time>, now: Time) -> Option<String> {
    let hold = pool.stale.hold;
    let is_fresh = came.is_some_and(|came| now.since(came) <= hold);
    let is_named = view.is_some_and(|view| now.since(view.received) <= hold);
    (pool.needs_view && is_fresh && !is_named).then(|| {
        format!(
            "pool {:?}: the sidecar's views do not name it, so nothing is known of its workers: either the sidecar does not know them yet \
             (its /readyz says so), or the pool has another name in its configuration",
            pool.name
        )
    })
}

/// The refusal of a request by its tenant's own caps and budgets.
#[must_use]
pub fn tenant_refuses(
    ask: &Ask,
    rules: Rules<'_>,
    Counted { ledger: tenant, members }: Counted<'_>,
    now: Time,
) -> Option<Refusal> {
    let nobody = Ledger::default();
    let held = Held { tenant, pool: &nobody, members };
    let amount = ask.amount(rules.pool.block_size);
    within_budgets(ask, rules, held, now).and_then(|()| within_tenant_caps(amount, rules, held)).err()
}

fn within_budgets(ask: &Ask, rules: Rules<'_>, held: Held<'_>, now: Time) -> Result<(), Refusal> {
    let (tenant, pool, cost) = (&rules.tenant.rates, &rules.pool.rates, ask.cost());
    let (requests_spent, tokens_spent) = held.tenant.spent(tenant);
    let pool_spent = held.pool.spent(pool).0;
    let budgets = [
        (&tenant.requests, requests_spent, cost.requests, "requests", Reason::TenantRequestRate),
        (&tenant.tokens, tokens_spent, cost.tokens.0, "tokens", Reason::TenantTokenRate),
        (&pool.requests, pool_spent, cost.requests, "requests", Reason::PoolRequestRate),
    ];
    for (rate, spent, amount, unit, reason) in budgets {
        if let Some(rate) = rate
            && let Err(NotYet { wait, measured }) = rate.allows(spent, amount, now)
        {
            let limit = Some(Limit { knob: Arc::clone(&rate.knob), measured, allowed: rate.burst, unit });
            return Err(Refusal { reason, limit, detail: Detail::None, retry: Retry::After(wait), place: None });
        }
    }
    Ok(())
}

fn within_tenant_caps(amount: Amount, rules: Rules<'_>, held: Held<'_>) -> Result<(), Refusal> {
    let now_held = held.tenant.held(held.members);
    let with_this = now_held.plus(amount);
    if let Some(cap) = &rules.tenant.requests
        && amount.requests > 0
    {
        within(cap, with_this.requests, "requests", Reason::TenantRequests, held.tenant.counted(held.members))?;
    }
    let Some(cap) = &rules.tenant.tokens else { return Ok(()) };
    if amount.tokens.0 == 0 || with_this.tokens.0 <= cap.limit {
        return Ok(());
    }
    let releases = releases_until(with_this.tokens.0.saturating_sub(cap.limit), now_held);
    Err(Refusal {
        reason: Reason::TenantTokens,
        limit: Some(limit(cap, with_this.tokens.0, "tokens")),
        detail: Detail::None,
        retry: advice(Some(held.tenant.counted(held.members)), releases),
        place: None,
    })
}

/// How many average releases free `tokens`.
fn releases_until(tokens: u64, held: Amount) -> u64 {
    let mean = held.tokens.0.checked_div(held.requests).unwrap_or(0).max(1);
    tokens.div_ceil(mean)
}

fn within_pool_caps(amount: Amount, scene: &Scene<'_>) -> Result<(), Refusal> {
    let with_this = scene.ledger.held(scene.members).plus(amount).requests;
    let mut caps = scene.caps();
    caps.try_for_each(|(cap, unit)| {
        within(&cap, with_this, unit, Reason::PoolRequests, scene.ledger.counted(scene.members))
    })
}

fn within_class_caps(classes: &[Arc<Class>], held: Held<'_>) -> Result<(), Refusal> {
    for class in classes {
        if let Some(cap) = &class.max_in_flight {
            let with_this = held.pool.tallied(class.key, held.members).saturating_add(1);
            within(cap, with_this, "requests", Reason::ClassRequests, held.pool.counted(held.members))?;
        }
    }
    Ok(())
}

fn within(cap: &Cap, with_this: u64, unit: &'static str, reason: Reason, counted: Counted<'_>) -> Result<(), Refusal> {
    if with_this <= cap.limit {
        return Ok(());
    }
    let retry = advice(Some(counted), with_this.saturating_sub(cap.limit));
    Err(Refusal { reason, limit: Some(limit(cap, with_this, unit)), detail: Detail::None, retry, place: None })
}

fn limit(cap: &Cap, measured: u64, unit: &'static str) -> Limit {
    Limit { knob: Arc::clone(&cap.knob), measured, allowed: cap.limit, unit }
}

/// When so many releases will have come at the pace measured; at once while nothing is measured. What the caller is told
/// is brought within bounds by [`crate::answer`].
fn advice(counted: Option<Counted<'_>>, releases: u64) -> Retry {
    let wait = counted.and_then(|Counted { ledger, members }| ledger.time_to_free(releases, members));
    Retry::After(wait.unwrap_or_default())
}
