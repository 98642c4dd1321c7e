//! An engine whose page also has a router's own count of what the engine is doing.

use super::custom::Source;
use super::sheet::{Load, Sheet, rank_of};
use super::{Engine, PageError};
use crate::page::Page;

/// An engine that Sluice knows, and a number beside its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Routed {
    /// The engine, by whose own adapter all the rest is read.
    pub engine: Engine,
    /// KV blocks that the router believes to be in use.
    pub active_decode_blocks: Source,
    /// Label that holds the number of the rank; without one the number is that of the only rank.
    pub rank_label: Option<String>,
}

impl Routed {
    /// Notes the router's count.
    ///
    /// # Errors
    /// It names more ranks than a worker can have.
    pub fn note(&self, sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
        // Why: a rank that the engine does not have could never be busy, and so the worker could not be.
        let ranks: Vec<u32> = sheet.ranks().collect();
        for (name, sample) in page.samples(|name| self.wants(name).then_some(name)) {
            let rank = match &self.rank_label {
                Some(label) => rank_of(sample, label),
                None => ranks.first().copied().filter(|_| ranks.len() == 1),
            };
            let rank = rank.filter(|rank| ranks.contains(rank));
            if let Some((rank, number)) = rank.zip(self.active_decode_blocks.number(name, sample)) {
                sheet.note(rank, Load::ActiveDecodeBlocks, number)?;
            }
        }
        Ok(())
    }

    /// Says whether the router's count is read from a series of this name.
    pub fn wants(&self, name: &str) -> bool {
        self.active_decode_blocks.metric == name
    }
}
