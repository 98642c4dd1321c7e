//! What is done to the filter's module once it is compiled: it is made smaller, and loses the names of its functions.

use std::fs;
use std::ops::Range;
use std::process::Command;

use anyhow::{Context, Result, bail};
use wasmparser::{Parser, Payload};

use crate::workspace::Workspace;
use crate::{checksums, command, tools};

/// What `wasm-opt` does: it optimises for speed and keeps names. The features are those that the compiler says it has used.
const PASSES: [&str; 2] = ["-O3", "-g"];

/// The module made smaller, with names. That takes some twenty seconds, so it is remembered by what the module was before.
///
/// # Errors
/// When `wasm-opt` fails.
pub fn shrunk(workspace: &Workspace, module: &[u8]) -> Result<Vec<u8>> {
    let folder = workspace.root.join("target/shrunk");
    let known =
        folder.join(checksums::of(&[module, PASSES.join(" ").as_bytes(), tools::NODE_LOCK.as_bytes()].concat()));
    if let Ok(shrunk) = fs::read(&known) {
        return Ok(shrunk);
    }
    fs::create_dir_all(&folder).context("cannot make target/shrunk")?;
    let (before, after) = (known.with_extension("compiled"), known.with_extension("new"));
    fs::write(&before, module).context("cannot write the compiled module")?;
    // Not the link that npm makes, which needs a `node` where `env` looks for one.
    let program = workspace.node_packages().join("node_modules/binaryen/bin/wasm-opt");
    let mut node = Command::new("node");
    command::run(node.arg(program).args(PASSES).arg(&before).arg("-o").arg(&after))?;
    fs::rename(&after, &known).context("wasm-opt has written no module")?;
    fs::remove_file(before).context("cannot remove the compiled module")?;
    fs::read(known).context("cannot read the module that wasm-opt has written")
}

/// The module without its custom section of names, everything else byte for byte: so a backtrace of one can be read with the
/// other.
///
/// # Errors
/// When it is no module, or has no names.
pub fn without_names(module: &[u8]) -> Result<Vec<u8>> {
    let names = names(module)?;
    let mut without = Vec::with_capacity(module.len());
    without.extend_from_slice(&module[..names.start]);
    without.extend_from_slice(&module[names.end..]);
    Ok(without)
}

/// Where the section of names stands, with its head.
fn names(module: &[u8]) -> Result<Range<usize>> {
    let mut before = 0_u64;
    for payload in Parser::new(0).parse_all(module) {
        let payload = payload.context("the module cannot be read")?;
        match &payload {
            Payload::CustomSection(section) if section.name() == "name" => {
                return Ok(usize::try_from(before)?..usize::try_from(section.range().end)?);
            }
            Payload::Version { range, .. } => before = range.end,
            _ => before = payload.as_section().map_or(before, |(_, range)| range.end),
        }
    }
    bail!("the module has no names")
}
