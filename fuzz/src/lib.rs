//! Fuzz targets, one for each kind of input that comes from outside.
//!
//! A target is a function of bytes that panics where a property does not hold; which, it says at its head. The same functions
//! are driven by libFuzzer (`cargo xtask fuzz`) and, over the committed corpus and mutations of it by seed, by the tests.

pub mod corpus;
mod cut;
pub mod mutation;
mod proxy;
mod store;
mod targets;

use targets::{configuration, exposition, headers, record, rewrite, route_metadata, scan, usage, view};

/// A kind of input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and of its corpus.
    pub name: &'static str,
    /// Tries an input; panics where a property does not hold.
    pub run: fn(&[u8]),
    /// Folders beside its corpus whose files are inputs too, from the root of the repository.
    pub more: &'static [&'static str],
    /// Number of mutations that the tests try: some thousand, fewer where one takes long.
    pub mutations: u64,
}

/// All targets.
pub const TARGETS: [Target; 9] = [
    Target { name: "scan", run: scan::target, more: &[], mutations: 4_000 },
    Target { name: "rewrite", run: rewrite::target, more: &[], mutations: 6_000 },
    Target { name: "headers", run: headers::target, more: &[], mutations: 6_000 },
    Target { name: "route_metadata", run: route_metadata::target, more: &[], mutations: 6_000 },
    Target { name: "view", run: view::target, more: &[], mutations: 3_000 },
    Target { name: "record", run: record::target, more: &[], mutations: 4_000 },
    Target { name: "exposition", run: exposition::target, more: exposition::PAGES, mutations: 2_500 },
    Target { name: "configuration", run: configuration::target, more: &[], mutations: 1_500 },
    Target { name: "usage", run: usage::target, more: &[], mutations: 6_000 },
];
