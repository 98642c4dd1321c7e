//! One worker: what its source says of it, and what its pages last said.

use std::sync::Arc;
use std::time::Duration;

use admission_core::saturation::{BusyThresholds, Fullness, Latch, SaturationRule, WorkerLoad};
use admission_core::view::{Credit, KvBlocks, RankReport, Role, WorkerReport, WorkerState};

use super::{Credits, ProxyId, Revision, Target, WorkerRow};
use crate::config::{Patience, WhenUnreadable};
use crate::discovery::{Condition, Member};
use crate::engines::Engine;
use crate::engines::sheet::Load;
use crate::reading::{Gpu, Limits, Reading};

/// Names one worker for as long as it is there; one that goes and comes again is another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerId {
    /// Name of its pool.
    pub pool: Arc<str>,
    /// `host:port` where it serves requests.
    pub address: Arc<str>,
    pub(super) serial: u64,
}

/// Why a scrape gave no numbers: a value of the metric label `result`.
pub type Cause = &'static str;

/// What is known of one worker.
#[derive(Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub member: Member,
    /// Name of the source that named it last.
    pub source: String,
    /// When a scrape last ended, well or badly.
    tried_at: Option<Duration>,
    /// Begin of the last scrape that the worker has answered with a page which cannot be read, where that counts as being up.
    unread_at: Option<Duration>,
    pub sample: Option<Sample>,
    /// Why the last scrape gave nothing; `None` when it did.
    pub cause: Option<Cause>,
    pub busy: bool,
    /// It has used up its headroom.
    pub crowded: bool,
    /// How full it is by its last numbers, however old. Kept, since pushes look at all workers many times a second.
    full: Option<Fullness>,
    /// Another one whenever its numbers are others; of no other worker.
    pub numbers: u64,
    /// A page of it has reported KV blocks.
    has_reported_blocks: bool,
    /// What the exporter beside it says.
    pub exported_gpus: Vec<Gpu>,
    latch: Latch,
    /// KV blocks that would make it busy, beyond those in use.
    blocks_until_busy: Option<u64>,
    /// As counted into the last revision. What is reported is computed anew, since time alone turns a worker down.
    noted: Seen,
}

/// State of a worker, and whether it is busy, crowded, stale and blind.
type Seen = (WorkerState, bool, bool, bool, bool);

/// What a page said.
#[derive(Debug)]
pub struct Sample {
    pub began: Duration,
    pub reading: Reading,
    pub credits: Credits,
}

/// By which a pool's workers are judged.
#[derive(Clone, Copy, Debug)]
pub struct BusyRule {
    pub thresholds: BusyThresholds,
    /// By which they are judged crowded.
    pub saturation: SaturationRule,
    pub hysteresis: f64,
    /// Where the engine does not tell it.
    pub max_num_batched_tokens: Option<u64>,
    /// State of a worker whose page cannot be read.
    pub when_unreadable: WhenUnreadable,
}

impl Worker {
    pub fn new(id: WorkerId, member: Member, source: String) -> Self {
        Self {
            id,
            member,
            source,
            tried_at: None,
            unread_at: None,
            sample: None,
            cause: None,
            busy: false,
            crowded: false,
            full: None,
            numbers: 0,
            has_reported_blocks: false,
            exported_gpus: Vec::new(),
            latch: Latch::default(),
            blocks_until_busy: None,
            noted: (WorkerState::Down, false, false, false, false),
        }
    }

    /// The same worker, whose pages stand elsewhere from now on. What they last said is held meanwhile, as after a scrape
    /// that failed: it must not be told as gone for want of a first one. Scrapes that are under way say nothing any more, and
    /// what another exporter said of GPUs goes with it.
    pub fn read_elsewhere(&mut self, id: WorkerId, member: Member) {
        if member.hardware_url != self.member.hardware_url {
            self.exported_gpus.clear();
        }
        self.id = id;
        self.member = member;
    }

    pub fn target(&self) -> Target {
        let Member { metrics_url, hardware_url, .. } = &self.member;
        Target { worker: self.id.clone(), metrics_url: metrics_url.clone(), hardware_url: hardware_url.clone() }
    }

    pub fn state(&self, now: Duration, patience: &Patience) -> WorkerState {
        let answers = self.can_be_read(now, patience) || self.is_blind(now, patience);
        match (answers, self.member.condition) {
            (false, _) | (_, Condition::NotReady) => WorkerState::Down,
            (true, Condition::Draining) => WorkerState::Draining,
            (true, Condition::Ready) => WorkerState::Up,
        }
    }

    /// True of a cause for which the worker itself has answered all the same. Where it has never been read, that is sure of a page at the address
    /// alone where it serves: at another, and with another status, something else may answer for a worker that is not there yet.
    fn shows_that_it_serves(&self, cause: Cause) -> bool {
        let is_its_own = || self.member.metrics_url.starts_with(&format!("http://{}/", self.id.address));
        match cause {
            "page" | "too_large" => self.sample.is_some() || is_its_own(),
            "status" => self.sample.is_some(),
            _ => false,
        }
    }

    fn can_be_read(&self, now: Duration, patience: &Patience) -> bool {
        self.age(now, patience).is_some_and(|age| age < patience.down_after)
    }

    /// True for a worker that answers, and whose page has shown nothing for so long that it would count as down.
    pub fn is_blind(&self, now: Duration, patience: &Patience) -> bool {
        let answers = |age: Duration| age < patience.down_after;
        !self.can_be_read(now, patience) && self.since(self.unread_at, now, patience).is_some_and(answers)
    }

    /// A scrape has ended.
    pub fn is_tried(&self) -> bool {
        self.tried_at.is_some()
    }

    /// Age of the last sample, as far as somebody has looked since.
    fn age(&self, now: Duration, patience: &Patience) -> Option<Duration> {
        self.since(self.sample.as_ref().map(|sample| sample.began), now, patience)
    }

    fn since(&self, then: Option<Duration>, now: Duration, patience: &Patience) -> Option<Duration> {
        let looked = now.min(self.tried_at? + patience.next_try);
        Some(looked.saturating_sub(then?))
    }

    /// Whether its numbers are too old to be measured by, yet not so old that it counts as gone.
    pub fn is_stale(&self, now: Duration, patience: &Patience) -> bool {
        self.age(now, patience).is_some_and(|age| age >= patience.stale_after)
    }

    pub fn ranks(&self) -> &[RankReport] {
        self.sample.as_ref().map_or(&[], |sample| &sample.reading.ranks)
    }

    /// What it last told, however old; of one that `is_believed` no longer, no number of its load.
    pub fn load(&self, is_believed: bool) -> WorkerLoad<'_> {
        let Limits { block_size, max_num_seqs, .. } = self.limits();
        let doubts = self.sample.as_ref().map_or(&[][..], |sample| &sample.reading.doubts);
        let is_doubted = |numbers: &[Load]| numbers.iter().any(|number| doubts.contains(&number.name()));
        WorkerLoad {
            ranks: if is_believed { self.ranks() } else { &[] },
            block_size,
            max_num_seqs,
            doubts_requests: is_doubted(&[Load::Running, Load::Waiting]),
            doubts_tokens: is_doubted(&[Load::PrefillTokens, Load::Waiting, Load::PromptTokens, Load::Prompts]),
        }
    }

    /// How full it is by `rule`, which must be the one that it was last [measured](Self::measure) by.
    pub fn fullness(&self, rule: &SaturationRule, is_believed: bool) -> Fullness {
        let kept = self.full.filter(|_| is_believed);
        kept.unwrap_or_else(|| rule.fullness(&self.load(is_believed)))
    }

    /// Measures how full it is by its last numbers.
    pub fn measure(&mut self, rule: &SaturationRule) -> Fullness {
        *self.full.insert(rule.fullness(&self.load(true)))
    }

    /// GPUs on its own page, else those of the exporter beside it.
    fn gpus(&self) -> &[Gpu] {
        let own = self.sample.as_ref().map_or(&[][..], |sample| &sample.reading.hardware);
        if own.is_empty() { &self.exported_gpus } else { own }
    }

    /// What its page says of its own limits.
    pub fn limits(&self) -> Limits {
        self.sample.as_ref().map(|sample| sample.reading.limits).unwrap_or_default()
    }

    /// Stores the result of a scrape from `began` to `now` and judges again; `revision` counts what there is to tell.
    pub fn end_try(
        &mut self,
        began: Duration,
        result: Result<Sample, Cause>,
        rule: &BusyRule,
        (now, patience): (Duration, &Patience),
        revision: &mut Revision,
    ) {
        // Time alone may have changed what proxies are to hear since the last try.
        let before = self.seen(now, patience);
        // Why: a scrape that took longer than its timeout allows was paused with the whole process, so its result, good or bad,
        // shows the worker as it was before the pause.
        self.tried_at = Some(now.min(began + patience.next_try));
        let numbers = self.numbers;
        match &result {
            Err(cause) if rule.when_unreadable == WhenUnreadable::Caps && self.shows_that_it_serves(cause) => {
                self.unread_at = Some(began)
            }
            Err(_) => {}
            Ok(_) => self.unread_at = None,
        }
        self.scraped(result, &mut revision.numbers);
        let changed = if self.numbers == numbers {
            self.judge_again(rule, (now, patience), revision)
        } else {
            self.judge(rule, now, patience)
        };
        revision.states += u64::from(changed || before != self.noted);
    }

    /// Takes what a scrape came to; a bad one leaves the last good sample.
    fn scraped(&mut self, result: Result<Sample, Cause>, revision: &mut u64) {
        self.cause = result.as_ref().err().copied();
        let Ok(sample) = result else { return };
        let before = self.sample.as_ref();
        let same_credits = |old: &Sample| Arc::ptr_eq(&old.credits, &sample.credits) || old.credits == sample.credits;
        let has_same_numbers = before.is_some_and(|old| old.reading.ranks == sample.reading.ranks);
        let is_same = before.is_some_and(|old| old.reading == sample.reading && same_credits(old));
        *revision += u64::from(!is_same);
        if !has_same_numbers {
            self.numbers = *revision;
        }
        self.has_reported_blocks |= KvBlocks::of(&sample.reading.ranks).is_some();
        self.sample = Some(sample);
    }

    /// True when its engine can report KV blocks and its last page did not.
    fn hides_blocks(&self) -> bool {
        let can = |sample: &Sample| self.has_reported_blocks || sample.reading.engine.reports_blocks();
        self.sample.as_ref().is_some_and(|sample| can(sample) && KvBlocks::of(&sample.reading.ranks).is_none())
    }

    /// Judges the same numbers by what may be another rule; returns what [`Self::judge`] does.
    pub fn judge_again(
        &mut self,
        rule: &BusyRule,
        (now, patience): (Duration, &Patience),
        revision: &mut Revision,
    ) -> bool {
        let before = self.blocks_until_busy;
        let has_changed = self.judge(rule, now, patience);
        if self.blocks_until_busy != before {
            revision.numbers += 1;
            self.numbers = revision.numbers;
        }
        has_changed
    }

    /// Judges by the last numbers however old; returns whether what it is or is judged to be differs from the last look.
    fn judge(&mut self, rule: &BusyRule, now: Duration, patience: &Patience) -> bool {
        let batched = self.batched(rule);
        let ranks = self.sample.as_ref().map_or(&[][..], |sample| &sample.reading.ranks);
        self.busy = rule.thresholds.latched(&mut self.latch, rule.hysteresis, ranks, batched);
        self.blocks_until_busy = rule.thresholds.blocks_until_busy(&self.latch, ranks);
        let full = self.measure(&rule.saturation).share();
        self.crowded = rule.saturation.is_crowded(full, self.crowded, rule.hysteresis);
        let seen = self.seen(now, patience);
        std::mem::replace(&mut self.noted, seen) != seen
    }

    fn seen(&self, now: Duration, patience: &Patience) -> Seen {
        let state = self.state(now, patience);
        (state, self.busy, self.crowded, self.is_stale(now, patience), self.is_blind(now, patience))
    }

    /// Prompt tokens that it may have to read and is not busy by them.
    // Why not of a Dynamo frontend, whose page is one rank: what is sent to it is for all workers behind it.
    pub fn prefill_limit(&self, rule: &BusyRule) -> Option<u64> {
        let sample = self.sample.as_ref().filter(|sample| *sample.reading.engine.adapter() != Engine::Dynamo)?;
        rule.thresholds.prefill_limit(sample.reading.ranks.len(), self.batched(rule))
    }

    /// Most tokens that it batches in one step.
    fn batched(&self, rule: &BusyRule) -> Option<u64> {
        self.limits().max_num_batched_tokens.or(rule.max_num_batched_tokens)
    }

    /// For the metrics page.
    pub fn row(&self, rule: &BusyRule, (is_spared, is_believed): (bool, bool)) -> WorkerRow {
        let mut busy_by = Vec::new();
        if is_spared {
            busy_by.extend(
                self.busy.then(|| rule.thresholds.busy_by(&self.latch, self.batched(rule))).into_iter().flatten(),
            );
            busy_by.extend(self.crowded.then_some("headroom"));
            busy_by.extend((!is_believed).then_some("when_stale"));
        }
        let doubts = self.sample.as_ref().map(|sample| sample.reading.doubts.clone());
        WorkerRow {
            address: Arc::clone(&self.id.address),
            condition: self.member.condition,
            limits: self.limits(),
            doubts: doubts.unwrap_or_default(),
            busy_by,
            gpus: self.gpus().to_vec(),
        }
    }

    /// For a proxy, if for one.
    pub fn now(
        &self,
        proxy: Option<ProxyId>,
        (now, patience): (Duration, &Patience),
        (busy, is_believed): (bool, bool),
    ) -> WorkerNow<'_> {
        let is_blind = self.is_blind(now, patience);
        let sample = self.sample.as_ref();
        let began = sample.map_or(Duration::ZERO, |sample| sample.began);
        WorkerNow {
            address: &self.id.address,
            state: self.state(now, patience),
            scraped_ms_ago: u64::try_from(now.saturating_sub(began).as_millis()).unwrap_or(u64::MAX),
            cause: self.cause,
            busy,
            role: self.member.role,
            kv_unreported: self.hides_blocks() && !is_blind,
            blocks_until_busy: self.blocks_until_busy.filter(|_| is_believed),
            ranks: if is_blind { &[] } else { self.ranks() },
            // Why none: what its last page said is sent no more, which is news.
            numbers: if is_blind { 0 } else { self.numbers },
            is_believed,
            credit: sample
                .zip(proxy)
                .and_then(|(sample, proxy)| sample.credits.get(&proxy).copied())
                .unwrap_or_default(),
        }
    }
}

/// What there is to tell of a worker.
#[derive(Clone, Copy, Debug)]
pub struct WorkerNow<'a> {
    /// Where it serves.
    pub address: &'a Arc<str>,
    /// Counts of the proxy that were known when the last good scrape of the worker began.
    pub credit: Credit,
    /// Which numbers these are: others have another one.
    pub numbers: u64,
    state: WorkerState,
    is_believed: bool,
    scraped_ms_ago: u64,
    cause: Option<Cause>,
    busy: bool,
    role: Role,
    kv_unreported: bool,
    blocks_until_busy: Option<u64>,
    ranks: &'a [RankReport],
}

impl WorkerNow<'_> {
    /// Whether it can be given work.
    pub fn is_live(&self) -> bool {
        self.state == WorkerState::Up
    }

    /// The credit of a live worker whose numbers are believed bounds that of its pool. Numbers that count as full hold no credit
    /// back: a worker that hangs must not for long.
    pub fn is_counted(&self) -> bool {
        self.is_live() && self.is_believed
    }

    /// Whether a report says what it is and whether it is busy.
    pub fn has_state(&self, report: &WorkerReport) -> bool {
        (self.state, self.busy, self.role) == (report.state, report.busy, report.role)
    }

    /// Whether a report says why its last scrape gave no numbers, or that it did.
    pub fn has_cause(&self, report: &WorkerReport) -> bool {
        self.cause == report.cause.as_deref()
    }

    /// As proxies are told.
    pub fn report(&self) -> WorkerReport {
        WorkerReport {
            address: self.address.to_string(),
            state: self.state,
            scraped_ms_ago: self.scraped_ms_ago,
            cause: self.cause.map(str::to_owned),
            busy: self.busy,
            role: self.role,
            kv_unreported: self.kv_unreported,
            blocks_until_busy: self.blocks_until_busy,
            admitted: Some(self.credit.admitted.requests).filter(|admitted| *admitted > 0),
            ranks: self.ranks.iter().map(|rank| self.told_of(rank)).collect(),
        }
    }

    /// A rank's numbers; of a worker that counts as full no block is free.
    fn told_of(&self, rank: &RankReport) -> RankReport {
        // Why only where it has reported what is used: a rank that never does would bring its blocks into the pool's sum, and none would be free.
        let full = rank.kv_total_blocks.filter(|_| !self.is_believed && rank.kv_used_blocks.is_some());
        RankReport { kv_used_blocks: full.or(rank.kv_used_blocks), ..rank.clone() }
    }
}
