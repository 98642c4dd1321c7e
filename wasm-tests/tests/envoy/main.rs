//! The built filter inside a real Envoy.
//!
//! All of it is one program, so that its tests share the proxies that they need: see [`wasm_tests::envoy`].
#![cfg(not(target_family = "wasm"))]

mod admission;
mod aging;
mod attacks;
mod between_scrapes;
mod budgets;
mod certificate;
mod control;
mod dead_worker;
mod estimates;
mod eviction;
mod failure_policy;
mod fairness;
mod faults;
mod first_tokens;
mod hostile;
mod hot_change;
mod identity;
mod kv;
mod lanes;
mod logs;
mod module;
mod neighbours;
mod one_count;
mod overload;
mod picker;
mod pools;
mod privacy;
mod pulling;
mod queue_bounds;
mod queues;
mod rates;
mod reaching;
mod reasons;
mod reserves;
mod retries;
mod routes;
mod sdk;
mod settle;
mod several_proxies;
mod shadow;
mod tokens;
mod unreadable;
mod what_bound;
mod whole_policy;
mod workers;
