//! Which VMs are alive, and how a dead one is told from a busy one.
//!
//! A member has a slot (small, reused) and an epoch (rising, never reused). What it holds is counted under its epoch, so
//! removing the member voids all it held. Epochs come from one counter in the record: an epoch at or above the counter
//! of an older copy of the record belongs to a member that joined since, and is taken to live. An old copy can
//! therefore be too generous to the dead but never forgets the living.

use crate::record::{Reader, Record, Sections, Writer};

/// Most members at once. Worker threads of one proxy, twice over while an old module drains, stay far below it.
pub const MAX_MEMBERS: u16 = 1_024;

/// Ticks of an observer without a heartbeat after which a member is dead.
pub const DEAD_AFTER_TICKS: u32 = 10;

const SECTION_EPOCHS: u8 = 1;
const SECTION_MEMBERS: u8 = 2;
const SECTION_APART: u8 = 3;

/// Under which a VM's holdings are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Holder {
    /// Small number, reused.
    pub slot: u16,
    /// Rising number, never reused.
    pub epoch: u64,
}

/// A VM that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Who it is.
    pub holder: Holder,
    /// Rises as long as the VM lives.
    pub heartbeat: u64,
}

/// The membership record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    next_epoch: u64,
    members: Vec<Member>,
    /// Epochs of those that count each unnamed tenant in a ledger of its own.
    apart: Vec<u64>,
    unknown: Sections,
}

impl Members {
    /// The live members by slot.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.members.iter()
    }

    /// Whether what is held under `epoch` counts.
    #[must_use]
    pub fn counts(&self, epoch: u64) -> bool {
        epoch >= self.next_epoch || self.members.iter().any(|member| member.holder.epoch == epoch)
    }

    /// Adds a member in the smallest free slot; `None` when all [`MAX_MEMBERS`] are taken.
    pub fn join(&mut self) -> Option<Holder> {
        let slot = (0..MAX_MEMBERS).find(|slot| self.members.iter().all(|member| member.holder.slot != *slot))?;
        let holder = Holder { slot, epoch: self.next_epoch };
        self.next_epoch = self.next_epoch.saturating_add(1);
        self.apart.push(holder.epoch);
        self.members.push(Member { holder, heartbeat: 0 });
        self.members.sort_unstable_by_key(|member| member.holder.slot);
        Some(holder)
    }

    /// True when each member counts every unnamed tenant in a ledger of its own; older modules count those with the same hash in one.
    #[must_use]
    pub fn all_count_apart(&self) -> bool {
        self.members.iter().all(|member| self.apart.contains(&member.holder.epoch))
    }

    /// Adds a member as a module does that counts unnamed tenants in shared records only.
    #[cfg(test)]
    pub(crate) fn join_as_older(&mut self) -> Option<Holder> {
        let holder = self.join();
        self.apart.pop();
        holder
    }

    /// Says that the member lives; false when it has been fenced.
    pub fn beat(&mut self, holder: Holder) -> bool {
        match self.members.iter_mut().find(|member| member.holder == holder) {
            Some(member) => {
                member.heartbeat = member.heartbeat.wrapping_add(1);
                true
            }
            None => false,
        }
    }

    /// Removes members whose heartbeat is still the one given; a member that has beaten since stays.
    pub fn fence(&mut self, silent: &[Member]) {
        self.members.retain(|member| !silent.contains(member));
        self.apart.retain(|epoch| self.members.iter().any(|member| member.holder.epoch == *epoch));
    }
}

impl Record for Members {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.section(SECTION_EPOCHS, |out| out.u64(self.next_epoch));
        writer.section(SECTION_MEMBERS, |out| {
            for member in &self.members {
                out.u16(member.holder.slot);
                out.u64(member.holder.epoch);
                out.u64(member.heartbeat);
            }
        });
        writer.section(SECTION_APART, |out| self.apart.iter().for_each(|epoch| out.u64(*epoch)));
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut record = Self::default();
        record.unknown = Sections::read(bytes, |tag, mut reader| {
            match tag {
                SECTION_EPOCHS => record.next_epoch = reader.u64()?,
                SECTION_MEMBERS => {
                    while !reader.is_empty() {
                        record.members.push(member(&mut reader)?);
                    }
                }
                SECTION_APART => {
                    while !reader.is_empty() {
                        record.apart.push(reader.u64()?);
                    }
                }
                _ => return Some(false),
            }
            Some(true)
        })?;
        Some(record)
    }
}

fn member(reader: &mut Reader<'_>) -> Option<Member> {
    Some(Member { holder: Holder { slot: reader.u16()?, epoch: reader.u64()? }, heartbeat: reader.u64()? })
}

/// One VM's memory of the others' heartbeats.
///
/// It counts its own ticks, not time: a process that was stopped observes nothing, so it comes back without having
/// declared anyone dead.
#[derive(Debug, Default)]
pub struct Observer {
    seen: Vec<(Member, u32)>,
}

impl Observer {
    /// Takes note of the record and returns who has been silent for [`DEAD_AFTER_TICKS`].
    pub fn tick(&mut self, members: &Members) -> Vec<Member> {
        self.seen = members.iter().map(|member| (*member, self.silent_ticks(member))).collect();
        self.seen.iter().filter(|(_, silent)| *silent >= DEAD_AFTER_TICKS).map(|(member, _)| *member).collect()
    }

    fn silent_ticks(&self, member: &Member) -> u32 {
        let seen = self.seen.iter().find(|(seen, _)| seen == member);
        seen.map_or(0, |(_, silent)| silent.saturating_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_epochs_are_not() {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        assert_eq!((a.slot, b.slot), (0, 1));
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        let c = members.join().unwrap();
        assert_eq!(c.slot, 0);
        assert!(c.epoch > b.epoch);
    }

    #[test]
    fn an_old_copy_never_forgets_the_living() {
        let mut members = Members::default();
        let a = members.join().unwrap();
        let old_copy = members.clone();
        let b = members.join().unwrap();
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        assert!(old_copy.counts(b.epoch), "joined since the copy was made");
        assert!(old_copy.counts(a.epoch), "dead since: the copy may be generous");
        assert!(!members.counts(a.epoch));
    }

    #[test]
    fn a_member_that_beats_is_never_fenced() {
        let mut members = Members::default();
        let (quiet, alive) = (members.join().unwrap(), members.join().unwrap());
        let mut observer = Observer::default();
        for tick in 0..=DEAD_AFTER_TICKS {
            let silent = observer.tick(&members);
            if tick < DEAD_AFTER_TICKS {
                assert!(silent.is_empty(), "at tick {tick}");
            } else {
                assert_eq!(silent, [Member { holder: quiet, heartbeat: 0 }]);
                members.fence(&silent);
            }
            assert!(members.beat(alive));
        }
        assert!(!members.beat(quiet));
        assert!(members.beat(alive));
    }

    #[test]
    fn a_heartbeat_between_observation_and_fencing_saves() {
        let mut members = Members::default();
        let a = members.join().unwrap();
        members.beat(a);
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        assert!(members.counts(a.epoch));
    }

    #[test]
    fn one_that_an_older_module_has_added_does_not_count_apart() {
        let mut members = Members::default();
        let new = members.join().unwrap();
        assert!(members.all_count_apart());
        let old = members.join_as_older().unwrap();
        let mut members = Members::decode(&members.encode()).unwrap();
        assert!(!members.all_count_apart());
        members.fence(&[Member { holder: old, heartbeat: 0 }]);
        assert!(members.all_count_apart());
        members.fence(&[Member { holder: new, heartbeat: 0 }]);
        assert!(members.apart.is_empty());
    }

    #[test]
    fn all_slots_taken_is_an_answer() {
        let mut members = Members::default();
        for _ in 0..MAX_MEMBERS {
            members.join().unwrap();
        }
        assert_eq!(members.join(), None);
        assert_eq!(Members::decode(&members.encode()), Some(members));
    }
}
