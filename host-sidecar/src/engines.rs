//! The metrics pages of serving engines as [`Reading`]s.
//!
//! Each adapter is a table from metric names to what they mean, and says at its head what its engine does not tell. All
//! are pure and share one rule for what cannot be believed ([`sheet`]).

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::page::Page;
use crate::reading::Reading;

pub mod custom;
pub mod dcgm;
pub mod dynamo;
mod gpus;
pub mod llamacpp;
pub mod routed;
pub mod sglang;
pub mod sheet;
pub mod tgi;
pub mod triton;
pub mod trtllm;
pub mod vllm;

pub use custom::Mapping;
use routed::Routed;
use sheet::{Load, MAX_RANKS, Sheet};

/// An engine whose page can be read.
#[derive(Clone, Debug, PartialEq)]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
    /// NVIDIA Triton with the TensorRT-LLM backend.
    Triton,
    /// TensorRT-LLM's own server, `trtllm-serve`.
    Trtllm,
    /// Hugging Face Text Generation Inference.
    Tgi,
    /// llama.cpp's server.
    Llamacpp,
    /// NVIDIA Dynamo: a frontend, or a worker whose engine shows no numbers of its own.
    Dynamo,
    /// Another one, by a mapping of the operator's.
    Custom(Arc<Mapping>),
    /// One of those above with a router's own count beside its numbers.
    Routed(Arc<Routed>),
}

/// Why a page says nothing of a worker's load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageError {
    /// Nothing on it says how loaded the engine is, or nothing that can be believed.
    NoLoad,
    /// It names more ranks or GPUs than a worker can have.
    TooManyRanks,
    /// What is read of it takes more than any engine, or any machine of GPUs, has to tell.
    TooLong,
    /// It holds none of the metrics that an engine is recognised by.
    UnknownEngine,
    /// It holds none of the metrics of a DCGM exporter that tell of load or memory.
    NoGpu,
}

impl Engine {
    /// Every engine that a configuration can name.
    pub const NAMED: [Self; 7] =
        [Self::Vllm, Self::Sglang, Self::Triton, Self::Trtllm, Self::Tgi, Self::Llamacpp, Self::Dynamo];

    /// As a configuration, the log and metrics name it.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
            Self::Triton => "triton",
            Self::Trtllm => "trtllm",
            Self::Tgi => "tgi",
            Self::Llamacpp => "llamacpp",
            Self::Dynamo => "dynamo",
            Self::Custom(_) => "custom",
            Self::Routed(routed) => routed.engine.name(),
        }
    }

    /// The engine whose adapter reads the page.
    pub fn adapter(&self) -> &Self {
        match self {
            Self::Routed(routed) => routed.engine.adapter(),
            other => other,
        }
    }

    /// True when every page of it reports how many KV blocks there are; of other engines some pages do.
    pub fn reports_blocks(&self) -> bool {
        match self.adapter() {
            Self::Vllm | Self::Triton => true,
            Self::Custom(mapping) => {
                let maps = |load| mapping.loads.contains_key(&load);
                maps(Load::KvTotal) && (maps(Load::KvUsed) || maps(Load::KvShare))
            }
            Self::Sglang | Self::Trtllm | Self::Tgi | Self::Llamacpp | Self::Dynamo | Self::Routed(_) => false,
        }
    }

    /// True when no page of it reports how many KV blocks there are.
    pub fn never_reports_blocks(&self) -> bool {
        matches!(self.adapter(), Self::Tgi | Self::Custom(_)) && !self.reports_blocks()
    }

    /// Whether a series of this name is read from its page.
    fn wants(&self, name: &str) -> bool {
        match self {
            Self::Vllm => vllm::wants(name),
            Self::Sglang => sglang::wants(name),
            Self::Triton => triton::wants(name),
            Self::Trtllm => trtllm::wants(name),
            Self::Tgi => tgi::wants(name),
            Self::Llamacpp => llamacpp::wants(name),
            Self::Dynamo => dynamo::wants(name),
            Self::Custom(mapping) => mapping.wants(name),
            Self::Routed(routed) => routed.wants(name) || routed.engine.wants(name),
        }
    }

    fn wants_bytes(&self, name: &[u8]) -> bool {
        str::from_utf8(name).is_ok_and(|name| self.wants(name))
    }

    /// Names of all series that are read from its page, where the page is written by Python's Prometheus client, which can leave
    /// out all others when it is asked for these; of other engines nothing.
    pub fn names(&self) -> Vec<&'static str> {
        match self {
            Self::Vllm => vllm::names().collect(),
            Self::Sglang => sglang::names().collect(),
            Self::Trtllm => trtllm::names().collect(),
            _ => Vec::new(),
        }
    }
}

/// Models that are remembered of one page, and the longest name of one: a page may not blow up what is listed.
const MOST_MODELS: usize = 64;
const LONGEST_MODEL: usize = 256;

/// What `page` says if it is `engine`'s.
///
/// # Errors
/// The page is not that engine's, or cannot be believed.
pub fn read(engine: &Engine, page: impl AsRef<[u8]>) -> Result<Reading, PageError> {
    Reader::default().read(Some(engine), page)
}

fn read_as(engine: &Engine, page: &Page) -> Result<Reading, PageError> {
    let mut sheet = Sheet::default();
    note(engine, &mut sheet, page)?;
    let hardware = match engine.adapter() {
        Engine::Triton => triton::gpus(page)?,
        _ => Vec::new(),
    };
    let (ranks, limits, mut doubts) = (sheet.reports()?, sheet.limits(), sheet.doubts());
    doubts.extend(page.is_cut().then_some(LAST_LINE));
    let models = models(engine, page);
    Ok(Reading { engine: engine.clone(), ranks, limits, doubts, models, hardware })
}

/// Notes what the page says, by the engine's adapter and by a router's count beside it.
fn note(engine: &Engine, sheet: &mut Sheet, page: &Page) -> Result<(), PageError> {
    match engine {
        Engine::Vllm => vllm::note(sheet, page),
        Engine::Sglang => sglang::note(sheet, page),
        Engine::Triton => triton::note(sheet, page),
        Engine::Trtllm => trtllm::note(sheet, page),
        Engine::Tgi => tgi::note(sheet, page),
        Engine::Llamacpp => llamacpp::note(sheet, page),
        Engine::Dynamo => dynamo::note(sheet, page),
        Engine::Custom(mapping) => mapping.note(sheet, page),
        Engine::Routed(routed) => {
            note(&routed.engine, sheet, page)?;
            routed.note(sheet, page)
        }
    }
}

/// Models that the page labels what is read of it with.
fn models(engine: &Engine, page: &Page) -> Vec<String> {
    let mut names = BTreeSet::new();
    for ((), sample) in page.samples(|name| engine.wants(name).then_some(())) {
        let name = sample.label("model_name").or_else(|| sample.label("model"));
        if let Some(name) = name.filter(|name| !name.is_empty() && name.len() <= LONGEST_MODEL)
            && names.len() < MOST_MODELS
            && !names.contains(&*name)
        {
            names.insert(name.into_owned());
        }
    }
    names.into_iter().collect()
}

/// Whose page this is, by the first load gauge on it. A Dynamo worker shows its engine's gauges beside its own, and the
/// engine's say more, so Dynamo is the answer only when no engine is.
///
/// ```
/// use host_sidecar::engines::{Engine, recognise};
///
/// assert_eq!(recognise("sglang:num_running_reqs{model_name=\"m\"} 2\n"), Some(Engine::Sglang));
/// assert_eq!(recognise("<html>Bad Gateway</html>\n"), None);
/// ```
pub fn recognise(page: impl AsRef<[u8]>) -> Option<Engine> {
    engine_behind(&Page::of(page, is_of_any))
}

fn engine_behind(page: &Page) -> Option<Engine> {
    let mut dynamo = None;
    for (engine, _) in page.samples(engine_of) {
        if engine != Engine::Dynamo {
            return Some(engine);
        }
        dynamo = Some(engine);
    }
    dynamo
}

/// Reads the pages of one worker, one after the other, and remembers whose they are.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    recognised: Option<Engine>,
    page: Page,
}

impl Reader {
    /// Begins another page.
    pub fn begin(&mut self) {
        self.page.begin();
    }

    /// Takes the next piece of a page, of which it keeps what any engine is read by, or `configured` where that is known.
    pub fn push(&mut self, configured: Option<&Engine>, piece: &[u8]) {
        match configured {
            Some(engine) => self.page.push(piece, |name| engine.wants_bytes(name)),
            None => self.page.push(piece, is_of_any),
        }
    }

    /// What the page says that has come since [`Self::begin`], if it is `configured`'s or, without that, the engine's that it
    /// is recognised by. One that has been recognised is looked for anew only when its page can no longer be read as such: the
    /// worker may have been replaced.
    ///
    /// # Errors
    /// The page is not the engine's, or of none that is known, or cannot be believed.
    pub fn end(&mut self, configured: Option<&Engine>) -> Result<Reading, PageError> {
        let Self { recognised, page } = self;
        if page.is_too_long() {
            return Err(PageError::TooLong);
        }
        if let Some(engine) = configured {
            return read_as(engine, page);
        }
        let known = recognised.as_ref().map(|engine| read_as(engine, page));
        // Behind Dynamo's own gauges an engine's may appear, which say more.
        if let Some(Ok(reading)) = &known
            && reading.engine != Engine::Dynamo
        {
            return known.unwrap_or(Err(PageError::UnknownEngine));
        }
        match engine_behind(page) {
            Some(engine) => read_as(recognised.insert(engine), page),
            None => known.unwrap_or(Err(PageError::UnknownEngine)),
        }
    }

    /// All of this for a page that is there already.
    ///
    /// # Errors
    /// As [`Self::end`].
    pub fn read(&mut self, configured: Option<&Engine>, page: impl AsRef<[u8]>) -> Result<Reading, PageError> {
        self.begin();
        self.push(configured, page.as_ref());
        self.end(configured)
    }

    /// Which of these names of series stand on the page that has been read last.
    pub fn found(&self, names: &[&'static str]) -> Vec<&'static str> {
        let stands = |name: &str| self.page.samples(|known| (known == name).then_some(())).next().is_some();
        names.iter().copied().filter(|name| stands(name)).collect()
    }
}

/// Among the doubts of a page that ends in the middle of a line: whatever stood there and behind it is missing.
const LAST_LINE: &str = "last_line";

/// Whether an engine is read by a series of this name. Most series of a page are buckets, by which none is.
fn is_of_any(name: &[u8]) -> bool {
    let is_wanted = |name| Engine::NAMED.iter().any(|engine| engine.wants(name));
    !name.ends_with(b"_bucket") && str::from_utf8(name).is_ok_and(is_wanted)
}

/// Whose load gauge `name` is.
fn engine_of(name: &str) -> Option<Engine> {
    Some(match name {
        "vllm:num_requests_running" | "vllm:num_requests_waiting" => Engine::Vllm,
        "sglang:num_running_reqs" | "sglang:num_queue_reqs" | "sglang:token_usage" => Engine::Sglang,
        "nv_trt_llm_request_metrics" | "nv_trt_llm_kv_cache_block_metrics" => Engine::Triton,
        "trtllm_num_requests_running" | "trtllm_num_requests_waiting" | "trtllm_kv_cache_utilization" => Engine::Trtllm,
        "tgi_batch_current_size" | "tgi_queue_size" => Engine::Tgi,
        "llamacpp:requests_processing" | "llamacpp:requests_deferred" => Engine::Llamacpp,
        _ if dynamo::is_load(name) => Engine::Dynamo,
        _ => return None,
    })
}

/// What a table says of a name.
fn in_table<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(known, _)| *known == name).map(|(_, what)| *what)
}

/// Notes what a page of one rank says, by a table of names.
fn note_single(sheet: &mut Sheet, page: &Page, load_of: impl Fn(&str) -> Option<Load>) -> Result<(), PageError> {
    for (load, sample) in page.samples(load_of) {
        sheet.note(0, load, sample.value)?;
    }
    Ok(())
}

impl fmt::Display for PageError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLoad => write!(out, "the page holds no load gauge of this engine, or none that can be believed"),
            Self::TooManyRanks => write!(out, "the page names more than {MAX_RANKS} ranks or GPUs"),
            Self::TooLong => {
                write!(out, "the page holds more of the series that are read than can be, or one of more than 64 KiB")
            }
            Self::UnknownEngine => write!(
                out,
                "the page is of no engine that is known: name one in `engine`, or map its metrics with `engine.custom`"
            ),
            Self::NoGpu => write!(
                out,
                "the page holds neither utilization nor memory of a GPU: a DCGM exporter must export DCGM_FI_DEV_GPU_UTIL, \
                 DCGM_FI_DEV_FB_USED and DCGM_FI_DEV_FB_FREE"
            ),
        }
    }
}

impl std::error::Error for PageError {}

#[cfg(test)]
mod tests;
