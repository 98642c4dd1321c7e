//! What befalls VMs, workers and the sidecar.

use super::{Event, Seat, Trouble, World};
use crate::sim::proxy::Call;
use crate::sim::reference::Health;
use crate::vm::TICK;

/// A host starts a VM anew after a while.
const BACK_OFF_MS: u64 = 1_000;

impl World<'_> {
    pub(super) fn befall(&mut self, trouble: Trouble) {
        self.note(|| format!("{trouble:?}"));
        match trouble {
            Trouble::WorkerDown(worker) => self.worker_fails(worker),
            Trouble::WorkerUp(worker) => self.workers[worker].up = true,
            Trouble::VmDies(vm) => self.dies(vm),
            Trouble::VmStalls(vm, ms) => self.stalls(vm, ms),
            Trouble::SidecarSilent(ms) => self.silent_until = self.now.plus_ms(ms),
            Trouble::SidecarRestarts(sidecar, later) => {
                if let Some(sidecar) = self.sidecars.get_mut(sidecar) {
                    sidecar.restarts(later);
                }
            }
            Trouble::Reload(vm) => self.reload(vm),
            Trouble::ClockSteps(ms) => {
                self.stepped += ms;
                self.reference.clock_steps(ms, self.time());
            }
        }
    }

    pub(super) fn goes_on(&mut self, vm: usize, life: u32) {
        let seat = &mut self.seats[vm];
        if seat.life != life || seat.health != Health::Stalled {
            return;
        }
        seat.health = Health::Able;
        let deferred: Vec<_> = seat.deferred.drain(..).collect();
        self.reference.health(vm, Health::Able, self.time());
        for call in deferred {
            self.agenda.plan(self.now, Event::Call { vm, life, call });
        }
        self.keep_polling(vm);
    }

    pub(super) fn revives(&mut self, vm: usize) {
        let Seat { life, policy, .. } = self.seats[vm];
        self.seats[vm] = Seat { life, ..Seat::new(&self.policies[policy], policy) };
        self.reference.health(vm, Health::Able, self.time());
    }

    pub(super) fn stalls(&mut self, vm: usize, ms: u64) {
        let seat = &mut self.seats[vm];
        if seat.health != Health::Able {
            return;
        }
        seat.health = Health::Stalled;
        let life = seat.life;
        self.reference.health(vm, Health::Stalled, self.time());
        self.agenda.plan(self.now.plus_ms(ms), Event::GoesOn { vm, life });
    }

    pub(super) fn dies(&mut self, vm: usize) {
        let seat = &mut self.seats[vm];
        if seat.health == Health::Dead {
            return;
        }
        seat.health = Health::Dead;
        seat.life += 1;
        seat.deferred.clear();
        self.figures.deaths += 1;
        self.reference.health(vm, Health::Dead, self.time());
        self.lose_all_of(vm);
        self.agenda.plan(self.now.plus_ms(BACK_OFF_MS), Event::Revives(vm));
    }

    /// Requests that come are held to the next policy, and with its next tick those that wait.
    fn reload(&mut self, vm: usize) {
        let seat = &mut self.seats[vm];
        seat.policy = self.policies.len() - 1;
        let (life, at) = (seat.life, self.now.plus_ms(self.rng.u64(..TICK.0)));
        self.agenda.plan(at, Event::Call { vm, life, call: Call::Reload });
    }

    fn worker_fails(&mut self, worker: usize) {
        for id in self.workers[worker].fail() {
            self.fails(id);
        }
    }
}
