//! Which names have records.
//!
//! Shared data cannot be listed, and the control listener's plugin does not know the filter's configuration; so every
//! filter writes the names it was configured with here. Names come from configurations only.

use std::collections::{BTreeMap, BTreeSet};

use crate::gather::gather;
use crate::members::{Holder, Members};
use crate::policy::Policy;
use crate::record::{Reader, Record, Sections, Writer};

const SECTION_POOLS: u8 = 1;
const SECTION_TENANTS: u8 = 2;
const SECTION_LANES: u8 = 3;
const SECTION_CLASSES: u8 = 4;
const SECTION_POLICIES: u8 = 5;
const SECTION_NEED_VIEWS: u8 = 6;

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
    policies: BTreeMap<Holder, Held>,
    unknown: Sections,
}

/// Places in shadow that are shown of a policy; a configuration may have one for each tenant.
const MOST_SHADOWS: usize = 32;

/// A policy that a VM decides by, as far as the state page and sidecars are to know it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// Fingerprint of its configuration.
    pub fingerprint: String,
    /// Places of its configuration that say `mode: shadow`.
    pub shadows: Vec<String>,
    /// Pools that it needs views of.
    pub need_views: BTreeSet<String>,
}

impl Held {
    /// The part of a policy that is shown.
    #[must_use]
    pub fn of(policy: &Policy) -> Self {
        let mut shadows: Vec<String> =
            policy.shadows.iter().take(MOST_SHADOWS).map(|place| place.replace('\n', " ")).collect();
        let left_out = policy.shadows.len().saturating_sub(MOST_SHADOWS);
        if left_out > 0 {
            shadows.push(format!("{left_out} more"));
        }
        let need_views = gather(policy.pools().filter(|pool| pool.needs_view).map(|pool| pool.name.clone()));
        Self { fingerprint: policy.fingerprint.clone(), shadows, need_views }
    }
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
            ..Self::default()
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

    /// Policies that live VMs decide by.
    pub fn policies<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a Held)> {
        self.policies.iter().filter(|(holder, _)| members.counts(holder.epoch)).map(|(holder, held)| (*holder, held))
    }

    /// Pools that the policies of live VMs need views of.
    #[must_use]
    pub fn need_views(&self, members: &Members) -> BTreeSet<String> {
        gather(self.policies(members).flat_map(|(_, held)| &held.need_views).cloned())
    }

    /// Says which policy a VM decides by; false when it was said.
    pub fn hold(&mut self, members: &Members, holder: Holder, held: &Held) -> bool {
        if self.policies.get(&holder) == Some(held) {
            return false;
        }
        self.policies.retain(|other, _| other.slot != holder.slot && members.counts(other.epoch));
        self.policies.insert(holder, held.clone());
        true
    }

    fn write_policies(&self, out: &mut Writer) {
        for (holder, held) in &self.policies {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            write_lines(out, &held.fingerprint, held.shadows.iter());
        }
    }

    /// Once for each policy: all VMs of a proxy have the same, but for a moment.
    fn write_need_views(&self, out: &mut Writer) {
        let mut written: Vec<&str> = Vec::new();
        for held in self.policies.values().filter(|held| !held.need_views.is_empty()) {
            if !written.contains(&held.fingerprint.as_str()) {
                write_lines(out, &held.fingerprint, held.need_views.iter());
                written.push(&held.fingerprint);
            }
        }
    }
}

/// Writes a text of several lines behind its length.
fn write_lines<'a>(out: &mut Writer, first: &'a str, others: impl Iterator<Item = &'a String>) {
    let text = gather::<Vec<&str>, _>(std::iter::once(first).chain(others.map(String::as_str))).join("\n");
    out.u32(u32::try_from(text.len()).unwrap_or(0));
    out.bytes(text.as_bytes());
}

/// Reads a text behind its length.
fn read_text<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let length = usize::try_from(reader.u32()?).ok()?;
    std::str::from_utf8(reader.bytes(length)?).ok()
}

/// Pools that policies need views of, by the policies' fingerprints.
fn read_need_views(reader: &mut Reader<'_>) -> Option<Vec<(String, BTreeSet<String>)>> {
    let mut all = Vec::new();
    while !reader.is_empty() {
        let mut lines = read_text(reader)?.split('\n').map(str::to_owned);
        let fingerprint = lines.next().unwrap_or_default();
        all.push((fingerprint, gather(lines)));
    }
    Some(all)
}

fn read_policies(reader: &mut Reader<'_>) -> Option<BTreeMap<Holder, Held>> {
    let mut policies = BTreeMap::new();
    while !reader.is_empty() {
        let holder = Holder { slot: reader.u16()?, epoch: reader.u64()? };
        let mut lines = read_text(reader)?.split('\n').map(str::to_owned);
        let fingerprint = lines.next().unwrap_or_default();
        policies.insert(holder, Held { fingerprint, shadows: lines.collect(), ..Held::default() });
    }
    Some(policies)
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
        writer.section(SECTION_POLICIES, |out| self.write_policies(out));
        writer.section(SECTION_NEED_VIEWS, |out| self.write_need_views(out));
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (mut directory, mut need_views) = (Self::default(), Vec::new());
        directory.unknown = Sections::read(bytes, |tag, mut reader| {
            let names = match tag {
                SECTION_POLICIES => {
                    directory.policies = read_policies(&mut reader)?;
                    return Some(true);
                }
                SECTION_NEED_VIEWS => {
                    need_views = read_need_views(&mut reader)?;
                    return Some(true);
                }
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
        for held in directory.policies.values_mut() {
            let of_it = need_views.iter().find(|(fingerprint, _)| *fingerprint == held.fingerprint);
            held.need_views = of_it.map(|(_, pools)| pools.clone()).unwrap_or_default();
        }
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

    #[test]
    fn a_vm_has_one_policy_for_as_long_as_it_lives() {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        let held = |fingerprint: &str, shadows: &[&str]| Held {
            fingerprint: fingerprint.to_owned(),
            shadows: shadows.iter().map(|place| (*place).to_owned()).collect(),
            ..Held::default()
        };
        let mut directory = Directory::default();
        assert!(directory.hold(&members, a, &held("1", &["mode", "routes[0] (new)"])));
        assert!(directory.hold(&members, b, &held("1", &[])));
        assert!(directory.hold(&members, a, &held("2", &["tiers.trial"])));
        assert!(!directory.hold(&members, a, &held("2", &["tiers.trial"])));
        let directory = Directory::decode(&directory.encode()).unwrap();
        let of = |members: &Members| -> Vec<(u16, String, usize)> {
            directory
                .policies(members)
                .map(|(vm, held)| (vm.slot, held.fingerprint.clone(), held.shadows.len()))
                .collect()
        };
        assert_eq!(of(&members), [(0, "2".to_owned(), 1), (1, "1".to_owned(), 0)]);
        members.fence(&[crate::members::Member { holder: a, heartbeat: 0 }]);
        assert_eq!(of(&members), [(1, "1".to_owned(), 0)]);
    }

    #[test]
    fn the_policies_of_live_vms_say_which_pools_need_views() {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        let mut directory = Directory::default();
        let policy = |json: &str| -> Box<Policy> {
            let Ok(crate::policy::Plugin::Filter(policy)) = crate::policy::Plugin::parse(json.as_bytes()) else {
                panic!("{json}")
            };
            policy
        };
        let old = policy(
            r#"{"pools": [{"name": "a", "models": ["a"], "max_in_flight_per_worker": 2},
                {"name": "b", "models": ["b"], "max_in_flight": 9, "pick_endpoint": true}, {"name": "c", "max_in_flight": 2}]}"#,
        );
        let new = policy(r#"{"pools": [{"name": "d", "max_in_flight": 2, "kv": {}}]}"#);
        for (vm, policy) in [(a, &old), (b, &new)] {
            directory.add(&Directory::of(policy));
            directory.hold(&members, vm, &Held::of(policy));
        }
        let needed = |directory: &Directory, members: &Members| {
            Directory::decode(&directory.encode()).unwrap().need_views(members).into_iter().collect::<Vec<_>>()
        };
        assert_eq!(needed(&directory, &members), ["a", "b", "d"]);
        directory.hold(&members, a, &Held::of(&new));
        assert_eq!(needed(&directory, &members), ["d"], "another policy has come");
    }
}
