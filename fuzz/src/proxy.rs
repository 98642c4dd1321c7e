//! What a proxy hands to a wasm filter.

/// Names and values as a proxy lays them out, see [`admission_core::pairs`].
pub fn pairs(pairs: &[(&[u8], &[u8])]) -> Vec<u8> {
    let number = |length: usize| u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = number(pairs.len()).to_vec();
    for (name, value) in pairs {
        bytes.extend([number(name.len()), number(value.len())].concat());
    }
    for (name, value) in pairs {
        bytes.extend([name, &[0][..], value, &[0]].concat());
    }
    bytes
}
