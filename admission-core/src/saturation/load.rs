//! Load of one worker, as far as it is known.

use crate::view::RankReport;

/// A live worker, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerLoad<'a> {
    /// Ranks as last scraped; empty while nothing has been.
    pub ranks: &'a [RankReport],
    /// Tokens of one KV block.
    pub block_size: Option<u64>,
    /// Most sequences one rank runs together.
    pub max_num_seqs: Option<u64>,
    /// True where the worker's page tells how many requests it has, and that cannot be believed.
    pub doubts_requests: bool,
    /// True where the page tells how many tokens it has, and that cannot be believed.
    pub doubts_tokens: bool,
}
