//! Load of one worker, as far as it is known.

use crate::view::RankReport;

/// A live worker, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct WorkerLoad<'a> {
    /// As last scraped; empty while nothing has been.
    pub ranks: &'a [RankReport],
    /// Tokens of one KV block.
    pub block_size: Option<u64>,
    /// Most sequences one rank runs together.
    pub max_num_seqs: Option<u64>,
    /// Its page tells how many requests it has, and what it tells cannot be believed.
    pub doubts_requests: bool,
    /// The same is true of its tokens.
    pub doubts_tokens: bool,
}
