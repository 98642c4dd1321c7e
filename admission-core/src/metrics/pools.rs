//! Gauges of pools and lanes, and of the VM itself.

use crate::decide::{DISPATCH_BUDGET, bounds};
use crate::ledger::{Counted, Ledger};
use crate::members::Members;
use crate::policy::{Policy, Pool};
use crate::store::{self, Store};
use crate::units::Time;
use crate::view::ViewSummary;

use super::{Metrics, VM_MEMORY};

/// Requests that wait, by pool and lane.
const WAITING: &str = "sluice_waiting_requests";
/// Requests held, by pool and lane.
const LANE_IN_FLIGHT: &str = "sluice_lane_in_flight_requests";
/// Tokens held, by pool and lane.
const LANE_TOKENS: &str = "sluice_lane_in_flight_tokens";
/// Tokens that wait, by pool and lane.
const WAITING_TOKENS: &str = "sluice_waiting_tokens";
/// Bytes of bodies that wait, by pool and lane.
const WAITING_BYTES: &str = "sluice_waiting_bytes";
/// Use of each bound in thousandths, by pool, lane and bound.
const BOUND_USED: &str = "sluice_bound_used_permille";
/// N of a lane's dispatch budget, by pool and lane.
const BUDGET: &str = "sluice_dispatch_budget_allowed";
/// Requests held beyond what the last scrape has seen, by pool.
const UNSEEN: &str = "sluice_unseen_requests";
/// One where tenants that are not listed have no limit while others have, else zero.
const UNLIMITED: &str = "sluice_unlisted_tenants_unlimited";
/// Prompt tokens that workers have been sent and whose answers have not begun, by pool, where a lane's goal asks for it.
const PREFILL_TOKENS: &str = "sluice_prefill_tokens";
/// Prompt tokens that one worker reads in a second, by pool; 0 while that is not known.
const PREFILL_RATE: &str = "sluice_prefill_tokens_per_second";
/// Live workers that report no KV blocks, by pool.
const KV_UNKNOWN: &str = "sluice_kv_unknown_workers";
/// Requests in flight, by pool.
const IN_FLIGHT: &str = "sluice_in_flight_requests";
/// Tokens in flight, by pool.
const TOKENS_IN_FLIGHT: &str = "sluice_in_flight_tokens";
/// One while no view that is young enough names the pool, else zero.
const VIEW_MISSING: &str = "sluice_view_missing";
/// Age of the view, by pool.
const VIEW_AGE: &str = "sluice_view_age_ms";
/// Saturation in thousandths, by pool, as the view has it.
const SATURATION: &str = "sluice_saturation_permille";

/// Label of a bound that holds for all lanes of a pool.
const ALL_LANES: &str = "all";

impl Metrics {
    /// Sets the gauges of every pool from the records, which is the truth whatever VM died.
    pub fn record_pools<S: Store>(&mut self, policy: &Policy, store: &S, members: &Members, now: Time) {
        self.gauge(&[], UNLIMITED, u64::from(policy.unlimited.is_some()));
        for pool in policy.pools() {
            let of: &[(&str, &str)] = &[("pool", &pool.name)];
            let view = store.read(&pool.view_key).0.and_then(|bytes| ViewSummary::decode(&bytes));
            if let Ok((ledger, _)) = store::read::<Ledger>(store, &pool.key) {
                let held = ledger.held(members);
                self.gauge(of, IN_FLIGHT, held.requests);
                self.gauge(of, TOKENS_IN_FLIGHT, held.tokens.0);
                let has_limit = view.as_ref().is_some_and(|view| view.prefill_limit.is_some());
                if has_limit || policy.line_up().have_goals() {
                    self.gauge(of, PREFILL_TOKENS, ledger.prompts_being_read(members).0);
                    self.gauge(of, PREFILL_RATE, ledger.tokens_read_in_a_second().unwrap_or(0));
                }
                if let Some(view) = &view {
                    let unseen = ledger.unseen(view.credit, members).requests;
                    self.gauge(of, UNSEEN, u64::try_from(unseen).unwrap_or(0));
                }
                self.record_lanes(policy, pool, view.as_ref(), ledger.counted(members), now);
            }
            let is_fresh = |view: &ViewSummary| now.since(view.received) <= pool.stale.hold;
            self.gauge(of, VIEW_MISSING, u64::from(!view.as_ref().is_some_and(is_fresh)));
            if let Some(view) = view {
                self.gauge(of, VIEW_AGE, now.since(view.received).0);
                self.gauge(of, KV_UNKNOWN, u64::from(view.kv_unknown));
                if let Some(saturation) = view.saturation {
                    self.gauge(of, SATURATION, (saturation * 1_000.0).round() as u64);
                }
            }
        }
    }

    fn record_lanes(&mut self, policy: &Policy, pool: &Pool, view: Option<&ViewSummary>, held: Counted<'_>, now: Time) {
        let Counted { ledger, members } = held;
        for lane in policy.lanes() {
            let of: &[(&str, &str)] = &[("pool", &pool.name), ("lane", &lane.name)];
            let of_this = ledger.held_by(lane.key, members);
            self.gauge(of, LANE_IN_FLIGHT, of_this.requests);
            self.gauge(of, LANE_TOKENS, of_this.tokens.0);
            if lane.queue.is_some() {
                let waiting = ledger.backlog(lane.key, members);
                self.gauge(of, WAITING, waiting.requests);
                self.gauge(of, WAITING_TOKENS, waiting.tokens.0);
                self.gauge(of, WAITING_BYTES, waiting.bytes);
            }
        }
        for used in bounds(pool, policy.line_up(), view, held, now) {
            let lane = used.lane.map_or(ALL_LANES, |lane| &policy.line_up().at(lane).name);
            self.gauge(&[("pool", &pool.name), ("lane", lane), ("bound", used.bound)], BOUND_USED, used.permille());
            if used.bound == DISPATCH_BUDGET {
                self.gauge(&[("pool", &pool.name), ("lane", lane)], BUDGET, used.limit);
            }
        }
    }

    /// Sets the gauge of how many bytes of memory this VM has, which never become fewer.
    pub fn record_memory(&mut self, slot: u16, bytes: u64) {
        self.gauge(&[("vm", &slot.to_string())], VM_MEMORY, bytes);
    }
}
