//! Small changes to inputs, by chance.

use fastrand::Rng;

/// Longest piece that is copied, in bytes.
const LONGEST_PIECE: usize = 300;

/// Changes an input in one to five places: cuts it, changes, inserts or repeats bytes, puts in a word or a piece of another
/// input.
pub fn mutate(random: &mut Rng, input: &mut Vec<u8>, words: &[Vec<u8>], others: &[Vec<u8>]) {
    for _ in 0..random.usize(1..6) {
        change(random, input, words, others);
    }
}

fn change(random: &mut Rng, input: &mut Vec<u8>, words: &[Vec<u8>], others: &[Vec<u8>]) {
    let at = random.usize(..=input.len());
    match random.u8(..8) {
        0 => input.truncate(at),
        1 => input.insert(at, random.u8(..)),
        2 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.u8(..)),
        3 => input.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.u8(..8)),
        4 => {
            let end = at.saturating_add(random.usize(..16)).min(input.len());
            input.drain(at..end);
        }
        5 => {
            let piece = piece(random, input);
            input.splice(at..at, piece);
        }
        6 => {
            let word = random.choice(words).cloned().unwrap_or_default();
            input.splice(at..at, word);
        }
        _ => {
            let piece = random.choice(others).map(|other| piece(random, other)).unwrap_or_default();
            input.splice(at..at, piece);
        }
    }
}

fn piece(random: &mut Rng, from: &[u8]) -> Vec<u8> {
    let begin = random.usize(..=from.len());
    let end = begin.saturating_add(random.usize(..LONGEST_PIECE)).min(from.len());
    from.get(begin..end).unwrap_or_default().to_vec()
}

/// The words of a dictionary as libFuzzer reads it: a line for each, in quotes, `\\`, `\"` and `\xAB` within.
///
/// ```
/// assert_eq!(fuzz::mutation::words("# JSON\nkey=\"\\\"a\\\"\\x0a\"\n"), [b"\"a\"\n".to_vec()]);
/// ```
#[must_use]
pub fn words(dictionary: &str) -> Vec<Vec<u8>> {
    let lines = dictionary.lines().filter(|line| !line.starts_with('#'));
    let quoted = lines.filter_map(|line| line.split_once('"')?.1.strip_suffix('"'));
    quoted.map(word).collect()
}

fn word(quoted: &str) -> Vec<u8> {
    let (mut word, mut rest) = (Vec::new(), quoted.as_bytes());
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        match (first, behind) {
            (b'\\', [b'x', high, low, behind @ ..]) => {
                let digits = [*high, *low];
                let number = str::from_utf8(&digits).ok().and_then(|digits| u8::from_str_radix(digits, 16).ok());
                word.extend(number);
                rest = behind;
            }
            (b'\\', [escaped, behind @ ..]) => {
                word.push(*escaped);
                rest = behind;
            }
            _ => word.push(*first),
        }
    }
    word
}
