//! A real Envoy with the built filter, a simulated GPU worker behind it, and what tests ask of them. Tests share their Envoys, one
//! after the other: see [`envoy`].
//!
//! Envoy is configured as Istio would do it by default: the filter arrives by ECDS with its configuration in a
//! `StringValue`, an empty `vm_id`, no header pause, no stream idle timeout, and a second plugin of the same code.
#![cfg(not(target_family = "wasm"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failing test says so by panicking")]

pub mod artefacts;
pub mod authority;
pub mod bootstrap;
pub mod caller;
pub mod crowd;
pub mod echo;
pub mod envoy;
pub mod jwt;
pub mod line;
pub mod picker;
pub mod played;
mod process;
pub mod redirector;
pub mod resetter;
pub mod rig;
pub mod scripted;
mod setup;
pub mod sidecar;
pub mod steady;
pub mod switching;
pub mod view;

pub use testkit::metrics;
