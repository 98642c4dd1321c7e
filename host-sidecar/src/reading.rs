//! What one look at a worker says: its load, its limits, its GPUs. A number that was not measured is absent, never zero.

use admission_core::view::RankReport;

use crate::engines::Engine;

/// What a worker's page says.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Whose page it is.
    pub engine: Engine,
    /// One report a data-parallel rank, by rising rank; never empty.
    pub ranks: Vec<RankReport>,
    /// What the engine says it can hold.
    pub limits: Limits,
    /// Names of the numbers that the page tells and that cannot be believed: they count as unknown.
    pub doubts: Vec<&'static str>,
    /// Names of the models that the page labels its numbers with, in order.
    pub models: Vec<String>,
    /// The GPUs that the same page tells of; most engines' pages tell of none.
    pub hardware: Vec<Gpu>,
}

/// What an engine says of its own limits, each above zero. What it does not say is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Tokens in a KV block.
    pub block_size: Option<u64>,
    /// Most sequences that run at once in a rank.
    pub max_num_seqs: Option<u64>,
    /// Most tokens that a rank batches in one step.
    pub max_num_batched_tokens: Option<u64>,
    /// Most tokens of prompt and output together.
    pub max_model_len: Option<u64>,
}

/// One GPU, or one part of a GPU that is divided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gpu {
    /// Its number in its machine.
    pub index: Option<u32>,
    /// Its name all over the world, such as `GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52`.
    pub uuid: Option<String>,
    /// Which MIG instance of the GPU; absent for a GPU that is not divided.
    pub mig_instance: Option<u32>,
    /// Share of the last sample period in which it computed, 0 to 1.
    pub utilization: Option<f64>,
    /// Memory in use, in bytes.
    pub memory_used_bytes: Option<u64>,
    /// Memory there is, in bytes.
    pub memory_total_bytes: Option<u64>,
}
