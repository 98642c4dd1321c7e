//! What VMs do, others in the middle of it, and what comes of it.

use std::cell::RefCell;
use std::rc::Rc;

use super::{Event, World};
use crate::keys::in_record;
use crate::queue::Ticket;
use crate::sim::lies::happens;
use crate::sim::proxy::{self, Call, Effect};
use crate::sim::reference::{Change, Health};
use crate::store::MAX_ATTEMPTS;
use crate::vm::{Note, Wake};

/// A rival's call, that comes about in the middle of another's or after it.
type Rival = Rc<RefCell<Option<(usize, Call)>>>;

impl World<'_> {
    /// Something happens in a VM, or will once it goes on.
    pub(super) fn call(&mut self, vm: usize, life: u32, call: Call) {
        let seat = &mut self.seats[vm];
        if seat.life != life || seat.health == Health::Dead {
            return;
        }
        if matches!(call, Call::Poll) {
            seat.polling = false;
        }
        match seat.health {
            Health::Stalled => seat.deferred.push_back(call),
            Health::Able | Health::Dead => self.act(vm, call),
        }
    }

    pub(super) fn wake(&mut self, wake: &Wake) {
        if happens(self.scenario.luck.wakes_misdirected, &mut self.rng) {
            let vm = self.rng.usize(..self.seats.len());
            return self.call(vm, self.seats[vm].life, Call::Woken(wake.note.clone()));
        }
        let has_slot = |place: &usize| proxy::slot(&self.seats[*place].vm) == Some(wake.slot);
        if let Some(vm) = (0..self.seats.len()).find(has_slot) {
            self.call(vm, self.seats[vm].life, Call::Woken(wake.note.clone()));
        }
    }

    /// Lets a VM do something now, perhaps while another does something in the middle of it, perhaps while writes lose.
    pub(super) fn act(&mut self, vm: usize, call: Call) {
        let luck = self.scenario.luck;
        let mut changes = Vec::new();
        let call = match call {
            Call::Reload => Call::Renews(self.reloads(vm, &mut changes)),
            call => call,
        };
        if let Call::Arrives(id, _) = &call {
            self.taken(*id);
        }
        if happens(luck.dies_within, &mut self.rng) {
            return self.dies_within(vm, call);
        }
        if happens(luck.fenced_within, &mut self.rng) {
            return self.fenced_within(vm, call, changes);
        }
        if self.rng.f64() < luck.conflicting {
            let (ending, times) = (self.some_record(), self.rng.u32(1..70));
            self.note(|| format!("writes to ..{ending} conflict {times} times"));
            self.store.fail_on(&ending, times);
            if times >= MAX_ATTEMPTS {
                self.reference.hinder(self.time());
            }
        }
        let polls = matches!(call, Call::Poll);
        let (effects, alone) = if happens(luck.meddled_with, &mut self.rng) {
            (self.perform_with_others(vm, call), false)
        } else {
            let rival = if self.rng.f64() < luck.interrupted { self.rival_of(vm) } else { None };
            match rival {
                None => (vec![(vm, self.perform(vm, call))], true),
                Some(rival) => (self.perform_beside(vm, call, rival), false),
            }
        };
        self.store.fail_on("", 0);
        self.settle(effects, changes, polls, alone);
    }

    /// Carries out what has come of calls, and asks the reference about it.
    pub(super) fn settle(
        &mut self,
        effects: Vec<(usize, Vec<Effect>)>,
        mut changes: Vec<Change>,
        polls: bool,
        alone: bool,
    ) {
        let vms: Vec<usize> = effects.iter().map(|(vm, _)| *vm).collect();
        for (vm, effects) in effects {
            for effect in effects {
                self.count_start(&effect, polls);
                self.take(vm, effect, &mut changes);
            }
        }
        self.check(&changes, alone);
        for vm in vms {
            self.keep_polling(vm);
        }
    }

    fn count_start(&mut self, effect: &Effect, polls: bool) {
        if matches!(effect, Effect::Started(..)) {
            let (told, polled) = &mut self.figures.started;
            *if polls { polled } else { told } += 1;
        }
    }

    /// Asks the reference whether all is well.
    pub(super) fn check(&mut self, changes: &[Change], alone: bool) {
        let sight = self.books.look(&*self.store);
        let now = self.time();
        for (vm, seat) in self.seats.iter_mut().enumerate() {
            let epoch = proxy::epoch(&seat.vm).filter(|epoch| !sight.members.counts(*epoch));
            if epoch.is_some() && seat.health != Health::Dead && epoch != seat.fenced {
                seat.fenced = epoch;
                self.figures.fencings += 1;
                self.reference.fenced(vm, now);
            }
        }
        self.figures.steps += 1;
        let checked = self.reference.step(now, changes, &sight, alone);
        self.figures.longest_queue = self.figures.longest_queue.max(self.reference.waiting());
        if let Err(what) = checked {
            self.breaks(what);
        }
    }

    /// The next call that another VM would get within 5 ms: it comes now.
    pub(super) fn rival_of(&mut self, vm: usize) -> Option<(usize, Call)> {
        let seats = &self.seats;
        let event = self.agenda.next_if(self.now.plus_ms(5), |event| match event {
            // What a reload asks for is known only when it comes.
            Event::Call { vm: other, life, call } => {
                *other != vm
                    && !matches!(call, Call::Reload)
                    && seats[*other].health == Health::Able
                    && seats[*other].life == *life
            }
            _ => false,
        })?;
        let Event::Call { vm, call, .. } = event else { return None };
        match &call {
            Call::Poll => self.seats[vm].polling = false,
            Call::Arrives(id, _) => self.taken(*id),
            _ => {}
        }
        Some((vm, call))
    }

    fn some_record(&mut self) -> String {
        let tenant = &self.scenario.streams[self.rng.usize(..self.scenario.streams.len())].tenant;
        match self.rng.u8(..4) {
            0 => "/members".to_owned(),
            1 => in_record(&self.any_policy().tenant_key(tenant)).0.to_owned(),
            2 => String::new(),
            _ => self.any_policy().pools().next().map(|pool| pool.key.to_string()).unwrap_or_default(),
        }
    }

    pub(super) fn perform(&mut self, vm: usize, call: Call) -> Vec<Effect> {
        self.note_call(vm, &call, "");
        proxy::perform(&self.seats[vm].vm, &*self.store, call, self.time())
    }

    fn perform_beside(&mut self, vm: usize, call: Call, rival: (usize, Call)) -> Vec<(usize, Vec<Effect>)> {
        self.note_call(rival.0, &rival.1, "in the middle of what follows: ");
        self.note_call(vm, &call, "");
        let (ending, now, other) = (self.some_record(), self.time(), rival.0);
        let pending: Rival = Rc::new(RefCell::new(Some(rival)));
        let done = Rc::new(RefCell::new(None));
        let act = {
            let (vm, store) = (Rc::clone(&self.seats[other].vm), Rc::clone(&self.store));
            let (pending, done) = (Rc::clone(&pending), Rc::clone(&done));
            move || {
                if let Some((_, call)) = pending.take() {
                    *done.borrow_mut() = Some(proxy::perform(&vm, &*store, call, now));
                }
            }
        };
        self.store.before_write(&ending, act.clone());
        let own = proxy::perform(&self.seats[vm].vm, &*self.store, call, now);
        self.store.before_write("no such record", || ());
        let in_the_middle = done.take();
        match in_the_middle {
            Some(effects) => vec![(other, effects), (vm, own)],
            None => {
                act();
                vec![(vm, own), (other, done.take().unwrap_or_default())]
            }
        }
    }

    fn take(&mut self, vm: usize, effect: Effect, changes: &mut Vec<Change>) {
        self.note_effect(vm, &effect);
        match effect {
            Effect::Admitted(id, admission) => self.started(vm, id, admission, changes),
            Effect::Started(ticket, admission) => match self.tickets.remove(&(vm, ticket)) {
                Some(id) => self.started(vm, id, admission, changes),
                None => self.breaks(format!("a ticket of VM {vm} that nobody holds has started: {ticket:?}")),
            },
            Effect::Waits(id, ticket) => self.waits(vm, id, ticket, changes),
            Effect::Refused(id, refusal) => self.refused(id, &refusal),
            Effect::GivenUp(ticket, refusal) => match self.tickets.remove(&(vm, ticket)) {
                Some(id) => {
                    changes.push(Change::Quits(id));
                    self.refused(id, &refusal);
                }
                None => self.breaks(format!("a ticket of VM {vm} that nobody holds was given up: {ticket:?}")),
            },
            Effect::Left(id, ticket) => self.has_left(id, ticket, changes),
            Effect::Ended(id) => changes.push(Change::Ends(id)),
            Effect::Wakes(wake) => self.send_wake(wake),
            Effect::Evicts(lease, refusal) => self.evicted(vm, lease, &refusal),
        }
    }

    pub(super) fn send_wake(&mut self, wake: Wake) {
        let luck = self.scenario.luck;
        self.figures.wakes += 1;
        if happens(luck.wakes_doubled, &mut self.rng) {
            self.agenda
                .plan(self.now.plus_us(self.rng.u64(luck.wake_us.0..=luck.wake_us.1)), Event::Wake(wake.clone()));
        }
        if self.rng.f64() < luck.wakes_lost {
            self.figures.wakes_lost += 1;
            if let Note::Start(key) = &wake.note
                && let Some(tenant) = self.books.tenant_of(key)
            {
                self.reference.wake_lost(tenant, self.time());
            }
            return;
        }
        let late = self.rng.u64(luck.wake_us.0..=luck.wake_us.1);
        self.agenda.plan(self.now.plus_us(late), Event::Wake(wake));
    }

    pub(super) fn note_call(&mut self, vm: usize, call: &Call, how: &str) {
        let what = match call {
            Call::Arrives(id, waiter) => {
                let tokens = waiter.ask.prompt.plus(waiter.ask.output).0;
                format!("request {} arrives for {tokens} tokens in {}", id.0, waiter.lane.name)
            }
            Call::Ends(id, ..) => format!("request {} ends", id.0),
            Call::Leaves(id, _) => format!("request {} leaves", id.0),
            Call::Renews(waiters) => format!("{} that wait get the next policy", waiters.len()),
            other => format!("{other:?}"),
        };
        self.note(|| format!("VM {vm}: {how}{what}"));
    }

    fn note_effect(&mut self, vm: usize, effect: &Effect) {
        let what = match effect {
            Effect::Admitted(id, _) => format!("request {} starts at once", id.0),
            Effect::Waits(id, ticket) => format!("request {} waits with {ticket:?}", id.0),
            Effect::Started(ticket, _) => format!("request {} starts", self.name_of(vm, *ticket)),
            Effect::Wakes(wake) => format!("wakes slot {}: {:?}", wake.slot, wake.note),
            Effect::Evicts(lease, _) => format!("evicts {lease:?}"),
            Effect::Refused(..) | Effect::GivenUp(..) | Effect::Left(..) | Effect::Ended(_) => return,
        };
        self.note(|| format!("VM {vm}:   {what}"));
    }

    fn name_of(&self, vm: usize, ticket: Ticket) -> String {
        self.tickets.get(&(vm, ticket)).map_or_else(|| format!("{ticket:?}"), |id| id.0.to_string())
    }
}
