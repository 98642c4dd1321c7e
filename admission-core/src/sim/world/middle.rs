//! What befalls a call between any two of its operations on the store.

use std::cell::RefCell;
use std::rc::Rc;

use super::World;
use crate::members::{Member, Members};
use crate::sim::mortal::Mortal;
use crate::sim::proxy::{self, Call, Effect};
use crate::sim::reference::Change;
use crate::store;
use crate::store::memory::MemoryStore;

/// Operations among which a call is interrupted: few calls have more, and most have less.
const OPERATIONS: [u32; 3] = [4, 12, 40];

impl World<'_> {
    fn some_operation(&mut self) -> u32 {
        let most = OPERATIONS[self.rng.usize(..OPERATIONS.len())];
        self.rng.u32(..most)
    }

    /// A VM dies in the middle of a call, or when the call is over and has told nobody yet.
    pub(super) fn dies_within(&mut self, vm: usize, call: Call) {
        let left = self.some_operation();
        self.note_call(vm, &call, &format!("dies after {left} operations of what follows: "));
        let mortal = Mortal::new(&self.store, left);
        drop(proxy::perform(&self.seats[vm].vm, &mortal, call, self.time()));
        self.dies(vm);
        let sight = self.books.look(&*self.store);
        self.reference.has_died_within(&sight);
        self.check(&[], false);
    }

    /// Others take a VM for dead between two operations of a call, in which it hangs. That took them ten of their ticks, so
    /// its heartbeat is old by the time that it goes on.
    pub(super) fn fenced_within(&mut self, vm: usize, call: Call, changes: Vec<Change>) {
        let after = self.some_operation();
        self.note_call(vm, &call, &format!("is fenced after {after} operations of what follows: "));
        let polls = matches!(call, Call::Poll);
        let fence = {
            let (seat, store) = (Rc::clone(&self.seats[vm].vm), Rc::clone(&self.store));
            let (key, epoch) = (self.any_policy().keys.members(), proxy::epoch(&seat));
            move || fence(&store, &key, epoch)
        };
        let effects = self.perform_with(vm, call, after, fence);
        self.reference.fenced_within(vm);
        self.settle(vec![(vm, effects)], changes, polls, false);
        self.reference.fenced_within_no_more();
        let ms = self.rng.u64(600..2_500);
        self.stalls(vm, ms);
    }

    /// Another VM does something, or a view comes, between two operations of a call.
    pub(super) fn perform_with_others(&mut self, vm: usize, call: Call) -> Vec<(usize, Vec<Effect>)> {
        let after = self.some_operation();
        let now = self.time();
        let store = Rc::clone(&self.store);
        if let Some((other, other_call)) = self.rival_of(vm) {
            self.note_call(other, &other_call, &format!("after {after} operations of what follows: "));
            let (done, seat) = (Rc::new(RefCell::new(Vec::new())), Rc::clone(&self.seats[other].vm));
            let act = {
                let done = Rc::clone(&done);
                move || done.replace(proxy::perform(&seat, &*store, other_call, now)).clear()
            };
            let own = self.perform_with(vm, call, after, act);
            return vec![(other, done.take()), (vm, own)];
        }
        // Views wake those that wait, whose calls bring no more views than there would be.
        if self.now.ms_since(self.viewed) < self.scenario.eyes.every / 2 {
            return vec![(vm, self.perform(vm, call))];
        }
        self.viewed = self.now;
        let sidecar = self.rng.usize(..self.sidecars.len());
        let body = self.sidecars[sidecar].scrape(&self.workers, &self.scenario.luck, &mut self.rng);
        self.note(|| format!("a view comes after {after} operations of what follows"));
        let (taken, receiver) = (Rc::new(RefCell::new(None)), self.receiver());
        let act = {
            let taken = Rc::clone(&taken);
            move || drop(taken.replace(Some(receiver.borrow_mut().take(&*store, &body, now))))
        };
        let own = self.perform_with(vm, call, after, act);
        if let Some(taken) = taken.take() {
            self.view_taken(sidecar, taken);
        }
        vec![(vm, own)]
    }

    /// A call after so many operations of which something else happens; after all of them if there are less.
    fn perform_with(&mut self, vm: usize, call: Call, after: u32, action: impl FnOnce() + 'static) -> Vec<Effect> {
        let pending = Rc::new(RefCell::new(Some(action)));
        let in_the_middle = {
            let pending = Rc::clone(&pending);
            move || once(&pending)
        };
        self.store.after_operations(after, in_the_middle);
        let effects = self.perform(vm, call);
        self.store.after_operations(u32::MAX, || ());
        once(&pending);
        effects
    }
}

fn once(pending: &RefCell<Option<impl FnOnce()>>) {
    if let Some(action) = pending.take() {
        action();
    }
}

/// What others do that have seen no heartbeat of a VM for ten ticks.
fn fence(store: &MemoryStore, key: &str, epoch: Option<u64>) {
    let fenced = store::update(store, key, |members: &mut Members| {
        let silent: Vec<Member> = members.iter().filter(|member| Some(member.holder.epoch) == epoch).copied().collect();
        members.fence(&silent);
        Ok::<(), std::convert::Infallible>(())
    });
    drop(fenced);
}
