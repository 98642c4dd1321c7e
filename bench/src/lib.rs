//! What it takes to run Sluice for real and to measure it: a real Envoy, and an open-loop load client.

pub mod envoy;
pub mod load;
