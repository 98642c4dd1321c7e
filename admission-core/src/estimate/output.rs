//! How long answers have been, by model and by tenant.

use crate::record::{Reader, Writer};
use crate::units::Tokens;

/// Classes of lengths, two for each doubling, from one token on.
const CLASSES: usize = 36;

/// Slots that tenants are hashed to.
pub const TENANT_SLOTS: u8 = 64;

/// Answers from which lengths are believed.
const ENOUGH: u64 = 20;

/// Counts that reach so many in all are halved: so the older count less.
const FULL: (u64, u64) = (4_096, 255);

/// Which class a length belongs to.
pub(super) fn class_of(length: Tokens) -> u8 {
    let length = length.0.max(1);
    let doublings = length.ilog2();
    let upper_half = doublings.checked_sub(1).is_some_and(|bit| length >> bit & 1 == 1);
    let class = doublings.saturating_mul(2).saturating_add(upper_half.into());
    u8::try_from(class).unwrap_or(u8::MAX).min(CLASSES as u8 - 1)
}

/// The shortest length of a class.
fn start(class: usize) -> u64 {
    let power = 1_u64.checked_shl(u32::try_from(class / 2).unwrap_or(u32::MAX)).unwrap_or(u64::MAX);
    if class.is_multiple_of(2) { power } else { power.saturating_add(power / 2) }
}

/// Answers by class, of a model as a whole and of its tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths {
    all: Counts,
    /// By slot, in order.
    tenants: Vec<(u8, Counts)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Counts([u16; CLASSES]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

impl Counts {
    fn total(&self) -> u64 {
        self.0.iter().copied().map(u64::from).sum()
    }

    fn add(&mut self, class: u8, full: u64) {
        if let Some(count) = self.0.get_mut(usize::from(class)) {
            *count = count.saturating_add(1);
        }
        if self.total() >= full {
            self.0.iter_mut().for_each(|count| *count /= 2);
        }
    }

    /// The length that this share of answers does not exceed; between the edges of its class as if they were spread evenly.
    fn quantile(&self, share: f64) -> Option<Tokens> {
        let total = self.total();
        if total < ENOUGH {
            return None;
        }
        let wanted = share.clamp(0.0, 1.0) * total as f64;
        let mut below = 0.0;
        for (class, count) in self.0.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (count, from) = (f64::from(*count), start(class));
            if below + count >= wanted {
                let width = start(class.saturating_add(1)).saturating_sub(from);
                let within = (wanted - below).max(0.0) / count * width as f64;
                return Some(Tokens(from.saturating_add(within.ceil() as u64).saturating_sub(1).max(from)));
            }
            below += count;
        }
        None
    }
}

impl Lengths {
    pub(super) fn add(&mut self, tenant: u8, class: u8) {
        let tenant = tenant % TENANT_SLOTS;
        self.all.add(class, FULL.0);
        let place = self.tenants.binary_search_by_key(&tenant, |(slot, _)| *slot);
        let at = place.unwrap_or_else(|at| {
            self.tenants.insert(at, (tenant, Counts::default()));
            at
        });
        if let Some((_, counts)) = self.tenants.get_mut(at) {
            counts.add(class, FULL.1);
        }
    }

    /// Of the tenant if enough of its answers were seen, else of the model, if enough were.
    pub(super) fn quantile(&self, tenant: u8, share: f64) -> Option<Tokens> {
        let own = self.tenants.iter().find(|(slot, _)| *slot == tenant % TENANT_SLOTS);
        own.and_then(|(_, counts)| counts.quantile(share)).or_else(|| self.all.quantile(share))
    }

    pub(super) fn write_all(&self, out: &mut Writer) {
        if self.all.total() > 0 {
            self.all.0.iter().for_each(|count| out.u16(*count));
        }
    }

    pub(super) fn read_all(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        for count in &mut self.all.0 {
            *count = reader.u16()?;
        }
        (reader.is_empty() && self.all.total() < FULL.0).then_some(())
    }

    pub(super) fn write_tenants(&self, out: &mut Writer) {
        for (slot, counts) in &self.tenants {
            out.bytes(&[*slot]);
            // No count of a tenant exceeds what all of them come to.
            counts.0.iter().for_each(|count| out.bytes(&[u8::try_from(*count).unwrap_or(u8::MAX)]));
        }
    }

    pub(super) fn read_tenants(&mut self, reader: &mut Reader<'_>) -> Option<()> {
        while !reader.is_empty() {
            let slot = reader.u8()?;
            let mut counts = Counts::default();
            for count in &mut counts.0 {
                *count = reader.u8()?.into();
            }
            let in_order = self.tenants.last().is_none_or(|(last, _)| *last < slot);
            if slot >= TENANT_SLOTS || !in_order || counts.total() >= FULL.1 {
                return None;
            }
            self.tenants.push((slot, counts));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_without_gaps() {
        for class in 0..CLASSES {
            if class != 1 {
                assert_eq!(usize::from(class_of(Tokens(start(class)))), class);
            }
            if class > 2 {
                assert_eq!(usize::from(class_of(Tokens(start(class) - 1))), class - 1);
            }
        }
        assert_eq!((class_of(Tokens(0)), class_of(Tokens(1)), class_of(Tokens(2))), (0, 0, 2));
        assert_eq!(usize::from(class_of(Tokens(u64::MAX))), CLASSES - 1);
    }

    #[test]
    fn a_tenant_is_known_by_its_own_answers_once_there_are_enough() {
        let mut lengths = Lengths::default();
        (0..ENOUGH - 1).for_each(|_| lengths.add(1, class_of(Tokens(1_000))));
        assert_eq!(lengths.quantile(1, 0.5), None, "too few");
        (0..200).for_each(|_| lengths.add(2, class_of(Tokens(10))));
        let of = |tenant: u8| lengths.quantile(tenant, 0.5).unwrap().0;
        assert!((8..12).contains(&of(2)) && (8..12).contains(&of(1)) && (8..12).contains(&of(9)), "of the model");
        lengths.add(1, class_of(Tokens(1_000)));
        assert!((768..1_024).contains(&lengths.quantile(1, 0.5).unwrap().0), "its own");
        assert_eq!(lengths.quantile(1 + TENANT_SLOTS, 0.5), lengths.quantile(1, 0.5), "slots are shared");
    }

    #[test]
    fn quantiles_are_near_those_of_the_lengths() {
        let mut rng = fastrand::Rng::with_seed(9);
        let mut lengths = Lengths::default();
        let mut seen: Vec<u64> = (0..4_000).map(|_| (rng.f64() * 10.0).exp2() as u64 + 1).collect();
        seen.iter().for_each(|length| lengths.add(0, class_of(Tokens(*length))));
        seen.sort_unstable();
        for share in [0.1, 0.5, 0.9, 0.99] {
            let exact = seen[(share * 4_000.0) as usize] as f64;
            let found = lengths.all.quantile(share).unwrap().0 as f64;
            assert!((0.85..1.2).contains(&(found / exact)), "{share}: {found} instead of {exact}");
        }
    }

    #[test]
    fn newer_answers_count_more() {
        let mut lengths = Lengths::default();
        (0..1_000).for_each(|_| lengths.add(0, class_of(Tokens(10))));
        (0..400).for_each(|_| lengths.add(0, class_of(Tokens(5_000))));
        assert!(lengths.quantile(0, 0.5).unwrap() > Tokens(4_000));
    }
}
