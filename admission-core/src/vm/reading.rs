//! A prompt that a worker is to read: for how long it counts, and as what.
//!
//! A prompt counts from its request's start, and is read from when its body has been sent. The answer shows when it has been read where it is
//! the stream of one answer; else it counts for as long as that takes at the rate that streams have shown. None counts without end: a body that
//! does not come, and a worker that does not answer, keep no lane back.

use crate::ask::Ask;
use crate::ledger::{Ledger, TallyKey};
use crate::policy::Lane;
use crate::units::{Millis, Time, Tokens};

/// Longest time that the prompt of a body counts which is still being sent.
const UPLOAD: Millis = Millis(1_000);

/// Time after which a prompt counts as read whose answer does not show it, while no rate is known: two scrapes at the usual interval, in which
/// the worker's own numbers show it.
const UNKNOWN: Millis = Millis(200);

/// Multiple of the time that a prompt should take beyond which it counts no more, and a second: its worker hangs, or is slower than was thought.
const PATIENCE: (u64, Millis) = (4, Millis(1_000));

/// Longest time that a prompt counts while no rate is known.
const LONGEST: Millis = Millis(10_000);

/// A prompt that a worker is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) tokens: Tokens,
    /// Tokens that its worker is reading already.
    ahead: Tokens,
    /// Tokens that all workers of the pool had ever read when it was sent.
    read_before: u64,
    /// Workers of the pool then.
    pub(super) readers: u64,
    /// Time at which it was sent.
    pub(super) from: Time,
    /// Time from which it counts no more.
    pub(super) due: Time,
    /// True where its lane is bound by a goal.
    is_bound: bool,
    /// True where a worker is busy by the prompts that it has to read.
    by_worker: bool,
    /// True once it is no mere claim: its body has been read or sent.
    pub(super) is_sent: bool,
    /// True while it counts in its pool's record.
    pub(super) counts: bool,
    /// True where the begin of its answer says nothing of when it was read.
    pub(super) is_whole: bool,
    /// True once its answer has begun.
    pub(super) is_answered: bool,
}

/// A prompt that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) tokens: Tokens,
    /// Tokens that its worker has read in a time, if that is known.
    pub(super) sample: Option<(Tokens, Millis)>,
}

impl Reading {
    /// The prompt of a request that starts, if it has one.
    pub(super) fn of(ask: &Ask, lane: &Lane, by_worker: bool, now: Time) -> Option<Self> {
        let tokens = ask.prompt;
        // Why also nothing: of a body that does not say how long it is, nothing is guessed before it is read.
        (tokens > Tokens(0) || !ask.prompt_read).then_some(Self {
            tokens,
            ahead: Tokens(0),
            read_before: 0,
            readers: 1,
            from: now,
            due: Time(now.0.saturating_add(UPLOAD.0)),
            is_bound: lane.prompts.is_some(),
            by_worker,
            is_sent: ask.prompt_read,
            counts: true,
            is_whole: false,
            is_answered: false,
        })
    }

    /// The same behind the prompts that so many workers are reading, who have read so much.
    pub(super) fn behind(self, (prompts, read_before): (Tokens, u64), readers: u64) -> Self {
        Self { ahead: Tokens(prompts.0.checked_div(readers).unwrap_or(prompts.0)), read_before, readers, ..self }
    }

    /// Time that it counts for from when it was sent.
    pub(super) fn counts_for(&self, seen: &Ledger) -> Millis {
        let (times, more) = PATIENCE;
        let patience = |time: Millis| Millis(time.0.saturating_mul(times).saturating_add(more.0));
        match seen.time_to_read(self.ahead.plus(self.tokens)) {
            Some(time) if self.is_whole => time,
            None if self.is_whole => UNKNOWN,
            time => time.map_or(LONGEST, patience),
        }
    }

    /// Amounts that it is tallied under, where it is steered to that worker.
    pub(super) fn tallies(&self, worker: Option<TallyKey>) -> impl Iterator<Item = (TallyKey, u64)> + use<> {
        let tokens = self.counts.then_some((TallyKey::prompts(), self.tokens.0));
        let bound = (self.counts && self.is_bound).then_some((TallyKey::bound_prompts(), 1));
        tokens.into_iter().chain(self.at(worker)).chain(bound)
    }

    /// Amount that makes its worker busy, or where it is not steered, every worker.
    // Why not before it is sent: a length that is only claimed would close workers to every lane.
    pub(super) fn at(&self, worker: Option<TallyKey>) -> Option<(TallyKey, u64)> {
        let counts = self.counts && self.by_worker && self.is_sent;
        counts.then(|| (worker.map_or_else(TallyKey::prompts_sent, TallyKey::prompts_at), self.tokens.0))
    }

    /// Tokens that its worker has read by the time that it has read this one too.
    // Why the smaller: an engine may read a more urgent one first, and then has read less than was ahead; and other workers may have read more.
    pub(super) fn work(&self, read: u64) -> Tokens {
        let of_others = read.saturating_sub(self.read_before);
        let of_others = of_others.checked_div(self.readers).unwrap_or(of_others);
        Tokens(of_others.min(self.ahead.0)).plus(self.tokens)
    }
}

impl Read {
    /// Notes it in its pool's record.
    pub(super) fn note(&self, ledger: &mut Ledger) {
        ledger.count_prompt_read(self.tokens);
        if let Some((work, time)) = self.sample {
            ledger.note_prompt_read(work, time);
        }
    }
}
