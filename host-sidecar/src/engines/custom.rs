//! An engine that Sluice does not know, by a mapping from metrics to what they mean.

use std::collections::BTreeMap;

use super::PageError;
use super::sheet::{Limit, Load, Sheet, number_in, rank_of};
use crate::page::{Page, Sample};

/// Where each number stands on an engine's page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mapping {
    /// Label that holds the number of the rank; without one the page has one rank.
    pub rank_label: Option<String>,
    /// What of a rank is found where.
    pub loads: BTreeMap<Load, Source>,
    /// What of the engine is found where.
    pub limits: BTreeMap<Limit, Source>,
}

/// Which series a number is read from.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// Name of the metric, with its suffix.
    pub metric: String,
    /// What labels must say for a series to count; others may say anything.
    pub labels: BTreeMap<String, String>,
    /// Label that holds the number; without one it is the value of the series.
    pub value_label: Option<String>,
    /// By what the number is multiplied: finite and above 0.
    pub scale: f64,
}

impl Mapping {
    /// Notes what the page says.
    ///
    /// # Errors
    /// It names more ranks than a worker can have.
    pub fn note(&self, sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
        for (name, sample) in page.samples(|name| self.wants(name).then_some(name)) {
            let Some(rank) = self.rank_label.as_ref().map_or(Some(0), |label| rank_of(sample, label)) else {
                continue;
            };
            for (load, source) in &self.loads {
                if let Some(number) = source.number(name, sample) {
                    sheet.note(rank, *load, number)?;
                }
            }
            for (limit, source) in &self.limits {
                if let Some(number) = source.number(name, sample) {
                    sheet.limit(*limit, number);
                }
            }
        }
        Ok(())
    }

    /// Whether a series of this name is read.
    pub fn wants(&self, name: &str) -> bool {
        self.loads.values().chain(self.limits.values()).any(|source| source.metric == name)
    }
}

impl Source {
    /// The number that a sample says, if it is of this source.
    pub(super) fn number(&self, name: &str, sample: &Sample) -> Option<f64> {
        let is_meant = self.metric == name
            && self
                .labels
                .iter()
                .all(|(label, wanted)| sample.label(label).is_some_and(|value| value == wanted.as_str()));
        let number = match &self.value_label {
            Some(label) => number_in(sample, label),
            None => Some(sample.value),
        };
        number.filter(|_| is_meant).map(|number| number * self.scale)
    }
}
