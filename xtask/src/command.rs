//! Running other programs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Cargo, the one that runs us, held to `Cargo.lock`: a subcommand and what it is given.
pub fn cargo<S: AsRef<OsStr>>(subcommand: &str, arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = unlocked_cargo([subcommand, "--locked"]);
    command.args(arguments);
    command
}

/// Cargo for what is none of this workspace's packages, so not in its `Cargo.lock` either.
pub fn unlocked_cargo<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

/// Says what is run and runs it, its output shown.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    run_to(command, &[0])
}

/// The same where it may end with any of some statuses.
///
/// # Errors
/// When it cannot be started or ends with another.
pub fn run_to(command: &mut Command, statuses: &[i32]) -> Result<()> {
    let line = line(command);
    println!("    $ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{line}`"))?;
    if !status.code().is_some_and(|code| statuses.contains(&code)) {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// Like [`run`], and returns the lines of standard output, which are shown as they come.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn run_reading(command: &mut Command) -> Result<Vec<String>> {
    let line = line(command);
    println!("    $ {line}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{line}`"))?;
    let mut lines = Vec::new();
    for printed in BufReader::new(child.stdout.take().context("no standard output")?).lines() {
        let printed = printed.with_context(|| format!("cannot read what `{line}` prints"))?;
        println!("{printed}");
        lines.push(printed);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(lines)
}

/// What a program prints; nothing of it is shown unless it fails.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn output(command: &mut Command) -> Result<String> {
    let line = line(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{line}`"))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        bail!("`{line}` ended with {}:\n{stdout}{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(stdout.into_owned())
}

fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
