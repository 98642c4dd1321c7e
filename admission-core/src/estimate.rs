//! Tokens from what is known of a request, without a tokenizer.
//!
//! prompt = Σ characters of a kind × the kind's weight + messages × overhead + token ids
//! output = the smaller of the request's own limit and the pool's `expected_output_tokens`, × sequences

use crate::decide::Ask;
use crate::policy::Pool;
use crate::request::text::{Class, Classes};
use crate::request::{Api, Facts};
use crate::units::Tokens;

/// Bytes of a body for one token, where only its size is known: JSON around English text.
pub const BYTES_PER_TOKEN: u64 = 4;

/// Weights in thousandths of a token.
const PER_MILLE: u64 = 1_000;

/// What a chat template puts around each message.
const MESSAGE_OVERHEAD: u64 = 4;

/// What a chat template puts before the answer.
const CHAT_OVERHEAD: u64 = 3;

/// Thousandths of a token for each run of letters, beside its letters: an English word of 4.7 letters comes to 1.14.
const PER_WORD: u64 = 200;

/// Thousandths of a token for each character of a kind, for vocabularies of about 100,000 entries.
const WEIGHTS: [(Class, u64); 8] = [
    (Class::Letter, 200),
    (Class::Digit, 400),
    (Class::Space, 20),
    (Class::Control, 500),
    (Class::Sign, 550),
    (Class::TwoBytes, 550),
    (Class::ThreeBytes, 850),
    (Class::FourBytes, 2_000),
];

/// The ask of a request of which only the body's size is known.
#[must_use]
pub fn from_size(body_bytes: u64, api: Api, pool: &Pool) -> Ask {
    let output = match api {
        Api::Embeddings => Tokens(0),
        Api::Chat | Api::Completions | Api::Messages | Api::Other => pool.expected_output,
    };
    let prompt = Tokens(body_bytes.div_ceil(BYTES_PER_TOKEN));
    Ask { prompt, longest_prompt: prompt, output, output_limit: None, prompt_read: false }
}

/// The ask of a request whose body was read to its end.
#[must_use]
pub fn from_body(facts: &Facts, api: Api, pool: &Pool) -> Ask {
    let output_limit = facts.max_tokens.map(Tokens);
    let each = output_limit.map_or(pool.expected_output, |limit| limit.min(pool.expected_output));
    let output = Tokens(each.0.saturating_mul(facts.sequences.max(1)));
    let prompt = prompt(facts, api);
    let longest_prompt = facts.longest_prompt.unwrap_or(prompt);
    Ask { prompt, longest_prompt, output, output_limit, prompt_read: true }
}

/// The ask of a request whose body of `body_bytes` was read in part: the rest is taken for text of
/// [`BYTES_PER_TOKEN`].
#[must_use]
pub fn from_part(facts: &Facts, body_bytes: u64, api: Api, pool: &Pool) -> Ask {
    let seen = from_body(facts, api, pool);
    let rest = body_bytes.saturating_sub(facts.bytes).div_ceil(BYTES_PER_TOKEN);
    Ask { prompt: seen.prompt.plus(Tokens(rest)), prompt_read: false, ..seen }
}

fn prompt(facts: &Facts, api: Api) -> Tokens {
    let overhead = match api {
        Api::Chat => facts.messages.saturating_mul(MESSAGE_OVERHEAD).saturating_add(CHAT_OVERHEAD),
        Api::Completions | Api::Messages | Api::Embeddings | Api::Other => 0,
    };
    text(&facts.text).plus(Tokens(facts.token_ids)).plus(Tokens(overhead))
}

/// Tokens of text, rounded up.
#[must_use]
pub fn text(text: &Classes) -> Tokens {
    let kinds = WEIGHTS.iter().map(|(class, weight)| text.count(*class).saturating_mul(*weight));
    let thousandths = kinds.fold(text.words.saturating_mul(PER_WORD), u64::saturating_add);
    Tokens(thousandths.div_ceil(PER_MILLE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Plugin, Policy};
    use crate::request::Scanner;
    #[cfg(target_family = "wasm")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn policy() -> Policy {
        let json = br#"{"pools": [{"name": "p", "max_in_flight": 1, "expected_output_tokens": 100}]}"#;
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json) else { panic!("policy") };
        *policy
    }

    fn facts(body: &str) -> Facts {
        let mut scanner = Scanner::default();
        scanner.feed(body.as_bytes());
        scanner.facts()
    }

    /// The counts are those of two vocabularies in wide use, o200k and cl100k; they differ most on Chinese.
    #[test]
    fn ordinary_text_is_estimated_within_an_eighth_of_what_vocabularies_make_of_it() {
        let english = "The quick brown fox jumps over the lazy dog, while seventeen engineers watch from the balcony \
                       and discuss whether the scheduler should have admitted the request at all. Once upon a time \
                       there was a small village by the sea where nobody had ever heard of a computer. The fishermen \
                       went out every morning before sunrise, and when they came home in the evening they told each \
                       other stories about the weather, the waves and the fish that got away.";
        let chinese = "快速的棕色狐狸跳过懒狗，而十七名工程师在阳台上观看并讨论调度程序是否应该接受该请求。机器学习模型需要大量的计算资源，图形处理器的显存往往是瓶颈。请解释一下为什么推理服务器在高负载下会变慢，并给出三个改进建议。";
        for (sample, fewest, most) in [(english, 86, 86), (chinese, 79, 122)] {
            let mut classes = Classes::default();
            classes.add_bytes(sample.as_bytes());
            let estimate = text(&classes).0;
            assert!(estimate * 8 >= fewest * 7 && estimate * 8 <= most * 9, "{estimate}, {fewest} to {most}: {sample}");
        }
    }

    #[test]
    fn output_is_the_smaller_of_limit_and_expectation_for_each_sequence() {
        let policy = policy();
        let pool = policy.only_pool().unwrap();
        let output = |body| from_body(&facts(body), Api::Completions, pool).output;
        assert_eq!(output(r#"{"prompt": "x"}"#), Tokens(100));
        assert_eq!(output(r#"{"prompt": "x", "max_tokens": 30, "n": 2}"#), Tokens(60));
        assert_eq!(output(r#"{"prompt": "x", "max_tokens": 4000000}"#), Tokens(100));
        assert_eq!(output(r#"{"prompt": "x", "n": 18446744073709551615}"#), Tokens(u64::MAX));
    }

    #[test]
    fn token_ids_are_counted_exactly() {
        let policy = policy();
        let ids = facts(r#"{"prompt": [5, 6, 7]}"#);
        assert_eq!(from_body(&ids, Api::Completions, policy.only_pool().unwrap()).prompt, Tokens(3));
    }

    #[test]
    fn size_stands_in_for_what_was_not_read() {
        let policy = policy();
        let pool = policy.only_pool().unwrap();
        assert_eq!(from_size(4_001, Api::Chat, pool).prompt, Tokens(1_001));
        assert_eq!(from_size(4_001, Api::Embeddings, pool).output, Tokens(0));
        assert_eq!(from_size(4_001, Api::Other, pool).output, Tokens(100), "who knows what it generates");
        let part = facts(r#"{"prompt": "one two"#);
        let whole = part.bytes + 400;
        let ask = from_part(&part, whole, Api::Completions, pool);
        assert_eq!(ask.prompt, text(&part.text).plus(Tokens(100)));
        assert!(!ask.prompt_read);
    }
}
