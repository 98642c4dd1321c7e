//! What it takes to run Sluice for real and to measure it: a real Envoy, and clients that put load on it.

pub mod crowd;
pub mod envoy;
pub mod load;
pub mod watch;
