//! What is done to the filter's module once it is compiled: it is made smaller, and loses the names of its functions.

use std::fs;
use std::ops::Range;
use std::process::Command;

use anyhow::{Context, Result};

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
    let names = names(module).context("the module cannot be read, or has no names")?;
    Ok([&module[..names.start], &module[names.end..]].concat())
}

/// Place of the section of names, with its head. After eight bytes of magic number and version a module is sections: an id
/// of one byte, a length in LEB128, the content; that of a custom section (id 0) begins with the length of its name and its
/// name.
fn names(module: &[u8]) -> Option<Range<usize>> {
    const HEAD: usize = 8;
    let mut start = HEAD;
    loop {
        let id = *module.get(start)?;
        let (length, content) = leb128(module, start + 1)?;
        let end = content.checked_add(length)?;
        let (name_length, name) = leb128(module, content)?;
        if id == 0 && module.get(name..name.checked_add(name_length)?)? == b"name" {
            return (end <= module.len()).then_some(start..end);
        }
        start = end;
    }
}

/// Reads the number at a place; the number, and the place behind it.
fn leb128(bytes: &[u8], start: usize) -> Option<(usize, usize)> {
    let (mut number, mut place) = (0_usize, start);
    for shift in (0..32).step_by(7) {
        let byte = *bytes.get(place)?;
        place += 1;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some((number, place));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module of one section of 200 bytes, one of names, and one more.
    fn module() -> (Vec<u8>, Range<usize>) {
        let head = b"\0asm\x01\0\0\0".to_vec();
        let first = [&[1, 0xc8, 0x01][..], &[7; 200]].concat();
        let named = b"\0\x08\x04nameabc".to_vec();
        let start = head.len() + first.len();
        let place = start..start + named.len();
        ([head, first, named, b"\0\x03\x02xyz".to_vec()].concat(), place)
    }

    #[test]
    fn only_the_names_are_taken_out() {
        let (module, place) = module();
        assert_eq!(names(&module), Some(place.clone()));
        let without = without_names(&module).unwrap();
        assert_eq!(without, [&module[..place.start], &module[place.end..]].concat());
        assert!(without_names(&without).is_err(), "there are none any more");
    }

    #[test]
    fn what_is_no_module_is_an_error() {
        let (module, place) = module();
        for bytes in [&b""[..], b"\0asm", &module[..place.end - 1], &[0xff; 64]] {
            assert!(without_names(bytes).is_err(), "{bytes:?}");
        }
    }
}
