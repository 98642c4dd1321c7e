//! Building the targets for libFuzzer, and running what was built.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Coverage in eight bits a place, with a table of the places, and comparisons, as libFuzzer reads them. No sanitizer of
/// memory: the targets are safe code.
const FLAGS: [&str; 8] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg",
    "fuzzing",
    "-Ccodegen-units=1",
];

/// Builds the program that libFuzzer drives, and returns its path.
///
/// # Errors
/// Cargo fails, for instance because there is no C++ compiler.
pub fn build(root: &Path) -> Result<PathBuf> {
    let host = host()?;
    let folder = root.join("target/fuzz/build");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--locked", "--package", "fuzz", "--bin", "fuzz", "--profile", "fuzz"]);
    // Why: this driver and its libraries would be built with the flags too, and cannot be linked with them.
    cargo.args(["--no-default-features", "--features", "libfuzzer"]);
    // With a target named, the flags are for what runs there and not for what builds it.
    cargo.args(["--target", &host, "--target-dir"]).arg(&folder);
    run(cargo.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\x1f")).current_dir(root))?;
    Ok(folder.join(host).join("fuzz/fuzz"))
}

/// The toolchain's own target triple.
fn host() -> Result<String> {
    let output = Command::new("rustc").arg("-vV").stdin(Stdio::null()).output().context("cannot start rustc")?;
    let version = String::from_utf8_lossy(&output.stdout);
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    Ok(host.to_owned())
}

/// Prints a command line and runs it, its output shown.
///
/// # Errors
/// The program cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    println!("    $ {line}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` ended with {status}");
    Ok(())
}
