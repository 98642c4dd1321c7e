//! The numbers of one report, and what several of them say together.

use super::MOST_TOKENS;

/// What a number in a report counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// Prompt tokens, cached ones included.
    Prompt,
    /// Prompt tokens, without what the cache gave or took where the report tells of that.
    Input,
    Output,
    /// Prompt tokens from the cache, counted in the prompt already.
    Cached,
    /// Prompt tokens from the cache, not counted in `Input`.
    CacheRead,
    /// Prompt tokens that the cache took, not counted in `Input`.
    CacheWritten,
}

/// One report, while it is read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    prompt: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    cached: u64,
    cache_read: u64,
    cache_written: u64,
    absurd: bool,
}

impl Counts {
    pub(super) fn set(&mut self, count: Count, value: u64) {
        self.absurd |= value > MOST_TOKENS;
        match count {
            Count::Prompt => self.prompt = Some(value),
            Count::Input => self.input = Some(value),
            Count::Output => self.output = Some(value),
            Count::Cached => self.cached = value,
            Count::CacheRead => self.cache_read = value,
            Count::CacheWritten => self.cache_written = value,
        }
    }

    /// Something stands where a number should that cannot be a count.
    pub(super) fn disbelieve(&mut self) {
        self.absurd = true;
    }
}

/// What all reports of an answer say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reported {
    pub(super) prompt: Option<u64>,
    pub(super) cached: u64,
    pub(super) output: Option<u64>,
    /// Tokens of the deltas that came before the last report on output.
    pub(super) after_deltas: u64,
}

impl Reported {
    /// Adds a report that came after deltas of so many tokens. What cannot be believed changes nothing.
    pub(super) fn add(&mut self, counts: &Counts, after_deltas: u64) {
        let beside_input = counts.cache_read.saturating_add(counts.cache_written);
        let prompt = counts.prompt.or(counts.input.map(|input| input.saturating_add(beside_input)));
        let is_empty = prompt.unwrap_or(0) == 0 && counts.output.unwrap_or(0) == 0;
        if counts.absurd || is_empty || prompt.is_some_and(|prompt| prompt > MOST_TOKENS) {
            return;
        }
        // Some servers send a 0 where they do not know yet.
        self.prompt = self.prompt.max(prompt.filter(|prompt| *prompt > 0));
        let cached = self.cached.max(counts.cached).max(counts.cache_read);
        self.cached = cached.min(self.prompt.unwrap_or(0));
        if let Some(output) = counts.output {
            self.output = self.output.max(Some(output));
            self.after_deltas = after_deltas;
        }
    }
}
