//! A request body: what is found in it.
//!
//! The first byte says where the rest, the body, is cut into chunks.
//! - However it is cut, the scan finds the same, wherever it breaks.
//! - A body that a JSON parser takes for an object is scanned to its end, and all that is found is what the parser's tree says.
//! - A scan by samples finds the same but for text, and of a short body that too.

use admission_bodies::request::{Broken, Facts, Scanner, Slots, reference};
use admission_core::request::text::{COUNTED_WHOLE, Features};

use crate::cut;

/// Bodies of so many bytes at most are also scanned byte by byte, which takes long.
const SHORT: usize = 1_024;

/// What was found; of text that is not at its end only what was counted.
#[derive(Debug, PartialEq)]
struct Found {
    end: Result<(), Broken>,
    facts: Facts,
    counted: Vec<u64>,
    slots: Slots,
}

/// See the head of this file.
pub fn target(data: &[u8]) {
    let Some((seed, body)) = cut::split(data) else { return };
    let shown = || String::from_utf8_lossy(body);
    let whole = found(Scanner::default(), [body].into_iter());
    assert_eq!(found(Scanner::default(), cut::chunks(seed, body)), whole, "cut by {seed}: {}", shown());
    if body.len() <= SHORT {
        assert_eq!(found(Scanner::default(), body.chunks(1)), whole, "byte by byte: {}", shown());
    }
    if let Some(tree) = reference::facts(body) {
        assert_eq!((&whole.end, &whole.facts), (&Ok(()), &tree), "{}", shown());
    }
    let sampled = found(Scanner::sampling(u64::from(seed)), cut::chunks(seed, body));
    if body.len() as u64 <= COUNTED_WHOLE {
        assert_eq!(sampled, whole, "sampled: {}", shown());
    } else if whole.end.is_ok() {
        // A wrong escape may stand in a block that is passed over.
        assert_eq!(without_text(sampled), without_text(whole), "sampled: {}", shown());
    }
}

fn found<'a>(mut scanner: Scanner, chunks: impl Iterator<Item = &'a [u8]>) -> Found {
    chunks.for_each(|chunk| scanner.feed(chunk));
    let (end, facts, slots) = (scanner.finish(), scanner.facts(), scanner.slots().clone());
    let longest = facts.longest_prompt.iter().flat_map(|longest| counts(&longest.text).chain([longest.token_ids]));
    let counted = counts(&facts.text).chain(longest).collect();
    let facts = if end.is_ok() { facts } else { Facts { text: Features::default(), longest_prompt: None, ..facts } };
    Found { end, facts, counted, slots }
}

fn counts(text: &Features) -> impl Iterator<Item = u64> {
    text.counts().iter().copied().chain([text.bytes(), text.blanks()])
}

fn without_text(found: Found) -> Found {
    let longest_prompt = found.facts.longest_prompt.map(|_| Default::default());
    let facts = Facts { text: Features::default(), longest_prompt, ..found.facts };
    Found { facts, counted: Vec::new(), ..found }
}
