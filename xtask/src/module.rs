//! What is done to the filter's module once it is compiled: it loses an export that costs every request a call, and the names of
//! its functions.

use std::ops::Range;

use anyhow::{Context, Result};

/// A callback that the bindings export and that always says yes, which a proxy assumes where there is no such export. Without it a
/// proxy makes a call less for every stream.
const NEEDLESS: &str = "proxy_on_done";

/// Bytes of a module before its first section: the magic number and the version.
const HEAD: usize = 8;

/// Id of sections that the format does not define.
const CUSTOM: u8 = 0;

/// Id of the section of exports.
const EXPORTS: u8 = 7;

/// The module as it is shipped but for its names: without the callback that it does not need.
///
/// # Errors
/// When the module does not export that callback.
pub fn trimmed(module: &[u8]) -> Result<Vec<u8>> {
    without_export(module, NEEDLESS).with_context(|| format!("the module does not export {NEEDLESS}"))
}

/// The module without its custom section of names, everything else byte for byte: so a backtrace of one can be read with the
/// other.
///
/// # Errors
/// When it is no module, or has no names.
pub fn without_names(module: &[u8]) -> Result<Vec<u8>> {
    let named = |section: &Section| section.id == CUSTOM && name_at(module, section.content.start) == Some(b"name");
    let names = sections(module).find(named).context("the module cannot be read, or has no names")?.whole;
    Ok([&module[..names.start], &module[names.end..]].concat())
}

/// The module without one of its exports; none if it has no such export.
fn without_export(module: &[u8], name: &str) -> Option<Vec<u8>> {
    let Section { whole, content, .. } = sections(module).find(|section| section.id == EXPORTS)?;
    let (count, first) = leb128(module, content.start)?;
    let mut start = first;
    for _ in 0..count {
        let (length, text) = leb128(module, start)?;
        // Behind the name are a byte that says of what kind the export is, and a number.
        let (_, end) = leb128(module, text.checked_add(length)?.checked_add(1)?)?;
        if name_at(module, start)? == name.as_bytes() {
            let others = [module.get(first..start)?, module.get(end..content.end)?].concat();
            let body = [to_leb128(count - 1), others].concat();
            let section = [vec![EXPORTS], to_leb128(body.len()), body].concat();
            return Some([module.get(..whole.start)?, &section, module.get(whole.end..)?].concat());
        }
        start = end;
    }
    None
}

/// A part of a module: a byte that says which, the length of the content, the content.
struct Section {
    id: u8,
    whole: Range<usize>,
    content: Range<usize>,
}

/// The sections of a module, up to the first that is not whole.
fn sections(module: &[u8]) -> impl Iterator<Item = Section> {
    let mut start = HEAD;
    std::iter::from_fn(move || {
        let id = *module.get(start)?;
        let (length, content) = leb128(module, start + 1)?;
        let end = content.checked_add(length).filter(|end| *end <= module.len())?;
        let section = Section { id, whole: start..end, content: content..end };
        start = end;
        Some(section)
    })
}

/// A name in a module: its length, its bytes.
fn name_at(module: &[u8], start: usize) -> Option<&[u8]> {
    let (length, text) = leb128(module, start)?;
    module.get(text..text.checked_add(length)?)
}

/// Reads a number as modules write it, seven bits in each byte and the lowest first; the number, and the place behind it.
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

fn to_leb128(mut number: usize) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A section of this id; its length takes two bytes where the content has 128 or more.
    fn section(id: u8, content: &[u8]) -> Vec<u8> {
        [vec![id], to_leb128(content.len()), content.to_vec()].concat()
    }

    fn module(sections: &[Vec<u8>]) -> Vec<u8> {
        [b"\0asm\x01\0\0\0".to_vec(), sections.concat()].concat()
    }

    #[test]
    fn only_the_names_are_taken_out() {
        let (code, others) = (section(10, &[7; 200]), section(CUSTOM, b"\x02xyz"));
        let with = module(&[code.clone(), section(CUSTOM, b"\x04nameabc"), others.clone()]);
        let without = module(&[code, others]);
        assert_eq!(without_names(&with).unwrap(), without);
        assert!(without_names(&without).is_err(), "there are no names any more");
    }

    #[test]
    fn one_export_goes_and_nothing_else_changes() {
        let export = |name: &str| [to_leb128(name.len()), name.as_bytes().to_vec(), vec![0, 0]].concat();
        let of = |names: &[&str]| {
            let exports = names.iter().flat_map(|name| export(name)).collect();
            let exports = section(EXPORTS, &[to_leb128(names.len()), exports].concat());
            module(&[section(1, &[1, 0x60, 0, 0]), exports, section(10, &[1, 2, 0, 0x0b])])
        };
        let (first, last) = ("a".repeat(60), "b".repeat(60));
        for with in [[NEEDLESS, &first, &last], [&first, NEEDLESS, &last], [&first, &last, NEEDLESS]] {
            assert_eq!(without_export(&of(&with), NEEDLESS), Some(of(&[&first, &last])));
        }
        assert_eq!(without_export(&of(&[&first]), NEEDLESS), None);
    }

    #[test]
    fn what_is_no_module_is_an_error() {
        let whole = module(&[section(10, &[7; 200]), section(CUSTOM, b"\x04nameabc")]);
        for bytes in [&b""[..], b"\0asm", &whole[..whole.len() - 1], &[0xff; 64]] {
            assert!(without_names(bytes).is_err(), "{bytes:?}");
            assert_eq!(without_export(bytes, NEEDLESS), None, "{bytes:?}");
        }
    }
}
