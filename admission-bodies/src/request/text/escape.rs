//! Escapes of JSON strings.

use super::block::{self, BLOCK, Ends, Escapes};

/// Backslash, letter and digits of an escape by number; no escape is longer.
pub(super) const LONGEST_ESCAPE: usize = 6;

/// An escape that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::request) struct Fault {
    /// Before which it shows.
    pub(in crate::request) at: usize,
    pub(in crate::request) what: &'static str,
}

pub(in crate::request) const UNKNOWN: &str = "an unknown escape";
pub(in crate::request) const NO_NUMBER: &str = "an escape needs four hexadecimal digits";

impl Fault {
    /// The same, so many bytes further on.
    pub(super) const fn behind(self, bytes: usize) -> Self {
        Self { at: self.at.saturating_add(bytes), ..self }
    }
}

/// What a character behind a backslash means, but for a number.
pub(in crate::request) const fn unescaped(byte: u8) -> Option<u8> {
    match byte {
        b'"' | b'\\' | b'/' => Some(byte),
        b'b' => Some(8),
        b'f' => Some(12),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b't' => Some(b'\t'),
        _ => None,
    }
}

/// Which of some bytes behind backslashes stand for no other character.
pub(super) fn odd_escapes(block: &[u8; BLOCK], mut escaped: u64) -> u64 {
    let mut odd = 0;
    while escaped != 0 {
        let byte = block.get(escaped.trailing_zeros() as usize).copied().unwrap_or_default();
        let others = escaped & escaped.wrapping_sub(1);
        if unescaped(byte).is_none() {
            odd |= escaped ^ others;
        }
        escaped = others;
    }
    odd
}

/// The unit of UTF-16 that an escape stands for, with which the bytes begin.
pub(super) fn unit_of(escape: &[u8]) -> Result<u16, Fault> {
    if escape.get(1) != Some(&b'u') {
        return Err(Fault { at: 1, what: UNKNOWN });
    }
    let mut unit = 0;
    for at in 2..LONGEST_ESCAPE {
        let digit = escape.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        unit = unit << 4 | digit.ok_or(Fault { at, what: NO_NUMBER })? as u16;
    }
    Ok(unit)
}

/// Where the closing quote stands of a JSON string whose next bytes these are, which begin with no part of an escape.
#[inline]
pub(in crate::request) fn closing(bytes: &[u8]) -> Option<usize> {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let (mut open, mut start) = (0, 0_usize);
    for block in blocks {
        let quotes = unescaped_quotes(block, &mut open);
        if quotes != 0 {
            return Some(start.saturating_add(quotes.trailing_zeros() as usize));
        }
        start = start.saturating_add(BLOCK);
    }
    // Behind a chunk's end there is nothing to be read.
    let quotes = if rest.is_empty() { 0 } else { unescaped_quotes(&block::padded(rest), &mut open) };
    (quotes != 0).then(|| start.saturating_add(quotes.trailing_zeros() as usize))
}

#[inline(always)]
fn unescaped_quotes(block: &[u8; BLOCK], open: &mut u64) -> u64 {
    let Ends { quote, backslash } = Ends::of(block);
    quote & !Escapes::of(backslash, open).escaped
}

/// Where an escape ends that begins before a place and reaches beyond it; else the place. At `known` and before it none does.
#[inline(always)]
pub(super) fn behind_escape(bytes: &[u8], known: usize, place: usize) -> usize {
    let before = bytes.get(..place).and_then(<[u8]>::last_chunk::<8>);
    match before {
        Some(before) if !may_end_in_escape(u64::from_le_bytes(*before)) => place,
        _ => behind_any_escape(bytes, known, place),
    }
}

/// Whether of eight bytes the last is a backslash, or one of the last five with the letter of an escape by number behind it.
#[inline(always)]
const fn may_end_in_escape(bytes: u64) -> bool {
    let slash = equal(bytes, b'\\');
    slash >> 63 != 0 || slash & equal(bytes, b'u') >> 8 & u64::MAX << 24 != 0
}

/// The upper bit of each of eight bytes that is this one.
#[inline(always)]
const fn equal(bytes: u64, byte: u8) -> u64 {
    const ONES: u64 = u64::MAX / 255;
    const LOWER: u64 = ONES * 0x7f;
    let other = bytes ^ (ONES * byte as u64);
    !((other & LOWER).wrapping_add(LOWER) | other | LOWER)
}

fn behind_any_escape(bytes: &[u8], known: usize, place: usize) -> usize {
    let mut begin = before_escapes(bytes, known, place);
    while begin < place {
        begin = begin.saturating_add(length_at(bytes, begin));
    }
    begin
}

/// How many bytes stand before an escape at the end of which a part is missing; all where there is none. They begin with no
/// part of an escape.
pub(in crate::request) fn before_part_of_escape(bytes: &[u8]) -> usize {
    let mut begin = before_escapes(bytes, 0, bytes.len());
    while begin < bytes.len() {
        let end = begin.saturating_add(length_at(bytes, begin));
        if end > bytes.len() {
            return begin;
        }
        begin = end;
    }
    bytes.len()
}

/// From where on a string is to be read to meet every escape that reaches beyond a place; `known` is in none.
fn before_escapes(bytes: &[u8], known: usize, place: usize) -> usize {
    let first = place.saturating_sub(LONGEST_ESCAPE.saturating_sub(1)).max(known);
    first.saturating_add(usize::from(is_escaped(bytes, known, first)))
}

/// Of the character or the escape that begins there.
fn length_at(bytes: &[u8], begin: usize) -> usize {
    match (bytes.get(begin), bytes.get(begin.saturating_add(1))) {
        (Some(b'\\'), Some(b'u')) => LONGEST_ESCAPE,
        (Some(b'\\'), _) => 2,
        _ => 1,
    }
}

/// Whether a backslash escapes the byte at a place; no escape reaches beyond `known`.
fn is_escaped(bytes: &[u8], known: usize, place: usize) -> bool {
    let before = bytes.get(known..place).unwrap_or_default();
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}
