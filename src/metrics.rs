//! The proxy's metrics, by the numbers that the core gives them.
//!
//! One is defined when it is first written, and once: every definition costs the host an entry that stays. One that the host would
//! not define is remembered too.

use admission_core::metrics::{Kind, Metrics, Sample};

use crate::host;

/// Ids in the proxy of the metrics of one plugin.
#[derive(Default)]
pub struct Meters {
    /// Ids by numbers of metrics; `Some(None)` where the host would not define one.
    ids: Vec<Option<Option<u32>>>,
}

impl Meters {
    /// Writes what is written immediately.
    pub fn take(&mut self, metrics: &mut Metrics) {
        metrics.take(|sample| self.write(&sample));
    }

    /// Adds what has been gathered to the proxy's counters.
    pub fn flush(&mut self, metrics: &mut Metrics) {
        metrics.flush(|sample| self.write(&sample));
    }

    fn write(&mut self, Sample { metric, kind, name, value }: &Sample<'_>) {
        if self.ids.len() <= metric.index() {
            self.ids.resize(metric.index().saturating_add(1), None);
        }
        let Some(id) = self.ids.get_mut(metric.index()) else { return };
        let Some(id) = *id.get_or_insert_with(|| host::define_metric(*kind, name)) else { return };
        match kind {
            Kind::Counter => host::increment(id, *value),
            Kind::Gauge | Kind::Histogram => host::record(id, *value),
        }
    }
}
