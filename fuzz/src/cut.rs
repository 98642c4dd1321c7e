//! Where an input's own bytes cut it into chunks.

/// The input without its first byte, and the borders of chunks that follow from that: the same for the same input, and a
/// letter of an ordinary alphabet will do.
pub fn split(data: &[u8]) -> Option<(u8, &[u8])> {
    data.split_first().map(|(seed, rest)| (*seed, rest))
}

/// The bytes in chunks, none of them empty: mostly short ones or mostly long ones.
pub fn chunks(seed: u8, bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut random = fastrand::Rng::with_seed(u64::from(seed));
    let longest = [1, 3, 17, 70, 400][random.usize(..5)];
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (chunk, behind) = rest.split_at(random.usize(1..=longest).min(rest.len()));
        rest = behind;
        (!chunk.is_empty()).then_some(chunk)
    })
}
