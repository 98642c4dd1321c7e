//! Real parts under test: Envoy, workers and the sidecar as processes, the shipped configurations, callers that put load on
//! them (open loop, closed loop, crowds), bodies to send, and statistics of what they measured.

pub mod bodies;
pub mod checkout;
pub mod closed;
pub mod crowd;
pub mod envoy;
pub mod load;
pub mod metrics;
pub mod parts;
pub mod plugin;
pub mod process;
pub mod relay;
pub mod shipped;
pub mod state_page;
pub mod statistics;
pub mod upstream;
pub mod watch;
