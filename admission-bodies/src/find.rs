//! Where a run of plain bytes in a JSON string ends.

/// Where the first quote or backslash stands.
#[inline(always)]
pub(crate) fn quote_or_backslash(bytes: &[u8]) -> Option<usize> {
    imp::first::<false>(bytes)
}

/// Where the first quote, backslash or line feed stands.
#[inline(always)]
pub(crate) fn quote_backslash_or_line(bytes: &[u8]) -> Option<usize> {
    imp::first::<true>(bytes)
}

#[cfg(not(all(target_family = "wasm", target_feature = "simd128")))]
mod imp {
    pub(super) fn first<const LINE: bool>(bytes: &[u8]) -> Option<usize> {
        if LINE { memchr::memchr3(b'"', b'\\', b'\n', bytes) } else { memchr::memchr2(b'"', b'\\', bytes) }
    }
}

/// Most runs are short, so that a call would cost more than the search.
#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
mod imp {
    use std::arch::wasm32::{i8x16_bitmask, i8x16_eq, i8x16_splat, v128_load, v128_or};

    const VECTOR: usize = 16;

    #[inline(always)]
    pub(super) fn first<const LINE: bool>(bytes: &[u8]) -> Option<usize> {
        let (vectors, rest) = bytes.as_chunks::<VECTOR>();
        let mut start = 0_usize;
        for vector in vectors {
            let found = found::<LINE>(vector);
            if found != 0 {
                return Some(start.saturating_add(found.trailing_zeros() as usize));
            }
            start = start.saturating_add(VECTOR);
        }
        let ends = |byte: &u8| matches!(byte, b'"' | b'\\') || LINE && *byte == b'\n';
        rest.iter().position(ends).map(|place| start.saturating_add(place))
    }

    #[inline(always)]
    fn found<const LINE: bool>(bytes: &[u8; VECTOR]) -> u16 {
        // SAFETY: they are sixteen bytes, and wasm loads from any address.
        let bytes = unsafe { v128_load(bytes.as_ptr().cast()) };
        let are = |byte: u8| i8x16_eq(bytes, i8x16_splat(byte as i8));
        let ends = v128_or(are(b'"'), are(b'\\'));
        i8x16_bitmask(if LINE { v128_or(ends, are(b'\n')) } else { ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_a_run_is_found_wherever_it_stands_and_nothing_else() {
        for length in 0..50 {
            for place in 0..length {
                for byte in 0..=u8::MAX {
                    let mut bytes = vec![b'a'; length];
                    bytes[place] = byte;
                    let is = |ends: bool| ends.then_some(place);
                    assert_eq!(quote_or_backslash(&bytes), is(matches!(byte, b'"' | b'\\')));
                    assert_eq!(quote_backslash_or_line(&bytes), is(matches!(byte, b'"' | b'\\' | b'\n')));
                }
            }
            let both = [vec![b'a'; length], b"\\\"\n".to_vec()].concat();
            assert_eq!((quote_or_backslash(&both), quote_backslash_or_line(&both)), (Some(length), Some(length)));
        }
    }
}
