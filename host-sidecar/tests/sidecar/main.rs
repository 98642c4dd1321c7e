//! The sidecar from outside: what it reads of workers, sends to proxies, serves, and says of configurations.
//!
//! Why one program: each would be linked, and what it takes of HTTP compiled, for itself.

mod asking;
mod bad_workers;
mod budgets;
mod checking;
mod common;
#[cfg(feature = "kubernetes")]
mod discovering;
mod engine_docs;
mod excerpts;
mod exposition;
mod pushing;
mod reloading;
mod schema;
mod scraping;
mod securing;
mod serving;
mod simulated_workers;
