//! Names and values as a proxy hands them to a wasm filter, headers among them.
//!
//! They come as bytes: a count, the lengths of each name and value, then each name and value with a zero behind it; numbers in
//! 32 bits with the lowest byte first.

use std::ops::Range;

/// Where a name and its value stand in those bytes.
pub type Pair = (Range<usize>, Range<usize>);

/// Where names and values stand; `None` of what is cut off. What follows the last of them is left aside.
///
/// ```
/// let bytes = [&[1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0][..], b"a\0bc\0"].concat();
/// assert_eq!(admission_core::pairs::places(&bytes), Some(vec![(12..13, 14..16)]));
/// ```
#[must_use]
pub fn places(bytes: &[u8]) -> Option<Vec<Pair>> {
    let (count, rest) = bytes.split_first_chunk::<4>()?;
    let count = number(*count)?;
    let (lengths, _) = rest.as_chunks::<4>();
    let mut lengths = lengths.get(..count.checked_mul(2)?)?.iter();
    let mut start = count.checked_mul(8)?.checked_add(4)?;
    let mut next = || {
        let end = start.checked_add(number(*lengths.next()?)?)?;
        let place = start..end;
        start = end.checked_add(1)?;
        Some(place)
    };
    let places: Option<Vec<_>> = (0..count).map(|_| Some((next()?, next()?))).collect();
    places.filter(|_| start <= bytes.len())
}

fn number(bytes: [u8; 4]) -> Option<usize> {
    usize::try_from(u32::from_le_bytes(bytes)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_off_or_counts_too_many_has_no_places() {
        let whole = [&[2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], b"a\0bc\0\0\0"].concat();
        assert_eq!(places(&whole), Some(vec![(20..21, 22..24), (25..25, 26..26)]));
        for end in 0..whole.len() {
            assert_eq!(places(&whole[..end]), None, "cut to {end}");
        }
        for byte in 0..20 {
            let mut more = whole.clone();
            more[byte] = 0xff;
            assert_eq!(places(&more), None, "byte {byte}");
        }
    }
}
