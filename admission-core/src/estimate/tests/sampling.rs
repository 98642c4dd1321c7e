//! Long texts, counted by samples, against the same texts counted as a whole.

use crate::estimate::Inputs;
use crate::family::Family;
use crate::request::text::{COUNTED_WHOLE, Feature};
use crate::request::{Facts, Scanner};

const KIB: usize = 1_024;

/// Of one chat with such messages.
fn chat(messages: &[String]) -> String {
    let messages: Vec<_> = messages.iter().map(|text| serde_json::json!({"role": "user", "content": text})).collect();
    serde_json::json!({"messages": messages, "model": "m"}).to_string()
}

fn read(mut scanner: Scanner, body: &[u8], piece: usize) -> Facts {
    body.chunks(piece).for_each(|chunk| scanner.feed(chunk));
    assert_eq!(scanner.finish(), Ok(()));
    scanner.facts()
}

fn counted(body: &str) -> Facts {
    read(Scanner::default(), body.as_bytes(), usize::MAX)
}

fn sampled(body: &str, seed: u64) -> Facts {
    read(Scanner::sampling(seed), body.as_bytes(), usize::MAX)
}

fn tokens(facts: &Facts) -> f64 {
    Family::Generic.weights().tokens(&Inputs::of_text(&facts.text)).0 as f64
}

const PARTS: [&str; 9] = [
    "The quick brown fox jumps over the lazy dog, again and again. ",
    "fn main() {\n    println!(\"{}\", 6 * 7);\n}\n",
    "请把下面的句子翻译成英文，并说明每个词的意思。",
    "Über die Straße ging ein müder Bär. ",
    "{\"id\": 4711, \"tags\": [\"gpu\", \"queue\"]}",
    "\\\\server\\share\\\\\"quoted\"\\",
    "😀 — café 🙂",
    "Переведите, пожалуйста, этот абзац.\n\n",
    "| eu-west | 182,044 | 1.93 s |\n",
];

/// Text of about so many bytes, of parts drawn at random.
fn mixed(rng: &mut fastrand::Rng, bytes: usize) -> String {
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(PARTS[rng.usize(..PARTS.len())]);
    }
    text
}

/// As clients write JSON that keep to ASCII.
fn in_ascii(body: &str) -> String {
    let escaped = |char: char| char.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect();
    body.chars().map(|char| if char.is_ascii() { char.to_string() } else { escaped(char) }).collect()
}

#[test]
fn short_prompts_are_counted_as_a_whole() {
    let mut rng = fastrand::Rng::with_seed(41);
    for seed in 0..20 {
        let bytes = rng.usize(..COUNTED_WHOLE as usize * 2 / 3);
        let body = chat(&[mixed(&mut rng, bytes)]);
        assert_eq!(sampled(&body, seed), counted(&body));
    }
    let ids = format!(r#"{{"prompt": [{}1], "max_tokens": 7}}"#, "123, ".repeat(20_000));
    assert_eq!(sampled(&ids, 1), counted(&ids), "token ids are no text");
}

#[test]
fn all_but_text_is_read_as_ever_and_text_within_a_bound() {
    let mut rng = fastrand::Rng::with_seed(42);
    for seed in 0..40 {
        let length = if seed % 2 == 0 { 200 } else { 40 * KIB };
        let messages: Vec<String> = (0..100 * KIB / length).map(|_| mixed(&mut rng, length)).collect();
        let body = chat(&messages);
        let body = if seed % 4 < 2 { body } else { in_ascii(&body) };
        let (whole, parts) = (counted(&body), sampled(&body, seed));
        let plain = |facts: &Facts| Facts { text: Default::default(), ..facts.clone() };
        assert_eq!(plain(&parts), plain(&whole));
        assert_ne!(parts.text, whole.text, "some of it is passed over");
        let off = (tokens(&parts) / tokens(&whole) - 1.0).abs();
        assert!(off < 0.1, "off by {off} of {} tokens, seed {seed}", tokens(&whole));
    }
}

#[test]
fn how_a_body_is_cut_changes_no_sample() {
    let mut rng = fastrand::Rng::with_seed(43);
    for seed in 0..30 {
        // Some are as long as to have larger groups at their end.
        let lengths = if seed < 4 { [120 * KIB, 20 * KIB] } else { [20 * KIB, 7 * KIB] };
        let plain = chat(&lengths.map(|length| mixed(&mut rng, length)));
        let body = if seed % 2 == 0 { plain } else { in_ascii(&plain) };
        let whole = sampled(&body, seed);
        for piece in [1, 7, 64, rng.usize(2..2_000)] {
            assert_eq!(read(Scanner::sampling(seed), body.as_bytes(), piece), whole, "seed {seed}, cut by {piece}");
        }
    }
}

#[test]
fn escapes_end_no_string_wherever_samples_begin() {
    for filling in ["\\\"", "\\\\", "\\\\\\\"", "a\\\"", "\\n", "\\u0022", "\\u4e16", "x\\\\\\\\\\\\"] {
        for length in 0..8 {
            let text = "#".repeat(length) + &filling.repeat(60 * KIB / filling.len());
            let body = format!(r#"{{"messages": [{{"content": "{text}"}}], "max_tokens": 77}}"#);
            for piece in [usize::MAX, 1_000] {
                let facts = read(Scanner::sampling(9), body.as_bytes(), piece);
                assert_eq!(facts.max_tokens, Some(77), "{filling}, {length}");
            }
        }
    }
}

/// Dear text stands in one block of `period`, all of them alike, and nothing in the others: a caller who knew the samples could
/// pay for nothing.
#[test]
fn nobody_hides_dear_text_between_samples() {
    let (cheap, dear) = ("a".repeat(64), "1!A-2?b+".repeat(8));
    for period in [2, 7, 8, 9, 16] {
        for place in 0..period {
            let blocks = (0..4_096).map(|block| if block % period == place { &*dear } else { &*cheap });
            let body = chat(&[blocks.collect()]);
            let whole = tokens(&counted(&body));
            let charged: Vec<f64> = (0..8).map(|seed| tokens(&sampled(&body, seed * 7_919)) / whole).collect();
            let (least, mean) = (charged.iter().fold(9.0, |a: f64, b| a.min(*b)), charged.iter().sum::<f64>() / 8.0);
            assert!(least > 0.7, "one of {period} at {place}: {least} of what it costs");
            assert!((0.9..1.1).contains(&mean), "one of {period} at {place}: {mean} in the mean");
        }
    }
}

/// What is read first is counted as a whole, so that even a last message that no sample meets weighs like what stands before.
#[test]
fn what_no_sample_meets_weighs_like_the_rest() {
    let body = chat(&["word ".repeat(COUNTED_WHOLE as usize / 5), "x".to_owned(), "two words ".repeat(5)]);
    for seed in 0..20 {
        let words = sampled(&body, seed).text.count(Feature::Word);
        assert!((3_280..3_310).contains(&words), "{words}");
    }
    let many = vec!["\"one prompt \"".to_owned(); 3_000].join(",");
    let body = format!(r#"{{"prompt": [{many}, "the longest of all of these prompts"]}}"#);
    let longest = sampled(&body, 3).longest_prompt.map(|longest| longest.text);
    let longest = longest.unwrap_or_default();
    assert!(longest.bytes() == 35 && longest.count(Feature::Word) >= 5, "{longest:?}");
}
