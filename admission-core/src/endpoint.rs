//! Which worker a request is steered to.

use crate::ledger::TallyKey;
use crate::view::{Seen, WorkerKey, Workers};

/// Where a request is steered to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Counts it at the worker that goes first.
    pub worker: TallyKey,
    /// `ip:port` of that worker, and behind a comma of the one for a second try.
    pub header: String,
}

impl Endpoint {
    /// At a worker, or at the next if that one fails.
    #[must_use]
    pub fn of(first: &Seen, second: Option<&Seen>) -> Self {
        let header = match second {
            Some(second) => format!("{},{}", first.address, second.address),
            None => first.address.clone(),
        };
        Self { worker: TallyKey::worker(first.key), header }
    }
}

/// Whom a request may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice<'a> {
    /// The best worker.
    Chosen {
        /// It is free and holds less than the cap.
        first: &'a Seen,
        /// The next best one of which the same is true, for the case that the first refuses; never the same address.
        second: Option<&'a Seen>,
    },
    /// Workers are free, but each holds as many requests as it may.
    AllAtCap {
        /// Requests held by the one that holds fewest.
        fewest: u64,
    },
    /// No worker is free, or none that a proxy can be told.
    Nobody,
}

/// Chooses by what the workers said and what has been given to them since.
///
/// `in_flight` is how many requests a worker holds by our own count, which `cap` limits; `marked` says that it has just
/// refused one, so it counts as busy. The least loaded goes first. A worker's own load is as old as its scrape and counts
/// callers of other proxies too, ours is current, so the larger of both is what orders them; then KV blocks in use, then
/// the address, so that equal pictures lead to equal choices.
pub fn choose<'a>(
    workers: &'a Workers,
    in_flight: impl Fn(WorkerKey) -> u64,
    marked: impl Fn(WorkerKey) -> bool,
    cap: Option<u64>,
) -> Choice<'a> {
    let free = workers.list.iter().filter(|seen| seen.free && seen.is_ip_and_port && !marked(seen.key));
    let (mut fewest, mut open) = (None, Vec::new());
    for seen in free {
        let held = in_flight(seen.key);
        fewest = Some(fewest.map_or(held, |fewest: u64| fewest.min(held)));
        if cap.is_none_or(|cap| held < cap) {
            open.push(((held.max(seen.load), seen.kv_permille, seen.address.as_str()), seen));
        }
    }
    let best = |except: Option<&str>| {
        let others = open.iter().filter(|(_, seen)| Some(seen.address.as_str()) != except);
        others.min_by_key(|(order, _)| *order).map(|(_, seen)| *seen)
    };
    match (best(None), fewest) {
        (Some(first), _) => Choice::Chosen { first, second: best(Some(&first.address)) },
        (None, Some(fewest)) => Choice::AllAtCap { fewest },
        (None, None) => Choice::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    /// A free worker at 10.0.0.`host` with nothing to do.
    fn idle(host: u8) -> Seen {
        named(&format!("10.0.0.{host}:8000"))
    }

    fn named(address: &str) -> Seen {
        let key = WorkerKey::of(address);
        let is_ip_and_port = address.parse::<SocketAddr>().is_ok();
        Seen { address: address.into(), key, is_ip_and_port, free: true, live: true, load: 0, kv_permille: 0 }
    }

    /// What is chosen, each by the last number of its IP, when `held` and `marked` are given by the same number.
    fn hosts(
        list: Vec<Seen>,
        held: &[(u8, u64)],
        marked: &[u8],
        cap: Option<u64>,
    ) -> Result<(u8, Option<u8>), Option<u64>> {
        let of = |host: &u8| idle(*host).key;
        let in_flight = |key| held.iter().find(|(host, _)| of(host) == key).map_or(0, |(_, held)| *held);
        let marked = |key| marked.iter().any(|host| of(host) == key);
        let host = |seen: &Seen| match seen.address.parse().unwrap() {
            SocketAddr::V4(at) => at.ip().octets()[3],
            SocketAddr::V6(at) => at.ip().octets()[15],
        };
        match choose(&Workers { list, ..Workers::default() }, in_flight, marked, cap) {
            Choice::Chosen { first, second } => Ok((host(first), second.map(host))),
            Choice::AllAtCap { fewest } => Err(Some(fewest)),
            Choice::Nobody => Err(None),
        }
    }

    #[test]
    fn the_least_loaded_goes_first() {
        let list = || vec![Seen { load: 9, ..idle(1) }, Seen { load: 3, ..idle(2) }, Seen { load: 5, ..idle(3) }];
        assert_eq!(hosts(list(), &[], &[], None), Ok((2, Some(3))));
        assert_eq!(hosts(list(), &[(2, 6)], &[], None), Ok((3, Some(2))), "what it was given since its scrape counts");
        assert_eq!(hosts(list(), &[(1, 2), (2, 2), (3, 2)], &[], None), Ok((2, Some(3))), "what others gave it, too");
    }

    #[test]
    fn then_the_one_with_most_room_then_the_address() {
        let list = vec![Seen { kv_permille: 200, ..idle(1) }, Seen { kv_permille: 199, ..idle(3) }, idle(2)];
        assert_eq!(hosts(list, &[], &[], None), Ok((2, Some(3))));
        let loaded = vec![Seen { load: 1, ..idle(1) }, Seen { kv_permille: 1_000, ..idle(2) }];
        assert_eq!(hosts(loaded, &[], &[], None), Ok((2, Some(1))), "load goes before room");
        for list in [vec![idle(1), idle(2), idle(3)], vec![idle(3), idle(2), idle(1)]] {
            assert_eq!(hosts(list, &[], &[], None), Ok((1, Some(2))), "in whatever order they are listed");
        }
    }

    #[test]
    fn only_free_workers_are_chosen() {
        let busy = |host| Seen { free: false, ..idle(host) };
        let dead = |host| Seen { live: false, ..busy(host) };
        let full = Seen { load: 1_000, kv_permille: 1_000, ..idle(9) };
        assert_eq!(hosts(vec![busy(1), dead(2), full], &[], &[], None), Ok((9, None)));
        assert_eq!(hosts(vec![busy(1), dead(2)], &[], &[], None), Err(None));
        assert_eq!(hosts(vec![], &[], &[], Some(1)), Err(None));
    }

    #[test]
    fn one_that_has_just_refused_is_not_chosen() {
        assert_eq!(hosts(vec![idle(1), idle(2), idle(3)], &[(2, 50)], &[1], None), Ok((3, Some(2))));
        assert_eq!(hosts(vec![idle(1), idle(2)], &[], &[1], None), Ok((2, None)), "nor as the second");
        assert_eq!(hosts(vec![idle(1), idle(2)], &[], &[1, 2], Some(1)), Err(None));
    }

    #[test]
    fn the_cap_of_each_worker_binds() {
        let list = || vec![idle(1), Seen { load: 90, ..idle(2) }, Seen { load: 91, ..idle(3) }];
        assert_eq!(hosts(list(), &[(1, 7)], &[], Some(8)), Ok((1, Some(2))));
        assert_eq!(
            hosts(list(), &[(1, 8)], &[], Some(8)),
            Ok((2, Some(3))),
            "it limits what we gave, not what others did"
        );
        assert_eq!(hosts(list(), &[(1, 8), (2, 8)], &[], Some(8)), Ok((3, None)), "a second is below its cap too");
        assert_eq!(hosts(list(), &[(1, 9), (2, 8), (3, 11)], &[], Some(8)), Err(Some(8)));
        assert_eq!(hosts(list(), &[], &[], Some(0)), Err(Some(0)));
        let marked_is_idle = hosts(list(), &[(1, 9), (2, 10)], &[3], Some(8));
        assert_eq!(marked_is_idle, Err(Some(9)), "the fewest is of those that might be chosen");
    }

    #[test]
    fn names_are_skipped() {
        let list = vec![named("gpu-1.local:8000"), named("10.0.0.1"), named(""), idle(5), named("[fd00::7]:8000")];
        assert_eq!(hosts(list, &[], &[], None), Ok((5, Some(7))));
        assert_eq!(hosts(vec![named("localhost:80")], &[], &[], Some(0)), Err(None));
    }

    #[test]
    fn a_second_is_another_worker() {
        assert_eq!(hosts(vec![idle(1), idle(1)], &[], &[], None), Ok((1, None)), "listed twice");
    }
}
