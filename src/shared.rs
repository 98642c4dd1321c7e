//! State of one plugin in one VM that its streams share.

use admission_core::metrics::Metrics;
use admission_core::vm::{POLL, Vm};

use crate::effect::Effect;
use crate::env::Env;

/// State that an event of a stream may read and change while it is handled.
pub struct Shared<'a> {
    /// The VM's part in the count.
    pub vm: &'a mut Vm,
    /// The plugin's counters and histograms.
    pub metrics: &'a mut Metrics,
    /// Clock, randomness and records of the proxy.
    pub env: &'a Env,
    /// Acts that the event asks of the proxy, in their order.
    pub effects: &'a mut Vec<Effect>,
    /// Root that is called more often than the others, because requests wait.
    pub poller: &'a mut Option<u32>,
    /// Places in long texts where samples are taken.
    pub seeds: &'a mut Seeds,
}

impl Shared<'_> {
    /// Asks an act of the proxy.
    pub fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Notes that a stream of a root waits, in an event of that stream.
    pub fn has_waiter(&mut self, root: u32) {
        if self.poller.is_none() {
            // Why in the stream's event: the host sets the period of the root to which the current stream belongs, and that root lives
            // as long as the stream. Why only once: every call starts the period again.
            *self.poller = Some(root);
            self.push(Effect::TickEvery(POLL));
        }
    }
}

/// Seeds of samples, which callers are not to know; another one for each request.
#[derive(Default)]
pub struct Seeds(Option<u64>);

impl Seeds {
    /// Seed of the next request's samples.
    pub fn next(&mut self, env: &Env) -> u64 {
        // Groups of one text follow each other, so texts are to lie far apart.
        const APART: u64 = 0x9e37_79b9_7f4a_7c15;
        let seed = self.0.unwrap_or_else(|| env.random()).wrapping_add(APART);
        self.0 = Some(seed);
        seed
    }
}
