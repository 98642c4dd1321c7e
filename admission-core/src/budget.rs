//! Budgets: amounts for each span of time, by the generic cell rate algorithm.
//!
//! A budget remembers one instant, until which what was spent is not yet earned back. An amount costs
//! amount × period ÷ rate of time; it may be spent while the instant would lie no further ahead than the burst costs.
//! What is spent beyond, because usage turned out higher than its estimate, is a debt that time pays.

use std::sync::Arc;

use crate::hash;
use crate::units::{Millis, Time, Tokens};

/// An amount for each period, of which `burst` may come at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Earned in each period.
    pub amount: u64,
    /// The period.
    pub period: Millis,
    /// Most that can have been saved up.
    pub burst: u64,
    /// Such as `tiers.free.requests_per_minute`.
    pub knob: Arc<str>,
    /// Name of its instant, where it is a route's in the place of the tenant's own.
    pub key: Option<RateKey>,
    /// True where requests that it does not allow yet wait in their lane's queue until it does.
    pub waits: bool,
}

/// A rate's name as records know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateKey(pub u64);

impl RateKey {
    /// The key of a rate with this place in the configuration.
    #[must_use]
    pub fn of(knob: &str) -> Self {
        Self(hash::stable(knob.as_bytes()))
    }
}

/// The budgets of a tenant or a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Of requests.
    pub requests: Option<Rate>,
    /// Of prompt and output tokens.
    pub tokens: Option<Rate>,
}

impl Rates {
    /// True where a request may wait for one of the rates.
    #[must_use]
    pub fn may_be_waited_for(&self) -> bool {
        [&self.requests, &self.tokens].into_iter().flatten().any(|rate| rate.waits)
    }

    /// The instants up to which a request's charge moved its budgets, once what it was charged for tokens is another amount.
    // Why from the request's own instants: those of the record hold what others have spent or got back meanwhile.
    #[must_use]
    pub fn moved(&self, charged_to: (Spent, Spent), from: Tokens, to: Tokens, now: Time) -> (Spent, Spent) {
        let (requests, tokens) = charged_to;
        let Some(rate) = &self.tokens else { return charged_to };
        let more = to.0.saturating_sub(from.0);
        let less = from.0.saturating_sub(to.0);
        let spent = if more > 0 { rate.spend(tokens, more, now) } else { rate.give_back(tokens, less, tokens, now) };
        (requests, spent)
    }

    /// The same rates, each with an instant of its own, none of which is waited for.
    // Why: a tenant's waiters stand in one line, so those of one route would keep back those of all others.
    #[must_use]
    pub(crate) fn keyed(&self) -> Self {
        let keyed = |rate: &Rate| Rate { key: Some(RateKey::of(&rate.knob)), waits: false, ..rate.clone() };
        let keyed = |rate: &Option<Rate>| rate.as_ref().map(keyed);
        Self { requests: keyed(&self.requests), tokens: keyed(&self.tokens) }
    }
}

/// Until when what was spent is not yet earned back, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spent(pub u64);

impl Spent {
    /// Says whether something of what was spent is not yet earned back.
    #[must_use]
    pub const fn is_owed(self, now: Time) -> bool {
        self.0 > nanos(now)
    }
}

/// A budget that does not allow an amount now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYet {
    /// Until it does, if nothing else is spent meanwhile.
    pub wait: Millis,
    /// What would be spent and not yet earned back.
    pub measured: u64,
}

/// The standings of budgets; `None` for one that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets {
    /// Requests.
    pub requests: Option<Standing>,
    /// Prompt and output tokens.
    pub tokens: Option<Standing>,
}

impl Budgets {
    /// The standings of rates of which so much was spent.
    #[must_use]
    pub fn of(rates: &Rates, (requests, tokens): (Spent, Spent), now: Time) -> Self {
        let standing = |rate: &Option<Rate>, spent| rate.as_ref().map(|rate| rate.standing(spent, now));
        Self { requests: standing(&rates.requests, requests), tokens: standing(&rates.tokens, tokens) }
    }

    /// True while something of a budget is not yet earned back.
    #[must_use]
    pub fn owe(&self) -> bool {
        [self.requests, self.tokens].into_iter().flatten().any(|standing| standing.reset > Millis(0))
    }
}

/// How a budget stands, as callers are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Most that can be spent at once.
    pub limit: u64,
    /// That could be spent now.
    pub remaining: u64,
    /// Until all of it could be.
    pub reset: Millis,
    /// In which the limit is earned.
    pub window: Millis,
}

const NANOS: u64 = 1_000_000;

impl Rate {
    /// Whether an amount may be spent now. More than the whole burst may be when nothing is owed: it could never be
    /// otherwise, and the debt keeps what follows away.
    ///
    /// # Errors
    /// [`NotYet`] with the wait until it may.
    pub fn allows(&self, spent: Spent, amount: u64, now: Time) -> Result<(), NotYet> {
        let owed = self.owed(spent, now);
        let room = self.cost(self.burst).saturating_sub(self.cost(amount.min(self.burst)));
        if owed <= room {
            return Ok(());
        }
        let wait = Millis(owed.saturating_sub(room).div_ceil(NANOS));
        Err(NotYet { wait, measured: self.amount_of(owed).saturating_add(amount) })
    }

    /// Time until an amount may be spent, once an amount has been spent that others wait for who come before.
    #[must_use]
    pub fn wait_behind(&self, spent: Spent, before: u64, amount: u64, now: Time) -> Millis {
        let spent = if before > 0 { self.spend(spent, before, now) } else { spent };
        self.allows(spent, amount, now).err().map_or(Millis(0), |not_yet| not_yet.wait)
    }

    /// After spending an amount.
    #[must_use]
    pub fn spend(&self, spent: Spent, amount: u64, now: Time) -> Spent {
        Spent(nanos(now).max(spent.0).saturating_add(self.cost(amount)))
    }

    /// After getting back an amount that was charged up to an instant: no more than time has not paid since.
    // Why: what was charged before and has been earned back would be a second burst, for each request that ends small.
    #[must_use]
    pub fn give_back(&self, spent: Spent, amount: u64, charged_to: Spent, now: Time) -> Spent {
        Spent(spent.0.saturating_sub(self.cost(amount).min(self.owed(charged_to, now))))
    }

    /// The time in which an amount is earned.
    #[must_use]
    pub fn time_to_earn(&self, amount: u64) -> Millis {
        Millis(self.cost(amount).div_ceil(NANOS))
    }

    /// The slower of two rates, with the smaller of their bursts.
    #[must_use]
    pub fn stricter(&self, other: &Self) -> Self {
        let earned = |rate: &Self, period: Millis| u128::from(rate.amount) * u128::from(period.0);
        let slower = if earned(other, self.period) < earned(self, other.period) { other } else { self };
        Self { burst: self.burst.min(other.burst), waits: self.waits && other.waits, ..slower.clone() }
    }

    /// How the budget stands.
    #[must_use]
    pub fn standing(&self, spent: Spent, now: Time) -> Standing {
        let owed = self.owed(spent, now);
        let remaining = self.burst.saturating_sub(self.amount_of(owed));
        let window = self.time_to_earn(self.burst);
        Standing { limit: self.burst, remaining, reset: Millis(owed.div_ceil(NANOS)), window }
    }

    fn owed(&self, spent: Spent, now: Time) -> u64 {
        spent.0.saturating_sub(nanos(now))
    }

    /// The time in which an amount is earned.
    fn cost(&self, amount: u64) -> u64 {
        // A century: absurd amounts must not carry the clock over its end.
        scaled(amount, self.period.0.saturating_mul(NANOS), self.amount.max(1)).min(3_155_760_000_000_000_000)
    }

    /// The amount earned in a time, a part counting whole.
    fn amount_of(&self, nanos: u64) -> u64 {
        scaled(nanos, self.amount, self.period.0.saturating_mul(NANOS).max(1))
    }
}

/// value × factor ÷ divisor, rounded up, or the most there is. In wasm, numbers of 128 bits are divided bit by bit, so they are
/// left to amounts that need them.
fn scaled(value: u64, factor: u64, divisor: u64) -> u64 {
    match value.checked_mul(factor) {
        Some(product) => product.div_ceil(divisor),
        None => {
            let scaled = (u128::from(value) * u128::from(factor)).div_ceil(u128::from(divisor));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        }
    }
}

const fn nanos(time: Time) -> u64 {
    time.0.saturating_mul(NANOS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_minute(amount: u64, burst: u64) -> Rate {
        Rate { amount, period: Millis(60_000), burst, knob: "knob".into(), key: None, waits: false }
    }

    const START: Time = Time(1_000_000);

    /// A thousand a minute for five minutes, each kept open; then all end small, one after the other.
    #[test]
    fn what_time_has_paid_is_not_given_back() {
        let rate = per_minute(1_000, 1_000);
        let at = |minute: u64| Time(START.0 + minute * 60_000);
        let (mut spent, mut charged_to) = (Spent::default(), Vec::new());
        for minute in 0..5 {
            spent = rate.spend(spent, 1_000, at(minute));
            charged_to.push(spent);
        }
        let mut at_once = 0;
        for charged_to in charged_to {
            while rate.allows(spent, 1_000, at(5)).is_ok() {
                spent = rate.spend(spent, 1_000, at(5));
                at_once += 1_000;
            }
            spent = rate.give_back(spent, 1_000, charged_to, at(5));
        }
        assert_eq!((at_once, rate.allows(spent, 1, at(5)).is_ok()), (1_000, false));
        let half = rate.give_back(spent, 1_000, spent, Time(at(5).0 + 30_000));
        assert_eq!(rate.standing(half, Time(at(5).0 + 30_000)).remaining, 1_000, "half was paid by time");
    }

    /// Corrections move a request's own instant, whatever others have spent and got back meanwhile.
    #[test]
    fn what_is_corrected_is_given_back_once_and_no_longer_than_it_is_owed() {
        let rates = Rates { requests: None, tokens: Some(per_minute(1_000, 1_000)) };
        let rate = rates.tokens.clone().unwrap();
        let minutes = |count: u64| Time(START.0 + count * 60_000);
        let charged = |tokens| (Spent::default(), rate.spend(Spent::default(), tokens, START));
        // A guess of ten minutes that proves to be one: after a minute nothing of it is owed.
        let (_, proved) = rates.moved(charged(10_000), Tokens(10_000), Tokens(1_000), START);
        assert!(proved.is_owed(Time(minutes(1).0 - 1)) && !proved.is_owed(minutes(1)));
        // A token more after five minutes: only that is owed, whatever the record's instant is then.
        let (_, grown) = rates.moved(charged(1_000), Tokens(1_000), Tokens(1_001), minutes(5));
        assert_eq!(grown, rate.spend(Spent::default(), 1, minutes(5)));
        assert_eq!(rates.moved(charged(7), Tokens(7), Tokens(7), START), charged(7));
    }

    #[test]
    fn a_burst_and_then_the_rate() {
        let rate = per_minute(60, 3);
        let mut spent = Spent::default();
        for _ in 0..3 {
            assert_eq!(rate.allows(spent, 1, START), Ok(()));
            spent = rate.spend(spent, 1, START);
        }
        assert_eq!(rate.allows(spent, 1, START), Err(NotYet { wait: Millis(1_000), measured: 4 }));
        assert!(rate.allows(spent, 1, Time(START.0 + 999)).is_err());
        assert_eq!(rate.allows(spent, 1, Time(START.0 + 1_000)), Ok(()), "at the very instant that was told");
    }

    #[test]
    fn nothing_is_saved_beyond_the_burst() {
        let rate = per_minute(60, 3);
        let spent = rate.spend(Spent::default(), 3, START);
        let later = Time(START.0 + 3_600_000);
        assert_eq!(
            rate.standing(spent, later),
            Standing { limit: 3, remaining: 3, reset: Millis(0), window: Millis(3_000) }
        );
        let spent = rate.spend(spent, 3, later);
        assert_eq!(rate.standing(spent, later).remaining, 0);
        assert!(rate.allows(spent, 1, later).is_err());
    }

    #[test]
    fn a_refund_restores_and_a_debt_is_paid_by_time() {
        let rate = per_minute(6_000, 1_000);
        let before = rate.spend(Spent::default(), 200, START);
        let spent = rate.spend(before, 700, START);
        assert_eq!(rate.give_back(spent, 700, spent, START), before);
        let in_debt = rate.spend(before, 1_800, START);
        let NotYet { wait, .. } = rate.allows(in_debt, 500, START).unwrap_err();
        assert_eq!(wait, Millis(15_000), "2,000 spent, 500 may be owed, 100 are earned a second");
        assert_eq!(rate.allows(in_debt, 500, Time(START.0 + 15_000)), Ok(()));
    }

    #[test]
    fn more_than_the_burst_may_be_spent_when_nothing_is_owed() {
        let rate = per_minute(600, 100);
        assert_eq!(rate.allows(Spent::default(), 5_000, START), Ok(()));
        let spent = rate.spend(Spent::default(), 5_000, START);
        assert_eq!(rate.allows(spent, 1, START).unwrap_err().wait, Millis(490_100));
    }

    #[test]
    fn absurd_amounts_do_not_wrap() {
        let rate = per_minute(1, 1);
        let spent = rate.spend(Spent(u64::MAX - 5), u64::MAX, START);
        assert!(rate.allows(spent, u64::MAX, START).is_err());
        assert_eq!(rate.standing(spent, START).remaining, 0);
        let fast = per_minute(u64::MAX, u64::MAX);
        assert_eq!(fast.allows(fast.spend(Spent::default(), 1_000_000, START), 1, START), Ok(()));
    }
}
