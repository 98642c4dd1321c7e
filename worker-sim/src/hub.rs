//! The engines of a worker and who waits for their tokens: the one place where time meets the scheduler.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep_until};

use crate::Config;
use crate::cost::StepCost;
use crate::engine::{Engine, Load, NeverFits, SequenceId, Token};
use crate::histogram::Histogram;

/// How far behind its schedule an engine may run and still catch up. Timers fire up to a millisecond late and steps
/// may be shorter than that; without catching up every step would take a millisecond more than its price.
const CATCH_UP: Duration = Duration::from_millis(10);

/// Factor by which a step of a slow engine is longer.
const SLOWNESS: f64 = 10.0;

/// One sequence asked for, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    pub(crate) prompt: u32,
    pub(crate) output: u32,
    pub(crate) ending: Ending,
}

/// End of the output of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The request's limit, or the room that the model has.
    Limit,
    /// The model itself.
    Model,
}

/// A token on its way to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Which of the request's sequences it belongs to, in the order they were asked for.
    pub(crate) choice: usize,
    /// Its place in the output, from 0.
    pub(crate) index: u32,
    pub(crate) last: bool,
}

/// What one engine has done since the start, as its metrics page shows it.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) prompt_tokens: u64,
    pub(crate) generation_tokens: u64,
    pub(crate) finished: u64,
    /// Finished sequences that the model ended.
    pub(crate) stopped: u64,
    pub(crate) aborted: u64,
    pub(crate) request_prompt_tokens: Histogram,
    pub(crate) first_token_seconds: Histogram,
}

/// One engine at this moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) running: u64,
    pub(crate) waiting: u64,
    pub(crate) kv_usage: f64,
    pub(crate) preemptions: u64,
    pub(crate) record: Record,
}

pub(crate) struct Hub {
    cost: StepCost,
    jitter: f64,
    slow: AtomicBool,
    state: Mutex<State>,
    /// One for each engine: something was added.
    work: Vec<Notify>,
}

struct State {
    ranks: Vec<Rank>,
    live: HashMap<SequenceId, Live>,
    next_id: u64,
    peak_running: u64,
}

struct Rank {
    engine: Engine,
    record: Record,
}

struct Live {
    rank: usize,
    choice: usize,
    wish: Wish,
    arrived: Instant,
    client: UnboundedSender<Delivery>,
}

/// A request in the engines. Dropping it aborts what has not ended.
pub(crate) struct Ticket {
    hub: Arc<Hub>,
    ids: Vec<SequenceId>,
    tokens: UnboundedReceiver<Delivery>,
}

impl Ticket {
    /// The next token of any of the sequences; `None` when all have ended.
    pub(crate) async fn next(&mut self) -> Option<Delivery> {
        self.tokens.recv().await
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.hub.abort(&self.ids);
    }
}

impl Hub {
    pub(crate) fn new(config: &Config) -> Self {
        let rank = || Rank { engine: Engine::new(config.limits()), record: Record::new(config.max_model_len) };
        let ranks: Vec<Rank> = (0..config.data_parallel_size).map(|_| rank()).collect();
        Self {
            cost: config.step_cost(),
            jitter: config.step_jitter,
            slow: AtomicBool::new(false),
            work: ranks.iter().map(|_| Notify::new()).collect(),
            state: Mutex::new(State { ranks, live: HashMap::new(), next_id: 0, peak_running: 0 }),
        }
    }

    /// Gives every wish to the engine that is least loaded then.
    ///
    /// # Errors
    /// [`NeverFits`] when one of them cannot end; then none is taken.
    pub(crate) fn submit(self: &Arc<Self>, wishes: &[Wish]) -> Result<Ticket, NeverFits> {
        let (client, tokens) = unbounded_channel();
        // Dropped on a refusal, after the lock below: what was taken by then is aborted.
        let mut ticket = Ticket { hub: Arc::clone(self), ids: Vec::with_capacity(wishes.len()), tokens };
        let mut state = self.lock();
        for (choice, wish) in wishes.iter().enumerate() {
            let id = SequenceId(state.next_id);
            let rank = state.least_loaded();
            state.ranks[rank].engine.add(id, wish.prompt, wish.output)?;
            state.next_id += 1;
            let live = Live { rank, choice, wish: *wish, arrived: Instant::now(), client: client.clone() };
            state.live.insert(id, live);
            ticket.ids.push(id);
            self.work[rank].notify_one();
        }
        Ok(ticket)
    }

    /// Makes steps that begin from now on take longer, or as long as they should.
    pub(crate) fn set_slow(&self, slow: bool) {
        self.slow.store(slow, Ordering::Relaxed);
    }

    /// Steps one engine for ever, each step taking its time.
    pub(crate) async fn drive(self: Arc<Self>, rank: usize) {
        let mut due = Instant::now();
        loop {
            let Some(load) = self.begin_step(rank) else {
                self.work[rank].notified().await;
                due = Instant::now();
                continue;
            };
            let earliest = Instant::now().checked_sub(CATCH_UP).unwrap_or(due);
            let jitter = 1.0 + self.jitter * (2.0 * fastrand::f64() - 1.0);
            let slowness = if self.slow.load(Ordering::Relaxed) { SLOWNESS } else { 1.0 };
            due = due.max(earliest) + self.cost.of(load).mul_f64(jitter * slowness);
            sleep_until(due).await;
            self.end_step(rank);
        }
    }

    /// All engines at one moment.
    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.lock().ranks.iter().map(Rank::snapshot).collect()
    }

    /// The most sequences that ran at once, over all engines.
    pub(crate) fn peak_running(&self) -> u64 {
        self.lock().peak_running
    }

    fn begin_step(&self, rank: usize) -> Option<Load> {
        let mut state = self.lock();
        let load = state.ranks[rank].engine.begin_step();
        let running = state.ranks.iter().map(|rank| rank.engine.running() as u64).sum();
        state.peak_running = state.peak_running.max(running);
        load
    }

    fn end_step(&self, rank: usize) {
        let mut state = self.lock();
        let now = Instant::now();
        for token in state.ranks[rank].engine.end_step() {
            state.deliver(rank, token, now);
        }
    }

    fn abort(&self, ids: &[SequenceId]) {
        let mut state = self.lock();
        for id in ids {
            if let Some(live) = state.live.remove(id) {
                let rank = &mut state.ranks[live.rank];
                rank.engine.abort(*id);
                rank.record.aborted += 1;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// vLLM's rule: a waiting sequence weighs four times a running one; the lowest rank of equals.
    fn least_loaded(&self) -> usize {
        let load = |rank: &Rank| 4 * rank.engine.waiting() + rank.engine.running();
        let lightest = self.ranks.iter().enumerate().min_by_key(|(_, rank)| load(rank));
        lightest.map_or(0, |(at, _)| at)
    }

    fn deliver(&mut self, rank: usize, token: Token, now: Instant) {
        let record = &mut self.ranks[rank].record;
        let Some(live) = self.live.get(&token.id) else { return };
        record.generation_tokens += 1;
        if token.index == 0 {
            record.prompt_tokens += u64::from(live.wish.prompt);
            record.first_token_seconds.observe((now - live.arrived).as_secs_f64());
        }
        // A client that has just gone aborts through its ticket; the token is lost with it.
        let _ = live.client.send(Delivery { choice: live.choice, index: token.index, last: token.last });
        if token.last {
            record.finished += 1;
            record.stopped += u64::from(live.wish.ending == Ending::Model);
            record.request_prompt_tokens.observe(f64::from(live.wish.prompt));
            self.live.remove(&token.id);
        }
    }
}

impl Rank {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            running: self.engine.running() as u64,
            waiting: self.engine.waiting() as u64,
            kv_usage: self.engine.kv_usage(),
            preemptions: self.engine.preemptions(),
            record: self.record.clone(),
        }
    }
}

impl Record {
    fn new(max_model_len: u32) -> Self {
        Self {
            prompt_tokens: 0,
            generation_tokens: 0,
            finished: 0,
            stopped: 0,
            aborted: 0,
            request_prompt_tokens: Histogram::of_tokens(max_model_len),
            first_token_seconds: Histogram::of_first_token_seconds(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(prompt: u32, output: u32) -> Wish {
        Wish { prompt, output, ending: Ending::Limit }
    }

    fn start(config: Config) -> Arc<Hub> {
        let hub = Arc::new(Hub::new(&config));
        for rank in 0..config.data_parallel_size as usize {
            tokio::spawn(Arc::clone(&hub).drive(rank));
        }
        hub
    }

    fn priced() -> Config {
        Config {
            base_ms: 10.0,
            per_prefill_token_us: 100.0,
            per_sequence_us: 1000.0,
            per_kv_block_us: 1000.0,
            ..Config::default()
        }
    }

    async fn millis_to_end(mut ticket: Ticket) -> Vec<u128> {
        let start = Instant::now();
        let mut at = Vec::new();
        while ticket.next().await.is_some() {
            at.push(start.elapsed().as_millis());
        }
        at
    }

    #[tokio::test(start_paused = true)]
    async fn steps_take_the_time_of_the_formula() {
        let hub = start(priced());
        let ticket = hub.submit(&[wish(30, 3)]).unwrap();
        // 10 + 30 × 0.1, then 10 + 1 + 2 blocks, then the same with a third block only at the 33rd token.
        assert_eq!(millis_to_end(ticket).await, [13, 26, 39]);
    }

    #[tokio::test(start_paused = true)]
    async fn speed_divides_all_times() {
        let hub = start(Config { speed: 10.0, base_ms: 100.0, per_prefill_token_us: 1000.0, ..priced() });
        let ticket = hub.submit(&[wish(30, 1)]).unwrap();
        assert_eq!(millis_to_end(ticket).await, [13]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_engine_takes_ten_times_as_long_until_it_is_slow_no_more() {
        let hub = start(priced());
        hub.set_slow(true);
        let first = hub.submit(&[wish(30, 1)]).unwrap();
        assert_eq!(millis_to_end(first).await, [130]);
        hub.set_slow(false);
        let second = hub.submit(&[wish(30, 1)]).unwrap();
        assert_eq!(millis_to_end(second).await, [13]);
    }

    #[tokio::test(start_paused = true)]
    async fn jitter_makes_steps_longer_and_shorter() {
        let costs = Config { base_ms: 100.0, per_sequence_us: 0.0, per_kv_block_us: 0.0, ..priced() };
        let hub = start(Config { per_prefill_token_us: 0.0, step_jitter: 0.5, ..costs });
        let ends = millis_to_end(hub.submit(&[wish(1, 200)]).unwrap()).await;
        let steps: Vec<u128> = ends.windows(2).map(|ends| ends[1] - ends[0]).collect();
        assert!(steps.iter().all(|step| (49..=151).contains(step)), "{steps:?}");
        let below = |limit: u128| steps.iter().filter(|step| **step < limit).count();
        // Each bound is more than five standard deviations away.
        assert!((15..=85).contains(&below(75)) && (60..=140).contains(&below(100)), "{steps:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn late_timers_do_not_add_up() {
        let costs = Config { base_ms: 0.25, per_sequence_us: 0.0, per_kv_block_us: 0.0, ..priced() };
        let hub = start(Config { per_prefill_token_us: 0.0, ..costs });
        let ticket = hub.submit(&[wish(1, 400)]).unwrap();
        let end = *millis_to_end(ticket).await.last().unwrap();
        assert!((100..=101).contains(&end), "400 steps of 0.25 ms took {end} ms");
    }

    #[tokio::test(start_paused = true)]
    async fn wishes_go_to_the_least_loaded_engine() {
        let hub = start(Config { data_parallel_size: 3, ..priced() });
        let ticket = hub.submit(&[wish(1, 9); 6]).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(hub.snapshots().iter().map(|rank| rank.running).collect::<Vec<_>>(), [2, 2, 2]);
        assert_eq!(hub.peak_running(), 6);
        assert_eq!(millis_to_end(ticket).await.len(), 54);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_ticket_aborts_what_has_not_ended() {
        let hub = start(priced());
        let mut ticket = hub.submit(&[wish(1, 1), wish(1, 100)]).unwrap();
        assert!(ticket.next().await.is_some_and(|token| token.last));
        drop(ticket);
        let rank = &hub.snapshots()[0];
        assert_eq!((rank.running, rank.waiting, rank.kv_usage), (0, 0, 0.0));
        assert_eq!((rank.record.finished, rank.record.aborted), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_takes_nothing() {
        let hub = start(Config { num_gpu_blocks: 3, ..priced() });
        let refused = hub.submit(&[wish(1, 1), wish(100, 1)]);
        assert_eq!(refused.err(), Some(NeverFits { needed: 7, total: 2 }));
        assert_eq!((hub.snapshots()[0].running, hub.snapshots()[0].waiting), (0, 0));
    }
}
