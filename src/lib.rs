//! The Sluice filter: a thin adapter between a proxy's wasm host and [`admission_core`].
//!
//! [`root`] takes configurations, ticks and messages, [`http`] hands the events of a stream to [`stream`], which governs a request and asks for
//! [`effect`]s, [`control`] serves the control listener, [`pull`] asks a sidecar where there is none. Only [`host`] and [`store`] call the proxy.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]
#![allow(
    missing_docs,
    rustdoc::private_intra_doc_links,
    reason = "the module exports the host's callbacks, not an API"
)]

#[cfg(all(target_family = "wasm", not(target_feature = "simd128")))]
compile_error!("bodies are read with vector instructions: unset RUSTFLAGS, or add -Ctarget-feature=+simd128 to it");

mod control;
mod crash;
mod effect;
mod env;
#[cfg(feature = "test-faults")]
mod faults;
mod host;
mod http;
mod instance;
mod metrics;
mod notices;
mod passes;
mod pull;
mod root;
mod shared;
mod store;
mod stream;
mod views;
mod wakes;

proxy_wasm::main! {{
    proxy_wasm::set_log_level(proxy_wasm::types::LogLevel::Info);
    // Behind that, which sets a hook of its own.
    crash::say_only_where();
    proxy_wasm::set_root_context(|id| Box::new(root::Root::new(id)));
}}
