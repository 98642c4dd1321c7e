//! Real tokenizers, which only count here.

use std::path::Path;

use admission_core::family::Family;
use anyhow::{Result, anyhow};
use tiktoken_rs::CoreBPE;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainerBuilder};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use crate::texts::Text;

/// How Llama 3 splits text before it merges.
const LLAMA_SPLIT: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Entries of the vocabulary that is trained here: as many as the texts give sense to.
const TRAINED_ENTRIES: usize = 16_000;

/// A tokenizer, and the name of a model that is estimated as if it used it.
pub struct Counter {
    /// As it is called in tables.
    pub name: &'static str,
    /// The model's name, which tells its family.
    pub model: &'static str,
    with: With,
}

enum With {
    OpenAi(Box<CoreBPE>),
    HuggingFace(Box<Tokenizer>),
}

/// Those that are measured with; one is trained on texts that are not tested.
///
/// # Errors
/// A vocabulary cannot be read or trained.
pub fn all(fitting: &[Text]) -> Result<[Counter; 3]> {
    let (cl100k, o200k) = openai()?;
    let trained = Counter { name: "trained", model: "tinyllama-of-these-texts", with: trained(fitting)? };
    Ok([cl100k, o200k, trained])
}

/// The vocabularies of OpenAI.
///
/// # Errors
/// They cannot be read.
pub fn openai() -> Result<(Counter, Counter)> {
    let of = |name, model, bpe: CoreBPE| Counter { name, model, with: With::OpenAi(Box::new(bpe)) };
    Ok((of("cl100k", "gpt-4", tiktoken_rs::cl100k_base()?), of("o200k", "gpt-4o", tiktoken_rs::o200k_base()?)))
}

/// From a `tokenizer.json`, for a family.
///
/// # Errors
/// It cannot be read.
pub fn from_file(family: Family, path: &Path) -> Result<Counter> {
    let tokenizer = Tokenizer::from_file(path).map_err(|error| anyhow!("{}: {error}", path.display()))?;
    Ok(Counter { name: family.label(), model: "", with: With::HuggingFace(Box::new(tokenizer)) })
}

/// A byte-level BPE in the manner of Llama 3, small.
fn trained(texts: &[Text]) -> Result<With> {
    let train = || {
        let split = Split::new(SplitPattern::Regex(LLAMA_SPLIT.to_owned()), SplitDelimiterBehavior::Isolated, false)?;
        let bytes = ByteLevel::new(false, false, false);
        let mut tokenizer = Tokenizer::new(BPE::default());
        tokenizer.with_pre_tokenizer(Some(Sequence::new(vec![split.into(), bytes.into()])));
        let trainer = BpeTrainerBuilder::new()
            .vocab_size(TRAINED_ENTRIES)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        tokenizer.train(&mut TrainerWrapper::BpeTrainer(trainer), texts.iter().map(Text::whole))?;
        Ok(tokenizer)
    };
    let tokenizer = train().map_err(|error: tokenizers::Error| anyhow!("cannot train a tokenizer: {error}"))?;
    Ok(With::HuggingFace(Box::new(tokenizer)))
}

impl Counter {
    /// Tokens of a text.
    ///
    /// # Errors
    /// The tokenizer refuses the text.
    pub fn count(&self, text: &str) -> Result<u64> {
        match &self.with {
            With::OpenAi(bpe) => Ok(bpe.encode_ordinary(text).len() as u64),
            With::HuggingFace(tokenizer) => {
                let encoding = tokenizer.encode_fast(text, false).map_err(|error| anyhow!("{error}"))?;
                Ok(encoding.len() as u64)
            }
        }
    }
}
