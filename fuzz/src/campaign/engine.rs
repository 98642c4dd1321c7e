//! libFuzzer's program, and what it prints.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Target;

/// Longest one input may take, in seconds, and most memory, in MB; either counts as a broken property.
const LIMITS: [&str; 2] = ["-timeout=20", "-rss_limit_mb=2048"];

/// Limit of the time for making one input shorter.
const SHORTENING: &str = "-max_total_time=30";

/// Outcome of a run.
#[derive(Debug)]
pub struct Run {
    /// Status at the end of the run.
    pub status: Status,
    /// Inputs found that reach something new.
    pub new: u64,
    /// Peak of resident memory, in MB.
    pub peak_mb: u64,
    /// Duration of the run, in seconds.
    pub seconds: f64,
    /// An input on which a property does not hold.
    pub crash: Option<PathBuf>,
}

/// Progress as libFuzzer prints it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Inputs tried.
    pub executions: u64,
    /// Edges of the code that some input reaches.
    pub edges: u64,
    /// Edges, each counted once for every range of how often an input takes it.
    pub features: u64,
    /// Inputs kept.
    pub corpus: u64,
}

impl Status {
    /// Reads a line such as `#512 pulse  cov: 812 ft: 1043 corp: 97/11Kb lim: 4096 exec/s: 256 rss: 61Mb`.
    fn parse(line: &str) -> Option<Self> {
        let executions = line.strip_prefix('#')?.split_ascii_whitespace().next()?.parse().ok()?;
        let after = |name: &str| {
            let digits = line.split_once(name)?.1.trim_start();
            digits.split(|sign: char| !sign.is_ascii_digit()).next()?.parse().ok()
        };
        Some(Self { executions, edges: after(" cov:")?, features: after(" ft:")?, corpus: after(" corp:")? })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { executions, edges, features, corpus } = self;
        write!(out, "{executions} executions, {edges} edges, {features} features, {corpus} inputs")
    }
}

/// Stops a program that is left behind by an error.
struct Stopped(Child);

impl Drop for Stopped {
    fn drop(&mut self) {
        // It has ended already where nothing went wrong.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a target for a time or until a property does not hold.
///
/// # Errors
/// The program cannot be started, or ends otherwise.
pub fn run(program: &Path, target: &Target, time: Duration, mut progress: impl FnMut(&Status)) -> Result<Run> {
    let mut command = target.program(program);
    command.arg(&target.working).args(&target.more).args(LIMITS);
    command
        .args([format!("-max_total_time={}", time.as_secs().max(1)), format!("-dict={}", target.dictionary.display())]);
    command.args([format!("-artifact_prefix={}/", target.crashes.display()), "-print_final_stats=1".to_owned()]);
    let start = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = Stopped(child.with_context(|| format!("cannot start {}", program.display()))?);
    let mut run = Run { status: Status::default(), new: 0, peak_mb: 0, seconds: 0.0, crash: None };
    let mut last = Vec::new();
    for line in BufReader::new(child.0.stderr.take().context("no standard error")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        if let Some(status) = Status::parse(&line) {
            run.status = status;
            progress(&status);
            continue;
        }
        let number = |name: &str| line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
        run.new = number("stat::new_units_added:").unwrap_or(run.new);
        run.peak_mb = number("stat::peak_rss_mb:").unwrap_or(run.peak_mb);
        run.status.executions = number("stat::number_of_executed_units:").unwrap_or(run.status.executions);
        if let Some((_, path)) = line.split_once("Test unit written to ") {
            run.crash = Some(PathBuf::from(path));
        }
        last.push(line);
    }
    let status = child.0.wait()?;
    run.seconds = start.elapsed().as_secs_f64();
    if run.crash.is_some() {
        last.iter()
            .take_while(|line| !line.starts_with("stack backtrace"))
            .skip_while(|line| !line.contains("panicked"))
            .for_each(|line| println!("    {line}"));
    } else if !status.success() {
        bail!("libFuzzer ended with {status}:\n{}", last.join("\n"));
    }
    Ok(run)
}

/// A shorter input on which a property does not hold, or the same where none was found.
///
/// # Errors
/// The program cannot be run.
pub fn shortened(program: &Path, target: &Target, crash: &Path) -> Result<PathBuf> {
    let short = target.crashes.join(format!("short-{}", crash.file_name().unwrap_or_default().to_string_lossy()));
    let mut command = target.program(program);
    command
        .arg("-minimize_crash=1")
        .arg(SHORTENING)
        .arg(format!("-exact_artifact_path={}", short.display()))
        .arg(crash);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().context("cannot shorten it")?;
    Ok(if short.exists() { short } else { crash.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::Status;

    #[test]
    fn progress_is_read_and_other_lines_are_not() {
        let line = "#512\tpulse  cov: 812 ft: 1043 corp: 97/11Kb lim: 4096 exec/s: 256 rss: 61Mb";
        let expected = Status { executions: 512, edges: 812, features: 1_043, corpus: 97 };
        assert_eq!(Status::parse(line), Some(expected));
        assert_eq!(
            Status::parse("#66\tNEW    cov: 9 ft: 9 corp: 2/5b"),
            Some(Status { executions: 66, edges: 9, features: 9, corpus: 2 })
        );
        for other in ["INFO: seed corpus: files: 3", "#0\tREAD units: 5", "stat::peak_rss_mb: 61", ""] {
            assert_eq!(Status::parse(other), None, "{other}");
        }
    }
}
