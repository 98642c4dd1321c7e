//! Classes of 64 bytes at once.

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// Which bytes of a block are what, a bit for each, the first in the lowest. Quotes and backslashes are of no class of text:
/// within a JSON string they end something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Masks {
    pub(super) letter: u64,
    /// Of letters, which are lower case; anything of other bytes.
    pub(super) lower_bit: u64,
    pub(super) digit: u64,
    pub(super) space: u64,
    pub(super) line: u64,
    /// Comma or full stop.
    pub(super) common: u64,
    /// Quote or backslash.
    pub(super) special: u64,
    /// Beyond ASCII.
    pub(super) foreign: u64,
}

impl Masks {
    #[inline(always)]
    pub(super) fn of(block: &[u8; BLOCK]) -> Self {
        vectors::masks(block)
    }
}

/// Which bytes of a block are inside a character, of those beyond ASCII.
pub(super) fn inside(block: &[u8; BLOCK], foreign: u64) -> u64 {
    foreign & !vectors::second_bits(block)
}

/// A block that begins with these bytes, zeros behind them.
pub(super) fn padded(part: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    if let Some(place) = block.get_mut(..part.len()) {
        place.copy_from_slice(part);
    }
    block
}

/// Which bytes of a block are quotes.
#[inline(always)]
pub(super) fn quotes(block: &[u8; BLOCK]) -> u64 {
    vectors::quotes(block)
}

#[cfg(not(all(target_family = "wasm", target_feature = "simd128")))]
mod vectors {
    use super::{BLOCK, Masks};

    fn mask_of(block: &[u8; BLOCK], is: impl Fn(u8) -> bool) -> u64 {
        block.iter().enumerate().fold(0, |mask, (place, byte)| mask | u64::from(is(*byte)) << place)
    }

    pub(super) fn second_bits(block: &[u8; BLOCK]) -> u64 {
        mask_of(block, |byte| byte & 0x40 != 0)
    }

    #[inline(always)]
    pub(super) fn quotes(block: &[u8; BLOCK]) -> u64 {
        mask_of(block, |byte| byte == b'"')
    }

    #[inline(always)]
    pub(super) fn masks(block: &[u8; BLOCK]) -> Masks {
        Masks {
            letter: mask_of(block, |byte| byte.is_ascii_alphabetic()),
            lower_bit: mask_of(block, |byte| byte & 0x20 != 0),
            digit: mask_of(block, |byte| byte.is_ascii_digit()),
            space: mask_of(block, |byte| byte == b' '),
            line: mask_of(block, |byte| byte < b' '),
            common: mask_of(block, |byte| matches!(byte, b',' | b'.')),
            special: mask_of(block, |byte| matches!(byte, b'"' | b'\\')),
            foreign: mask_of(block, |byte| byte >= 0x80),
        }
    }
}

/// Two tables, one for each half of a byte, say the classes of 16 bytes in a handful of instructions: a class holds where
/// both halves allow it.
#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
mod vectors {
    use std::arch::wasm32::{
        i8x16_bitmask, i8x16_eq, i8x16_splat, i8x16_swizzle, i16x8_shl, u8x16, u8x16_shr, v128, v128_and,
        v128_any_true, v128_load, v128_or,
    };

    use super::{BLOCK, Masks};

    const A_TO_O: u8 = 1;
    const P_TO_Z: u8 = 1 << 1;
    const QUOTE: u8 = 1 << 2;
    const BACKSLASH: u8 = 1 << 3;
    const COMMON: u8 = 1 << 4;
    const LINE: u8 = 1 << 5;
    const SPACE: u8 = 1 << 6;
    const DIGIT: u8 = 1 << 7;

    /// What a byte may be by its lower half.
    const fn by_lower(half: u8) -> u8 {
        let mut classes = LINE;
        if half >= 1 {
            classes |= A_TO_O;
        }
        if half <= 0xa {
            classes |= P_TO_Z;
        }
        if half <= 9 {
            classes |= DIGIT;
        }
        match half {
            0 => classes | SPACE,
            2 => classes | QUOTE,
            0xc => classes | COMMON | BACKSLASH,
            0xe => classes | COMMON,
            _ => classes,
        }
    }

    /// What a byte may be by its upper half.
    const fn by_upper(half: u8) -> u8 {
        match half {
            0 | 1 => LINE,
            2 => SPACE | QUOTE | COMMON,
            3 => DIGIT,
            4 | 6 => A_TO_O,
            5 => P_TO_Z | BACKSLASH,
            7 => P_TO_Z,
            _ => 0,
        }
    }

    macro_rules! table {
        ($of:ident) => {
            u8x16(
                $of(0),
                $of(1),
                $of(2),
                $of(3),
                $of(4),
                $of(5),
                $of(6),
                $of(7),
                $of(8),
                $of(9),
                $of(10),
                $of(11),
                $of(12),
                $of(13),
                $of(14),
                $of(15),
            )
        };
    }

    const BY_LOWER: v128 = table!(by_lower);
    const BY_UPPER: v128 = table!(by_upper);

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
    fn gather(vectors: [v128; 4]) -> u64 {
        let [a, b, c, d] = vectors.map(|vector| u64::from(i8x16_bitmask(vector)));
        a | b << 16 | c << 32 | d << 48
    }

    pub(super) fn second_bits(block: &[u8; BLOCK]) -> u64 {
        gather(vectors(block).map(|bytes| i16x8_shl(bytes, 1)))
    }

    #[inline(always)]
    pub(super) fn quotes(block: &[u8; BLOCK]) -> u64 {
        let [a, b, c, d] = vectors(block).map(|bytes| i8x16_eq(bytes, i8x16_splat(b'"' as i8)));
        // Most blocks have none.
        if v128_any_true(v128_or(v128_or(a, b), v128_or(c, d))) { gather([a, b, c, d]) } else { 0 }
    }

    #[inline(always)]
    pub(super) fn masks(block: &[u8; BLOCK]) -> Masks {
        let bytes = vectors(block);
        let half = i8x16_splat(0x0f);
        let classes = bytes.map(|bytes| {
            let lower = i8x16_swizzle(BY_LOWER, v128_and(bytes, half));
            let upper = i8x16_swizzle(BY_UPPER, u8x16_shr(bytes, 4));
            v128_and(lower, upper)
        });
        // Only the upper bit of each byte is looked at, so what comes from the byte below does not matter.
        let one = |classes: v128, class: u8| i16x8_shl(classes, class.leading_zeros());
        let of = |class: u8| gather(classes.map(|classes| one(classes, class)));
        let either = |a: u8, b: u8| gather(classes.map(|classes| v128_or(one(classes, a), one(classes, b))));
        Masks {
            letter: either(A_TO_O, P_TO_Z),
            lower_bit: gather(bytes.map(|bytes| i16x8_shl(bytes, 2))),
            digit: of(DIGIT),
            space: of(SPACE),
            line: of(LINE),
            common: of(COMMON),
            special: either(QUOTE, BACKSLASH),
            foreign: gather(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

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
                assert_eq!(masks.common, is(matches!(byte, b',' | b'.')), "{byte}");
                assert_eq!(masks.special, is(matches!(byte, b'"' | b'\\')), "{byte}");
                assert_eq!(quotes(&block), is(byte == b'"'), "{byte}");
                assert_eq!(
                    (masks.foreign, inside(&block, masks.foreign)),
                    (is(byte >= 0x80), is(byte & 0xc0 == 0x80)),
                    "{byte}"
                );
            }
        }
    }
}
