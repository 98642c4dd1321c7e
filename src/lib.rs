//! The Sluice filter: a thin adapter between a proxy's wasm host and [`admission_core`].
//!
//! [`root`] takes configurations and ticks, [`http`] governs requests, [`control`] serves the control listener. Only
//! [`host`] and [`store`] call the proxy.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![allow(
    missing_docs,
    rustdoc::private_intra_doc_links,
    reason = "the module exports the host's callbacks, not an API"
)]

mod arrival;
mod control;
mod host;
mod http;
mod instance;
mod metrics;
mod root;
mod routes;
mod store;
#[cfg(feature = "test-trap")]
mod trap;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    proxy_wasm::set_root_context(|_| Box::new(root::Root::default()));
}}
