//! Taking a usage report out of a stream that is on its way, and leaving with the proxy what is not yet decided.

use std::borrow::Cow;

use crate::usage::UsageChunkFilter;

/// Most bytes that are left with the proxy, which breaks a stream off when it is to hold more than its buffer may.
const MOST_LEFT: usize = 16_384;

/// Change to the bytes of an answer that the proxy holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Bytes to be put in place of all that the proxy holds; `None` leaves those as they are.
    pub replace: Option<Vec<u8>>,
    /// True where they go on, false where they stay with the proxy.
    pub goes_on: bool,
}

impl Edit {
    /// Everything goes on as it is.
    pub const NOTHING: Self = Self { replace: None, goes_on: true };
}

/// The filter of one stream, and what the proxy holds of it.
///
/// Where a chunk ends within an event that may have to go, the chunk stays with the proxy until more has come: a stream may end
/// by trailers, when nothing can be added to it any more, while what the proxy holds goes on before them.
#[derive(Default)]
pub struct Strip {
    filter: UsageChunkFilter,
    /// Part of the bytes that the proxy holds that is to go on; behind it is what is not decided.
    decided: Vec<u8>,
    /// Number of bytes that the proxy holds.
    left: usize,
}

impl Strip {
    /// Number of bytes that the proxy holds of what has been taken already; new ones follow.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.left
    }

    /// Takes new bytes, with which the proxy holds `size`; `end` with the last.
    pub fn take(&mut self, bytes: &[u8], size: usize, end: bool) -> Edit {
        let mut passed = self.filter.feed(bytes);
        if end {
            let rest = self.filter.finish();
            if !rest.is_empty() {
                passed.to_mut().extend(rest);
            }
        }
        let held = self.filter.held();
        let length = self.decided.len().saturating_add(passed.len()).saturating_add(held.len());
        if !held.is_empty() && length <= MOST_LEFT {
            self.decided.extend_from_slice(&passed);
            self.left = length;
            // Where nothing was taken out it is what the proxy has.
            let replace = (length != size).then(|| [&self.decided, held].concat());
            return Edit { replace, goes_on: false };
        }
        let before = std::mem::take(&mut self.decided);
        let left = std::mem::take(&mut self.left);
        match passed {
            Cow::Borrowed(_) if left == 0 => Edit::NOTHING,
            passed => Edit { replace: Some([&before, &*passed].concat()), goes_on: true },
        }
    }

    /// Takes the end of a stream that has trailers: the bytes that are to be put in place of all that the proxy holds, where a report is
    /// among them.
    pub fn end(&mut self) -> Option<Vec<u8>> {
        let is_report = self.filter.finish().is_empty();
        (is_report && self.left > self.decided.len()).then(|| std::mem::take(&mut self.decided))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n";
    const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";

    /// Hands over parts as a proxy does, which keeps those that are held back and brings them again; what went on.
    fn through(parts: &[&str], trailers: bool) -> String {
        let (mut strip, mut held, mut gone) = (Strip::default(), Vec::new(), Vec::new());
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(strip.left(), held.len(), "what is left is what the proxy holds");
            held.extend_from_slice(part.as_bytes());
            let is_last = number + 1 == parts.len();
            let edit = strip.take(part.as_bytes(), held.len(), is_last && !trailers);
            held = edit.replace.unwrap_or(held);
            if edit.goes_on {
                gone.append(&mut held);
            }
        }
        if trailers {
            held = strip.end().unwrap_or(held);
        }
        gone.append(&mut held);
        String::from_utf8(gone).unwrap()
    }

    #[test]
    fn a_report_goes_wherever_the_stream_is_cut() {
        let (stream, rest) = (format!("{TEXT}{TEXT}{REPORT}data: [DONE]\n\n"), format!("{TEXT}{TEXT}data: [DONE]\n\n"));
        for trailers in [false, true] {
            for first in 0..stream.len() {
                for second in [first, (first + 7).min(stream.len()), stream.len()] {
                    let parts = [&stream[..first], &stream[first..second], &stream[second..]];
                    assert_eq!(through(&parts, trailers), rest, "{first} {second} trailers {trailers}");
                }
            }
        }
    }

    #[test]
    fn a_stream_that_ends_amid_an_event_is_kept_whole() {
        for cut in 1..TEXT.len() {
            assert_eq!(through(&[TEXT, &TEXT[..cut]], false), format!("{TEXT}{}", &TEXT[..cut]));
        }
        assert_eq!(through(&[TEXT, REPORT], true), TEXT);
    }

    #[test]
    fn no_more_is_left_with_the_proxy_than_it_may_hold() {
        let long = format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}", "x".repeat(2 * MOST_LEFT));
        let mut strip = Strip::default();
        assert_eq!((strip.take(long.as_bytes(), long.len(), false).goes_on, strip.left()), (true, 0));
    }
}
