//! Where an adapter writes down what it finds on a page, and how that becomes reports.

use std::collections::BTreeMap;

use admission_core::view::RankReport;

use super::PageError;
use crate::page::Sample;
use crate::reading::Limits;

/// More ranks than this on one page are taken for garbage: a page may not blow up the view for everybody.
pub const MAX_RANKS: usize = 256;

/// A count beyond this is no count: no worker has a million million of anything, and exporters mark what they do not know
/// by numbers such as 2⁶³ − 14.
const BEYOND_REASON: f64 = 1e12;

/// How far a share may exceed 1 by rounding alone.
const ROUNDING: f64 = 0.01;

/// What an adapter can find of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Load {
    /// Sequences in the running batch.
    Running,
    /// Requests waiting inside the engine.
    Waiting,
    /// Share of the KV cache in use, 0 to 1.
    KvShare,
    /// KV blocks in use.
    KvUsed,
    /// KV blocks there are.
    KvTotal,
    /// KV blocks that a router in front of the engine believes to be in use.
    ActiveDecodeBlocks,
    /// Prompt tokens in prefill.
    PrefillTokens,
    /// Prompt tokens of all requests so far.
    PromptTokens,
    /// How many requests those are.
    Prompts,
}

/// What an adapter can find of the engine as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Limit {
    /// See [`Limits::block_size`].
    BlockSize,
    /// See [`Limits::max_num_seqs`].
    MaxNumSeqs,
    /// See [`Limits::max_num_batched_tokens`].
    MaxNumBatchedTokens,
    /// See [`Limits::max_model_len`].
    MaxModelLen,
}

impl Load {
    /// As a mapping, the log and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::KvShare => "kv_used_share",
            Self::KvUsed => "kv_used_blocks",
            Self::KvTotal => "kv_total_blocks",
            Self::ActiveDecodeBlocks => "active_decode_blocks",
            Self::PrefillTokens => "prefill_tokens",
            Self::PromptTokens => "prompt_tokens",
            Self::Prompts => "prompts",
        }
    }

    /// `value` as far as it can be one of this; a counter grows for as long as its engine runs.
    fn believed(self, value: f64) -> Option<f64> {
        match self {
            Self::KvShare => as_share(value),
            Self::PromptTokens | Self::Prompts => Some(value),
            _ => Some(value).filter(|value| *value < BEYOND_REASON),
        }
    }
}

impl Limit {
    /// As a mapping, the log and metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::BlockSize => "block_size",
            Self::MaxNumSeqs => "max_num_seqs",
            Self::MaxNumBatchedTokens => "max_num_batched_tokens",
            Self::MaxModelLen => "max_model_len",
        }
    }
}

/// Which of several series that tell the same number comes first: the smallest is taken, the others are left alone.
pub type Order = [u32; 3];

/// All that was found on a page so far.
///
/// A number that is told twice counts only when it is the same both times: of two values for one thing nobody can say
/// which was measured. A value that is NaN, infinite or negative makes its number unknown for the same reason.
#[derive(Debug, Default)]
pub struct Sheet {
    /// By rising number.
    ranks: Vec<(u32, Cells<Load>)>,
    limits: Cells<Limit>,
}

/// Numbers by what they are of, each noted as often as a page tells it. There are few kinds, so one is looked for among all.
#[derive(Debug)]
pub struct Cells<K>(Vec<(K, Cell)>);

#[derive(Clone, Copy, Debug)]
struct Cell {
    order: Order,
    /// `None` for a number that cannot be believed.
    value: Option<f64>,
}

impl Sheet {
    /// A sheet that knows of `rank` if of nothing else.
    ///
    /// # Errors
    /// There are more ranks than a worker can have.
    pub fn declare(&mut self, rank: u32) -> Result<(), PageError> {
        self.cells(rank).map(|_| ())
    }

    /// Notes what one series says.
    ///
    /// # Errors
    /// There are more ranks than a worker can have.
    pub fn note(&mut self, rank: u32, load: Load, value: f64) -> Result<(), PageError> {
        self.note_ordered(rank, load, value, Order::default())
    }

    /// Notes what one of several series says that each tell the whole number.
    ///
    /// # Errors
    /// There are more ranks than a worker can have.
    pub fn note_ordered(&mut self, rank: u32, load: Load, value: f64, order: Order) -> Result<(), PageError> {
        self.cells(rank)?.note(load, load.believed(value).unwrap_or(f64::NAN), order);
        Ok(())
    }

    /// Notes a limit, which all ranks share.
    pub fn limit(&mut self, limit: Limit, value: f64) {
        let believed = Some(value).filter(|value| *value < BEYOND_REASON);
        self.limits.note(limit, believed.unwrap_or(f64::NAN), Order::default());
    }

    /// The ranks found so far, by rising number.
    pub fn ranks(&self) -> impl ExactSizeIterator<Item = u32> {
        self.ranks.iter().map(|(rank, _)| *rank)
    }

    /// The reports, by rising rank.
    ///
    /// # Errors
    /// Nothing that can be believed was found of any rank's load.
    pub fn reports(&self) -> Result<Vec<RankReport>, PageError> {
        let is_load = |report: &RankReport| {
            report.running.or(report.waiting).or(report.kv_used_blocks).is_some() || report.kv_used_share.is_some()
        };
        let reports: Vec<_> = self.ranks.iter().map(|(rank, cells)| report(*rank, cells)).collect();
        if reports.iter().any(is_load) { Ok(reports) } else { Err(PageError::NoLoad) }
    }

    /// The limits.
    pub fn limits(&self) -> Limits {
        let get = |limit| above_zero(count(self.limits.get(limit)?));
        Limits {
            block_size: get(Limit::BlockSize),
            max_num_seqs: get(Limit::MaxNumSeqs),
            max_num_batched_tokens: get(Limit::MaxNumBatchedTokens),
            max_model_len: get(Limit::MaxModelLen),
        }
    }

    /// Names of the numbers that the page tells and that cannot be believed, of any rank.
    pub fn doubts(&self) -> Vec<&'static str> {
        let has_too_many = |cells: &&Cells<Load>| cells.get(Load::KvUsed) > Some(cells.blocks().unwrap_or(f64::MAX));
        let ranks = || self.ranks.iter().map(|(_, cells)| cells);
        let used = ranks().filter(has_too_many).map(|_| Load::KvUsed.name());
        let of_ranks = ranks().flat_map(Cells::disbelieved).map(Load::name);
        let mut all: Vec<_> = of_ranks.chain(used).chain(self.limits.disbelieved().map(Limit::name)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn cells(&mut self, rank: u32) -> Result<&mut Cells<Load>, PageError> {
        let at = match self.ranks.binary_search_by_key(&rank, |(known, _)| *known) {
            Ok(at) => at,
            Err(_) if self.ranks.len() >= MAX_RANKS => return Err(PageError::TooManyRanks),
            Err(at) => {
                self.ranks.insert(at, (rank, Cells::default()));
                at
            }
        };
        self.ranks.get_mut(at).map(|(_, cells)| cells).ok_or(PageError::TooManyRanks)
    }
}

impl<K: PartialEq + Copy> Cells<K> {
    /// Notes what one series says.
    pub fn note(&mut self, key: K, value: f64, order: Order) {
        let new = Cell::new(value, order);
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, cell)) => cell.merge(new),
            None => self.0.push((key, new)),
        }
    }

    /// The number, if it can be believed.
    pub fn get(&self, key: K) -> Option<f64> {
        self.cell(key)?.value
    }

    /// The number for a sheet to note: NaN if it cannot be believed, `None` if it is not told.
    pub fn told(&self, key: K) -> Option<f64> {
        Some(self.cell(key)?.value.unwrap_or(f64::NAN))
    }

    fn cell(&self, key: K) -> Option<&Cell> {
        self.0.iter().find(|(known, _)| *known == key).map(|(_, cell)| cell)
    }

    /// What is told and cannot be believed.
    fn disbelieved(&self) -> impl Iterator<Item = K> {
        self.0.iter().filter(|(_, cell)| cell.value.is_none()).map(|(key, _)| *key)
    }
}

impl Cells<Load> {
    /// KV blocks there are; a zero stands there while the engine sizes its cache.
    fn blocks(&self) -> Option<f64> {
        self.get(Load::KvTotal).filter(|total| *total > 0.0)
    }
}

impl<K> Default for Cells<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl Cell {
    fn new(value: f64, order: Order) -> Self {
        Self { order, value: Some(value).filter(|value| value.is_finite() && *value >= 0.0) }
    }

    fn merge(&mut self, new: Self) {
        if new.order < self.order {
            *self = new;
        } else if new.order == self.order && new.value != self.value {
            self.value = None;
        }
    }
}

/// The sum of a counter over its series, such as those of different outcomes, by their labels.
#[derive(Debug, Default)]
pub struct Sum<'a>(BTreeMap<&'a str, Cell>);

impl<'a> Sum<'a> {
    /// Adds a series.
    pub fn note(&mut self, sample: &'a Sample) {
        let new = Cell::new(sample.value, Order::default());
        self.0.entry(sample.labels()).and_modify(|cell| cell.merge(new)).or_insert(new);
    }

    /// The sum for a sheet to note: NaN when one of them cannot be believed, `None` without a series.
    pub fn total(&self) -> Option<f64> {
        let values = self.0.values().map(|cell| cell.value.unwrap_or(f64::NAN));
        values.reduce(|sum, value| sum + value)
    }
}

/// The number that stands in a label, as settings do; `None` for `None` and the like.
pub fn number_in(sample: &Sample, label: &str) -> Option<f64> {
    sample.label(label)?.parse().ok()
}

/// The number of the rank that a sample tells of; 0 without the label, `None` when the label is no number.
pub fn rank_of(sample: &Sample, label: &str) -> Option<u32> {
    sample.label(label).map_or(Some(0), |rank| rank.parse().ok())
}

fn report(rank: u32, cells: &Cells<Load>) -> RankReport {
    let get = |load| cells.get(load);
    let whole = |load| get(load).map(count);
    let total = cells.blocks().map(count).and_then(above_zero);
    let share = get(Load::KvShare);
    let told = whole(Load::KvUsed).filter(|used| total.is_none_or(|total| *used <= total));
    // An engine that tells both tells the blocks exactly.
    let used = told.or_else(|| Some(count(share? * total? as f64)));
    RankReport {
        rank,
        kv_used_blocks: used,
        kv_total_blocks: total,
        kv_used_share: share.filter(|_| used.is_none() || total.is_none()),
        active_decode_blocks: whole(Load::ActiveDecodeBlocks),
        running: whole(Load::Running),
        waiting: whole(Load::Waiting),
        prefill_tokens: whole(Load::PrefillTokens).or_else(|| waiting_tokens(get)),
    }
}

/// Prompt tokens of the requests that wait, where an engine tells only how long prompts are on average. Nothing is known by that
/// while none waits: those that are read already are not among them.
fn waiting_tokens(get: impl Fn(Load) -> Option<f64>) -> Option<u64> {
    let prompts = get(Load::Prompts).filter(|prompts| *prompts > 0.0)?;
    let waiting = get(Load::Waiting).filter(|waiting| *waiting > 0.0)?;
    let tokens = waiting * get(Load::PromptTokens)? / prompts;
    Some(tokens).filter(|tokens| *tokens < BEYOND_REASON).map(count)
}

/// A share of at most 1; `None` for what is none, such as a percentage.
pub fn as_share(value: f64) -> Option<f64> {
    (value <= 1.0 + ROUNDING).then(|| value.min(1.0))
}

fn count(value: f64) -> u64 {
    value.round() as u64
}

/// No engine works with none of it: a zero is what stands there before the number is known.
fn above_zero(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Page;

    fn only(notes: &[(Load, f64)]) -> RankReport {
        let mut sheet = Sheet::default();
        for (load, value) in [(Load::Running, 1.0)].iter().chain(notes) {
            sheet.note(0, *load, *value).unwrap();
        }
        sheet.reports().unwrap().remove(0)
    }

    #[test]
    fn what_is_told_twice_counts_only_when_it_is_the_same() {
        assert_eq!(only(&[(Load::Waiting, 3.0), (Load::Waiting, 3.0)]).waiting, Some(3));
        assert_eq!(only(&[(Load::Waiting, 3.0), (Load::Waiting, 4.0)]).waiting, None);
        assert_eq!(only(&[(Load::Waiting, 3.0), (Load::Waiting, f64::NAN), (Load::Waiting, 3.0)]).waiting, None);
    }

    #[test]
    fn what_cannot_be_believed_is_named_once() {
        let mut sheet = Sheet::default();
        for rank in 0..2 {
            sheet.note(rank, Load::Running, f64::NAN).unwrap();
            sheet.note(rank, Load::Waiting, 2.0).unwrap();
            sheet.note(rank, Load::KvTotal, 0.0).unwrap();
            sheet.note(rank, Load::KvUsed, 3.0).unwrap();
        }
        assert_eq!(sheet.doubts(), ["running"], "a total of zero is not known yet, and nothing exceeds it");
        sheet.note(2, Load::KvTotal, 2.0).unwrap();
        sheet.note(2, Load::KvUsed, 3.0).unwrap();
        sheet.note(2, Load::KvShare, 93.0).unwrap();
        sheet.note(1, Load::Waiting, 3.0).unwrap();
        sheet.limit(Limit::BlockSize, -16.0);
        sheet.limit(Limit::MaxNumSeqs, 0.0);
        assert_eq!(sheet.doubts(), ["block_size", "kv_used_blocks", "kv_used_share", "running", "waiting"]);
    }

    #[test]
    fn a_sum_is_as_doubtful_as_its_parts() {
        let page = "a{x=\"1\"} 2\na{x=\"2\"} 3\nb{x=\"1\"} 2\nb{x=\"2\"} NaN\n";
        let total = |name: &'static str| {
            let mut sum = Sum::default();
            let page = Page::of(page, |known| known == name.as_bytes());
            page.samples(Some).for_each(|(_, sample)| sum.note(sample));
            sum.total()
        };
        assert_eq!((total("a"), total("c")), (Some(5.0), None));
        assert!(total("b").is_some_and(f64::is_nan));
    }

    #[test]
    fn of_series_in_an_order_the_first_is_taken() {
        let mut sheet = Sheet::default();
        for (value, order) in [(4.0, [0, 2, 0]), (7.0, [0, 1, 0]), (9.0, [1, 0, 0]), (7.0, [0, 1, 0])] {
            sheet.note_ordered(0, Load::Running, value, order).unwrap();
        }
        assert_eq!(sheet.reports().unwrap()[0].running, Some(7));
    }

    #[test]
    fn what_no_worker_can_have_is_unknown() {
        for absurd in [f64::NAN, f64::INFINITY, -1.0, 9_223_372_036_854_775_794.0, 1e300] {
            let report = only(&[(Load::Waiting, absurd), (Load::KvShare, absurd), (Load::KvTotal, absurd)]);
            assert_eq!((report.waiting, report.kv_used_share, report.kv_total_blocks), (None, None, None), "{absurd}");
        }
        assert_eq!(only(&[(Load::KvTotal, 0.0)]).kv_total_blocks, None, "still being sized");
        let mut sheet = Sheet::default();
        sheet.limit(Limit::BlockSize, 0.0);
        sheet.limit(Limit::MaxModelLen, 1e19);
        sheet.limit(Limit::MaxNumSeqs, 64.0);
        assert_eq!(sheet.limits(), Limits { max_num_seqs: Some(64), ..Limits::default() });
    }

    #[test]
    fn shares_and_blocks_complete_each_other() {
        let kv = |notes: &[(Load, f64)]| {
            let report = only(notes);
            (report.kv_used_blocks, report.kv_total_blocks, report.kv_used_share)
        };
        assert_eq!(kv(&[(Load::KvShare, 0.26), (Load::KvTotal, 100.0)]), (Some(26), Some(100), None));
        assert_eq!(kv(&[(Load::KvShare, 0.26)]), (None, None, Some(0.26)));
        assert_eq!(kv(&[(Load::KvShare, 0.9), (Load::KvUsed, 5.0), (Load::KvTotal, 10.0)]), (Some(5), Some(10), None));
        assert_eq!(kv(&[(Load::KvUsed, 5.0)]), (Some(5), None, None));
        assert_eq!(kv(&[(Load::KvUsed, 11.0), (Load::KvTotal, 10.0)]), (None, Some(10), None), "more than there are");
        assert_eq!(kv(&[(Load::KvShare, 1.004)]), (None, None, Some(1.0)), "rounding");
        assert_eq!(kv(&[(Load::KvShare, 87.0), (Load::KvTotal, 10.0)]), (None, Some(10), None), "a percentage");
    }

    #[test]
    fn prefill_is_told_or_worked_out_from_the_mean_prompt() {
        let mean = [(Load::Waiting, 3.0), (Load::PromptTokens, 1_000.0), (Load::Prompts, 8.0)];
        assert_eq!(only(&mean).prefill_tokens, Some(375), "3 × 1,000 ÷ 8");
        assert_eq!(only(&[mean.as_slice(), &[(Load::PrefillTokens, 7.0)]].concat()).prefill_tokens, Some(7));
        assert_eq!(only(&[(Load::Waiting, 3.0), (Load::PromptTokens, 0.0), (Load::Prompts, 0.0)]).prefill_tokens, None);
        let none_waits = [(Load::Waiting, 0.0), (Load::PromptTokens, 1_000.0), (Load::Prompts, 8.0)];
        assert_eq!(only(&none_waits).prefill_tokens, None, "some may be read");
    }

    #[test]
    fn a_rank_too_many_is_an_error_and_no_load_is_one() {
        let mut sheet = Sheet::default();
        assert_eq!(sheet.reports(), Err(PageError::NoLoad));
        for rank in 0..256 {
            sheet.note(rank, Load::KvTotal, 1.0).unwrap();
        }
        sheet.declare(7).unwrap();
        assert_eq!(sheet.declare(256), Err(PageError::TooManyRanks));
        assert_eq!(sheet.reports(), Err(PageError::NoLoad), "a size is no load");
        sheet.note(3, Load::Waiting, 0.0).unwrap();
        assert_eq!(sheet.reports().unwrap().len(), 256);
    }
}
