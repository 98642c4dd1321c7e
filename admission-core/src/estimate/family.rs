//! What is known of a model's tokenizer before any of its answers was seen: weights by family, by the model's name.

use serde::{Deserialize, Serialize};

use super::weights::Weights;

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

/// Which family a name tells, the first that fits; names are compared in lower case.
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
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::O200k, Self::Cl100k, Self::Llama3, Self::Qwen, Self::DeepSeek, Self::Gemma, Self::Small, Self::Generic];

    /// By the model's name, whatever organisation stands before it.
    ///
    /// ```
    /// use admission_core::estimate::Family;
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

    /// As it is called in tables.
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

    /// Its weights before anything was learned, fitted by `cargo xtask bench estimate --fit`.
    #[must_use]
    pub const fn weights(self) -> &'static Weights {
        match self {
            Self::O200k => &O200K,
            Self::Cl100k => &CL100K,
            Self::Llama3 => &LLAMA3,
            Self::Qwen => &QWEN,
            Self::DeepSeek => &DEEPSEEK,
            Self::Gemma => &GEMMA,
            Self::Small => &SMALL,
            Self::Generic => &GENERIC,
        }
    }
}

const O200K: Weights = Weights::per_mille([
    994, 1_134, 100, 667, 1_253, 100, 718, 50, 796, 736, 226, 158, 998, 250, 355, 333, 502, 879, 712, 1_438, 734,
    2_554, 86, 4_000, 10_000, 3_000,
]);

const CL100K: Weights = Weights::per_mille([
    1_007, 1_368, 100, 687, 1_242, 100, 688, 50, 667, 728, 243, 161, 1_957, 352, 656, 1_001, 889, 1_110, 1_059, 2_064,
    1_039, 2_447, 873, 4_000, 10_000, 3_000,
]);

const LLAMA3: Weights = Weights::per_mille([
    1_006, 1_362, 100, 685, 1_241, 100, 690, 50, 687, 780, 182, 244, 2_455, 250, 379, 555, 869, 644, 734, 1_568, 661,
    2_790, 333, 5_000, 10_000, 5_000,
]);

const QWEN: Weights = Weights::per_mille([
    1_007, 880, 100, 667, 999, 702, 682, 50, 726, 787, 165, 248, 2_449, 250, 327, 1_027, 400, 705, 515, 1_658, 646,
    2_160, 507, 5_000, 10_000, 3_000,
]);

const DEEPSEEK: Weights = Weights::per_mille([
    1_010, 1_438, 100, 413, 1_011, 159, 852, 50, 684, 914, 93, 357, 1_828, 250, 385, 603, 576, 697, 464, 1_435, 776,
    2_610, 227, 2_000, 10_000, 2_000,
]);

const GEMMA: Weights = Weights::per_mille([
    976, 965, 100, 224, 536, 816, 1_022, 50, 391, 1_082, 538, 10, 1_063, 250, 408, 341, 400, 485, 617, 1_177, 781,
    1_764, 10, 5_000, 10_000, 5_000,
]);

const SMALL: Weights = Weights::per_mille([
    1_056, 1_633, 100, 93, 926, 641, 1_089, 50, 647, 1_208, 532, 382, 2_207, 250, 913, 1_070, 1_070, 1_183, 971, 1_905,
    1_132, 3_058, 856, 4_000, 10_000, 3_000,
]);

const GENERIC: Weights = Weights::per_mille([
    1_000, 1_076, 100, 572, 1_148, 303, 777, 50, 680, 765, 338, 64, 1_872, 250, 377, 393, 400, 664, 616, 1_166, 735,
    2_340, 262, 4_000, 10_000, 3_000,
]);
