//! A hash that every build computes alike, since its values live in shared data longer than one build.

/// FNV-1a, 64 bits.
#[must_use]
pub fn stable(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        assert_eq!(stable(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(stable(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(stable(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
