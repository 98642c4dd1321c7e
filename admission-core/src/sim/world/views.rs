//! Views on their way from sidecars to the proxy.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Event, HOLD, World};
use crate::control::{NotTaken, Receiver, Taken};
use crate::sim::lies::happens;
use crate::sim::mortal::Mortal;
use crate::store::MAX_ATTEMPTS;

impl World<'_> {
    pub(super) fn scrape(&mut self, sidecar: usize) {
        let eyes = self.scenario.eyes;
        self.agenda.plan(self.now.plus_ms(eyes.every), Event::Scrape(sidecar));
        if self.now >= self.silent_until {
            let body = self.sidecars[sidecar].scrape(&self.workers, &self.scenario.luck, &mut self.rng);
            let late = self.rng.u64(eyes.late.0..=eyes.late.1);
            self.agenda.plan(self.now.plus_ms(late), Event::View(sidecar, body));
        }
    }

    pub(super) fn view_arrives(&mut self, sidecar: usize, body: &[u8]) {
        let now = self.time();
        let luck = &self.scenario.luck;
        if happens(luck.dies_within, &mut self.rng) {
            return self.dies_with_a_view(body);
        }
        if happens(luck.conflicting, &mut self.rng) {
            self.store.fail_on("", self.rng.u32(1..2 * MAX_ATTEMPTS));
        }
        let taken = self.receiver().borrow_mut().take(&*self.store, body, now);
        self.store.fail_on("", 0);
        self.view_taken(sidecar, taken);
        self.check(&[], true);
    }

    /// A view that another has overtaken is refused, as it should be.
    pub(super) fn view_taken(&mut self, sidecar: usize, taken: Result<Taken, NotTaken>) {
        self.note(|| match &taken {
            Ok(taken) => format!("generation {} of epoch {} stands", taken.answer.generation, taken.answer.epoch),
            Err(error) => format!("a view is refused: {error:?}"),
        });
        self.sidecars[sidecar].told(&taken);
        if let Ok(taken) = taken {
            taken.wakes.into_iter().for_each(|wake| self.send_wake(wake));
        }
    }

    /// Of some thread of the proxy, where what is pushed may go to any of them.
    pub(super) fn receiver(&mut self) -> Rc<RefCell<Receiver>> {
        let any = self.scenario.luck.views_of_changes > 0.0;
        let place = if any { self.rng.usize(..self.receivers.len()) } else { 0 };
        Rc::clone(&self.receivers[place])
    }

    /// The thread that takes it is gone before all is written, and forgets what it has taken. Of its requests nothing is said:
    /// these are in other VMs than the control listener's.
    fn dies_with_a_view(&mut self, body: &[u8]) {
        let (place, left) = (self.rng.usize(..self.receivers.len()), self.rng.u32(..12));
        self.note(|| format!("the VM that takes a view dies after {left} operations"));
        let now = self.time();
        let answer = self.receivers[place].borrow_mut().take(&Mortal::new(&self.store, left), body, now);
        drop(answer);
        self.receivers[place] = Rc::new(RefCell::new(Receiver::new(self.any_policy().keys.clone(), HOLD)));
        self.check(&[], true);
    }
}
