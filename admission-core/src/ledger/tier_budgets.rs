//! Budgets of the rates that routes' tiers put in the place of a tenant's own.
//!
//! An instant is time that is yet to be earned, and what that is worth is known only together with the rate it was spent under. So a rate
//! that a route puts in the place of the tenant's own has an instant of its own.

use crate::budget::{Rate, RateKey, Spent};
use crate::record::{Reader, Writer};
use crate::units::Time;

/// Rates that a record keeps instants for at a time; of more, the one that owes least is forgotten.
const MOST_RATES: usize = 64;

/// Instants of the rates of which something is not yet earned back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TierBudgets(Vec<(RateKey, Spent)>);

impl TierBudgets {
    /// The instant of a rate, which is the record's own unless it has a key.
    pub(super) fn spent(&self, rate: &Rate, own: Spent) -> Spent {
        let Some(key) = rate.key else { return own };
        self.0.iter().find(|(other, _)| *other == key).map_or(Spent::default(), |(_, spent)| *spent)
    }

    /// True when no instant is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Says whether something of any rate is not yet earned back.
    pub(super) fn owe(&self, now: Time) -> bool {
        self.0.iter().any(|(_, spent)| spent.is_owed(now))
    }

    /// Moves the instant of a rate.
    pub(super) fn change(&mut self, rate: &Rate, own: &mut Spent, now: Time, change: impl FnOnce(Spent) -> Spent) {
        let spent = change(self.spent(rate, *own));
        let Some(key) = rate.key else {
            *own = spent;
            return;
        };
        self.0.retain(|(other, spent)| *other != key && spent.is_owed(now));
        if spent.is_owed(now) {
            self.0.push((key, spent));
        }
        if self.0.len() > MOST_RATES {
            let least = self.0.iter().map(|(_, spent)| *spent).min();
            self.0.retain(|(_, spent)| Some(*spent) != least);
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for (key, spent) in &self.0 {
            out.u64(key.0);
            out.u64(spent.0);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut rates = Vec::new();
        while !reader.is_empty() {
            rates.push((RateKey(reader.u64()?), Spent(reader.u64()?)));
        }
        rates.truncate(MOST_RATES);
        Some(Self(rates))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Millis;

    fn rate(tier: usize) -> Rate {
        let knob = format!("tiers.t{tier}.requests_per_minute");
        Rate {
            amount: 60,
            period: Millis(60_000),
            burst: 60,
            key: Some(RateKey::of(&knob)),
            knob: knob.into(),
            waits: false,
        }
    }

    #[test]
    fn rates_owe_apart_from_each_other_and_are_forgotten_once_they_owe_nothing() {
        let (mut own, mut tiers, now) = (Spent::default(), TierBudgets::default(), Time(1_000));
        for tier in 0..=MOST_RATES {
            let rate = rate(tier);
            tiers.change(&rate, &mut own, now, |spent| rate.spend(spent, 1 + tier as u64, now));
        }
        let owed = |tiers: &TierBudgets, tier| rate(tier).standing(tiers.spent(&rate(tier), own), now).remaining;
        assert_eq!(
            (owed(&tiers, 0), owed(&tiers, 1), owed(&tiers, 40)),
            (60, 58, 19),
            "of too many the one that owes least"
        );
        assert_eq!((own, tiers.0.len()), (Spent::default(), MOST_RATES));
        let later = Time(now.0 + 60_000);
        let first = rate(0);
        tiers.change(&first, &mut own, later, |spent| first.spend(spent, 1, later));
        let left = tiers.0.len();
        assert_eq!(left, 6, "those of 61 to 65 and the new one");
    }
}
