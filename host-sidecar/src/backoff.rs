//! How long to wait before trying again what has failed.

use std::time::Duration;

/// The pause after `failures` in a row: `first`, doubling up to `longest`. `jitter` is random in 0 to 1 and shortens it by
/// up to half, so that those who failed together do not try again together.
pub fn pause(first: Duration, longest: Duration, failures: u32, jitter: f64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(longest).mul_f64(1.0 - 0.5 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_jitter_takes_half() {
        let ms = Duration::from_millis;
        let pauses = |jitter| [1, 2, 3, 4, u32::MAX].map(|failures| pause(ms(100), ms(500), failures, jitter));
        assert_eq!(pauses(0.0), [100, 200, 400, 500, 500].map(ms));
        assert_eq!(pauses(1.0), [50, 100, 200, 250, 250].map(ms));
        assert_eq!(pauses(7.0), pauses(1.0));
    }
}
