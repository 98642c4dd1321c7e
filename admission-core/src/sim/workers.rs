//! GPU workers: continuous batching over KV blocks, with a price for every step.
//!
//! A step takes a base, a part for each sequence that decodes and a part for each prompt token. Sequences are served by
//! arrival; when blocks run out, the newest loses all it has computed and waits again.

use std::collections::VecDeque;

use crate::view::{RankReport, WorkerReport, WorkerState};

use super::clients::RequestId;

/// What one worker is.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// Most sequences in its batch.
    pub sequences: usize,
    /// Most tokens computed in one step.
    pub batched_tokens: u64,
    /// KV blocks.
    pub blocks: u64,
    /// Tokens in a block.
    pub block_size: u64,
    /// Microseconds of every step.
    pub step_us: u64,
    /// Microseconds for each sequence that decodes.
    pub sequence_us: u64,
    /// Microseconds for each prompt token.
    pub prefill_token_us: u64,
}

impl Default for Make {
    fn default() -> Self {
        Self {
            sequences: 16,
            batched_tokens: 2_048,
            blocks: 2_048,
            block_size: 16,
            step_us: 20_000,
            sequence_us: 500,
            prefill_token_us: 40,
        }
    }
}

struct Sequence {
    id: RequestId,
    prompt: u64,
    output: u64,
    generated: u64,
    computed: u64,
    blocks: u64,
    scheduled: u64,
}

/// What came out of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    First(RequestId),
    Last(RequestId),
}

/// One worker.
pub(super) struct Worker {
    make: Make,
    pub(super) up: bool,
    /// Rises when it goes down, so that a step that was under way then is not taken for one of its next life.
    pub(super) life: u32,
    stepping: bool,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
    used: u64,
    pub(super) preemptions: u64,
}

impl Worker {
    pub(super) fn new(make: Make, up: bool) -> Self {
        let (running, waiting) = (Vec::new(), VecDeque::new());
        Self { make, up, life: 0, stepping: false, running, waiting, used: 0, preemptions: 0 }
    }

    pub(super) fn load(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    pub(super) fn add(&mut self, id: RequestId, prompt: u64, output: u64) {
        let (prompt, output) = (prompt.max(1), output.max(1));
        let (generated, computed, blocks, scheduled) = (0, 0, 0, 0);
        self.waiting.push_back(Sequence { id, prompt, output, generated, computed, blocks, scheduled });
    }

    pub(super) fn abort(&mut self, id: RequestId) {
        if let Some(at) = self.running.iter().position(|sequence| sequence.id == id) {
            self.used -= self.running.remove(at).blocks;
        }
        self.waiting.retain(|sequence| sequence.id != id);
    }

    /// Loses all it has; says whose requests those were.
    pub(super) fn fail(&mut self) -> Vec<RequestId> {
        self.up = false;
        self.stepping = false;
        self.life += 1;
        self.used = 0;
        self.running.drain(..).chain(self.waiting.drain(..)).map(|sequence| sequence.id).collect()
    }

    /// Begins a step unless one is under way; how long it takes, in microseconds.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if !self.up || self.stepping {
            return None;
        }
        let before = self.preemptions;
        let mut prefill = self.make.batched_tokens.saturating_sub(self.running.len() as u64);
        let (mut at, mut decoding, mut computed) = (0, 0, 0);
        while at < self.running.len() {
            let Some(tokens) = self.schedule(at, prefill) else { break };
            if self.running[at].missing() == 1 && self.running[at].generated > 0 {
                decoding += 1;
            } else {
                prefill -= tokens;
                computed += tokens;
            }
            at += 1;
        }
        if self.preemptions == before {
            computed += self.let_in(prefill);
        }
        let make = &self.make;
        self.stepping = decoding + computed > 0;
        self.stepping.then(|| make.step_us + make.sequence_us * decoding + make.prefill_token_us * computed)
    }

    /// Ends the step that [`Self::begin`] began.
    pub(super) fn end(&mut self) -> Vec<Came> {
        self.stepping = false;
        let mut came = Vec::new();
        for sequence in &mut self.running {
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            if sequence.missing() > 0 || sequence.computed == 0 {
                continue;
            }
            sequence.generated += 1;
            if sequence.generated == 1 {
                came.push(Came::First(sequence.id));
            }
            if sequence.generated == sequence.output {
                came.push(Came::Last(sequence.id));
                self.used -= sequence.blocks;
            }
        }
        self.running.retain(|sequence| sequence.generated < sequence.output);
        came
    }

    /// What its metrics page says; a worker that is down says nothing.
    pub(super) fn report(&self, address: String) -> WorkerReport {
        let prefill = self.running.iter().chain(&self.waiting).filter(|sequence| sequence.generated == 0);
        let rank = RankReport {
            rank: 0,
            kv_used_blocks: Some(self.used),
            kv_total_blocks: Some(self.make.blocks),
            running: Some(self.running.len() as u64),
            waiting: Some(self.waiting.len() as u64),
            prefill_tokens: Some(prefill.map(Sequence::missing).sum()),
            ..RankReport::default()
        };
        let state = if self.up { WorkerState::Up } else { WorkerState::Down };
        let ranks = if self.up { vec![rank] } else { Vec::new() };
        WorkerReport { state, ..WorkerReport::up(&address, ranks) }
    }

    /// Plans the tokens of the running sequence at a place; `None` when it had to give way itself.
    fn schedule(&mut self, at: usize, prefill: u64) -> Option<u64> {
        let tokens = self.running[at].missing().min(prefill.max(1));
        let more = self.running[at].more_blocks(tokens, self.make.block_size);
        while self.make.blocks - self.used < more {
            let mut victim = self.running.pop()?;
            self.used -= victim.blocks;
            self.preemptions += 1;
            (victim.computed, victim.blocks, victim.scheduled) = (0, 0, 0);
            self.waiting.push_front(victim);
            if self.running.len() == at {
                return None;
            }
        }
        self.used += more;
        self.running[at].blocks += more;
        self.running[at].scheduled = tokens;
        Some(tokens)
    }

    fn let_in(&mut self, mut prefill: u64) -> u64 {
        let mut computed = 0;
        while self.running.len() < self.make.sequences && prefill > 0 {
            let Some(head) = self.waiting.front() else { break };
            let tokens = head.missing().min(prefill);
            let more = head.more_blocks(tokens, self.make.block_size);
            if more > self.make.blocks - self.used {
                break;
            }
            let Some(mut sequence) = self.waiting.pop_front() else { break };
            (sequence.scheduled, sequence.blocks) = (tokens, more);
            self.used += more;
            self.running.push(sequence);
            (prefill, computed) = (prefill - tokens, computed + tokens);
        }
        computed
    }
}

impl Sequence {
    fn missing(&self) -> u64 {
        self.prompt + self.generated - self.computed
    }

    fn more_blocks(&self, tokens: u64, block_size: u64) -> u64 {
        (self.computed + tokens).div_ceil(block_size).saturating_sub(self.blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(worker: &mut Worker) -> (u64, Vec<(u64, Came)>) {
        let (mut now, mut came) = (0, Vec::new());
        while let Some(us) = worker.begin() {
            now += us;
            came.extend(worker.end().into_iter().map(|what| (now, what)));
        }
        (now, came)
    }

    #[test]
    fn one_request_takes_its_prompt_and_a_step_for_every_token() {
        let mut worker = Worker::new(Make::default(), true);
        worker.add(RequestId(1), 100, 3);
        let (end, came) = run(&mut worker);
        assert_eq!(end, 3 * 20_000 + 100 * 40 + 2 * 500);
        assert_eq!(came, [(24_000, Came::First(RequestId(1))), (end, Came::Last(RequestId(1)))]);
        assert_eq!((worker.used, worker.load()), (0, 0));
    }

    #[test]
    fn long_prompts_are_computed_in_chunks() {
        let mut worker = Worker::new(Make::default(), true);
        worker.add(RequestId(1), 5_000, 1);
        assert_eq!(run(&mut worker).0, 3 * 20_000 + 5_000 * 40);
    }

    #[test]
    fn who_outgrows_the_blocks_throws_the_newest_out_and_everybody_ends() {
        let mut worker = Worker::new(Make { blocks: 20, ..Make::default() }, true);
        worker.add(RequestId(1), 100, 150);
        worker.add(RequestId(2), 100, 150);
        let (_, came) = run(&mut worker);
        assert!(worker.preemptions > 0);
        assert_eq!(came.iter().filter(|(_, what)| matches!(what, Came::Last(_))).count(), 2);
        assert_eq!(worker.used, 0);
    }
}
