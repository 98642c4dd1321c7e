//! The metrics page: vLLM's names, texts and labels, written as Python's Prometheus client writes them.

use std::fmt::Write;

use crate::Config;
use crate::histogram::Histogram;
use crate::hub::{Record, Snapshot};

/// Bytes of the page that means nothing.
const GARBAGE_BYTES: usize = 4 << 20;
const REASONS: [&str; 5] = ["stop", "length", "abort", "error", "repetition"];

/// The page of all engines. `started` is in seconds since 1970.
pub(crate) fn render(config: &Config, started: f64, ranks: &[Snapshot]) -> String {
    let mut page = Page { text: String::new(), model: escape(&config.model), started, ranks };
    page.gauge("num_requests_running", "Number of requests in model execution batches.", |rank| rank.running as f64);
    page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", |rank| rank.waiting as f64);
    page.waiting_by_reason();
    page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", |rank| rank.kv_usage);
    let preemptions = "Cumulative number of preemption from the engine.";
    page.counter("num_preemptions", preemptions, |rank| rank.preemptions);
    page.counter("prompt_tokens", "Number of prefill tokens processed.", |rank| rank.record.prompt_tokens);
    let generated = "Number of generation tokens processed.";
    page.counter("generation_tokens", generated, |rank| rank.record.generation_tokens);
    page.request_success();
    let prompts = "Number of prefill tokens processed.";
    page.histogram("request_prompt_tokens", prompts, |record| &record.request_prompt_tokens);
    let first_token = "Histogram of time to first token in seconds.";
    page.histogram("time_to_first_token_seconds", first_token, |record| &record.first_token_seconds);
    page.cache_config(config);
    page.text
}

/// A page that no scraper can read: binary, not UTF-8, and megabytes of it after a line that begins well.
pub(crate) fn garbage() -> Vec<u8> {
    let mut page = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\xff\xfe".to_vec();
    let mut noise = vec![0; GARBAGE_BYTES];
    fastrand::Rng::with_seed(0).fill(&mut noise);
    page.extend(noise);
    page
}

struct Page<'a> {
    text: String,
    model: String,
    started: f64,
    ranks: &'a [Snapshot],
}

impl Page<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Snapshot) -> f64) {
        self.head(name, help, "gauge");
        for (engine, rank) in self.ranks.iter().enumerate() {
            self.sample(name, engine, "", value(rank));
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Snapshot) -> u64) {
        let total = format!("{name}_total");
        self.head(&total, help, "counter");
        for (engine, rank) in self.ranks.iter().enumerate() {
            self.sample(&total, engine, "", value(rank) as f64);
        }
        self.created(name, help);
    }

    fn created(&mut self, name: &str, help: &str) {
        let started = self.started;
        self.gauge(&format!("{name}_created"), help, |_| started);
    }

    fn histogram(&mut self, name: &str, help: &str, of: impl Fn(&Record) -> &Histogram) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for (engine, rank) in self.ranks.iter().enumerate() {
            let histogram = of(&rank.record);
            for (bound, count) in histogram.cumulative() {
                self.sample(&bucket, engine, &format!("le=\"{bound:?}\","), count as f64);
            }
            self.sample(&bucket, engine, "le=\"+Inf\",", histogram.count() as f64);
            self.sample(&format!("{name}_count"), engine, "", histogram.count() as f64);
            self.sample(&format!("{name}_sum"), engine, "", histogram.sum());
        }
        self.created(name, help);
    }

    fn waiting_by_reason(&mut self) {
        let name = "num_requests_waiting_by_reason";
        let help = "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; \
                    'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of \
                    all reasons equals vllm:num_requests_waiting.";
        self.head(name, help, "gauge");
        for reason in ["capacity", "deferred"] {
            for (engine, rank) in self.ranks.iter().enumerate() {
                let count = if reason == "capacity" { rank.waiting } else { 0 };
                let model = &self.model;
                let labels = format!("engine=\"{engine}\",model_name=\"{model}\",reason=\"{reason}\"");
                write(&mut self.text, format_args!("vllm:{name}{{{labels}}} {:?}\n", count as f64));
            }
        }
    }

    fn request_success(&mut self) {
        let help = "Count of successfully processed requests.";
        self.head("request_success_total", help, "counter");
        for reason in REASONS {
            for (engine, rank) in self.ranks.iter().enumerate() {
                let count = match reason {
                    "stop" => rank.record.stopped,
                    "length" => rank.record.finished - rank.record.stopped,
                    "abort" => rank.record.aborted,
                    _ => 0,
                };
                let label = format!("finished_reason=\"{reason}\",");
                self.sample("request_success_total", engine, &label, count as f64);
            }
        }
        self.head("request_success_created", help, "gauge");
        for reason in REASONS {
            for engine in 0..self.ranks.len() {
                let label = format!("finished_reason=\"{reason}\",");
                self.sample("request_success_created", engine, &label, self.started);
            }
        }
    }

    /// vLLM writes every setting of its cache as a label. `num_gpu_blocks` is the sum over all engines, on the line of
    /// each engine; `num_gpu_blocks_override` is what one engine has.
    fn cache_config(&mut self, config: &Config) {
        self.head("cache_config_info", "Information of the LLMEngine CacheConfig", "gauge");
        let (block_size, blocks) = (config.block_size, config.num_gpu_blocks);
        let all_blocks = u64::from(blocks) * u64::from(config.data_parallel_size);
        let tokens = u64::from(blocks) * u64::from(block_size);
        for engine in 0..self.ranks.len() {
            write(
                &mut self.text,
                format_args!(
                    "vllm:cache_config_info{{block_size=\"{block_size}\",cache_dtype=\"auto\",\
                     enable_prefix_caching=\"False\",engine=\"{engine}\",kv_cache_size_tokens=\"{tokens}\",\
                     num_cpu_blocks=\"None\",num_gpu_blocks=\"{all_blocks}\",\
                     num_gpu_blocks_override=\"{blocks}\"}} 1.0\n"
                ),
            );
        }
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        write(&mut self.text, format_args!("# HELP vllm:{name} {help}\n# TYPE vllm:{name} {kind}\n"));
    }

    /// One line. `more` are labels that sort between `engine` and `model_name`, each with a comma after it.
    fn sample(&mut self, name: &str, engine: usize, more: &str, value: f64) {
        let model = &self.model;
        let line = format_args!("vllm:{name}{{engine=\"{engine}\",{more}model_name=\"{model}\"}} {value:?}\n");
        write(&mut self.text, line);
    }
}

/// Writing to a string cannot fail.
fn write(text: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = text.write_fmt(line);
}

fn escape(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::Hub;

    fn page(config: &Config) -> String {
        render(config, 1795188312.9887, &Hub::new(config).snapshots())
    }

    #[test]
    fn lines_are_as_vllm_writes_them() {
        let config = Config { model: "tiny".to_owned(), max_model_len: 2048, ..Config::default() };
        let page = page(&config);
        for line in [
            "# HELP vllm:num_requests_running Number of requests in model execution batches.",
            "# TYPE vllm:num_requests_running gauge",
            "vllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0",
            "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"tiny\",reason=\"capacity\"} 0.0",
            "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"tiny\"} 0.0",
            "# TYPE vllm:num_preemptions_total counter",
            "# TYPE vllm:num_preemptions_created gauge",
            "vllm:prompt_tokens_created{engine=\"0\",model_name=\"tiny\"} 1795188312.9887",
            "vllm:request_success_total{engine=\"0\",finished_reason=\"length\",model_name=\"tiny\"} 0.0",
            "# TYPE vllm:request_prompt_tokens histogram",
            "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"2000.0\",model_name=\"tiny\"} 0.0",
            "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"+Inf\",model_name=\"tiny\"} 0.0",
            "vllm:request_prompt_tokens_sum{engine=\"0\",model_name=\"tiny\"} 0.0",
            "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"0.001\",model_name=\"tiny\"} 0.0",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn blocks_are_the_sum_over_engines_beside_those_of_one() {
        let page = page(&Config { num_gpu_blocks: 40, block_size: 128, data_parallel_size: 2, ..Config::default() });
        for engine in ["0", "1"] {
            let line = page
                .lines()
                .find(|line| {
                    line.starts_with("vllm:cache_config_info") && line.contains(&format!("engine=\"{engine}\""))
                })
                .unwrap();
            for label in ["block_size=\"128\"", "num_gpu_blocks=\"80\"", "num_gpu_blocks_override=\"40\""] {
                assert!(line.contains(label), "{label} is not in {line}");
            }
        }
    }

    #[test]
    fn a_model_name_cannot_break_a_line() {
        assert!(page(&Config { model: "a\"b\\c\n".to_owned(), ..Config::default() }).contains(r#"="a\"b\\c\n"}"#));
    }

    #[test]
    fn garbage_is_no_text() {
        assert!(String::from_utf8(garbage()).is_err());
    }
}
