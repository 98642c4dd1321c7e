//! Prompts that workers are reading: how much that is, and when each counts as read.
//!
//! A prompt counts from its request's start, and is read from when its body has been sent. The answer shows when it has been read where it is
//! the stream of one answer; else it counts for as long as that takes at the rate that streams have shown. None counts without end: a body that
//! does not come, and a worker that does not answer, keep no lane back.

use std::rc::Rc;
use std::sync::Arc;

use super::admission::LITTLE;
use super::lease::{Change, Frees, Kind, Lease};
use super::{LeaseId, Usage, Vm};
use crate::ask::Ask;
use crate::ledger::{Amount, Ledger, TallyKey};
use crate::policy::Lane;
use crate::store::{self, Store};
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

/// Time in which a body comes that is sent together with its headers.
const TOGETHER: Millis = Millis(10);

/// A prompt that a worker is to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reading {
    tokens: Tokens,
    /// Tokens that its worker is reading already.
    ahead: Tokens,
    /// Tokens that all workers of the pool had ever read when it was sent.
    read_before: u64,
    /// Workers of the pool then.
    readers: u64,
    /// Time at which it was sent.
    from: Time,
    /// Time from which it counts no more.
    pub(super) due: Time,
    /// True where its lane is bound by a goal.
    is_bound: bool,
    /// True where a worker is busy by the prompts that it has to read.
    by_worker: bool,
    /// True once it is no mere claim: its body has been read or sent.
    is_sent: bool,
    /// True while it counts in its pool's record.
    counts: bool,
    /// True where the begin of its answer says nothing of when it was read.
    is_whole: bool,
    /// True once its answer has begun.
    is_answered: bool,
}

/// A prompt that has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    tokens: Tokens,
    /// Tokens that its worker has read in a time, if that is known.
    sample: Option<(Tokens, Millis)>,
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
    fn counts_for(&self, seen: &Ledger) -> Millis {
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
    fn work(&self, read: u64) -> Tokens {
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

impl Lease {
    /// Forgets how fast its prompt was read, or that it was, where its end says that this means nothing.
    // Why not a prompt that was mostly in the worker's cache: it says nothing of those that are not.
    pub(super) fn forget_what_teaches_nothing(&mut self, usage: Usage) {
        let (was_served, was_cached) = match usage {
            Usage::AsEstimated => (true, false),
            Usage::Served(served) => (true, served.cached.0.saturating_mul(2) > self.prompt.0),
            Usage::Nothing | Usage::Refused => (false, false),
        };
        self.sample = self.sample.filter(|_| was_served && !was_cached);
        if let Some(reading) = &mut self.reading {
            reading.is_whole &= was_served;
        }
    }

    /// Prompt that a change to a record says has been read: with the release of a request in its pool's record, what its answer has shown.
    pub(super) fn read_in(&self, record: &Rc<str>, kind: Kind) -> Option<Read> {
        let Kind::Release(_) = kind else { return None };
        let whole = self
            .reading
            .filter(|reading| reading.is_whole)
            .map(|reading| Read { tokens: reading.tokens, sample: None });
        let streamed = self.sample.map(|sample| Read { tokens: Tokens(0), sample: Some(sample) });
        whole.or(streamed).filter(|_| *record == self.pool_key)
    }
}

impl Vm {
    /// The body of a request has been sent, so that its worker can read the prompt. `is_whole`: its answer is no stream of one answer, so that
    /// its begin will say nothing of when the prompt was read.
    pub fn body_sent(&mut self, store: &impl Store, id: LeaseId, is_whole: bool, now: Time) {
        let Some(lease) = self.leases.get_mut(id) else { return };
        let Some(reading) = lease.reading.as_mut().filter(|reading| !reading.is_answered) else { return };
        let Ok((seen, _)) = store::read::<Ledger>(store, &lease.pool_key) else { return };
        if now.since(reading.from) > TOGETHER {
            let own = if reading.counts { reading.tokens.0 } else { 0 };
            let others = Tokens(seen.prompts_being_read(&self.membership.members).0.saturating_sub(own));
            *reading = Reading { from: now, ..reading.behind((others, seen.prompts_read()), reading.readers) };
        }
        reading.is_whole |= is_whole;
        reading.due = Time(now.0.saturating_add(reading.counts_for(&seen).0));
        let (counted, due) = (reading.tallies(lease.worker).collect::<Vec<_>>(), reading.due);
        (reading.counts, reading.is_sent) = (true, true);
        let tallies =
            reading.tallies(lease.worker).filter(|(key, _)| counted.iter().all(|(counted, _)| counted != key));
        let (tallies, lease) = (tallies.collect(), lease.clone());
        self.leases.note_due(due, id);
        self.change_prompts(store, &lease, tallies, Kind::Overdraft, None, now);
    }

    /// The answer of a request turns out to be none whose begin says when its prompt was read.
    pub fn answers_whole(&mut self, store: &impl Store, id: LeaseId) {
        let Some(lease) = self.leases.get_mut(id) else { return };
        let Some(reading) = lease.reading.as_mut().filter(|reading| !reading.is_whole) else { return };
        reading.is_whole = true;
        if let Ok((seen, _)) = store::read::<Ledger>(store, &lease.pool_key) {
            reading.due = Time(reading.from.0.saturating_add(reading.counts_for(&seen).0));
            let due = reading.due;
            self.leases.note_due(due, id);
        }
    }

    /// The answer of a request has begun, so its prompt has been read; once.
    pub fn first_token(&mut self, store: &impl Store, id: LeaseId, now: Time) {
        let is_shown = |reading: &Reading| reading.counts && !reading.is_whole;
        let Some(lease) = self.leases.get_mut(id) else { return };
        if let Some(reading) = lease.reading.as_mut().filter(|reading| reading.is_whole) {
            // What has answered has read it, whenever that was.
            let tallies = reading.tallies(lease.worker).collect();
            (reading.counts, reading.is_answered) = (false, true);
            let lease = lease.clone();
            return self.change_prompts(store, &lease, tallies, Kind::Refund, None, now);
        }
        let Some(reading) = lease.reading.take_if(|reading| is_shown(reading)) else { return };
        let seen = store::read::<Ledger>(store, &lease.pool_key);
        let work = seen.ok().map(|(ledger, _)| reading.work(ledger.prompts_read()));
        lease.sample = work.map(|work| (work, now.since(reading.from)));
        let lease = lease.clone();
        let read = Read { tokens: reading.tokens, sample: None };
        self.change_prompts(store, &lease, reading.tallies(lease.worker).collect(), Kind::Refund, Some(read), now);
    }

    /// Prompts whose time is up count no more.
    pub(super) fn count_read(&mut self, store: &impl Store, now: Time) {
        for id in self.leases.take_read(now) {
            let Some(lease) = self.leases.get_mut(id) else { continue };
            let Some(reading) = &mut lease.reading else { continue };
            let tallies = reading.tallies(lease.worker).collect();
            reading.counts = false;
            let lease = lease.clone();
            self.change_prompts(store, &lease, tallies, Kind::Refund, None, now);
        }
    }

    /// The body of a request has shown its prompt to be of this length.
    pub(super) fn correct_prompt(&mut self, store: &impl Store, id: LeaseId, tokens: Tokens, now: Time) {
        let Some(lease) = self.leases.get_mut(id) else { return };
        let Some(reading) = &mut lease.reading else { return };
        let before = std::mem::replace(&mut reading.tokens, tokens);
        if !reading.counts {
            return;
        }
        if before.0.abs_diff(tokens.0) <= before.0 / LITTLE {
            reading.tokens = before;
            return;
        }
        let by = before.0.abs_diff(tokens.0);
        let at_worker = reading.at(lease.worker).map(|(key, _)| (key, by));
        let tallies = at_worker.into_iter().chain([(TallyKey::prompts(), by)]).collect();
        let lease = lease.clone();
        // Why no recharge: while one is pending its VM admits nothing.
        let kind = if tokens > before { Kind::Overdraft } else { Kind::Refund };
        self.change_prompts(store, &lease, tallies, kind, None, now);
    }

    fn change_prompts(
        &mut self,
        store: &impl Store,
        lease: &Lease,
        tallies: Vec<(TallyKey, u64)>,
        kind: Kind,
        read: Option<Read>,
        now: Time,
    ) {
        let Some(holder) = self.membership.holder.filter(|_| !tallies.is_empty()) else { return };
        let (key, lane, amount, begun) = (Rc::clone(&lease.pool_key), lease.lane, Amount::default(), Vec::new());
        let frees = Frees::Pool(Arc::clone(&lease.pool), Arc::clone(&lease.lanes));
        let change =
            Change { key, holder, lane, amount, tallies, begun, kind, read, budget: None, frees, evicted: None };
        self.change(store, change, now);
    }
}
