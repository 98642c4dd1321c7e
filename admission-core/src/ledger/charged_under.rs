//! Rates that a record was last charged under.
//!
//! A budget's instant says until when what was spent is not earned back, and only its rate says what that is worth. The state page reads
//! records alone, so they keep the rate beside the instant.

use crate::budget::{Budgets, Rate, Rates};
use crate::record::{Reader, Writer};
use crate::units::{Millis, Time};

use super::Ledger;

/// The rates, without those that a route puts in the place of the tenant's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargedUnder {
    requests: Option<Earned>,
    tokens: Option<Earned>,
}

/// An amount for each period, of which no more than a burst is saved up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Earned {
    amount: u64,
    period: Millis,
    burst: u64,
}

impl Earned {
    fn of(rate: &Rate) -> Self {
        Self { amount: rate.amount, period: rate.period, burst: rate.burst }
    }

    fn rate(self) -> Rate {
        let Self { amount, period, burst } = self;
        Rate { amount, period, burst, knob: "".into(), key: None, waits: false }
    }
}

impl ChargedUnder {
    pub(super) fn note(&mut self, rates: &Rates) {
        for (noted, rate) in [(&mut self.requests, &rates.requests), (&mut self.tokens, &rates.tokens)] {
            if rate.as_ref().is_none_or(|rate| rate.key.is_none()) {
                *noted = rate.as_ref().map(Earned::of);
            }
        }
    }

    // Why so few bytes: unnamed tenants have such a record each.
    pub(super) fn write(&self, out: &mut Writer) {
        for (kind, earned) in [(0, self.requests), (TOKENS, self.tokens)] {
            let Some(Earned { amount, period, burst }) = earned else { continue };
            let has_burst = burst != amount;
            out.bytes(&[if has_burst { kind | HAS_BURST } else { kind }]);
            out.u32(u32::try_from(period.0).unwrap_or(u32::MAX));
            out.u64(amount);
            if has_burst {
                out.u64(burst);
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut all = Self::default();
        while !reader.is_empty() {
            let kind = reader.u8()?;
            let (period, amount) = (Millis(u64::from(reader.u32()?)), reader.u64()?);
            let burst = if kind & HAS_BURST == 0 { amount } else { reader.u64()? };
            let earned = Some(Earned { amount, period, burst });
            match kind & !HAS_BURST {
                0 => all.requests = earned,
                TOKENS => all.tokens = earned,
                // Of a later build; what follows it cannot be read.
                _ => break,
            }
        }
        Some(all)
    }
}

/// Mark of a rate of tokens.
const TOKENS: u8 = 1;
/// Mark of a rate whose burst is another number than its amount.
const HAS_BURST: u8 = 2;

impl Ledger {
    /// Notes the rates of a request that is charged.
    // Why not whenever something is spent: what a request used beyond its estimate is spent under the rates that it was charged under,
    // which may be a former policy's.
    pub(crate) fn note_rates(&mut self, rates: &Rates) {
        self.charged_under.note(rates);
    }

    /// The standings of the budgets that the record was last charged for; of a tenant's its own, without those of routes' tiers.
    #[must_use]
    pub fn budgets(&self, now: Time) -> Budgets {
        let ChargedUnder { requests, tokens } = self.charged_under;
        let rates = Rates { requests: requests.map(Earned::rate), tokens: tokens.map(Earned::rate) };
        Budgets::of(&rates, self.spent(&rates), now)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cost;
    use super::*;
    use crate::budget::RateKey;
    use crate::record::Record;
    use crate::units::Tokens;

    #[test]
    fn what_is_left_is_known_from_the_record_alone() {
        let rate = |amount: u64, key| Rate {
            amount,
            period: Millis(60_000),
            burst: amount,
            knob: "knob".into(),
            key,
            waits: false,
        };
        let own = Rates { requests: Some(rate(60, None)), tokens: Some(rate(6_000, None)) };
        let mut ledger = Ledger::default();
        assert_eq!(ledger.budgets(Time(1_000)), Budgets::default());
        ledger.note_rates(&own);
        ledger.spend(&own, Cost { requests: 2, tokens: Tokens(100) }, Time(1_000));
        let mut bursty = own.clone();
        bursty.tokens = Some(Rate { burst: 9_000, ..rate(6_000, None) });
        let of_route = Rates { requests: Some(rate(2, Some(RateKey(1)))), tokens: bursty.tokens.clone() };
        ledger.note_rates(&of_route);
        ledger.spend(&of_route, Cost { requests: 1, tokens: Tokens(100) }, Time(1_000));
        let again = Ledger::decode(&ledger.encode()).unwrap();
        assert_eq!(again, ledger);
        let left = again.budgets(Time(2_000));
        assert_eq!(left.requests.map(|left| (left.limit, left.remaining, left.reset)), Some((60, 59, Millis(1_000))));
        assert_eq!(left.tokens.map(|left| (left.limit, left.remaining)), Some((9_000, 8_900)));
        ledger.spend(&own, Cost::default(), Time(2_000));
        ledger.note_rates(&Rates { requests: None, ..own });
        assert_eq!(ledger.budgets(Time(2_000)).requests, None, "a policy without that budget");
    }
}
