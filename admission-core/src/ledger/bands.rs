//! What a pool's record keeps for each lane beside who waits: its virtual time, and how fast it lets waiters start.

use super::drain::moved;
use crate::ledger::LaneKey;
use crate::record::{Reader, Writer};
use crate::units::{Millis, Time};

/// One lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Band {
    lane: LaneKey,
    virtual_time: u64,
    last_start: Time,
    mean_us: u64,
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
                band.mean_us = moved(band.mean_us, now.since(band.last_start));
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

    /// Time between starts in a lane while others of it wait; one that has not started anything for longer than that is
    /// slower than it was. `None` before it was measured.
    pub(super) fn pace_us(&self, lane: LaneKey, now: Time) -> Option<u64> {
        let band = self.get(lane).filter(|band| band.mean_us > 0)?;
        let since = now.since(band.last_start).0.saturating_mul(1_000);
        Some(if band.backlogged { band.mean_us.max(since) } else { band.mean_us })
    }

    /// How long until `count` more of a lane start at that pace.
    pub(super) fn time_for(&self, lane: LaneKey, count: u64, now: Time) -> Option<Millis> {
        self.pace_us(lane, now).map(|pace| Millis(pace.saturating_mul(count).div_ceil(1_000)))
    }

    fn get(&self, lane: LaneKey) -> Option<&Band> {
        self.0.iter().find(|band| band.lane == lane)
    }

    fn change(&mut self, lane: LaneKey, change: impl FnOnce(&mut Band)) {
        if let Some(band) = self.0.iter_mut().find(|band| band.lane == lane) {
            return change(band);
        }
        let mut band = Band { lane, virtual_time: 0, last_start: Time(0), mean_us: 0, backlogged: false };
        change(&mut band);
        self.0.push(band);
    }

    pub(super) fn write(&self, out: &mut Writer) {
        for band in &self.0 {
            out.u32(band.lane.0);
            out.u64(band.virtual_time);
            out.u64(band.last_start.0);
            out.u64(band.mean_us);
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
                mean_us: reader.u64()?,
                backlogged: reader.u16()? > 0,
            });
        }
        Some(bands)
    }
}
