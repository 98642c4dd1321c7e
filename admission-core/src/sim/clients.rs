//! Those who ask: when, for how much, for how long, and what they do when they are refused.

/// Names a request over its whole life, all its attempts included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestId(pub(super) u64);

/// Requests of one kind. Times are in milliseconds since the beginning.
#[derive(Clone, Debug)]
pub struct Stream {
    /// In the table.
    pub name: &'static str,
    /// Whose they are.
    pub tenant: &'static str,
    /// Under which they go.
    pub lane: &'static str,
    /// Key that parts them from others of the tenant.
    pub key: Option<&'static str>,
    /// When they come.
    pub load: Load,
    /// Tokens of a prompt, from and to.
    pub prompt: (u64, u64),
    /// Tokens of an answer, from and to.
    pub output: (u64, u64),
    /// Tokens of an answer that it says it wants, where that is more than it takes.
    pub claim: Option<u64>,
    /// The client's own word on when the answer must begin.
    pub ttft: Option<u64>,
    /// After which it leaves if nothing has begun.
    pub patience: Option<u64>,
    /// What it does when it is refused.
    pub returns: Returns,
    /// Requests can still be steered to a worker when they are decided.
    pub can_be_steered: bool,
}

/// When requests come.
#[derive(Clone, Debug)]
pub enum Load {
    /// At random, so many a second from a time on until the next.
    PerSecond(Vec<(u64, f64)>),
    /// From so many callers, each of whom asks again as soon as it was served, until a time.
    Callers(u32, u64),
}

/// What a refused client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// Nothing more.
    Never,
    /// Comes back once, when it was told to.
    AsAdvised,
    /// Comes back so often, always after so long, whatever it was told.
    Regardless {
        /// Times.
        times: u32,
        /// Milliseconds.
        after: u64,
    },
}

impl Stream {
    /// Tokens of an answer that each of its requests says it wants.
    pub(super) fn claimed(&self) -> u64 {
        self.claim.unwrap_or(self.output.1)
    }
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            name: "chat",
            tenant: "acme",
            lane: "standard",
            key: None,
            load: Load::PerSecond(vec![(0, 1.0)]),
            prompt: (100, 300),
            output: (50, 150),
            claim: None,
            ttft: None,
            patience: None,
            returns: Returns::Never,
            can_be_steered: true,
        }
    }
}

impl Load {
    /// When the next one comes after `now`; `None` when there is no next one. Callers come by themselves.
    pub(super) fn next(&self, now_ms: f64, rng: &mut fastrand::Rng) -> Option<f64> {
        let Self::PerSecond(phases) = self else { return None };
        let mut at = now_ms;
        // The time to the next of a process without memory may be drawn anew wherever the rate changes.
        loop {
            let current = phases.iter().rev().find(|(from, _)| *from as f64 <= at);
            let until = phases.iter().map(|(from, _)| *from as f64).find(|from| *from > at);
            let rate = current.map_or(0.0, |(_, rate)| *rate);
            if rate > 0.0 {
                let next = at + exponential(rng) * 1_000.0 / rate;
                if until.is_none_or(|until| next < until) {
                    return Some(next);
                }
            }
            at = until?;
        }
    }
}

/// A time to the next event of a process without memory that has one in a unit of time, after von Neumann (1951): by
/// comparisons alone, since logarithms differ between machines in their last digit.
fn exponential(rng: &mut fastrand::Rng) -> f64 {
    let mut whole = 0.0;
    loop {
        let first = rng.f64();
        let (mut last, mut falls) = (first, 1_u32);
        loop {
            let next = rng.f64();
            if next >= last {
                break;
            }
            (last, falls) = (next, falls + 1);
        }
        if falls % 2 == 1 {
            return whole + first;
        }
        whole += 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_between_arrivals_are_exponential() {
        let mut rng = fastrand::Rng::with_seed(2);
        let times: Vec<f64> = (0..20_000).map(|_| exponential(&mut rng)).collect();
        let mean = times.iter().sum::<f64>() / times.len() as f64;
        let longer = times.iter().filter(|time| **time > 2.0).count() as f64 / times.len() as f64;
        assert!((0.97..1.03).contains(&mean) && (0.125..0.146).contains(&longer), "{mean} {longer}");
    }

    #[test]
    fn rates_hold_from_their_time_on() {
        let load = Load::PerSecond(vec![(1_000, 10.0), (11_000, 0.0), (20_000, 100.0), (21_000, 0.0)]);
        let mut rng = fastrand::Rng::with_seed(1);
        let (mut at, mut counts) = (0.0, [0, 0, 0]);
        while let Some(next) = load.next(at, &mut rng) {
            at = next;
            counts[if at < 11_000.0 {
                0
            } else if at < 20_000.0 {
                1
            } else {
                2
            }] += 1;
        }
        assert!((70..130).contains(&counts[0]) && counts[1] == 0 && (70..130).contains(&counts[2]), "{counts:?}");
    }
}
