//! Prompts that workers are reading: what bodies and answers show of a prompt changes what its lease counts as.

use std::rc::Rc;
use std::sync::Arc;

use super::lease::{Change, Frees, Kind, LITTLE, Lease};
use super::reading::{Read, Reading};
use super::{LeaseId, Usage, Vm};
use crate::ledger::{Amount, Ledger, TallyKey};
use crate::store::{self, Store};
use crate::units::{Millis, Time, Tokens};

/// Time in which a body comes that is sent together with its headers.
const TOGETHER: Millis = Millis(10);

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
            *reading = reading.behind((others, seen.prompts_read()), reading.readers);
            reading.from = now;
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
