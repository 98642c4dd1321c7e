//! One sequence: how much of it is generated, computed and held.

/// The name of a sequence; a later arrival has a higher one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(pub u64);

/// A sequence in an engine. All counts are tokens, except `blocks`.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    prompt: u32,
    output: u32,
    generated: u32,
    pub(super) computed: u32,
    pub(super) scheduled: u32,
    pub(super) blocks: u32,
}

impl Sequence {
    pub(super) fn new(id: SequenceId, prompt: u32, output: u32) -> Self {
        Self { id, prompt, output, generated: 0, computed: 0, scheduled: 0, blocks: 0 }
    }

    /// Tokens not computed yet; 1 while it decodes.
    pub(super) fn missing(&self) -> u32 {
        self.prompt + self.generated - self.computed
    }

    /// Whether only its newest token is missing. Within a recompute it is a prefill again.
    pub(super) fn is_decoding(&self) -> bool {
        self.generated > 0 && self.missing() == 1
    }

    pub(super) fn is_done(&self) -> bool {
        self.generated == self.output
    }

    /// Takes `tokens` into the coming step, with the blocks they need.
    pub(super) fn schedule(&mut self, tokens: u32, more_blocks: u32) {
        self.scheduled = tokens;
        self.blocks += more_blocks;
    }

    /// Counts the step as computed; the index of the token that came out, when one did.
    pub(super) fn finish_step(&mut self) -> Option<u32> {
        if self.scheduled == 0 {
            return None;
        }
        self.computed += self.scheduled;
        self.scheduled = 0;
        if self.missing() > 0 {
            return None;
        }
        self.generated += 1;
        Some(self.generated - 1)
    }

    /// What a preemption costs: everything computed; what was generated stays and is computed again.
    pub(super) fn forget_computed(&mut self) {
        self.computed = 0;
        self.scheduled = 0;
        self.blocks = 0;
    }
}
