//! What a worker is told at its start: the flags of the program and the argument of the library.

use std::fmt;
use std::net::IpAddr;

use clap::{Parser, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cost::StepCost;
use crate::engine::Limits;

/// The settings of one worker. [`Config::default`] equals the program's flags left out.
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(name = "worker-sim", version, about = "A GPU inference worker without a GPU")]
pub struct Config {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
    /// Name of the one model served.
    #[arg(long, default_value = "sim")]
    pub model: String,
    /// Most sequences in one engine's batch.
    #[arg(long, default_value_t = 64)]
    pub max_num_seqs: u32,
    /// KV blocks of one engine, the one reserved as the null block included.
    #[arg(long, default_value_t = 4096)]
    pub num_gpu_blocks: u32,
    /// Tokens in a KV block.
    #[arg(long, default_value_t = 16)]
    pub block_size: u32,
    /// Most tokens computed in one step: decodes first, then prompt chunks.
    #[arg(long, default_value_t = 2048)]
    pub max_num_batched_tokens: u32,
    /// Most tokens of prompt and output together.
    #[arg(long, default_value_t = 8192)]
    pub max_model_len: u32,
    /// Milliseconds every step takes.
    #[arg(long, default_value_t = 8.0)]
    pub base_ms: f64,
    /// Microseconds for every prompt token computed in a step.
    #[arg(long, default_value_t = 50.0)]
    pub per_prefill_token_us: f64,
    /// Microseconds for every sequence decoding in a step.
    #[arg(long, default_value_t = 50.0)]
    pub per_sequence_us: f64,
    /// Microseconds for every KV block that the decoding sequences of a step hold.
    #[arg(long, default_value_t = 0.5)]
    pub per_kv_block_us: f64,
    /// Part of a step's time by which it is longer or shorter, every value up to it equally likely. Without any, workers
    /// under the same load fall into step with each other, as no two machines do.
    #[arg(long, default_value_t = 0.0)]
    pub step_jitter: f64,
    /// Divides every step's time: 10 runs ten times as fast.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// Data-parallel engines behind this one server; each has its own batch and KV blocks.
    #[arg(long, default_value_t = 1)]
    pub data_parallel_size: u32,
    /// Share of every prompt that is said to have come from the prefix cache; it is computed all the same.
    #[arg(long, default_value_t = 0.0)]
    pub cached_share: f64,
    /// Tokens after which answers end by themselves, taken in turn by request (repeatable, or a comma list). Without any, an
    /// answer is as long as it may be.
    #[arg(long, value_delimiter = ',')]
    pub answer_tokens: Vec<u32>,
    /// What goes wrong from the start (repeatable, or a comma list).
    #[arg(long = "fault", value_enum, value_delimiter = ',')]
    pub faults: Vec<Fault>,
}

/// Something that goes wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// Inference requests are taken and never answered.
    Hang,
    /// Inference requests are answered 503.
    Refuse503,
    /// Inference requests are answered 429.
    Refuse429,
    /// Inference requests are answered 529, as Dynamo's frontends do from 1.3 on.
    Refuse529,
    /// Embeddings, and answers with `logprobs`, are answered 503, as by an engine that was started without them.
    SwitchedOff,
    /// The metrics page is megabytes of binary nonsense.
    GarbageMetrics,
    /// The metrics page is never answered.
    HangMetrics,
    /// The metrics page does not report the size of the KV cache.
    NoCacheSize,
    /// Answers do not tell their usage.
    NoUsage,
    /// Answers tell that their usage is null.
    NullUsage,
    /// Answers tell numbers that cannot be.
    AbsurdUsage,
    /// Chunks of a stream of chat completions or completions tell the usage so far of the one answer that they are of, asked for it
    /// or not; and every stream tells its usage twice at its end.
    RepeatedUsage,
    /// Chunks of a stream that is to tell its usage say that it is null until they do, as OpenAI's own say.
    NullsBetween,
    /// Engines take ten times as long for every step.
    Slow,
    /// Streams are answered 200, and hold nothing but an error.
    ErrorInStream,
    /// Streams break off after half of their tokens, other answers after half of their body.
    Truncate,
}

/// A setting that no worker can run with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The flag, as it is written on the command line.
    pub flag: &'static str,
    /// What it must be.
    pub must: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must be {}", self.flag, self.must)
    }
}

impl std::error::Error for ConfigError {}

impl Default for Config {
    fn default() -> Self {
        // The flags are the one list of defaults.
        Self::parse_from(["worker-sim"])
    }
}

impl Config {
    /// Checks that an engine with these settings makes progress.
    ///
    /// # Errors
    /// The first flag found with a value that no worker can run with.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let not_negative = |value: f64| value.is_finite() && value >= 0.0;
        let rules = [
            ("--max-num-seqs", "at least 1", self.max_num_seqs >= 1),
            ("--num-gpu-blocks", "at least 2, for one is reserved", self.num_gpu_blocks >= 2),
            ("--block-size", "at least 1", self.block_size >= 1),
            ("--max-num-batched-tokens", "at least --max-num-seqs", self.max_num_batched_tokens >= self.max_num_seqs),
            ("--max-model-len", "at least 2", self.max_model_len >= 2),
            ("--data-parallel-size", "from 1 to 256", (1..=256).contains(&self.data_parallel_size)),
            ("--base-ms", "a number, not negative", not_negative(self.base_ms)),
            ("--per-prefill-token-us", "a number, not negative", not_negative(self.per_prefill_token_us)),
            ("--per-sequence-us", "a number, not negative", not_negative(self.per_sequence_us)),
            ("--per-kv-block-us", "a number, not negative", not_negative(self.per_kv_block_us)),
            ("--step-jitter", "from 0 to 1", (0.0..=1.0).contains(&self.step_jitter)),
            ("--cached-share", "from 0 to 1", (0.0..=1.0).contains(&self.cached_share)),
            ("--answer-tokens", "at least 1 each", !self.answer_tokens.contains(&0)),
            ("--speed", "a number above 0", self.speed.is_finite() && self.speed > 0.0),
        ];
        match rules.into_iter().find(|(_, _, holds)| !holds) {
            Some((flag, must, _)) => Err(ConfigError { flag, must }),
            None => Ok(()),
        }
    }

    /// The limits of one engine.
    pub fn limits(&self) -> Limits {
        Limits {
            max_num_seqs: self.max_num_seqs as usize,
            max_num_batched_tokens: self.max_num_batched_tokens,
            // vLLM keeps block 0 as a placeholder and divides its KV gauge by the rest.
            kv_blocks: self.num_gpu_blocks.saturating_sub(1),
            block_size: self.block_size,
        }
    }

    /// How long steps take, with the speed applied.
    pub fn step_cost(&self) -> StepCost {
        let micros = |us: f64| us / self.speed;
        StepCost {
            base_us: micros(self.base_ms * 1000.0),
            per_prefill_token_us: micros(self.per_prefill_token_us),
            per_sequence_us: micros(self.per_sequence_us),
            per_kv_block_us: micros(self.per_kv_block_us),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn faults_are_a_comma_list_or_repeated() {
        let config = Config::parse_from(["worker-sim", "--fault", "hang,refuse503", "--fault", "hang-metrics"]);
        assert_eq!(config.faults, [Fault::Hang, Fault::Refuse503, Fault::HangMetrics]);
    }

    #[test]
    fn a_refused_setting_names_its_flag() {
        let refused = |config: Config| config.validate().unwrap_err().flag;
        assert_eq!(refused(Config { num_gpu_blocks: 1, ..Config::default() }), "--num-gpu-blocks");
        assert_eq!(refused(Config { max_num_batched_tokens: 63, ..Config::default() }), "--max-num-batched-tokens");
        assert_eq!(refused(Config { step_jitter: 1.5, ..Config::default() }), "--step-jitter");
        assert_eq!(refused(Config { speed: 0.0, ..Config::default() }), "--speed");
        assert_eq!(refused(Config { base_ms: f64::NAN, ..Config::default() }), "--base-ms");
    }
}
