//! Classes of 64 bytes at once.

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// Which bytes of a block are what, a bit for each, the first in the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Masks {
    pub(super) letter: u64,
    /// Of letters, which are lower case; anything of other bytes.
    pub(super) lower_bit: u64,
    pub(super) digit: u64,
    pub(super) space: u64,
    pub(super) line: u64,
    /// Comma, full stop or quote.
    pub(super) common: u64,
    pub(super) backslash: u64,
    /// Beyond ASCII.
    pub(super) foreign: u64,
}

/// What ends a JSON string, and what keeps it from doing so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ends {
    pub(super) quote: u64,
    pub(super) backslash: u64,
}

/// Of what stands in a JSON string, which bytes belong to escapes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Escapes {
    /// Backslashes that begin one.
    pub(super) slash: u64,
    /// The bytes behind them.
    pub(super) escaped: u64,
}

impl Masks {
    #[inline(always)]
    pub(super) fn of(block: &[u8; BLOCK]) -> Self {
        let planes = vectors::planes(block);
        let vectors::Planes { letter, fifth, digit, low, mark, foreign } = planes;
        let low = low & !foreign;
        Self {
            letter,
            lower_bit: fifth,
            digit,
            space: low & fifth,
            line: low & !fifth,
            common: mark & fifth,
            backslash: mark & !fifth,
            foreign,
        }
    }
}

impl Ends {
    #[inline(always)]
    pub(super) fn of(block: &[u8; BLOCK]) -> Self {
        vectors::ends(block)
    }
}

impl Escapes {
    /// By the backslashes of a block. `open` is 1 where the byte before the block begins an escape, and then says so of the
    /// block's last.
    #[inline(always)]
    pub(super) const fn of(backslash: u64, open: &mut u64) -> Self {
        const ODD: u64 = 0xaaaa_aaaa_aaaa_aaaa;
        // Of a run of backslashes every other one is escaped. Taking the run from what stands one behind it borrows through
        // it, which tells where it ends by whether it began at an odd place.
        let may_begin = backslash & !*open;
        let alternating = (may_begin << 1 | ODD).wrapping_sub(may_begin) ^ ODD;
        let slash = alternating & backslash;
        let escaped = alternating ^ (backslash | *open);
        *open = slash >> 63;
        Self { slash, escaped }
    }
}

/// Which bytes of a block are inside a character, of those beyond ASCII.
#[inline(always)]
pub(super) fn inside(block: &[u8; BLOCK], foreign: u64) -> u64 {
    foreign & !vectors::second_bits(block)
}

/// Which bytes of a block are escapes that text has, behind a backslash: line ends, quotes, backslashes.
#[inline(always)]
pub(super) fn usual_escapes(block: &[u8; BLOCK]) -> u64 {
    vectors::usual_escapes(block)
}

/// A block that begins with these bytes, zeros behind them.
#[cold]
pub(super) fn padded(part: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    block.iter_mut().zip(part).for_each(|(place, byte)| *place = *byte);
    block
}

#[cfg(not(all(target_family = "wasm", target_feature = "simd128")))]
mod vectors {
    use super::{BLOCK, Ends};

    pub(super) struct Planes {
        pub(super) letter: u64,
        pub(super) fifth: u64,
        pub(super) digit: u64,
        pub(super) low: u64,
        pub(super) mark: u64,
        pub(super) foreign: u64,
    }

    fn mask_of(block: &[u8; BLOCK], is: impl Fn(u8) -> bool) -> u64 {
        block.iter().enumerate().fold(0, |mask, (place, byte)| mask | u64::from(is(*byte)) << place)
    }

    pub(super) fn second_bits(block: &[u8; BLOCK]) -> u64 {
        mask_of(block, |byte| byte & 0x40 != 0)
    }

    pub(super) fn usual_escapes(block: &[u8; BLOCK]) -> u64 {
        mask_of(block, |byte| matches!(byte, b'n' | b'"' | b'\\'))
    }

    #[inline(always)]
    pub(super) fn ends(block: &[u8; BLOCK]) -> Ends {
        Ends { quote: mask_of(block, |byte| byte == b'"'), backslash: mask_of(block, |byte| byte == b'\\') }
    }

    #[inline(always)]
    pub(super) fn planes(block: &[u8; BLOCK]) -> Planes {
        Planes {
            letter: mask_of(block, |byte| byte.is_ascii_alphabetic()),
            fifth: mask_of(block, |byte| byte & 0x20 != 0),
            digit: mask_of(block, |byte| byte.is_ascii_digit()),
            low: mask_of(block, |byte| byte <= b' '),
            mark: mask_of(block, |byte| matches!(byte, b',' | b'.' | b'"' | b'\\')),
            foreign: mask_of(block, |byte| byte >= 0x80),
        }
    }
}

#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
mod vectors {
    use std::arch::wasm32::{
        i8x16_add, i8x16_bitmask, i8x16_eq, i8x16_gt, i8x16_lt, i8x16_splat, i16x8_shl, v128, v128_and, v128_load,
        v128_or,
    };

    use super::{BLOCK, Ends};

    /// Classes from which those of [`super::Masks`] follow: each costs more to gather than to tell apart afterwards.
    pub(super) struct Planes {
        pub(super) letter: u64,
        /// The bit that tells lower case from upper case, space from other blanks, and a backslash from other marks.
        pub(super) fifth: u64,
        pub(super) digit: u64,
        /// Space or below; also beyond ASCII.
        pub(super) low: u64,
        /// Comma, full stop, quote or backslash.
        pub(super) mark: u64,
        pub(super) foreign: u64,
    }

    #[inline(always)]
    fn vectors(block: &[u8; BLOCK]) -> [v128; 4] {
        let (parts, _) = block.as_chunks::<16>();
        let mut vectors = [i8x16_splat(0); 4];
        for (vector, part) in vectors.iter_mut().zip(parts) {
            // SAFETY: the part is sixteen bytes long, and wasm loads from any address.
            *vector = unsafe { v128_load(part.as_ptr().cast()) };
        }
        vectors
    }

    /// The upper bits of all bytes.
    #[inline(always)]
    fn gather(vectors: [v128; 4]) -> u64 {
        let [a, b, c, d] = vectors.map(|vector| u64::from(i8x16_bitmask(vector)));
        a | b << 16 | c << 32 | d << 48
    }

    #[inline(always)]
    fn are(bytes: v128, byte: u8) -> v128 {
        i8x16_eq(bytes, i8x16_splat(byte as i8))
    }

    /// Which bytes are in a range, if none is that lies as far beyond 0x7f as the range begins before it.
    #[inline(always)]
    fn within(bytes: v128, first: u8, last: u8) -> v128 {
        // So that the last becomes the largest that there is with a sign.
        let up = 0x7f_u8.wrapping_sub(last);
        i8x16_gt(i8x16_add(bytes, i8x16_splat(up as i8)), i8x16_splat(first.wrapping_add(up).wrapping_sub(1) as i8))
    }

    #[inline(always)]
    pub(super) fn second_bits(block: &[u8; BLOCK]) -> u64 {
        gather(vectors(block).map(|bytes| i16x8_shl(bytes, 1)))
    }

    #[inline(always)]
    pub(super) fn usual_escapes(block: &[u8; BLOCK]) -> u64 {
        gather(vectors(block).map(|bytes| v128_or(are(bytes, b'n'), v128_or(are(bytes, b'"'), are(bytes, b'\\')))))
    }

    #[inline(always)]
    pub(super) fn ends(block: &[u8; BLOCK]) -> Ends {
        let bytes = vectors(block);
        Ends {
            quote: gather(bytes.map(|bytes| are(bytes, b'"'))),
            backslash: gather(bytes.map(|bytes| are(bytes, b'\\'))),
        }
    }

    #[inline(always)]
    pub(super) fn planes(block: &[u8; BLOCK]) -> Planes {
        let bytes = vectors(block);
        let mark = |bytes| {
            let comma_or_stop = are(v128_and(bytes, i8x16_splat(!2)), b',');
            v128_or(comma_or_stop, v128_or(are(bytes, b'"'), are(bytes, b'\\')))
        };
        Planes {
            letter: gather(bytes.map(|bytes| within(v128_or(bytes, i8x16_splat(0x20)), b'a', b'z'))),
            // Only the upper bit of each byte is looked at, so what comes from the byte below does not matter.
            fifth: gather(bytes.map(|bytes| i16x8_shl(bytes, 2))),
            digit: gather(bytes.map(|bytes| within(bytes, b'0', b'9'))),
            low: gather(bytes.map(|bytes| i8x16_lt(bytes, i8x16_splat(b' ' as i8 + 1)))),
            mark: gather(bytes.map(mark)),
            foreign: gather(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_class_at_every_place() {
        for byte in 0..=u8::MAX {
            for place in [0, 1, 15, 16, 31, 47, 48, 63] {
                let mut block = [b'#'; BLOCK];
                block[place] = byte;
                let masks = Masks::of(&block);
                let is = |holds: bool| u64::from(holds) << place;
                assert_eq!(masks.letter, is(byte.is_ascii_alphabetic()), "{byte}");
                assert_eq!(masks.lower_bit & 1 << place, is(byte & 0x20 != 0), "{byte}");
                assert_eq!(masks.digit, is(byte.is_ascii_digit()), "{byte}");
                assert_eq!((masks.space, masks.line), (is(byte == b' '), is(byte < b' ')), "{byte}");
                assert_eq!(masks.common, is(matches!(byte, b',' | b'.' | b'"')), "{byte}");
                assert_eq!(masks.backslash, is(byte == b'\\'), "{byte}");
                let ends = Ends { quote: is(byte == b'"'), backslash: is(byte == b'\\') };
                assert_eq!(Ends::of(&block), ends, "{byte}");
                assert_eq!(usual_escapes(&block), is(matches!(byte, b'n' | b'"' | b'\\')), "{byte}");
                assert_eq!(
                    (masks.foreign, inside(&block, masks.foreign)),
                    (is(byte >= 0x80), is(byte & 0xc0 == 0x80)),
                    "{byte}"
                );
            }
        }
    }

    #[test]
    fn of_every_run_of_backslashes_every_other_one_begins_an_escape() {
        let mut rng = fastrand::Rng::with_seed(8);
        for _ in 0..10_000 {
            let (mut open, mut was_open) = (0, false);
            for _ in 0..3 {
                let backslash = if rng.bool() { rng.u64(..) | rng.u64(..) } else { rng.u64(..) & rng.u64(..) };
                let found = Escapes::of(backslash, &mut open);
                let mut expected = Escapes::default();
                for bit in (0..64).map(|place| 1_u64 << place) {
                    if was_open {
                        expected.escaped |= bit;
                        was_open = false;
                    } else if backslash & bit != 0 {
                        expected.slash |= bit;
                        was_open = true;
                    }
                }
                assert_eq!((found, open), (expected, u64::from(was_open)), "{backslash:x}");
            }
        }
    }
}
