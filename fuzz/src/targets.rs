//! The targets.

pub mod configuration;
pub mod exposition;
pub mod headers;
pub mod record;
pub mod rewrite;
pub mod route_metadata;
pub mod scan;
pub mod usage;
pub mod view;
