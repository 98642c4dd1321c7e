//! Streams of a proxy, each of which carries one request and its answer.

/// Number of a stream in its VM, as the proxy counts them. Waiters and leases name the stream that owns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u32);
