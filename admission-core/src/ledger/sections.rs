//! How a ledger is written down.

use super::bands::Bands;
use super::begun::Acknowledged;
use super::charged_under::ChargedUnder;
use super::fair::Tags;
use super::hold::Hold;
use super::last_starts::LastStarts;
use super::marks::{Marks, RefusedTenants};
use super::per_vm::{PerVm, Row};
use super::prefill::Reading;
use super::sub_flows::SubFlows;
use super::tier_budgets::TierBudgets;
use super::victims::Gone;
use super::{Amount, Blocked, Column, Drain, LaneKey, Ledger};
use crate::budget::Spent;
use crate::record::{Reader, Record, Sections, Writer};
use crate::units::{Blocks, Tokens};
use crate::view::Admitted;

const SECTION_COLUMNS: u8 = 1;
const SECTION_ADMITTED: u8 = 2;
const SECTION_SPENT: u8 = 4;
const SECTION_TALLIES: u8 = 5;
const SECTION_MARKS: u8 = 6;
const SECTION_FLOWS: u8 = 8;
const SECTION_BLOCKED: u8 = 9;
const SECTION_WAITING: u8 = 10;
const SECTION_HEADS: u8 = 11;
const SECTION_FOR_A_CLASS: u8 = 12;
const SECTION_BANDS: u8 = 13;
const SECTION_REFUSED_UNDER: u8 = 14;
/// Evictions as builds say them that know nothing of blocks. They are not kept: such builds say theirs again.
const SECTIONS_WITHOUT_BLOCKS: [u8; 2] = [15, 16];
const SECTION_DRAIN: u8 = 17;
const SECTION_ACKNOWLEDGED: u8 = 18;
const SECTION_BEGUN: u8 = 19;
const SECTION_DEMAND: u8 = 20;
const SECTION_YIELDING: u8 = 21;
const SECTION_HOLD: u8 = 22;
const SECTION_BEGUN_AT: u8 = 23;
const SECTION_LAST_STARTS: u8 = 24;
const SECTION_LARGE: u8 = 25;
const SECTION_EVICTABLE: u8 = 26;
const SECTION_ASKED: u8 = 27;
const SECTION_GONE: u8 = 28;
const SECTION_EVICTED: u8 = 29;
const SECTION_SUB_FLOWS: u8 = 30;
const SECTION_HEADS_PARTS: u8 = 31;
const SECTION_BLOCKED_PARTS: u8 = 32;
const SECTION_TIER_BUDGETS: u8 = 33;
const SECTION_KEPT: u8 = 34;
const SECTION_CHARGED_UNDER: u8 = 35;
const SECTION_QUEUED: u8 = 36;
const SECTION_RATED: u8 = 37;
const SECTION_READING: u8 = 38;
const SECTION_REFUSED_TENANTS: u8 = 39;

impl Record for Ledger {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        rows(&mut writer, SECTION_COLUMNS, &self.columns);
        if self.admitted != Admitted::default() {
            writer.section(SECTION_ADMITTED, |out| {
                out.u64(self.admitted.requests);
                out.u64(self.admitted.blocks);
            });
        }
        if self.drain != Drain::default() {
            writer.section(SECTION_DRAIN, |out| out.u64(self.drain.mean_us));
        }
        if (self.requests_spent, self.tokens_spent) != Default::default() {
            writer.section(SECTION_SPENT, |out| {
                out.u64(self.requests_spent.0);
                out.u64(self.tokens_spent.0);
            });
        }
        rows(&mut writer, SECTION_TALLIES, &self.tallies);
        writer.section(SECTION_MARKS, |out| self.marks.write(out));
        writer.section(SECTION_FLOWS, |out| self.flows.write(out));
        rows(&mut writer, SECTION_BLOCKED, &self.blocked);
        rows(&mut writer, SECTION_WAITING, &self.line.waiting);
        rows(&mut writer, SECTION_HEADS, &self.line.heads);
        rows(&mut writer, SECTION_FOR_A_CLASS, &self.line.for_a_class);
        writer.section(SECTION_BANDS, |out| self.bands.write(out));
        if let Some((epoch, generation)) = self.refused_under {
            writer.section(SECTION_REFUSED_UNDER, |out| {
                out.u64(epoch);
                out.u64(generation);
            });
        }
        if self.acknowledged != Acknowledged::default() {
            writer.section(SECTION_ACKNOWLEDGED, |out| self.acknowledged.write(out));
        }
        rows(&mut writer, SECTION_BEGUN, &self.begun);
        rows(&mut writer, SECTION_DEMAND, &self.line.demand);
        rows(&mut writer, SECTION_YIELDING, &self.line.yielding);
        if self.hold != Hold::default() {
            writer.section(SECTION_HOLD, |out| self.hold.write(out));
        }
        rows(&mut writer, SECTION_BEGUN_AT, &self.begun_at);
        if self.last_starts != LastStarts::default() {
            writer.section(SECTION_LAST_STARTS, |out| self.last_starts.write(out));
        }
        rows(&mut writer, SECTION_LARGE, &self.line.large);
        rows(&mut writer, SECTION_EVICTABLE, &self.evictable);
        rows(&mut writer, SECTION_ASKED, &self.asked);
        writer.section(SECTION_GONE, |out| self.gone.write(out));
        if self.evicted > 0 {
            writer.section(SECTION_EVICTED, |out| out.u64(self.evicted));
        }
        writer.section(SECTION_SUB_FLOWS, |out| self.sub_flows.write(out));
        rows(&mut writer, SECTION_HEADS_PARTS, &self.line.parts());
        rows(&mut writer, SECTION_BLOCKED_PARTS, &self.blocked.filter_map(Blocked::part));
        writer.section(SECTION_TIER_BUDGETS, |out| self.tier_budgets.write(out));
        rows(&mut writer, SECTION_KEPT, &self.line.kept);
        writer.section(SECTION_CHARGED_UNDER, |out| self.charged_under.write(out));
        rows(&mut writer, SECTION_QUEUED, &self.queued);
        rows(&mut writer, SECTION_RATED, &self.line.rated);
        if self.reading != Reading::default() {
            writer.section(SECTION_READING, |out| self.reading.write(out));
        }
        writer.section(SECTION_REFUSED_TENANTS, |out| self.refused_tenants.write(out));
        writer.finish(&self.unknown)
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut record = Self::default();
        let (mut heads_parts, mut blocked_parts) = (PerVm::default(), PerVm::default());
        record.unknown = Sections::read(bytes, |tag, mut reader| {
            match tag {
                SECTION_COLUMNS => record.columns = PerVm::read(&mut reader)?,
                SECTION_ADMITTED => record.admitted = Admitted { requests: reader.u64()?, blocks: reader.u64()? },
                SECTION_DRAIN => record.drain = Drain { mean_us: reader.u64()? },
                SECTION_SPENT => {
                    (record.requests_spent, record.tokens_spent) = (Spent(reader.u64()?), Spent(reader.u64()?));
                }
                SECTION_TALLIES => record.tallies = PerVm::read(&mut reader)?,
                SECTION_MARKS => record.marks = Marks::read(&mut reader)?,
                SECTION_FLOWS => record.flows = Tags::read(&mut reader)?,
                SECTION_BLOCKED => record.blocked = PerVm::read(&mut reader)?,
                SECTION_WAITING => record.line.waiting = PerVm::read(&mut reader)?,
                SECTION_HEADS => record.line.heads = PerVm::read(&mut reader)?,
                SECTION_FOR_A_CLASS => record.line.for_a_class = PerVm::read(&mut reader)?,
                SECTION_BANDS => record.bands = Bands::read(&mut reader)?,
                SECTION_REFUSED_UNDER => record.refused_under = Some((reader.u64()?, reader.u64()?)),
                SECTION_ACKNOWLEDGED => record.acknowledged = Acknowledged::read(&mut reader)?,
                SECTION_BEGUN => record.begun = PerVm::read(&mut reader)?,
                SECTION_DEMAND => record.line.demand = PerVm::read(&mut reader)?,
                SECTION_YIELDING => record.line.yielding = PerVm::read(&mut reader)?,
                SECTION_HOLD => record.hold = Hold::read(&mut reader)?,
                SECTION_LAST_STARTS => record.last_starts = LastStarts::read(&mut reader)?,
                SECTION_LARGE => record.line.large = PerVm::read(&mut reader)?,
                SECTION_EVICTABLE => record.evictable = PerVm::read(&mut reader)?,
                SECTION_ASKED => record.asked = PerVm::read(&mut reader)?,
                SECTION_GONE => record.gone = Gone::read(&mut reader)?,
                SECTION_EVICTED => record.evicted = reader.u64()?,
                SECTION_SUB_FLOWS => record.sub_flows = SubFlows::read(&mut reader)?,
                SECTION_HEADS_PARTS => heads_parts = PerVm::read(&mut reader)?,
                SECTION_BLOCKED_PARTS => blocked_parts = PerVm::read(&mut reader)?,
                SECTION_TIER_BUDGETS => record.tier_budgets = TierBudgets::read(&mut reader)?,
                SECTION_KEPT => record.line.kept = PerVm::read(&mut reader)?,
                SECTION_CHARGED_UNDER => record.charged_under = ChargedUnder::read(&mut reader)?,
                SECTION_QUEUED => record.queued = PerVm::read(&mut reader)?,
                SECTION_RATED => record.line.rated = PerVm::read(&mut reader)?,
                SECTION_READING => record.reading = Reading::read(&mut reader)?,
                SECTION_REFUSED_TENANTS => record.refused_tenants = RefusedTenants::read(&mut reader)?,
                SECTION_BEGUN_AT => record.begun_at = PerVm::read(&mut reader)?,
                tag if SECTIONS_WITHOUT_BLOCKS.contains(&tag) => {}
                _ => return Some(false),
            }
            Some(true)
        })?;
        record.line.set_parts(&heads_parts);
        record.blocked.zip(&blocked_parts, |_, _| true, Blocked::set_part);
        Some(record)
    }
}

/// Appends rows as a section, if there are any: most records have few kinds.
fn rows<T: Row>(writer: &mut Writer, tag: u8, rows: &PerVm<T>) {
    if !rows.is_empty() {
        writer.section(tag, |out| rows.write(out));
    }
}

impl Row for Column {
    fn write(&self, out: &mut Writer) {
        out.u32(self.lane.0);
        out.u64(self.held.requests);
        out.u64(self.held.tokens.0);
        out.u64(self.held.blocks.0);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            lane: LaneKey(reader.u32()?),
            held: Amount { requests: reader.u64()?, tokens: Tokens(reader.u64()?), blocks: Blocks(reader.u64()?) },
        })
    }
}
