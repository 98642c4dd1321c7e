//! Workers of a pool that have refused what they were sent, and of which tenants.

use super::Ledger;
use crate::record::{Reader, Writer};
use crate::units::{Millis, Time};
use crate::view::{Stamp, WorkerKey};

/// Time for which a worker counts as busy that has refused, if no view comes sooner.
const MARK_HOLDS: Millis = Millis(1_000);

/// Time for which it does whatever view comes: a usual interval of scrapes, so that the view rests on one that began later.
const MARK_HOLDS_AT_LEAST: Millis = Millis(100);

/// Tenants whose refusals are remembered at most; the oldest go first.
const MOST_REFUSED: usize = 64;

/// Names a tenant whose request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedKey(pub u64);

/// A worker that has refused what it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    worker: WorkerKey,
    /// The view that did not know of it yet.
    view: Stamp,
    at: Time,
}

/// A tenant of which a worker has refused a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused {
    worker: WorkerKey,
    tenant: RefusedKey,
    /// Time at which it last was news of the worker.
    since: Time,
    /// Time of the last refusal.
    at: Time,
}

/// The workers of a pool that have refused lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks(Vec<Mark>);

/// Tenants of which workers of a pool have refused requests lately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RefusedTenants(Vec<Refused>);

impl Ledger {
    /// Notes that a worker has refused what it was sent, which the current view does not know yet.
    pub fn mark(&mut self, worker: WorkerKey, view: Stamp, now: Time) {
        self.marks.set(worker, view, now);
    }

    /// The workers that have refused since that view came, and lately.
    pub fn marked(&self, view: Stamp, now: Time) -> impl Iterator<Item = WorkerKey> {
        self.marks.holding(view, now)
    }

    /// Notes that a worker has refused a request of a tenant, and says whether that is news of the worker. It says more of the tenant's requests
    /// where the worker has refused one within the last second and has served the like since, which was last seen then.
    pub fn is_news_of(&mut self, worker: WorkerKey, tenant: RefusedKey, served: Time, now: Time) -> bool {
        self.refused_tenants.note(worker, tenant, served, now)
    }

    /// Notes that a worker has refused what it was sent while that view stood.
    pub fn note_refusal(&mut self, view: Stamp) {
        self.refused_under = Some(view);
    }

    /// True if a worker has refused what it was sent since that view came.
    #[must_use]
    pub fn refused_under(&self, view: Stamp) -> bool {
        self.refused_under == Some(view)
    }
}

impl Marks {
    pub(super) fn set(&mut self, worker: WorkerKey, view: Stamp, now: Time) {
        self.0.retain(|mark| mark.worker != worker && mark.holds(view, now));
        self.0.push(Mark { worker, view, at: now });
    }

    pub(super) fn holding(&self, view: Stamp, now: Time) -> impl Iterator<Item = WorkerKey> {
        self.0.iter().filter(move |mark| mark.holds(view, now)).map(|mark| mark.worker)
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for mark in &self.0 {
            out.u64(mark.worker.0);
            out.u64(mark.view.0);
            out.u64(mark.view.1);
            out.u64(mark.at.0);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut marks = Self::default();
        while !reader.is_empty() {
            let (worker, view) = (WorkerKey(reader.u64()?), (reader.u64()?, reader.u64()?));
            marks.0.push(Mark { worker, view, at: Time(reader.u64()?) });
        }
        Some(marks)
    }
}

impl Mark {
    /// A view that is another one, and not just after, has seen what the worker has been like since.
    fn holds(&self, view: Stamp, now: Time) -> bool {
        let age = now.since(self.at);
        age < MARK_HOLDS_AT_LEAST || self.view == view && age < MARK_HOLDS
    }
}

impl RefusedTenants {
    /// See [`Ledger::is_news_of`]. A tenant whose requests go on to be refused while others are served is news once.
    // Why only where others are served: a worker that refuses all it is sent looks the freest, and would be sent all.
    fn note(&mut self, worker: WorkerKey, tenant: RefusedKey, served: Time, now: Time) -> bool {
        self.0.retain(|refused| now.since(refused.at) < MARK_HOLDS);
        let is_same = |refused: &&mut Refused| (refused.worker, refused.tenant) == (worker, tenant);
        if let Some(refused) = self.0.iter_mut().find(is_same) {
            let is_news = served < refused.since;
            refused.at = now;
            if is_news {
                refused.since = now;
            }
            return is_news;
        }
        if self.0.len() >= MOST_REFUSED {
            self.0.remove(0);
        }
        self.0.push(Refused { worker, tenant, since: now, at: now });
        true
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for refused in &self.0 {
            out.u64(refused.worker.0);
            out.u64(refused.tenant.0);
            out.u64(refused.since.0);
            out.u64(refused.at.0);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut all = Self::default();
        while !reader.is_empty() {
            let (worker, tenant) = (WorkerKey(reader.u64()?), RefusedKey(reader.u64()?));
            let since = Time(reader.u64()?);
            all.0.push(Refused { worker, tenant, since, at: Time(reader.u64()?) });
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_holds_for_a_second_or_until_the_next_view_but_one_just_after() {
        let (a, b) = (WorkerKey::of("a"), WorkerKey::of("b"));
        let mut marks = Marks::default();
        marks.set(a, (1, 7), Time(10_000));
        marks.set(a, (1, 7), Time(10_500));
        marks.set(b, (1, 7), Time(10_600));
        let holding = |view, now| marks.holding(view, Time(now)).collect::<Vec<_>>();
        assert_eq!(holding((1, 7), 11_499), [a, b]);
        assert_eq!(holding((1, 7), 11_500), [b]);
        assert_eq!(holding((1, 8), 10_699), [b], "what it was scraped like before is news of nothing");
        assert!(holding((1, 8), 10_700).is_empty() && holding((2, 7), 10_700).is_empty());
        marks.set(b, (1, 8), Time(10_800));
        assert_eq!(marks.0.len(), 1, "those of other views are dropped");
    }

    #[test]
    fn a_tenant_that_is_refused_again_and_again_while_others_are_served_is_news_once() {
        let (a, b) = (WorkerKey::of("a"), WorkerKey::of("b"));
        let (one, two) = (RefusedKey(1), RefusedKey(2));
        let mut refused = RefusedTenants::default();
        assert!(refused.note(a, one, Time(9_000), Time(10_000)));
        assert!(
            refused.note(a, two, Time(9_000), Time(10_100)) && refused.note(b, one, Time(9_000), Time(10_100)),
            "another tenant, another worker"
        );
        assert!(refused.note(a, one, Time(9_000), Time(10_200)), "it has served nothing since");
        assert!(
            !refused.note(a, one, Time(10_300), Time(10_900)) && !refused.note(a, one, Time(11_000), Time(11_800)),
            "as long as that goes on"
        );
        assert!(!refused.note(a, one, Time(11_000), Time(11_900)), "nor between two of its own");
        assert!(refused.note(a, one, Time(12_000), Time(13_000)), "after a second");
        assert!(refused.note(a, one, Time(12_900), Time(13_100)), "it serves nothing any more");
        for other in 0..200 {
            assert!(refused.note(b, RefusedKey(100 + other), Time(0), Time(13_000)));
        }
        assert_eq!(refused.0.len(), MOST_REFUSED);
    }
}
