//! A hash that every build computes alike, since its values live in shared data longer than one build.

/// FNV-1a, 64 bits.
#[must_use]
pub fn stable(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A hash in which every bit depends on all bits of another; the last steps of MurmurHash3.
#[must_use]
pub const fn spread(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        assert_eq!(stable(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(stable(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(stable(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!((spread(0), spread(1)), (0, 0xb456_bcfc_34c2_cb2c));
    }
}
