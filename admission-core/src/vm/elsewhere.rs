//! Unnamed tenants that may be counted in two places.
//!
//! An unnamed tenant is counted in a ledger of its own. It is counted in a record that it shares with others while its own record has no room,
//! and while a VM of an older module lives, which knows the shared records only. When that changes, what it holds by then stays where it was
//! charged. So a VM that charges one of the two ledgers counts what is held in the other as well. Of a shared record that is all: it does not say
//! whose what is.
//!
//! A shared record names one waiter of each VM that its tenants' caps keep back; the others start when they are polled for.

use super::Vm;
use crate::keys::{in_record, other_place};
use crate::ledger::Ledger;
use crate::members::Members;
use crate::queue::Waiter;
use crate::store::{Store, StoreError};
use crate::units::Time;
use crate::unnamed::{ledger_at, make_room};

/// Ledger of a tenant in the place where it is not charged.
pub(super) struct Elsewhere(Option<(String, Ledger)>);

impl Elsewhere {
    /// Reads it, given the place where the tenant is charged.
    pub(super) fn read(store: &impl Store, place: &str) -> Result<Self, StoreError> {
        let Some(other) = other_place(place) else { return Ok(Self(None)) };
        let ledger = ledger_at(store, &other)?;
        Ok(Self(Some((other, ledger))))
    }

    /// Counts it in the ledger that is charged.
    pub(super) fn count_in(&self, tenant: &mut Ledger, members: &Members) {
        if let Self(Some((_, other))) = self {
            tenant.count_also(other, members);
        }
    }

    /// A ledger with what is held in the other place by now.
    pub(super) fn counted_again(
        &self,
        store: &impl Store,
        mut tenant: Box<Ledger>,
        members: &Members,
    ) -> Result<Box<Ledger>, StoreError> {
        if let Self(Some((other, _))) = self {
            tenant.count_also(&ledger_at(store, other)?, members);
        }
        Ok(tenant)
    }
}

/// The ledger of a tenant, with what it holds in another place.
pub(super) fn tenant_at(store: &impl Store, place: &str, members: &Members) -> Result<Ledger, StoreError> {
    let mut tenant = ledger_at(store, place)?;
    Elsewhere::read(store, place)?.count_in(&mut tenant, members);
    Ok(tenant)
}

/// True for the place of a ledger that is one of several in a record.
fn is_own(place: &str) -> bool {
    in_record(place).1.is_some()
}

impl Vm {
    /// Requests since this was last asked that were counted in a record which their tenant shares with others.
    pub fn take_counted_together(&mut self) -> u64 {
        std::mem::take(&mut self.counted_together)
    }

    /// Notes that a request was charged to its tenant at a place.
    pub(super) fn note_place(&mut self, place: &str) {
        let is_shared = other_place(place).is_some() && !is_own(place);
        self.counted_together = self.counted_together.saturating_add(u64::from(is_shared));
    }

    /// A waiter that is counted where its tenant is now. Where that cannot be read, it stays as it is.
    pub(super) fn placed(&self, store: &impl Store, waiter: Waiter, now: Time) -> Waiter {
        let place = self.place_of_ledger(store, &waiter.tenant_key, now);
        place.map(|place| Waiter { tenant_key: place.into(), ..waiter.clone() }).unwrap_or(waiter)
    }

    /// The place where a tenant's next request is charged, given one where it may be.
    pub(super) fn place_of_ledger(&self, store: &impl Store, place: &str, now: Time) -> Result<String, StoreError> {
        let Some(other) = other_place(place) else { return Ok(place.to_owned()) };
        let (own, shared) = if is_own(place) { (place.to_owned(), other) } else { (other, place.to_owned()) };
        let has_room =
            self.membership.members.all_count_apart() && make_room(store, &own, &self.membership.members, now)?;
        Ok(if has_room { own } else { shared })
    }
}
