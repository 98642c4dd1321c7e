//! What a pool's record keeps for each lane beside who waits: its virtual time, and how fast it lets waiters start.

use super::pace::Pace;
use crate::ledger::LaneKey;
use crate::record::{Reader, Writer};
use crate::units::Time;

/// One lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Band {
    lane: LaneKey,
    virtual_time: u64,
    last_start: Time,
    pace: Pace,
    /// Somebody waited for the lane when the last one started, so the time to the next start says how fast the lane moves.
    backlogged: bool,
}

/// All lanes that anything has started in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bands(Vec<Band>);

impl Bands {
    pub(super) fn virtual_time(&self, lane: LaneKey) -> u64 {
        self.get(lane).map_or(0, |band| band.virtual_time)
    }

    /// A request whose tag is this starts in a band.
    pub(super) fn serve(&mut self, band: LaneKey, tag: u64) {
        self.change(band, |band| band.virtual_time = band.virtual_time.max(tag));
    }

    /// A request of a lane starts, and others of the lane still wait or not.
    pub(super) fn note_start(&mut self, lane: LaneKey, still_waiting: bool, now: Time) {
        self.change(lane, |band| {
            if band.backlogged {
                band.pace.start(now.since(band.last_start));
            }
            (band.last_start, band.backlogged) = (now, still_waiting);
        });
    }

    /// Lanes that nobody waits for any more: the time to their next start says nothing.
    pub(super) fn forget_idle(&mut self, waits: impl Fn(LaneKey) -> bool) {
        for band in &mut self.0 {
            band.backlogged = band.backlogged && waits(band.lane);
        }
    }

    /// How fast a lane moves, and when it last did.
    pub(super) fn pace(&self, lane: LaneKey) -> (Pace, Time) {
        self.get(lane).map_or_else(Default::default, |band| (band.pace, band.last_start))
    }

    fn get(&self, lane: LaneKey) -> Option<&Band> {
        self.0.iter().find(|band| band.lane == lane)
    }

    fn change(&mut self, lane: LaneKey, change: impl FnOnce(&mut Band)) {
        if let Some(band) = self.0.iter_mut().find(|band| band.lane == lane) {
            return change(band);
        }
        let mut band = Band { lane, virtual_time: 0, last_start: Time(0), pace: Pace::default(), backlogged: false };
        change(&mut band);
        self.0.push(band);
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for band in &self.0 {
            out.u32(band.lane.0);
            out.u64(band.virtual_time);
            out.u64(band.last_start.0);
            band.pace.write(out);
            out.u16(u16::from(band.backlogged));
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut bands = Self::default();
        while !reader.is_empty() {
            bands.0.push(Band {
                lane: LaneKey(reader.u32()?),
                virtual_time: reader.u64()?,
                last_start: Time(reader.u64()?),
                pace: Pace::read(reader)?,
                backlogged: reader.u16()? > 0,
            });
        }
        Some(bands)
    }
}
