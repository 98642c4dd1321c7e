//! The last starts of a pool, and which were of waiters that had climbed above the default lane.

use crate::record::{Reader, Writer};

/// Starts that are looked at.
pub const LAST_STARTS: u32 = 100;

/// The last starts, the newest in the lowest bit; a bit is set for a waiter that had climbed above the default lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LastStarts(u128);

impl LastStarts {
    /// Notes a start.
    pub(super) fn note(&mut self, had_climbed: bool) {
        let kept = (1 << LAST_STARTS) - 1;
        self.0 = (self.0 << 1 | u128::from(had_climbed)) & kept;
    }

    /// Starts of waiters that had climbed.
    pub(super) fn climbed(self) -> u32 {
        self.0.count_ones()
    }

    pub(super) fn write(self, out: &mut Writer) {
        out.bytes(&self.0.to_le_bytes());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        reader.bytes(16)?.try_into().ok().map(|bytes| Self(u128::from_le_bytes(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_forgotten_after_a_hundred_others() {
        let mut last = LastStarts::default();
        last.note(true);
        (0..50).for_each(|_| last.note(false));
        last.note(true);
        assert_eq!(last.climbed(), 2);
        (0..48).for_each(|_| last.note(false));
        assert_eq!(last.climbed(), 2);
        last.note(false);
        assert_eq!(last.climbed(), 1);
        (0..200).for_each(|_| last.note(true));
        assert_eq!(last.climbed(), LAST_STARTS);
    }
}
