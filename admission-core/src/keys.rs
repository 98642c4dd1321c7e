//! Names of the shared records.
//!
//! Keys never go away while a proxy runs, so they come from the configuration alone: callers cannot add one. The format
//! number changes when an older module would misread a record.
//!
//! Tenants that no configuration names have ledgers of their own in a fixed number of records, see [`crate::unnamed`]. The place of
//! such a ledger is the record's key and the tenant's name, apart by a [`BREAK`].

use crate::hash;

/// Records that unnamed tenants share by hash, where they cannot have ledgers of their own.
pub const SHARED_TENANT_SLOTS: u64 = 1_024;

/// Records in which unnamed tenants have ledgers of their own.
pub const UNNAMED_RECORDS: u64 = 16_384;

/// The character between a record's key and an unnamed tenant's name; neither contains it.
pub const BREAK: char = '\n';

const SHARED: &str = "tenants";
const UNNAMED: &str = "unnamed";

const FORMAT: u32 = 1;

/// Makes keys within one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// For a plugin's namespace.
    #[must_use]
    pub fn new(namespace: &str) -> Self {
        Self { prefix: format!("{namespace}/{FORMAT}") }
    }

    /// Who is alive.
    #[must_use]
    pub fn members(&self) -> String {
        format!("{}/members", self.prefix)
    }

    /// Which pools and tenants have records.
    #[must_use]
    pub fn directory(&self) -> String {
        format!("{}/directory", self.prefix)
    }

    /// The whole view, as posted.
    #[must_use]
    pub fn view(&self) -> String {
        format!("{}/view", self.prefix)
    }

    /// Which of the proxy's VMs asks for the view.
    #[must_use]
    pub fn asker(&self) -> String {
        format!("{}/asker", self.prefix)
    }

    /// What the proxy's process is called.
    #[must_use]
    pub fn process(&self) -> String {
        format!("{}/process", self.prefix)
    }

    /// A pool's summary of the view.
    #[must_use]
    pub fn view_of(&self, pool: &str) -> String {
        format!("{}/view/{pool}", self.prefix)
    }

    /// A pool's workers, as the view has them.
    #[must_use]
    pub fn workers_of(&self, pool: &str) -> String {
        format!("{}/workers/{pool}", self.prefix)
    }

    /// KV blocks that each of a pool's workers can take, as the view has them.
    #[must_use]
    pub fn worker_blocks_of(&self, pool: &str) -> String {
        format!("{}/worker-blocks/{pool}", self.prefix)
    }

    /// What is held in a pool.
    #[must_use]
    pub fn pool(&self, name: &str) -> String {
        format!("{}/pool/{name}", self.prefix)
    }

    /// What is known of a pool's models that fit one of its patterns; both names as configured.
    #[must_use]
    pub fn model(&self, pool: &str, pattern: &str) -> String {
        format!("{}/model/{pool}/{pattern}", self.prefix)
    }

    /// The queue of messages to the VM in a slot.
    #[must_use]
    pub fn wakes(&self, slot: u16) -> String {
        format!("{}/wakes/{slot}", self.prefix)
    }

    /// What a configured tenant holds.
    #[must_use]
    pub fn tenant(&self, name: &str) -> String {
        format!("{}/tenant/{name}", self.prefix)
    }

    /// What the tenants of one shared slot hold together.
    #[must_use]
    pub fn shared_tenant(&self, slot: u64) -> String {
        format!("{}/{SHARED}/{slot}", self.prefix)
    }

    /// Key of a record with ledgers of unnamed tenants.
    #[must_use]
    pub fn unnamed_tenants(&self, record: u64) -> String {
        format!("{}/{UNNAMED}/{record}", self.prefix)
    }

    /// The place of a ledger of an unnamed tenant's own.
    #[must_use]
    pub fn unnamed_tenant(&self, name: &str) -> String {
        unnamed_tenant(&self.prefix, name)
    }
}

fn unnamed_tenant(prefix: &str, name: &str) -> String {
    let record = unnamed_record(name.as_bytes());
    format!("{prefix}/{UNNAMED}/{record}{BREAK}{name}")
}

/// The record in which an unnamed tenant may have a ledger of its own.
// Why spread: names that count up differ in few bits of the hash; and tenants of one record that find no room there are to fall into
// different shared ones.
pub(crate) fn unnamed_record(tenant: &[u8]) -> u64 {
    hash::spread(hash::stable(tenant)) % UNNAMED_RECORDS
}

/// The slot that a tenant without a configuration of its own shares with others.
#[must_use]
pub fn shared_slot(tenant: &[u8]) -> u64 {
    hash::stable(tenant) % SHARED_TENANT_SLOTS
}

/// Key of the record that a place is in, and the name of the tenant whose ledger is one of several there.
///
/// ```
/// use admission_core::keys::{Keys, in_record, other_place};
///
/// let keys = Keys::new("sluice");
/// assert_eq!(in_record(&keys.tenant("acme")), ("sluice/1/tenant/acme", None));
/// let own = keys.unnamed_tenant("cust-076");
/// assert_eq!(in_record(&own), ("sluice/1/unnamed/1663", Some("cust-076")));
/// assert_eq!(in_record(&other_place(&own).unwrap()), ("sluice/1/tenants/546", None));
/// ```
#[must_use]
pub fn in_record(place: &str) -> (&str, Option<&str>) {
    match place.split_once(BREAK) {
        Some((record, name)) => (record, (record.rsplit('/').nth(1) == Some(UNNAMED)).then_some(name)),
        None => (place, None),
    }
}

/// The other place where an unnamed tenant may be counted: of its own ledger the shared one, and the other way round; `None` for
/// tenants that are configured.
#[must_use]
pub fn other_place(place: &str) -> Option<String> {
    let (record, name) = place.split_once(BREAK)?;
    let mut parts = record.rsplitn(3, '/').skip(1);
    match (parts.next()?, parts.next()?) {
        (UNNAMED, prefix) => Some(format!("{prefix}/{SHARED}/{}{BREAK}{name}", shared_slot(name.as_bytes()))),
        (_, prefix) => Some(unnamed_tenant(prefix, name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unnamed::MOST_IN_RECORD;

    #[test]
    fn of_many_tenants_almost_all_find_room_and_the_others_do_not_meet() {
        for naming in ["cust-", "", "00u1a9c3x7QmZ5d", "https://accounts.example.com#"] {
            let mut records = vec![0; UNNAMED_RECORDS as usize];
            let mut without = Vec::new();
            for number in 0..100_000 {
                let name = format!("{naming}{number}");
                let record = &mut records[unnamed_record(name.as_bytes()) as usize];
                *record += 1;
                if *record > MOST_IN_RECORD {
                    without.push(shared_slot(name.as_bytes()));
                }
            }
            let count = without.len();
            without.sort_unstable();
            without.dedup();
            assert!((1..20).contains(&count), "{naming}: {count}");
            assert!(without.len() + 2 > count, "{naming}: {count} in {}", without.len());
        }
    }
}
