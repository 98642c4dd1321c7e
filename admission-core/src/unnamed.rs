//! Ledgers of tenants that no configuration names.
//!
//! Their names come from callers' identities, and keys of shared data are never given back; so a fixed number of records holds them, each
//! those whose names have the same hash, every one with a ledger of its own. A name is looked up and its ledger changed in one record, by one
//! compare-and-swap: a tenant cannot have two. Ledgers of tenants that hold nothing, wait for nothing and owe nothing to a budget make room
//! for others. Where there is no room, a tenant is counted with others in a shared record ([`ledger_at`] and
//! [`update_at`] know both).

use std::collections::BTreeMap;

use crate::keys::in_record;
use crate::ledger::Ledger;
use crate::members::Members;
use crate::record::{Record, Sections, Writer};
use crate::store::{self, Store, StoreError};
use crate::units::Time;

/// Tenants in a record beyond which a new one is counted elsewhere; waiters of several that start together may pass it. Of 50,000 tenants
/// that hold something all find room, of 100,000 all but some five.
pub const MOST_IN_RECORD: usize = 16;

const SECTION_TENANT: u8 = 1;

/// The ledgers in one record, as bytes: most requests look at one alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unnamed {
    ledgers: BTreeMap<String, Vec<u8>>,
    unknown: Sections,
}

impl Unnamed {
    /// The ledger of a tenant; an empty one for a tenant that has none, and `None` where the bytes are not a ledger.
    fn ledger(&self, name: &str) -> Option<Ledger> {
        self.ledgers.get(name).map_or_else(|| Some(Ledger::default()), |bytes| Ledger::decode(bytes))
    }

    /// Each tenant and its ledger.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Ledger)> {
        self.ledgers.iter().filter_map(|(name, bytes)| Some((name.as_str(), Ledger::decode(bytes)?)))
    }

    /// Says whether a tenant has a ledger here, or could have one.
    fn has_room_for(&self, name: &str) -> bool {
        self.ledgers.len() < MOST_IN_RECORD || self.ledgers.contains_key(name)
    }

    /// Drops the ledgers of tenants that are idle; false when all stay.
    fn drop_idle(&mut self, members: &Members, now: Time) -> bool {
        let before = self.ledgers.len();
        self.ledgers.retain(|_, bytes| Ledger::decode(bytes).is_some_and(|ledger| !ledger.is_idle(members, now)));
        self.ledgers.len() < before
    }
}

impl Record for Unnamed {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        for (name, ledger) in &self.ledgers {
            writer.section(SECTION_TENANT, |out| {
                out.u16(u16::try_from(name.len()).unwrap_or(u16::MAX));
                out.bytes(name.as_bytes());
                out.bytes(ledger);
            });
        }
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut record = Self::default();
        record.unknown = Sections::read(bytes, |tag, mut reader| {
            if tag != SECTION_TENANT {
                return Some(false);
            }
            let length = reader.u16()?;
            let name = str::from_utf8(reader.bytes(usize::from(length))?).ok()?;
            record.ledgers.insert(name.to_owned(), reader.rest().to_vec());
            Some(true)
        })?;
        Some(record)
    }
}

/// The ledger at a place; an absent one is empty.
///
/// # Errors
/// [`StoreError::Foreign`].
pub fn ledger_at(store: &impl Store, place: &str) -> Result<Ledger, StoreError> {
    match in_record(place) {
        (record, None) => store::read(store, record).map(|(ledger, _)| ledger),
        (record, Some(name)) => {
            let (ledgers, _) = store::read::<Unnamed>(store, record)?;
            ledgers.ledger(name).ok_or_else(|| StoreError::Foreign { key: record.to_owned() })
        }
    }
}

/// Changes the ledger at a place by a pure step, as [`store::update`] does.
///
/// # Errors
/// As [`store::update`].
pub fn update_at<T, E>(
    store: &impl Store,
    place: &str,
    mut step: impl FnMut(&mut Ledger) -> Result<T, E>,
) -> Result<Result<T, E>, StoreError> {
    let (record, name) = in_record(place);
    let Some(name) = name else { return store::update(store, record, step) };
    let foreign = || StoreError::Foreign { key: record.to_owned() };
    let updated = store::update(store, record, |ledgers: &mut Unnamed| {
        let mut ledger = ledgers.ledger(name).ok_or_else(|| Err(foreign()))?;
        let done = step(&mut ledger).map_err(Ok)?;
        ledgers.ledgers.insert(name.to_owned(), ledger.encode());
        Ok(done)
    })?;
    match updated {
        Ok(done) => Ok(Ok(done)),
        Err(Ok(refused)) => Ok(Err(refused)),
        Err(Err(foreign)) => Err(foreign),
    }
}

/// Makes sure that an unnamed tenant has a ledger of its own at a place, or could have one; false when every tenant of that record is at work.
///
/// # Errors
/// As [`store::update`].
pub fn make_room(store: &impl Store, place: &str, members: &Members, now: Time) -> Result<bool, StoreError> {
    let (record, Some(name)) = in_record(place) else { return Ok(true) };
    let (ledgers, version) = store::read::<Unnamed>(store, record)?;
    if ledgers.has_room_for(name) {
        return Ok(true);
    }
    let dropped = store::update_from(store, record, (ledgers, version), |ledgers| {
        (ledgers.has_room_for(name) || ledgers.drop_idle(members, now)).then_some(()).ok_or(())
    })?;
    Ok(dropped.is_ok())
}
