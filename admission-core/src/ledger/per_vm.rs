//! Rows of a record that belong to VMs.
//!
//! Each VM writes rows under its own slot and epoch. Rows of an epoch that is not live count nothing, and the next writer
//! drops them; so what a dead VM held or said is void with its epoch, with no journal to replay.

use crate::gather::gather;
use crate::members::{Holder, Members};
use crate::record::{Reader, Writer};

/// A row's bytes, after those that name its VM.
pub(super) trait Row: Sized {
    /// Appends the row.
    fn write(&self, out: &mut Writer);
    /// Takes a row off the section; `None` past its end.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;
}

/// Rows by the VM that wrote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PerVm<T>(Vec<(Holder, T)>);

impl<T> Default for PerVm<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> PerVm<T> {
    /// Rows of live VMs.
    pub(super) fn live<'a>(&'a self, members: &'a Members) -> impl Iterator<Item = (Holder, &'a T)> {
        let live = self.0.iter().filter(|(holder, _)| members.counts(holder.epoch));
        live.map(|(holder, row)| (*holder, row))
    }

    /// Rows of one VM.
    pub(super) fn of(&self, holder: Holder) -> impl Iterator<Item = &T> {
        self.0.iter().filter(move |(other, _)| *other == holder).map(|(_, row)| row)
    }

    /// True when no VM has a row, a dead one included.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Puts a VM's rows in place of all that its slot held before.
    pub(super) fn publish(&mut self, members: &Members, holder: Holder, rows: impl IntoIterator<Item = T>) {
        // Why by slot: a VM that was fenced comes back with another epoch, and its old rows may still count in an older copy
        // of the membership. Why not later epochs: a VM that does not know yet that it was fenced is to leave the rows of
        // the slot's new owner.
        self.0.retain(|(other, _)| {
            (other.slot != holder.slot || other.epoch > holder.epoch) && members.counts(other.epoch)
        });
        self.0.extend(rows.into_iter().map(|row| (holder, row)));
    }

    /// The row of a VM that `is_it` finds, or a new one.
    pub(super) fn entry(
        &mut self,
        members: &Members,
        holder: Holder,
        is_it: impl Fn(&T) -> bool,
        new: T,
    ) -> Option<&mut T> {
        self.drop_the_dead(members);
        let place = self.0.iter().position(|(other, row)| *other == holder && is_it(row));
        if place.is_none() {
            self.0.push((holder, new));
        }
        let place = place.unwrap_or(self.0.len().saturating_sub(1));
        self.0.get_mut(place).map(|(_, row)| row)
    }

    /// Changes each row of a VM; one for which `change` returns false is dropped.
    pub(super) fn change(&mut self, members: &Members, holder: Holder, mut change: impl FnMut(&mut T) -> bool) {
        self.0.retain_mut(|(other, row)| members.counts(other.epoch) && (*other != holder || change(row)));
    }

    /// Drops every row, of whatever VM, that `stays` does not hold for.
    pub(super) fn keep(&mut self, stays: impl Fn(&T) -> bool) {
        self.0.retain(|(_, row)| stays(row));
    }

    /// Rows made of those that give one.
    pub(super) fn filter_map<U>(&self, made: impl Fn(&T) -> Option<U>) -> PerVm<U> {
        PerVm(gather(self.0.iter().filter_map(|(holder, row)| Some((*holder, made(row)?)))))
    }

    /// Adds the rows of another list.
    pub(super) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Changes each row by the first row of the same VM in another list that belongs to it.
    pub(super) fn zip<U>(&mut self, others: &PerVm<U>, belongs: impl Fn(&T, &U) -> bool, change: impl Fn(&mut T, &U)) {
        for (holder, row) in &mut self.0 {
            let mut own = others.of(*holder);
            if let Some(other) = own.find(|other| belongs(row, other)) {
                change(row, other);
            }
        }
    }

    fn drop_the_dead(&mut self, members: &Members) {
        self.0.retain(|(holder, _)| members.counts(holder.epoch));
    }
}

impl<T: Row> PerVm<T> {
    /// Appends all rows.
    pub(super) fn write(&self, out: &mut Writer) {
        for (holder, row) in &self.0 {
            out.u16(holder.slot);
            out.u64(holder.epoch);
            row.write(out);
        }
    }

    /// Takes a whole section; `None` when it ends within a row.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut all = Self::default();
        while !reader.is_empty() {
            let holder = Holder { slot: reader.u16()?, epoch: reader.u64()? };
            all.0.push((holder, T::read(reader)?));
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::Member;
    use crate::record::Sections;

    #[derive(Debug, PartialEq)]
    struct Count(u64);

    impl Row for Count {
        fn write(&self, out: &mut Writer) {
            out.u64(self.0);
        }

        fn read(reader: &mut Reader<'_>) -> Option<Self> {
            reader.u64().map(Self)
        }
    }

    fn rows(all: &PerVm<Count>, members: &Members) -> Vec<(u16, u64)> {
        all.live(members).map(|(holder, row)| (holder.slot, row.0)).collect()
    }

    #[test]
    fn rows_of_a_dead_vm_count_nothing_and_go_with_the_next_write() {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        let mut all = PerVm::default();
        all.publish(&members, a, [Count(1), Count(2)]);
        all.publish(&members, b, [Count(3)]);
        let before = members.clone();
        members.fence(&[Member { holder: a, heartbeat: 0 }]);
        assert_eq!(rows(&all, &members), [(1, 3)]);
        let again = members.join().unwrap();
        all.publish(&members, again, [Count(4)]);
        assert_eq!((rows(&all, &members), all.0.len()), (vec![(1, 3), (0, 4)], 2));
        all.publish(&before, a, [Count(5)]);
        assert_eq!(rows(&all, &members), [(1, 3), (0, 4)], "one that was fenced and does not know it");
        all.publish(&members, again, []);
        all.publish(&members, b, []);
        assert!(all.is_empty());
    }

    #[test]
    fn a_row_is_found_or_made_and_changes_for_its_vm_alone() {
        let mut members = Members::default();
        let (a, b) = (members.join().unwrap(), members.join().unwrap());
        let mut all = PerVm::default();
        for holder in [a, b, a] {
            all.entry(&members, holder, |row: &Count| row.0 > 0, Count(1)).unwrap().0 += 10;
        }
        assert_eq!(rows(&all, &members), [(0, 21), (1, 11)]);
        all.change(&members, b, |row| {
            row.0 -= 1;
            row.0 > 10
        });
        assert_eq!(rows(&all, &members), [(0, 21)], "what the change lets go is gone");
        assert_eq!(all.of(a).map(|row| row.0).collect::<Vec<_>>(), [21]);
        assert_eq!(all.of(b).count(), 0);
    }

    #[test]
    fn a_section_that_ends_within_a_row_is_refused() {
        let mut members = Members::default();
        let a = members.join().unwrap();
        let mut all = PerVm::default();
        all.publish(&members, a, [Count(1), Count(2)]);
        let mut writer = Writer::default();
        all.write(&mut writer);
        let bytes = writer.finish(&Sections::default());
        assert_eq!(PerVm::read(&mut Reader::of(&bytes)), Some(all));
        assert_eq!(PerVm::<Count>::read(&mut Reader::of(&bytes[..bytes.len() - 1])), None);
    }
}
