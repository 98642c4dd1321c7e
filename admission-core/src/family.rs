//! Families of tokenizers, by the names of models.

use serde::{Deserialize, Serialize};

/// Tokenizers alike enough to share their first weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// OpenAI's 200,000 entries: GPT-4o and later, gpt-oss.
    O200k,
    /// OpenAI's 100,000 entries: GPT-4, GPT-3.5, Phi-4.
    Cl100k,
    /// Llama 3 and 4 and what is made from them: 128,000 entries.
    Llama3,
    /// Qwen, and GLM and Kimi, whose vocabularies are made for Chinese and English too.
    Qwen,
    /// DeepSeek: 129,000 entries.
    DeepSeek,
    /// Gemma: 256,000 entries.
    Gemma,
    /// 32,000 entries: Llama 2, the first Mistrals and Mixtrals, Phi-3.
    Small,
    /// Any other.
    Generic,
}

/// Families by parts of names, in lower case; the first that fits counts.
const NAMES: [(&str, Family); 47] = [
    ("distill-qwen", Family::Qwen),
    ("distill-llama", Family::Llama3),
    ("gpt-oss", Family::O200k),
    ("gpt-4o", Family::O200k),
    ("gpt-4.1", Family::O200k),
    ("gpt-4.5", Family::O200k),
    ("gpt-5", Family::O200k),
    ("chatgpt", Family::O200k),
    ("gpt-4", Family::Cl100k),
    ("gpt-3.5", Family::Cl100k),
    ("gpt-35", Family::Cl100k),
    ("text-embedding", Family::Cl100k),
    ("phi-4-mini", Family::O200k),
    ("phi-4", Family::Cl100k),
    ("phi-3", Family::Small),
    ("deepseek", Family::DeepSeek),
    ("qwen", Family::Qwen),
    ("qwq", Family::Qwen),
    ("qvq", Family::Qwen),
    ("glm-4", Family::Qwen),
    ("glm-5", Family::Qwen),
    ("kimi", Family::Qwen),
    ("moonshot", Family::Qwen),
    ("gemma", Family::Gemma),
    ("gemini", Family::Gemma),
    ("codellama", Family::Small),
    ("tinyllama", Family::Small),
    ("llama-2", Family::Small),
    ("llama2", Family::Small),
    ("vicuna", Family::Small),
    ("zephyr", Family::Small),
    ("mistral-7b", Family::Small),
    ("mixtral", Family::Small),
    ("mistral-nemo", Family::Llama3),
    ("mistral", Family::Llama3),
    ("ministral", Family::Llama3),
    ("magistral", Family::Llama3),
    ("devstral", Family::Llama3),
    ("codestral", Family::Small),
    ("pixtral", Family::Llama3),
    ("llama-3", Family::Llama3),
    ("llama3", Family::Llama3),
    ("llama-4", Family::Llama3),
    ("llama4", Family::Llama3),
    ("nemotron", Family::Llama3),
    ("hermes-3", Family::Llama3),
    ("llama", Family::Llama3),
];

/// Models of OpenAI that are named by a letter and a digit.
const O_SERIES: [&str; 3] = ["o1", "o3", "o4"];

impl Family {
    /// Every family.
    pub const ALL: [Self; 8] =
        [Self::O200k, Self::Cl100k, Self::Llama3, Self::Qwen, Self::DeepSeek, Self::Gemma, Self::Small, Self::Generic];

    /// Family of a model by its name, whatever organisation is named before it.
    ///
    /// ```
    /// use admission_core::family::Family;
    ///
    /// assert_eq!(Family::of_model("meta-llama/Llama-3.3-70B-Instruct"), Family::Llama3);
    /// assert_eq!(Family::of_model("deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"), Family::Qwen);
    /// assert_eq!(Family::of_model("o3-mini"), Family::O200k);
    /// assert_eq!(Family::of_model("my-own"), Family::Generic);
    /// ```
    #[must_use]
    pub fn of_model(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let name = name.rsplit('/').next().unwrap_or_default();
        let series = name.split('-').next().unwrap_or_default();
        if O_SERIES.contains(&series) {
            return Self::O200k;
        }
        NAMES.iter().find(|(part, _)| name.contains(part)).map_or(Self::Generic, |(_, family)| *family)
    }

    /// Name of the family in tables.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::O200k => "o200k",
            Self::Cl100k => "cl100k",
            Self::Llama3 => "llama3",
            Self::Qwen => "qwen",
            Self::DeepSeek => "deepseek",
            Self::Gemma => "gemma",
            Self::Small => "small",
            Self::Generic => "generic",
        }
    }
}
