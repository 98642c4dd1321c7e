//! A route's own metadata, as a proxy hands it to a wasm filter.
//!
//! A struct comes as pairs of bytes ([`crate::pairs`]). Types are not told: a text is its bytes, a truth value one byte, a
//! number eight; so what a field may be decides how it is read.

use std::ops::Range;

use serde_json::{Map, Value};

use crate::gather::gather;
use crate::pairs;
use crate::problem::Problem;

/// Length of no pairs at all.
const EMPTY: usize = 4;

/// Fields that are true or false; all others are text.
const FLAGS: [&str; 1] = ["enabled"];

/// The object that those bytes stand for.
///
/// # Errors
/// One problem: they are no pairs.
pub fn object(bytes: &[u8]) -> Result<Value, Vec<Problem>> {
    let pairs = pairs(bytes).ok_or_else(|| vec![Problem::new("", "must be an object of texts and truth values")])?;
    let fields = pairs.into_iter().map(|(name, value)| {
        let name = String::from_utf8_lossy(name).into_owned();
        let value = value_of(&name, value);
        (name, value)
    });
    Ok(Value::Object(gather::<Map<_, _>, _>(fields)))
}

fn value_of(name: &str, bytes: &[u8]) -> Value {
    match (FLAGS.contains(&name), bytes) {
        (true, [0]) => Value::Bool(false),
        (true, [1]) => Value::Bool(true),
        // What is no text is no name of anything either, and is refused as such. It must not become null, which says that
        // the field was not given.
        _ => Value::String(String::from_utf8_lossy(bytes).into_owned()),
    }
}

fn pairs(bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let places = pairs::places(bytes)?;
    let end = places.last().map_or(EMPTY, |(_, value)| value.end.saturating_add(1));
    let content = |place: Range<usize>| bytes.get(place.clone()).filter(|_| bytes.get(place.end) == Some(&0));
    let contents = places.into_iter().map(|(name, value)| Some((content(name)?, content(value)?)));
    contents.collect::<Option<_>>().filter(|_| end == bytes.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn encoded(pairs: &[(&str, &[u8])]) -> Vec<u8> {
        let number = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
        let mut bytes = number(pairs.len()).to_vec();
        for (key, value) in pairs {
            bytes.extend([number(key.len()), number(value.len())].concat());
        }
        for (key, value) in pairs {
            bytes.extend([key.as_bytes(), &[0], value, &[0]].concat());
        }
        bytes
    }

    #[test]
    fn fields_are_read_by_what_they_may_be() {
        let bytes = encoded(&[("lane", b"batch"), ("enabled", &[0]), ("mode", b""), ("pool", &[0xff, 0xf8])]);
        let expected = json!({"lane": "batch", "enabled": false, "mode": "", "pool": "\u{fffd}\u{fffd}"});
        assert_eq!(object(&bytes), Ok(expected));
        assert_eq!(object(&encoded(&[("enabled", b"no")])), Ok(json!({"enabled": "no"})));
        assert_eq!(object(&encoded(&[])), Ok(json!({})));
    }

    #[test]
    fn bytes_that_are_no_pairs_are_one_problem() {
        let whole = encoded(&[("lane", b"batch"), ("enabled", &[1])]);
        for end in 0..whole.len() {
            assert!(object(&whole[..end]).is_err(), "{end}");
        }
        assert!(object(&[whole.as_slice(), b"more"].concat()).is_err());
        assert!(object(&[0xff; 40]).is_err());
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..random.usize(0..60)).map(|_| random.u8(0..4)).collect();
            let _ = object(&bytes);
        }
    }
}
