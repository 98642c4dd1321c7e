//! The scheduler: iteration-level continuous batching over a pool of KV blocks.
//!
//! Pure: no clock, no I/O, no randomness. [`Engine::begin_step`] plans what the next step computes, the caller lets
//! the time of that load pass, and [`Engine::end_step`] says which tokens came out of it.
//!
//! A sequence is computed when the KV cache holds its prompt and all tokens generated so far; each step that reaches
//! that point yields one more token. So a prompt chunk, a decode and the recompute after a preemption are one rule.
//!
//! Order is by arrival everywhere: every running sequence arrived before every waiting one. The newest running one
//! is preempted and goes to the front of the queue, which keeps it so.

mod sequence;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use sequence::Sequence;
pub use sequence::SequenceId;

/// What one engine may hold and compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most sequences running at once.
    pub max_num_seqs: usize,
    /// Most tokens computed in one step; at least `max_num_seqs`, so that every decode has a place.
    pub max_num_batched_tokens: u32,
    /// KV blocks that sequences can use.
    pub kv_blocks: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
}

impl Limits {
    /// KV blocks that hold this many tokens.
    pub fn blocks_for(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// KV blocks that a sequence holds at its end. Its last token is never computed, so it takes no place.
    pub fn blocks_at_end(&self, prompt: u32, output: u32) -> u32 {
        self.blocks_for(prompt.saturating_add(output).saturating_sub(1))
    }
}

/// What one step computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Prompt tokens, those computed again after a preemption included.
    pub prefill_tokens: u32,
    /// Sequences that decode.
    pub decoding: u32,
    /// KV blocks held by the sequences that decode.
    pub kv_blocks: u32,
}

/// One token that came out of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The sequence it belongs to.
    pub id: SequenceId,
    /// Its place in the output, from 0.
    pub index: u32,
    /// Whether the sequence ended with it.
    pub last: bool,
}

/// A sequence that all KV blocks together cannot hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeverFits {
    /// Blocks it would hold at its end.
    pub needed: u32,
    /// Blocks there are.
    pub total: u32,
}

/// The state of one engine.
#[derive(Debug)]
pub struct Engine {
    limits: Limits,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    used_blocks: u32,
    preemptions: u64,
}

impl Engine {
    /// An empty engine.
    pub fn new(limits: Limits) -> Self {
        debug_assert!(limits.max_num_batched_tokens as usize >= limits.max_num_seqs);
        Self { limits, running: Vec::new(), waiting: VecDeque::new(), used_blocks: 0, preemptions: 0 }
    }

    /// Puts a sequence of `prompt` and `output` tokens (each at least 1) at the end of the queue.
    ///
    /// # Errors
    /// [`NeverFits`] when it cannot end even alone on the engine.
    pub fn add(&mut self, id: SequenceId, prompt: u32, output: u32) -> Result<(), NeverFits> {
        let needed = self.limits.blocks_at_end(prompt, output);
        if needed > self.limits.kv_blocks {
            return Err(NeverFits { needed, total: self.limits.kv_blocks });
        }
        self.waiting.push_back(Sequence::new(id, prompt, output));
        Ok(())
    }

    /// Plans the next step; `None` when there is nothing to compute.
    pub fn begin_step(&mut self) -> Option<Load> {
        // Decodes have their places first; what is left is for prompts.
        let decoding = self.running.iter().filter(|sequence| sequence.is_decoding()).count() as u32;
        let mut prefill_budget = self.limits.max_num_batched_tokens - decoding;
        let preempted_before = self.preemptions;
        self.schedule_running(&mut prefill_budget);
        // Blocks freed by a preemption belong to those running: admitting at once would take them away again.
        if self.preemptions == preempted_before {
            self.admit_waiting(&mut prefill_budget);
        }
        self.debug_check();
        let load = self.load();
        (load != Load::default()).then_some(load)
    }

    /// Ends the step that [`Engine::begin_step`] planned and returns its tokens, in arrival order.
    pub fn end_step(&mut self) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(self.running.len());
        for sequence in &mut self.running {
            if let Some(index) = sequence.finish_step() {
                tokens.push(Token { id: sequence.id, index, last: sequence.is_done() });
            }
        }
        let used = &mut self.used_blocks;
        self.running.retain(|sequence| {
            let done = sequence.is_done();
            if done {
                *used -= sequence.blocks;
            }
            !done
        });
        self.debug_check();
        tokens
    }

    /// Drops a sequence and frees its blocks, also within a step. False when it is not (any more) here.
    pub fn abort(&mut self, id: SequenceId) -> bool {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            self.used_blocks -= self.running.remove(at).blocks;
            return true;
        }
        if let Some(at) = self.waiting.iter().position(|sequence| sequence.id == id) {
            self.waiting.remove(at);
            return true;
        }
        false
    }

    /// Sequences in the batch.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences in the queue.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// KV blocks held.
    pub fn used_blocks(&self) -> u32 {
        self.used_blocks
    }

    /// Share of the KV blocks held, 0 to 1.
    pub fn kv_usage(&self) -> f64 {
        f64::from(self.used_blocks) / f64::from(self.limits.kv_blocks)
    }

    /// Preemptions since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    fn schedule_running(&mut self, prefill_budget: &mut u32) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &self.running[at];
            let decodes = sequence.is_decoding();
            let tokens = if decodes { 1 } else { sequence.missing().min(*prefill_budget) };
            let needed = self.more_blocks(sequence, tokens);
            if !self.make_room(at, needed) {
                break;
            }
            self.used_blocks += needed;
            self.running[at].schedule(tokens, needed);
            if !decodes {
                *prefill_budget -= tokens;
            }
            at += 1;
        }
    }

    /// Frees blocks for the sequence at `at` by preempting from the newest on; false when it had to go itself.
    fn make_room(&mut self, at: usize, needed: u32) -> bool {
        while self.free_blocks() < needed {
            let Some(mut victim) = self.running.pop() else { return false };
            self.used_blocks -= victim.blocks;
            self.preemptions += 1;
            victim.forget_computed();
            self.waiting.push_front(victim);
            if self.running.len() == at {
                return false;
            }
        }
        true
    }

    fn admit_waiting(&mut self, prefill_budget: &mut u32) {
        while self.running.len() < self.limits.max_num_seqs && *prefill_budget > 0 {
            let Some(head) = self.waiting.front() else { return };
            let tokens = head.missing().min(*prefill_budget);
            let needed = self.more_blocks(head, tokens);
            // First come, first served: a head that does not fit holds back those behind it.
            if needed > self.free_blocks() {
                return;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            self.used_blocks += needed;
            *prefill_budget -= tokens;
            sequence.schedule(tokens, needed);
            self.running.push(sequence);
        }
    }

    fn load(&self) -> Load {
        let mut load = Load::default();
        for sequence in self.running.iter().filter(|sequence| sequence.scheduled > 0) {
            if sequence.is_decoding() {
                load.decoding += 1;
                load.kv_blocks += sequence.blocks;
            } else {
                load.prefill_tokens += sequence.scheduled;
            }
        }
        load
    }

    fn more_blocks(&self, sequence: &Sequence, tokens: u32) -> u32 {
        self.limits.blocks_for(sequence.computed + tokens) - sequence.blocks
    }

    fn free_blocks(&self) -> u32 {
        self.limits.kv_blocks - self.used_blocks
    }

    fn debug_check(&self) {
        debug_assert_eq!(self.used_blocks, self.running.iter().map(|sequence| sequence.blocks).sum::<u32>());
        debug_assert!(self.used_blocks <= self.limits.kv_blocks);
        debug_assert!(self.running.len() <= self.limits.max_num_seqs);
        debug_assert!(self.running.iter().map(|s| s.scheduled).sum::<u32>() <= self.limits.max_num_batched_tokens);
        debug_assert!(self.running.iter().chain(&self.waiting).is_sorted_by_key(|sequence| sequence.id));
    }
}
