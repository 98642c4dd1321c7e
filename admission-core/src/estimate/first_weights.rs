//! Weights of each family of tokenizers before any answer was seen.

use super::weights::Weights;
use crate::family::Family;

impl Family {
    /// Weights of the family before anything was learned, fitted by `cargo xtask bench estimate --fit`.
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
