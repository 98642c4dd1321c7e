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
    /// No sidecar says anything for so many milliseconds.
    SidecarSilent(u64),
    /// A sidecar begins anew, under an epoch that so much is added to.
    SidecarRestarts(usize, i64),
    /// A VM gets [`super::Scenario::next_policy`].
    Reload(usize),
    /// The clock that all VMs read steps by so many milliseconds.
    ClockSteps(i64),
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
    /// Share of wake-ups that come to another VM than they are meant for.
    pub wakes_misdirected: f64,
    /// Share of wake-ups that come twice.
    pub wakes_doubled: f64,
    /// Share of calls in which a VM dies after any operation on the store, the last one included.
    pub dies_within: f64,
    /// Share of calls in which others take the VM for dead between any two of its operations; it stalls then.
    pub fenced_within: f64,
    /// Share of calls between any two operations of which another VM does something, or a view comes.
    pub meddled_with: f64,
    /// Times in a minute that the clock of all VMs steps, by up to 4 s forward or 0.2 s back. One that steps back further hides
    /// from a VM how long it was silent; a monotonic clock does not.
    pub clock_steps: f64,
    /// Share of views that say what is not so.
    pub views_lie: f64,
    /// Share of scrapes in which the page of a worker hangs, whose last numbers are held.
    pub pages_hang: f64,
    /// Share of views that say only what has changed, to whichever VM gets them.
    pub views_of_changes: f64,
    /// Times in a minute that a sidecar begins anew.
    pub sidecar_restarts: f64,
    /// The VMs get the next policy, one after the other.
    pub reloads: bool,
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
            wakes_misdirected: 0.0,
            wakes_doubled: 0.0,
            dies_within: 0.0,
            fenced_within: 0.0,
            meddled_with: 0.0,
            clock_steps: 0.0,
            views_lie: 0.0,
            pages_hang: 0.0,
            views_of_changes: 0.0,
            sidecar_restarts: 0.0,
            reloads: false,
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
        self.rare_troubles(until, vms, &mut troubles, rng);
        troubles
    }

    /// Those that named scenarios have none of, in which no chance is spent on them.
    fn rare_troubles(&self, until: u64, vms: usize, troubles: &mut Vec<(u64, Trouble)>, rng: &mut fastrand::Rng) {
        if self.clock_steps > 0.0 {
            let steps = times(self.clock_steps, until, rng);
            troubles.extend(steps.into_iter().map(|at| (at, Trouble::ClockSteps(rng.i64(-200..4_000)))));
        }
        if self.sidecar_restarts > 0.0 {
            let restarts = times(self.sidecar_restarts, until, rng);
            let restart = |at| (at, Trouble::SidecarRestarts(rng.usize(..2), rng.i64(-3..4)));
            troubles.extend(restarts.into_iter().map(restart));
        }
        if self.reloads {
            let first = rng.u64(..until);
            // A proxy's threads take a configuration one after the other, within milliseconds or, when they are busy, seconds.
            let apart = [5, 100, 3_000][rng.usize(..3)];
            troubles.extend((0..vms).map(|vm| (first + rng.u64(..apart), Trouble::Reload(vm))));
        }
    }
}

fn times(per_minute: f64, until: u64, rng: &mut fastrand::Rng) -> Vec<u64> {
    let expected = per_minute * until as f64 / 60_000.0;
    let count = expected as u64 + u64::from(rng.f64() < expected.fract());
    (0..count).map(|_| rng.u64(..until.max(1))).collect()
}
