//! The scan against a JSON parser and a tree: what the tree says of a request, the scan must say, wherever it is cut.

use super::super::reference::facts as by_tree;
use super::super::{Facts, Scanner};

const TOP: [&str; 37] = [
    "model",
    "stream",
    "stream_options",
    "messages",
    "system",
    "prompt",
    "input",
    "suffix",
    "input_ids",
    "conversation",
    "previous_response_id",
    "tools",
    "functions",
    "response_format",
    "documents",
    "user",
    "metadata",
    "priority",
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "n",
    "best_of",
    "mod\\u0065l",
    "instructions",
    "x",
    "include_usage",
    "inputs",
    "text_input",
    "text",
    "parameters",
    "sampling_params",
    "background",
    "max_new_tokens",
    "n_predict",
    "token_ids",
    "prompt_token_ids",
];

const INNER: [&str; 24] = [
    "role",
    "content",
    "type",
    "text",
    "image_url",
    "url",
    "data",
    "file_data",
    "input_audio",
    "id",
    "include_usage",
    "name",
    "parameters",
    "r\\u006fle",
    "video_url",
    "arguments",
    "output",
    "input",
    "source",
    "file_id",
    "media_type",
    "n",
    "best_of",
    "max_new_tokens",
];

const STRINGS: [&str; 24] = [
    "user",
    "image",
    "document",
    "text",
    "text/",
    "plain words",
    "camelCase_and snake",
    "42",
    " ",
    "\\n\\n",
    "\\\"",
    "\\\\",
    "\\/\\b\\f\\t",
    "é",
    "\\u00e9",
    "世界",
    "\\u4e16",
    "😀",
    "\\ud83d\\ude00",
    "QUJDREVG",
    "true",
    "64",
    "<|x|> == {}[],:",
    "don't  stop 3.14159",
];

const LITERALS: [&str; 8] = ["0", "7", "-7", "1.5", "null", "true", "false", "18446744073709551615"];

struct Writer {
    rng: fastrand::Rng,
    out: String,
}

impl Writer {
    fn blanks(&mut self) {
        while self.rng.u8(..4) == 0 {
            self.out.push(*self.rng.choice(&[' ', '\t', '\r', '\n']).unwrap());
        }
    }

    fn string(&mut self) {
        let long = if self.rng.u8(..8) == 0 { 30 } else { 4 };
        self.out.push('"');
        for _ in 0..self.rng.usize(..long) {
            self.out.push_str(self.rng.choice(STRINGS).unwrap());
        }
        self.out.push('"');
    }

    fn value(&mut self, depth: u32) {
        match self.rng.u8(..6) {
            0 if depth < 6 => self.container(depth + 1, true),
            1 if depth < 6 => self.container(depth + 1, false),
            2 => self.out.push_str(LITERALS[self.rng.usize(..LITERALS.len())]),
            _ => self.string(),
        }
    }

    fn container(&mut self, depth: u32, object: bool) {
        self.out.push(if object { '{' } else { '[' });
        self.blanks();
        for entry in 0..self.rng.usize(..6) {
            if entry > 0 {
                self.out.push(',');
                self.blanks();
            }
            if object {
                let keys = if depth == 1 { &TOP[..] } else { &INNER[..] };
                let key = keys[self.rng.usize(..keys.len())];
                self.out.push_str(&format!("\"{key}\""));
                self.blanks();
                self.out.push(':');
                self.blanks();
            }
            self.value(depth);
            self.blanks();
        }
        self.out.push(if object { '}' } else { ']' });
    }
}

fn document(seed: u64) -> String {
    let mut writer = Writer { rng: fastrand::Rng::with_seed(seed), out: String::new() };
    writer.blanks();
    writer.container(1, true);
    writer.blanks();
    writer.out
}

fn scan_in_pieces(body: &[u8], rng: &mut fastrand::Rng) -> Option<Facts> {
    let mut scanner = Scanner::default();
    let mut rest = body;
    while !rest.is_empty() {
        let longest = if rng.bool() { 4 } else { 200 };
        let (piece, behind) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        scanner.feed(piece);
        rest = behind;
    }
    scanner.finish().ok().map(|()| scanner.facts())
}

#[test]
fn the_scan_says_what_a_tree_says_wherever_the_body_is_cut() {
    let mut rng = fastrand::Rng::with_seed(19);
    for seed in 0..6_000 {
        let body = document(seed);
        let tree = by_tree(body.as_bytes()).unwrap_or_else(|| panic!("no JSON: {body}"));
        let mut whole = Scanner::default();
        whole.feed(body.as_bytes());
        assert_eq!(whole.finish(), Ok(()), "seed {seed}: {body}");
        assert_eq!(whole.facts(), tree, "seed {seed}: {body}");
        for _ in 0..3 {
            assert_eq!(scan_in_pieces(body.as_bytes(), &mut rng).as_ref(), Some(&tree), "seed {seed}: {body}");
        }
    }
}

#[test]
fn what_a_parser_takes_of_broken_documents_the_scan_takes_and_reads_alike() {
    let mut rng = fastrand::Rng::with_seed(23);
    let (mut read, mut refused) = (0, 0);
    for seed in 0..12_000 {
        let mut body = document(seed).into_bytes();
        for _ in 0..rng.usize(1..4) {
            let place = rng.usize(..body.len());
            match rng.u8(..4) {
                0 if body.len() > 1 => drop(body.remove(place)),
                1 => body[place] = rng.u8(..),
                2 => body.truncate(place + 1),
                _ => body.insert(place, b"{}[]\",:\\u0e1"[rng.usize(..12)]),
            }
        }
        let scanned = scan_in_pieces(&body, &mut rng);
        match by_tree(&body) {
            Some(tree) => {
                assert_eq!(scanned, Some(tree), "{}", String::from_utf8_lossy(&body));
                read += 1;
            }
            None => refused += 1,
        }
    }
    assert!(read > 1_000 && refused > 1_000, "{read} read, {refused} refused");
}
