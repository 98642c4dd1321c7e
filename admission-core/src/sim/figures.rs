//! What is counted.

use std::collections::BTreeMap;

/// Of one stream of requests.
#[derive(Clone, Debug, Default)]
pub struct StreamFigures {
    /// Requests, however often each came.
    pub offered: u64,
    /// That began an answer and ended it.
    pub served: u64,
    /// Refusals by reason; one request may have had several.
    pub refused: BTreeMap<&'static str, u64>,
    /// Leases taken away again for a higher lane.
    pub evicted: u64,
    /// Clients that left, before or after they had started.
    pub left: u64,
    /// Lost with their VM or their worker.
    pub lost: u64,
    /// Milliseconds in the queue, of those that started.
    pub waits: Vec<u64>,
    /// Milliseconds to the first token, of those that were sent one, since the attempt that got it.
    pub ttft: Vec<u64>,
    /// Prompt and output tokens of those served.
    pub tokens: u64,
    /// Requests that started while some of every stream waited, and their tokens.
    pub contested: (u64, u64),
    /// Clients that came back when they were told to.
    pub came_back: u64,
    /// Of those, started then.
    pub honoured: u64,
}

/// Of a whole run.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// In the order of the scenario.
    pub streams: Vec<StreamFigures>,
    /// Sequences that a worker threw out of its batch because its KV blocks ran out.
    pub worker_preemptions: u64,
    /// Wake-ups sent from VM to VM.
    pub wakes: u64,
    /// Of those, lost.
    pub wakes_lost: u64,
    /// Writes that another VM was faster at.
    pub conflicts: u64,
    /// Writes to shared records.
    pub writes: u64,
    /// VMs that died.
    pub deaths: u64,
    /// VMs that others took for dead while they lived.
    pub fencings: u64,
    /// Requests that started because their VM was told that they may, and those that it found by itself when it polled.
    pub started: (u64, u64),
    /// Steps after which the reference was asked.
    pub steps: u64,
    /// Starts that passed an older request of their own tenant and lane, that waited in another VM.
    pub overtakings: u64,
    /// Most that waited at once.
    pub longest_queue: usize,
}

/// The value below which so many hundredths of them lie; 0 where there are none.
#[must_use]
pub fn quantile(values: &[u64], hundredths: usize) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let place = (sorted.len() * hundredths).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or(0)
}
