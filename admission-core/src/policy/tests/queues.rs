//! Of queues and of what lanes may hold.

use super::*;
use crate::ledger::LaneKey;

/// With these lanes and a pool that has a cap.
fn with_lanes(lanes: &Value) -> String {
    json!({"lanes": lanes, "pools": [{"name": "p", "max_in_flight": 8}]}).to_string()
}

/// Every problem has its own path, and there are no others.
#[track_caller]
fn assert_problems(json: &str, paths: &[&str]) {
    let found = problems(json);
    for path in paths {
        assert!(found.iter().any(|problem| problem.starts_with(path)), "{path} in {found:#?}");
    }
    assert_eq!(found.len(), paths.len(), "{found:#?}");
}

#[test]
fn everything_said_of_a_queue_is_kept() {
    let policy = policy(&with_lanes(&json!([
        {"name": "a", "priority": 9, "reserve": {"share": 0.25, "requests": 7},
         "queue": {"max_requests": 9, "max_tokens": 8, "max_bytes": "7KiB", "max_wait": "1h", "order": "edf"}},
        {"name": "b", "priority": 8},
        {"name": "c", "queue": {"order": "shortest_first", "across_tenants_after": 4}, "aging": {"after": "30s", "to": "b"}, "preemptible": true,
         "dispatch_budget": {"baseline": 0.1234567, "unit": "bytes", "max": "1MiB"}},
    ])));
    let (a, c) = (policy.line_up().at(0), policy.line_up().at(2));
    let cap = |limit, field: &str| Cap { limit, knob: format!("lanes[a].queue.{field}").into() };
    let limits = QueueLimits {
        max_requests: cap(9, "max_requests"),
        max_tokens: Some(cap(8, "max_tokens")),
        max_bytes: Some(cap(7 << 10, "max_bytes")),
        max_wait: Millis(3_600_000),
        max_wait_knob: "lanes[a].queue.max_wait".into(),
        order: Order::Edf,
        across_tenants_after: None,
    };
    let reserve = Reserve { share: Some(0.25), requests: 7, lend: false, knob: "lanes[a].reserve".into() };
    assert_eq!((a.queue.as_ref(), a.reserve.as_ref(), a.preemptible), (Some(&limits), Some(&reserve), false));
    let knob = "lanes[c].dispatch_budget".into();
    let budget = DispatchBudget { baseline_ppm: 123_457, unit: BudgetUnit::Bytes, max: Some(1 << 20), knob };
    assert_eq!((c.dispatch_budget.as_ref(), c.preemptible), (Some(&budget), true));
    assert_eq!(c.aging, Some(Aging { after: Millis(30_000), path: vec![1], most_of_last_starts: 5 }));
    let queue = c.queue.as_ref().unwrap();
    assert_eq!((queue.order, queue.across_tenants_after), (Order::ShortestFirst, Some(4)));
}

#[test]
fn what_is_not_said_of_a_queue_has_a_default() {
    let policy = policy(&with_lanes(&json!([
        {"name": "a", "priority": 9}, {"name": "b", "priority": 5},
        {"name": "c", "queue": {}, "aging": {"after": "1s"}, "dispatch_budget": {}},
    ])));
    let c = policy.line_up().at(2);
    let queue = c.queue.as_ref().unwrap();
    assert_eq!((queue.max_requests.limit, queue.max_wait, queue.order), (128, Millis(10_000), Order::Fcfs));
    assert_eq!((&queue.max_tokens, &queue.max_bytes), (&None, &None));
    let budget = c.dispatch_budget.as_ref().unwrap();
    assert_eq!((budget.baseline_ppm, budget.unit, budget.max), (50_000, BudgetUnit::Requests, None));
    assert_eq!(c.aging.as_ref().unwrap().path, [1, 0]);
    let a = policy.line_up().at(0);
    assert_eq!((&a.queue, &a.aging, &a.dispatch_budget, &a.reserve), (&None, &None, &None, &None));
    assert!(!a.preemptible);
    assert_eq!(policy.only_pool().unwrap().hold_when_empty, None);
}

#[test]
fn lanes_stand_in_line() {
    let policy = policy(FULL);
    let line = policy.line_up();
    let names: Vec<_> = line.iter().map(|lane| (lane.position, lane.name.as_str())).collect();
    assert_eq!(names, [(0, "interactive"), (1, "standard"), (2, "batch")]);
    assert_eq!((line.default_lane().name.as_str(), line.at(9).name.as_str()), ("standard", "batch"));
    assert_eq!(line.position_of(LaneKey::of("batch")), 2);
    assert_eq!(line.position_of(LaneKey::of("gone")), 1);
}

#[test]
fn a_budget_is_a_number_or_a_size_in_every_unit() {
    for unit in ["requests", "tokens", "bytes"] {
        for (max, expected) in
            [(json!(5), Some(5)), (json!("5KiB"), Some(5 << 10)), (json!(1_u64 << 53), Some(1 << 53))]
        {
            let budget = json!({"unit": unit, "max": max});
            let policy = policy(&with_lanes(&json!([{"name": "a", "dispatch_budget": budget}])));
            assert_eq!(policy.line_up().at(0).dispatch_budget.as_ref().unwrap().max, expected);
        }
    }
    let null = json!([{"name": "a", "queue": {"max_bytes": null}, "dispatch_budget": {"max": null}}]);
    assert_eq!(policy(&with_lanes(&null)).line_up().at(0).dispatch_budget.as_ref().unwrap().max, None);
}

#[test]
fn shares_that_add_up_to_one_are_taken_however_they_round() {
    for shares in [[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0], [0.33, 0.56, 0.11]] {
        let lane = |(index, share)| json!({"name": format!("l{index}"), "reserve": share, "queue": {}});
        policy(&with_lanes(&shares.iter().enumerate().map(lane).collect()));
    }
}

#[test]
fn every_problem_of_shape_of_a_queue_is_reported_with_its_path() {
    let lanes = json!([
        {"name": "a", "reserve": "half", "queue": {"max_bytes": 5, "max_wait": 2, "order": "lifo", "max_request": 1}},
        {"name": "b", "queue": "yes", "aging": {}, "preemptible": "no", "reserve": {"lend": 1}, "dispatch_budget": {"unit": "blocks", "max": -1}},
        {"name": "c", "aging": {"after": "soon"}, "dispatch_budget": {"max": "much"}},
    ]);
    let pools = json!([{"name": "p", "max_in_flight": 8, "hold_when_empty": 5}]);
    let found = json!({"lanes": lanes, "pools": pools}).to_string();
    assert_problems(
        &found,
        &[
            "lanes[0].reserve: {share, lend}, {requests, lend}, or a share that is lent",
            "lanes[1].reserve: {share, lend}, {requests, lend}, or a share that is lent",
            "lanes[0].queue.max_bytes: must be a size",
            "lanes[0].queue.max_wait: must be a duration",
            "lanes[0].queue.order: unknown variant `lifo`",
            "lanes[0].queue.max_request: unknown field",
            "lanes[1].queue: ",
            "lanes[1].aging: missing field `after`",
            "lanes[1].preemptible: ",
            "lanes[1].dispatch_budget.unit: unknown variant `blocks`",
            "lanes[1].dispatch_budget.max: must be a whole number, or a size",
            "lanes[2].aging.after: \"soon\" is not a duration",
            "lanes[2].aging: missing field `after`",
            "lanes[2].dispatch_budget.max: \"much\" is not a size",
            "pools[0].hold_when_empty: must be a duration",
        ],
    );
}

#[test]
fn every_problem_of_meaning_of_a_queue_is_reported_with_its_path() {
    let lanes = json!([
        {"name": "a", "reserve": 0.6, "aging": {"after": "1s"}, "preemptible": true},
        {"name": "b", "reserve": 0.6, "preemptible": true,
         "queue": {"max_requests": 0, "max_tokens": 0, "max_bytes": "0B", "max_wait": "0s"},
         "aging": {"after": "0s", "to": "c"}, "dispatch_budget": {"baseline": 1.0, "max": 0}},
        {"name": "c", "reserve": 0.0, "queue": {"max_wait": "1h 1s"}, "aging": {"after": "1s", "to": "none"},
         "dispatch_budget": {"baseline": -0.1, "unit": "tokens"}},
        {"name": "d", "reserve": {"share": 1.5, "requests": 0}, "queue": {}, "aging": {"after": "1s", "to": "d"},
         "dispatch_budget": {"unit": "bytes"}},
        {"name": "e", "reserve": {"lend": false}, "queue": {"order": "edf"}},
    ]);
    let pools = json!([{"name": "p", "max_in_flight": 8, "hold_when_empty": "0s"},
        {"name": "q", "models": ["q"], "max_in_flight_per_worker": 8, "hold_when_empty": "61m"}]);
    assert_problems(
        &json!({"lanes": lanes, "pools": pools}).to_string(),
        &[
            "lanes[0].reserve: has no meaning without `queue`",
            "lanes[0].aging: has no meaning without `queue`",
            "lanes[0].aging: there is no lane above",
            "lanes[0].preemptible: there is no lane above",
            "lanes[1].reserve: 0.6 and the 0.6 of the lanes before it are more than 1",
            "lanes[1].preemptible: no lane above has a `queue`",
            "lanes[1].queue.max_requests: ",
            "lanes[1].queue.max_tokens: ",
            "lanes[1].queue.max_bytes: ",
            "lanes[1].queue.max_wait: 0s is not a wait",
            "lanes[1].aging.after: ",
            "lanes[1].aging.to: \"c\" has no higher priority than this lane",
            "lanes[1].dispatch_budget.baseline: ",
            "lanes[1].dispatch_budget.max: must be at least 1",
            "lanes[2].reserve: 0 is not a share",
            "lanes[2].queue.max_wait: 3601s is not a wait",
            "lanes[2].aging.to: \"none\" is not one of `lanes`",
            "lanes[2].dispatch_budget.baseline: ",
            "lanes[2].dispatch_budget.max: is needed where `unit` is not requests",
            "lanes[3].reserve: 1.5 is not a share",
            "lanes[3].reserve.requests: must be at least 1",
            "lanes[4].reserve: must have `share` or `requests`",
            "lanes[4].queue.order: is not that of \"b\", which has the same priority",
            "lanes[3].aging.to: \"d\" has no higher priority than this lane",
            "lanes[3].dispatch_budget.max: is needed where `unit` is not requests",
            "pools[0].hold_when_empty: 0s is not a wait",
            "pools[1].hold_when_empty: 3660s is not a wait",
        ],
    );
}

#[test]
fn what_is_measured_against_a_pools_cap_needs_one_in_every_pool() {
    let lanes = json!([{"name": "a", "reserve": 0.5, "queue": {}},
        {"name": "b", "dispatch_budget": {}}, {"name": "c", "dispatch_budget": {"max": 4}}]);
    let pools = json!([{"name": "p", "max_in_flight_per_worker": 8},
        {"name": "q", "models": ["q"], "stale": {"then": "admit"}},
        {"name": "r", "models": ["r"], "stale": {"then": "reject"}}]);
    let found = problems(&json!({"lanes": lanes, "pools": pools}).to_string());
    let without = "where a pool has neither `max_in_flight` nor `max_in_flight_per_worker`: q, r";
    assert_eq!(
        found,
        [
            format!("lanes[0].reserve: is a part of nothing {without}"),
            format!("lanes[1].dispatch_budget.max: is needed {without}"),
        ]
    );
}

#[test]
fn requests_are_held_for_workers_only_where_they_may_wait() {
    let json = r#"{"pools": [{"name": "p", "max_in_flight": 8, "hold_when_empty": "5s"}]}"#;
    assert_problems(json, &["pools[0].hold_when_empty: has no meaning where no lane has a `queue`"]);
    let json = json.replacen('{', r#"{"lanes": [{"name": "a"}, {"name": "b", "queue": {}}], "#, 1);
    assert_eq!(policy(&json).only_pool().unwrap().hold_when_empty, Some(Millis(5_000)));
}

/// What is missing because its shape is wrong is not reported again as a need.
#[test]
fn needs_are_not_judged_by_what_had_to_be_taken_out() {
    let lanes = json!([{"priority": 5}, {"name": "b", "queue": 5, "aging": {"after": "1s"}, "preemptible": true, "reserve": 0.5},
        {"name": "c", "dispatch_budget": {"unit": "tokens", "max": -5}}]);
    let pools = json!([{"name": "p", "max_in_flight": "x", "hold_when_empty": "5s"}]);
    assert_problems(
        &json!({"lanes": lanes, "pools": pools}).to_string(),
        &[
            "lanes[0]: missing field `name`",
            "lanes[1].queue: ",
            "lanes[2].dispatch_budget.max: ",
            "pools[0].max_in_flight: ",
        ],
    );
}
