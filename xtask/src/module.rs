//! What is done to the filter's module once it is compiled: it loses an export that costs every request a call, is made smaller,
//! and loses the names of its functions.

use std::fs;
use std::ops::Range;
use std::process::Command;

use anyhow::{Context, Result, bail};
use wasmparser::{Parser, Payload};

use crate::workspace::Workspace;
use crate::{checksums, command, tools};

/// What `wasm-opt` does: it optimises for speed and keeps names. The features are those that the compiler says it has used.
const PASSES: [&str; 2] = ["-O3", "-g"];

/// A callback that the bindings export and that always says yes, as a proxy takes it for where there is none. Without it a proxy
/// makes a call less for every stream.
const NEEDLESS: &str = "proxy_on_done";

/// The module without the callback that it needs least.
///
/// # Errors
/// When it is no module, or does not export it.
fn without_needless_callback(module: &[u8]) -> Result<Vec<u8>> {
    let mut before = 0;
    for payload in Parser::new(0).parse_all(module) {
        match payload.context("the module cannot be read")? {
            Payload::Version { range, .. } => before = usize::try_from(range.end)?,
            Payload::ExportSection(section) => {
                let whole = usize::try_from(section.range().start)?..usize::try_from(section.range().end)?;
                let mut exports = Vec::new();
                for export in section.into_iter_with_offsets() {
                    let (start, export) = export.context("an export cannot be read")?;
                    exports.push((usize::try_from(start)?, export.name));
                }
                let number = exports.iter().position(|(_, name)| *name == NEEDLESS);
                let number = number.context("the module does not export the callback")?;
                let start_of = |number: usize| exports.get(number).map_or(whole.end, |(start, _)| *start);
                let count = leb128(u32::try_from(exports.len() - 1)?);
                let (first, others) = (start_of(0)..start_of(number), start_of(number + 1)..whole.end);
                let body = [&count[..], &module[first], &module[others]].concat();
                let head = [&[EXPORTS][..], &leb128(u32::try_from(body.len())?)].concat();
                return Ok([&module[..before], &head, &body, &module[whole.end..]].concat());
            }
            payload => {
                if let Some((_, range)) = payload.as_section() {
                    before = usize::try_from(range.end)?;
                }
            }
        }
    }
    bail!("the module has no exports")
}

/// Id of the section of exports.
const EXPORTS: u8 = 7;

/// A number as modules write it: seven bits in each byte, the lowest first.
fn leb128(mut number: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = (number & 0x7f) as u8;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

/// The module made smaller, with names and without the callback that it needs least. That takes some twenty seconds, so it is
/// remembered by what the module was before.
///
/// # Errors
/// When `wasm-opt` fails.
pub fn shrunk(workspace: &Workspace, module: &[u8]) -> Result<Vec<u8>> {
    let module = &without_needless_callback(module)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_export_goes_and_nothing_else_changes() {
        let export = |name: &str| [&[u8::try_from(name.len()).unwrap()][..], name.as_bytes(), &[0, 0]].concat();
        let module = |names: &[&str]| {
            let exports = names.iter().flat_map(|name| export(name)).collect::<Vec<u8>>();
            let body = [&[u8::try_from(names.len()).unwrap()][..], &exports].concat();
            let (types, code) = ([1, 4, 1, 0x60, 0, 0, 3, 2, 1, 0], [10, 4, 1, 2, 0, 0x0b]);
            let length = leb128(u32::try_from(body.len()).unwrap());
            [b"\0asm\x01\0\0\0", &types[..], &[EXPORTS], &length, &body, &code].concat()
        };
        let others = ["a".repeat(60), "b".repeat(60)];
        let [first, last] = [others[0].as_str(), others[1].as_str()];
        for with in [[NEEDLESS, first, last], [first, NEEDLESS, last], [first, last, NEEDLESS]] {
            // The length takes two bytes before and one after.
            assert_eq!(without_needless_callback(&module(&with)).unwrap(), module(&[first, last]));
        }
        assert!(without_needless_callback(&module(&[first])).is_err());
    }
}
