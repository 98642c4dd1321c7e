//! What it takes to run Sluice for real and to measure it: a real Envoy, a worker that answers at once, clients that put
//! load on it, bodies to send, and statistics of what came out.

pub mod bodies;
pub mod closed;
pub mod crowd;
pub mod envoy;
pub mod load;
pub mod metrics;
pub mod plugin;
pub mod process;
pub mod relay;
pub mod statistics;
pub mod upstream;
pub mod watch;
