//! Whether what was learned of a model fits a tenant's own requests.
//!
//! What is learned is learned from all, so who makes most requests has most to say, and may lie. Another is not estimated by it if
//! its own reports are nearer to what the family says.

use super::output::TENANT_SLOTS;
use crate::record::{Reader, Writer};

/// An estimate fits that is off by no more than the family's is, and this: |ln (reported ÷ estimated)|.
const MARGIN: f64 = 0.1;

/// What a report that fits adds, and one that does not: more than one in three must not fit.
const STEPS: (i8, i8) = (1, -2);

/// The most that is kept, of four bits: after two reports that do not fit what was learned no longer stands, after nine that do it
/// does again.
const MOST: (i8, i8) = (-8, 3);

const SLOTS: usize = TENANT_SLOTS as usize;

/// By slot: below 0 where what was learned does not fit, 0 where nothing is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trust([i8; SLOTS]);

impl Default for Trust {
    fn default() -> Self {
        Self([0; SLOTS])
    }
}

/// Whether an estimate that is off so far fits, where the family's is off so far.
pub(super) fn fits(error: f64, of_family: f64) -> bool {
    error.abs() <= of_family.abs() + MARGIN
}

impl Trust {
    pub(super) fn add(&mut self, tenant: u8, fits: bool) {
        if let Some(slot) = self.0.get_mut(usize::from(tenant % TENANT_SLOTS)) {
            let step = if fits { STEPS.0 } else { STEPS.1 };
            *slot = slot.saturating_add(step).clamp(MOST.0, MOST.1);
        }
    }

    /// Whether a tenant is estimated by what was learned: by its own reports, else as most others are.
    pub(super) fn of(&self, tenant: u8) -> bool {
        match self.0.get(usize::from(tenant % TENANT_SLOTS)) {
            None | Some(0) => {
                let slots = |are: fn(&i8) -> bool| self.0.iter().filter(|slot| are(slot)).count();
                let against = slots(|slot| *slot < 0);
                against == 0 || slots(|slot| *slot > 0) > against
            }
            Some(own) => *own > 0,
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        if *self != Self::default() {
            self.0.as_chunks::<2>().0.iter().for_each(|[low, high]| out.bytes(&[*low as u8 & 15 | (*high as u8) << 4]));
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut trust = Self::default();
        for [low, high] in trust.0.as_chunks_mut::<2>().0 {
            let both = reader.u8()?;
            (*low, *high) = ((both << 4) as i8 >> 4, both as i8 >> 4);
        }
        reader.is_empty().then_some(trust)
    }
}
