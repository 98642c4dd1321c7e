//! Which worker a request is steered to.

use crate::ledger::TallyKey;
use crate::units::Blocks;
use crate::view::{Seen, WorkerKey};

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
    /// No worker has room.
    Nobody,
}

/// True for a worker that is free as last seen, and is none of those that have just refused a request.
#[must_use]
pub fn looks_free(seen: &Seen, marked: &[WorkerKey]) -> bool {
    seen.free && !marked.contains(&seen.key)
}

/// A worker that a request can be steered to.
#[derive(Clone, Copy, Debug)]
pub struct Open<'a> {
    /// The worker, as last seen.
    pub seen: &'a Seen,
    /// Requests that it holds by our own count.
    pub held: u64,
    /// KV blocks that one request may take there.
    pub blocks: Blocks,
}

/// Chooses by what the workers said and what has been given to them since.
///
/// `cap` limits the requests that a worker holds by our own count. The least loaded goes first. A worker's own load is as old
/// as its scrape and counts callers of other proxies too, ours is current, so the larger of both is what orders them; then KV
/// blocks in use, then the address, so that equal pictures lead to equal choices.
#[must_use]
pub fn choose<'a: 'open, 'open>(open: impl Iterator<Item = &'open Open<'a>> + Clone, cap: Option<u64>) -> Choice<'a> {
    let below_cap = open.clone().filter(|open| cap.is_none_or(|cap| open.held < cap));
    let by_order =
        below_cap.map(|Open { seen, held, .. }| ((*held.max(&seen.load), seen.kv_permille, &*seen.address), *seen));
    let first = by_order.clone().min_by_key(|(order, _)| *order);
    match (first, open.map(|open| open.held).min()) {
        (Some((_, first)), _) => {
            let others = by_order.filter(|(_, seen)| seen.address != first.address);
            let second = others.min_by_key(|(order, _)| *order);
            Choice::Chosen { first, second: second.map(|(_, second)| second) }
        }
        (None, Some(fewest)) => Choice::AllAtCap { fewest },
        (None, None) => Choice::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;

    use super::*;
    use crate::view::Takes;

    /// A free worker at 10.0.0.`host` with nothing to do.
    fn idle(host: u8) -> Seen {
        let address = format!("10.0.0.{host}:8000");
        Seen {
            key: WorkerKey::of(&address),
            address,
            is_ip_and_port: true,
            free: true,
            live: true,
            load: 0,
            kv_permille: 0,
            takes: Takes::default(),
        }
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
        let host = |seen: &Seen| seen.address.parse::<SocketAddrV4>().unwrap().ip().octets()[3];
        let marked: Vec<_> = marked.iter().map(of).collect();
        let open = list.iter().filter(|seen| looks_free(seen, &marked));
        let open: Vec<Open<'_>> =
            open.map(|seen| Open { seen, held: in_flight(seen.key), blocks: Blocks(0) }).collect();
        match choose(open.iter(), cap) {
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
    fn a_second_is_another_worker() {
        assert_eq!(hosts(vec![idle(1), idle(1)], &[], &[], None), Ok((1, None)), "listed twice");
    }
}
