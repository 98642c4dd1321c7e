//! Tokens and answers that a request asks for.

use crate::ledger::{Amount, Cost};
use crate::units::Tokens;

/// Most tokens one request is ever charged.
pub const MOST_TOKENS: Tokens = Tokens::MOST_OF_A_REQUEST;

/// Tokens and answers that a request asks for, as far as they are known when it is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Estimated prompt, over all of its prompts.
    pub prompt: Tokens,
    /// Estimated longest prompt.
    pub longest_prompt: Tokens,
    /// Expected output, over all of its sequences.
    pub output: Tokens,
    /// The most output one sequence may have by the request's own word.
    pub output_limit: Option<Tokens>,
    /// True once the prompt was read; a guess from the content length never makes a request too large.
    pub prompt_read: bool,
    /// Answers asked for, over all of its prompts; 0 for what does not generate, and while it is not known.
    pub sequences: u64,
}

impl Ask {
    /// Holdings of the request once it is admitted.
    #[must_use]
    pub fn amount(&self, block_size: u32) -> Amount {
        let tokens = self.tokens();
        Amount { requests: 1, tokens, blocks: tokens.blocks_of(block_size) }
    }

    /// Cost of the request to its budgets.
    #[must_use]
    pub fn cost(&self) -> Cost {
        Cost { requests: 1, tokens: self.tokens() }
    }

    fn tokens(&self) -> Tokens {
        self.prompt.plus(self.output).min(MOST_TOKENS)
    }
}
