//! Quantities that must not be mixed up. All arithmetic saturates.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Tokens of a prompt or an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u64);

/// KV-cache blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Blocks(pub u64);

/// A span of time in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

/// A point on the process's monotonic clock in milliseconds; only differences mean anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Tokens {
    /// The most there is.
    pub const MAX: Self = Self(u64::MAX);

    /// The most that one request is ever charged or believed to have cost, far beyond any real one: sums of them stay exact,
    /// so that a release takes back what was charged and nothing of what others hold.
    pub const MOST_OF_A_REQUEST: Self = Self(1 << 32);

    /// So many times as many, or the most there is.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// The sum, or the most there is.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Blocks of `size` tokens that hold these, the last one perhaps in part.
    #[must_use]
    pub const fn blocks_of(self, size: u32) -> Blocks {
        let size = if size == 0 { 1 } else { size as u64 };
        Blocks(self.0.div_ceil(size))
    }
}

impl Time {
    /// How long ago `earlier` was; nothing when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Millis {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ms if ms % 1_000 == 0 => write!(out, "{}s", ms / 1_000),
            ms => write!(out, "{ms}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_started_block_counts_whole() {
        assert_eq!(Tokens(0).blocks_of(16), Blocks(0));
        assert_eq!(Tokens(16).blocks_of(16), Blocks(1));
        assert_eq!(Tokens(17).blocks_of(16), Blocks(2));
        assert_eq!(Tokens(u64::MAX).blocks_of(0), Blocks(u64::MAX));
    }

    #[test]
    fn nothing_wraps() {
        assert_eq!(Tokens(u64::MAX).plus(Tokens(1)), Tokens(u64::MAX));
        assert_eq!(Time(1).since(Time(2)), Millis(0));
    }
}
