//! What goes wrong.

/// Something that goes wrong at a known time, or is put right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// A worker loses all it has.
    WorkerDown(usize),
    /// A worker comes, or comes back.
    WorkerUp(usize),
    /// A VM is gone at once, with all its requests; another takes its place a second later.
    VmDies(usize),
    /// A VM does nothing for so many milliseconds.
    VmStalls(usize, u64),
    /// The sidecar says nothing for so many milliseconds.
    SidecarSilent(u64),
}

/// What goes wrong by chance.
#[derive(Clone, Copy, Debug)]
pub struct Luck {
    /// Microseconds from a wake-up's sending until its VM gets it, from and to.
    pub wake_us: (u64, u64),
    /// Share of wake-ups that never come.
    pub wakes_lost: f64,
    /// Share of calls in whose middle another VM does something.
    pub interrupted: f64,
    /// Share of calls in which writes to some record conflict, up to 70 times in a row.
    pub conflicting: f64,
    /// VMs that stall, up to 2.5 s, in a minute.
    pub stalls: f64,
    /// VMs that die in a minute.
    pub deaths: f64,
    /// Times in a minute that the sidecar falls silent, up to 8 s.
    pub silences: f64,
    /// Workers that are lost in a minute, for up to 5 s.
    pub losses: f64,
}

impl Default for Luck {
    /// A proxy in good health: threads meet now and then, a wake-up takes a tenth of a millisecond or two.
    fn default() -> Self {
        Self {
            wake_us: (50, 250),
            wakes_lost: 0.0,
            interrupted: 0.02,
            conflicting: 0.0,
            stalls: 0.0,
            deaths: 0.0,
            silences: 0.0,
            losses: 0.0,
        }
    }
}

impl Luck {
    /// What goes wrong by chance until then, in no order.
    pub(super) fn troubles(
        &self,
        until: u64,
        vms: usize,
        workers: usize,
        rng: &mut fastrand::Rng,
    ) -> Vec<(u64, Trouble)> {
        let mut troubles = Vec::new();
        for at in times(self.stalls, until, rng) {
            troubles.push((at, Trouble::VmStalls(rng.usize(..vms), rng.u64(50..2_500))));
        }
        for at in times(self.deaths, until, rng) {
            troubles.push((at, Trouble::VmDies(rng.usize(..vms))));
        }
        for at in times(self.silences, until, rng) {
            troubles.push((at, Trouble::SidecarSilent(rng.u64(500..8_000))));
        }
        for at in times(self.losses, until, rng) {
            let worker = rng.usize(..workers);
            troubles.push((at, Trouble::WorkerDown(worker)));
            troubles.push((at + rng.u64(200..5_000), Trouble::WorkerUp(worker)));
        }
        troubles
    }
}

fn times(per_minute: f64, until: u64, rng: &mut fastrand::Rng) -> Vec<u64> {
    let expected = per_minute * until as f64 / 60_000.0;
    let count = expected as u64 + u64::from(rng.f64() < expected.fract());
    (0..count).map(|_| rng.u64(..until.max(1))).collect()
}
