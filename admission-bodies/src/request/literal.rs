//! Short values that are compared rather than weighed.

/// Bytes up to a length; one too many and it equals nothing.
#[derive(Clone, Debug)]
pub(super) struct Buffer<const N: usize> {
    bytes: [u8; N],
    length: usize,
    overflowed: bool,
}

impl<const N: usize> Default for Buffer<N> {
    fn default() -> Self {
        Self { bytes: [0; N], length: 0, overflowed: false }
    }
}

impl<const N: usize> Buffer<N> {
    pub(super) fn clear(&mut self) {
        (self.length, self.overflowed) = (0, false);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0 && !self.overflowed
    }

    pub(super) fn extend(&mut self, bytes: &[u8]) {
        let end = self.length.saturating_add(bytes.len());
        match self.bytes.get_mut(self.length..end) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.length = end;
            }
            None => {
                let room = self.bytes.get_mut(self.length..).unwrap_or_default();
                room.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
                (self.length, self.overflowed) = (N, true);
            }
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.overflowed { &[] } else { self.bytes.get(..self.length).unwrap_or_default() }
    }

    pub(super) fn begins_with(&self, start: &[u8]) -> bool {
        self.bytes.get(..self.length).is_some_and(|bytes| bytes.starts_with(start))
    }

    /// As [`whole_number`]. One that is too long to be held is taken for the largest: to workers `5.000…` is 5, and what counts
    /// must not hide behind its zeros.
    pub(super) fn whole_number(&self) -> Option<u64> {
        if self.overflowed { begins_a_count(&self.bytes).then_some(u64::MAX) } else { whole_number(self.bytes()) }
    }
}

/// Whether a count may be written so, blanks before it.
pub(super) fn begins_a_count(literal: &[u8]) -> bool {
    literal.trim_ascii_start().first().is_none_or(|byte| byte.is_ascii_digit() || *byte == b'+')
}

/// A number as a count: parsers that want an integer take `5.0`, `5e0` and, in quotes, `1_000` too. Nothing for what is
/// no count.
pub(super) fn whole_number(literal: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(literal).ok()?.trim();
    if let Ok(number) = text.parse::<u64>().or_else(|_| text.replace('_', "").parse()) {
        return Some(number);
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0)?;
    Some(number as u64)
}

/// A switch as lenient parsers read it; nothing for what is none.
pub(super) fn switch(literal: &[u8]) -> Option<bool> {
    let is = |words: &[&[u8]]| words.iter().any(|word| literal.eq_ignore_ascii_case(word));
    if is(&[b"true", b"1", b"yes", b"on", b"y", b"t"]) {
        return Some(true);
    }
    is(&[b"false", b"0", b"no", b"off", b"n", b"f"]).then_some(false)
}
