//! The entry points a person needs.
fn main() {}
