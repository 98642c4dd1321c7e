//! When each request leaves, and how large it is.

use std::time::Duration;

use super::{Flow, Plan};

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
        let of_one = arrivals(kind, plan, &mut random).into_iter().enumerate();
        shots.extend(of_one.map(|(number, at)| shot(kind, flow, number, at, &mut random)));
    }
    shots.sort_by_key(|shot| (shot.at, shot.flow));
    shots.truncate(plan.max_requests);
    shots
}

/// Instants at which the requests of a flow arrive.
fn arrivals(kind: &Flow, plan: &Plan, random: &mut fastrand::Rng) -> Vec<Duration> {
    let (mut arrivals, mut at) = (Vec::new(), 0.0);
    while arrivals.len() < plan.max_requests {
        // 1 - u lies in (0, 1], so its logarithm is finite.
        at += -(1.0 - random.f64()).ln() * f64::from(kind.burst) / kind.rate_per_s;
        if at >= plan.duration.as_secs_f64() {
            break;
        }
        arrivals.push(at);
        // The first comes by itself; the others are, on average, as many as make the burst.
        let others = random.u32(0..kind.burst.saturating_mul(2).saturating_sub(1));
        arrivals.extend((0..others).map(|_| at + random.f64()));
    }
    arrivals.retain(|at| *at < plan.duration.as_secs_f64());
    arrivals.truncate(plan.max_requests);
    arrivals.into_iter().map(Duration::from_secs_f64).collect()
}

fn shot(kind: &Flow, flow: usize, number: usize, at: Duration, random: &mut fastrand::Rng) -> Shot {
    let prompt_bytes = kind.prompt_bytes.draw(random);
    let max_tokens = kind.max_tokens.draw(random);
    let leaves = kind.leaves.as_ref().filter(|leaves| random.f64() < leaves.share).map(|leaves| {
        let (first, last) = (leaves.after.start(), leaves.after.end());
        *first + (*last - *first).mul_f64(random.f64())
    });
    Shot { at, flow, number, prompt_bytes, max_tokens, leaves }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(max_requests: usize) -> Plan {
        let flow = |name: &str, rate_per_s| Flow {
            name: name.into(),
            tenants: vec![name.into()],
            rate_per_s,
            burst: 1,
            prompt_bytes: (10..=20).into(),
            max_tokens: (1..=3).into(),
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
    fn bursts_leave_the_rate_as_it_is() {
        let mut plan = plan(100_000);
        let seconds = |shots: &[Shot]| {
            let mut by_second = [0; 100];
            shots.iter().for_each(|shot| by_second[shot.at.as_secs() as usize] += 1);
            by_second
        };
        plan.flows.drain(..1);
        let even = seconds(&shots(&plan));
        plan.flows[0].burst = 40;
        let bursts = seconds(&shots(&plan));
        let sum: usize = bursts.iter().sum();
        assert!((1_200..=2_800).contains(&sum), "{sum}");
        let idle = |seconds: &[usize; 100]| seconds.iter().filter(|count| **count == 0).count();
        assert!(idle(&even) == 0 && idle(&bursts) > 20, "{even:?} and {bursts:?}");
    }

    #[test]
    fn no_more_are_sent_than_allowed() {
        assert_eq!(shots(&plan(50)).len(), 50);
    }
}
