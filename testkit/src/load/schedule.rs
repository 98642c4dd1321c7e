//! When each request leaves, and how large it is.

use std::time::Duration;

use super::Plan;

/// One request to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shot {
    /// Since the start.
    pub at: Duration,
    /// Index in the plan.
    pub flow: usize,
    /// Counts the requests of its flow.
    pub number: usize,
    /// Size of the prompt.
    pub prompt_bytes: u32,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// When its caller leaves, after it was due.
    pub leaves: Option<Duration>,
}

/// All requests of a plan, in the order of their arrival. Each flow draws from numbers of its own, so its arrivals
/// stay when other flows change.
pub fn shots(plan: &Plan) -> Vec<Shot> {
    let mut shots = Vec::new();
    for (flow, kind) in plan.flows.iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(plan.seed.wrapping_add(flow as u64));
        let mut at = 0.0;
        for number in 0..plan.max_requests {
            // 1 - u lies in (0, 1], so its logarithm is finite.
            at += -(1.0 - random.f64()).ln() / kind.rate_per_s;
            if at >= plan.duration.as_secs_f64() {
                break;
            }
            let prompt_bytes = random.u32(kind.prompt_bytes.clone());
            let max_tokens = random.u32(kind.max_tokens.clone());
            let leaves = kind.leaves.as_ref().filter(|leaves| random.f64() < leaves.share).map(|leaves| {
                let (first, last) = (leaves.after.start(), leaves.after.end());
                *first + (*last - *first).mul_f64(random.f64())
            });
            shots.push(Shot { at: Duration::from_secs_f64(at), flow, number, prompt_bytes, max_tokens, leaves });
        }
    }
    shots.sort_by_key(|shot| (shot.at, shot.flow));
    shots.truncate(plan.max_requests);
    shots
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Flow;

    fn plan(max_requests: usize) -> Plan {
        let flow = |name: &str, rate_per_s| Flow {
            name: name.into(),
            tenants: vec![name.into()],
            rate_per_s,
            prompt_bytes: 10..=20,
            max_tokens: 1..=3,
            lane: None,
            in_time: None,
            leaves: None,
        };
        Plan {
            seed: 7,
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(100),
            drain: Duration::ZERO,
            max_requests,
            model: "m".into(),
            flows: vec![flow("slow", 1.0), flow("fast", 20.0)],
        }
    }

    #[test]
    fn the_same_plan_gives_the_same_requests_in_order() {
        let shots = shots(&plan(10_000));
        assert_eq!(shots, super::shots(&plan(10_000)));
        assert!(shots.is_sorted_by_key(|shot| shot.at));
        assert!(shots.iter().all(|shot| (10..=20).contains(&shot.prompt_bytes) && (1..=3).contains(&shot.max_tokens)));
    }

    #[test]
    fn flows_arrive_at_their_rates() {
        let shots = shots(&plan(10_000));
        let fast = shots.iter().filter(|shot| shot.flow == 1).count();
        let slow = shots.len() - fast;
        assert!((1_800..=2_200).contains(&fast) && (60..=140).contains(&slow), "{slow} and {fast}");
    }

    #[test]
    fn no_more_are_sent_than_allowed() {
        assert_eq!(shots(&plan(50)).len(), 50);
    }
}
