//! Which names have records.
//!
//! Shared data cannot be listed, and the control listener's plugin does not know the filter's configuration; so every
//! filter writes the names it was configured with here. Names come from configurations only.

use std::collections::BTreeSet;

use crate::gather::gather;
use crate::policy::Policy;
use crate::record::{Record, Sections, Writer};

const SECTION_POOLS: u8 = 1;
const SECTION_TENANTS: u8 = 2;
const SECTION_LANES: u8 = 3;
const SECTION_CLASSES: u8 = 4;

/// Ends a name; no name contains it.
const END: u8 = b'\n';

/// The names of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// With a pool record.
    pub pools: BTreeSet<String>,
    /// With a tenant record of their own.
    pub tenants: BTreeSet<String>,
    /// That columns may be charged to.
    pub lanes: BTreeSet<String>,
    /// That pools tally requests under.
    pub classes: BTreeSet<String>,
    unknown: Sections,
}

impl Directory {
    /// The names in a policy.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        Self {
            pools: gather(policy.pools().map(|pool| pool.name.clone())),
            tenants: gather(policy.tenant_names().map(str::to_owned)),
            lanes: gather(policy.lanes().map(|lane| lane.name.clone())),
            classes: gather(policy.pools().flat_map(|pool| &pool.classes).map(|class| class.name.clone())),
            unknown: Sections::default(),
        }
    }

    /// Adds names; false when all were there.
    pub fn add(&mut self, other: &Self) -> bool {
        let mut added = false;
        for (into, from) in [
            (&mut self.pools, &other.pools),
            (&mut self.tenants, &other.tenants),
            (&mut self.lanes, &other.lanes),
            (&mut self.classes, &other.classes),
        ] {
            for name in from {
                added |= into.insert(name.clone());
            }
        }
        added
    }
}

impl Record for Directory {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        for (tag, names) in [
            (SECTION_POOLS, &self.pools),
            (SECTION_TENANTS, &self.tenants),
            (SECTION_LANES, &self.lanes),
            (SECTION_CLASSES, &self.classes),
        ] {
            writer.section(tag, |out| {
                for name in names {
                    out.bytes(name.as_bytes());
                    out.bytes(&[END]);
                }
            });
        }
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut directory = Self::default();
        directory.unknown = Sections::read(bytes, |tag, reader| {
            let names = match tag {
                SECTION_POOLS => &mut directory.pools,
                SECTION_TENANTS => &mut directory.tenants,
                SECTION_LANES => &mut directory.lanes,
                SECTION_CLASSES => &mut directory.classes,
                _ => return Some(false),
            };
            for name in reader.rest().split(|byte| *byte == END).filter(|name| !name.is_empty()) {
                names.insert(std::str::from_utf8(name).ok()?.to_owned());
            }
            Some(true)
        })?;
        Some(directory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_only_what_is_new_and_survives_encoding() {
        let of = |names: &[&str]| Directory {
            pools: names.iter().map(|name| (*name).to_owned()).collect(),
            classes: ["long".to_owned()].into(),
            ..Directory::default()
        };
        let mut directory = of(&["a", "b"]);
        assert!(!directory.add(&of(&["a"])));
        assert!(directory.add(&of(&["c"])));
        assert_eq!(Directory::decode(&directory.encode()), Some(of(&["a", "b", "c"])));
    }
}
