//! How fast bodies are read as wasm, with the vector instructions that the proxy's engine has: by Node.js, whose engine is
//! the proxy's.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

#[path = "../../testkit/src/bodies.rs"]
mod bodies;

const TARGET: &str = "wasm32-unknown-unknown";

fn main() -> ExitCode {
    // Cargo also runs this as a test, which is no time to measure.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    // Not where cargo builds everything else, since the flags are others.
    let target = root.join("target/bench-scan");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--locked", "--quiet", "--release", "--package", "lab-scan", "--target", TARGET])
        .current_dir(&root);
    cargo.arg("--config").arg(format!("target.{TARGET}.rustflags=['-Ctarget-feature=+simd128']"));
    finish(cargo.arg("--target-dir").arg(&target), "`cargo xtask tools` installs what it takes")?;

    let mut node = Command::new("node");
    node.arg(root.join("lab/scan/run.mjs")).arg(target.join(TARGET).join("release/lab_scan.wasm"));
    for body in bodies::all() {
        let file = target.join(body.name);
        fs::write(&file, &body.json).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        node.arg(file);
    }
    finish(&mut node, "it takes Node.js: `cargo xtask tools` says how to get it")
}

fn finish(command: &mut Command, advice: &str) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().map_err(|error| format!("cannot start {name}: {error}; {advice}"))?;
    if status.success() { Ok(()) } else { Err(format!("{name} ended with {status}; {advice}")) }
}
