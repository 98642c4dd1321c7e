//! Reads GPU workers and tells the proxies which are busy.
fn main() {}
