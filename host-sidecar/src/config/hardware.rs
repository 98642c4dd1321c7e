//! `hardware`: how often GPUs are looked at, and whether those of this machine are.

use std::time::Duration;

use serde::Deserialize;

use super::checks::{Errors, join};
use super::raw::{Part, Unknown};

#[derive(Debug, Default, Deserialize)]
pub struct Raw {
    nvml: Option<Part<bool>>,
    interval: Option<Part<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// How GPUs are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hardware {
    /// Whether the GPUs of the machine that the sidecar runs on are read through NVIDIA's library.
    pub nvml: bool,
    /// From one look to the next, of the library and of every worker's `hardware_url`; neither zero nor longer than a day.
    pub interval: Duration,
}

impl Default for Hardware {
    fn default() -> Self {
        // GPUs tell their load over a second or so; faster looks say nothing new.
        Self { nvml: false, interval: Duration::from_secs(5) }
    }
}

/// The meaning of what is written.
pub fn check(errors: &mut Errors, path: &str, part: Option<Part<Raw>>) -> Hardware {
    let raw = errors.take(path, part).unwrap_or_default();
    errors.unknown(path, &raw.unknown);
    let default = Hardware::default();
    Hardware {
        nvml: errors.take(&join(path, "nvml"), raw.nvml).unwrap_or(default.nvml),
        interval: errors.duration(&join(path, "interval"), raw.interval, default.interval),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn parse(hardware: &str, worker: &str) -> Result<Config, Vec<String>> {
        let text = format!(
            "proxies: [{{url: 'http://p:1', token: t}}]\n{hardware}\npools: [{{name: a, workers: [{{address: 'w:1'{worker}}}]}}]\n"
        );
        Config::parse(&text).map_err(|errors| errors.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn nothing_is_looked_at_unless_it_is_said() {
        let config = parse("", "").unwrap();
        assert_eq!(config.hardware, Hardware { nvml: false, interval: Duration::from_secs(5) });
        assert_eq!(config.pools[0].workers[0].hardware_url, None);
    }

    #[test]
    fn every_field_is_read() {
        let config =
            parse("hardware: {nvml: true, interval: 2s}", ", hardware_url: 'http://node-7:9400/metrics'").unwrap();
        assert_eq!(config.hardware, Hardware { nvml: true, interval: Duration::from_secs(2) });
        assert_eq!(config.pools[0].workers[0].hardware_url.as_deref(), Some("http://node-7:9400/metrics"));
    }

    #[test]
    fn every_mistake_is_reported() {
        let found = parse("hardware: {nvml: 1, interval: 0s, dcgm: x}", ", hardware_url: 'ftp://node-7/'").unwrap_err();
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("hardware.dcgm: no such field"), "{found:#?}");
        assert!(found[1].starts_with("hardware.nvml: invalid type"), "{found:#?}");
        assert!(found[2].starts_with("hardware.interval: must be longer than zero"), "{found:#?}");
        assert!(found[3].starts_with("pools[0].workers[0].hardware_url: \"ftp://"), "{found:#?}");
    }
}
