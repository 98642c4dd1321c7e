//! Callers who mean harm, and what they get from the real proxy.

mod bodies;
mod crowds;
mod headers;
mod slow;

use wasm_tests::bootstrap;
use wasm_tests::echo::{Echo, PREFIX};
use wasm_tests::rig::{Setup, Wait};

const EVERY_WAIT: [Wait; 3] = [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld];

/// A rig in which paths that begin with [`PREFIX`] lead to a worker that answers with what it was sent.
fn with_echo(mut setup: Setup, echo: &Echo) -> Setup {
    setup.clusters.push(("echo", echo.address()));
    setup.virtual_hosts = bootstrap::virtual_hosts(&[bootstrap::route_without_prefix(&format!("{PREFIX}/"), "echo")]);
    setup
}
