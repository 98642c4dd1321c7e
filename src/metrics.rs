//! The proxy's metrics, by the numbers that the core gives them.
//!
//! One is defined when it is first written, and once: every definition costs the host an entry that stays. One that the host would
//! not define is remembered too.

use std::cell::RefCell;

use admission_core::metrics::{Kind, Metrics, Sample};

use crate::host;

/// The metrics of one plugin, and their ids in the proxy.
#[derive(Default)]
pub struct Meters {
    metrics: RefCell<Metrics>,
    /// Ids by numbers of metrics; `Some(None)` where the host would not define one.
    ids: RefCell<Vec<Option<Option<u32>>>>,
}

impl Meters {
    /// Counts or records something, and writes what is written immediately.
    pub fn with<T>(&self, act: impl FnOnce(&mut Metrics) -> T) -> T {
        let mut metrics = self.metrics.borrow_mut();
        let done = act(&mut metrics);
        metrics.take(|sample| self.write(&sample));
        done
    }

    /// Adds what has been gathered to the proxy's counters.
    pub fn flush(&self) {
        self.metrics.borrow_mut().flush(|sample| self.write(&sample));
    }

    fn write(&self, Sample { metric, kind, name, value }: &Sample<'_>) {
        let mut ids = self.ids.borrow_mut();
        if ids.len() <= metric.index() {
            ids.resize(metric.index().saturating_add(1), None);
        }
        let Some(id) = ids.get_mut(metric.index()) else { return };
        let Some(id) = *id.get_or_insert_with(|| host::define_metric(*kind, name)) else { return };
        match kind {
            Kind::Counter => host::increment(id, *value),
            Kind::Gauge | Kind::Histogram => host::record(id, *value),
        }
    }
}
