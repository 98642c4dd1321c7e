use super::*;

fn of(text: &str) -> Features {
    let mut features = Features::default();
    features.add_bytes(text.as_bytes());
    features.end_string();
    features
}

#[test]
fn each_feature_holds_where_it_says() {
    let cases = [
        (Feature::Word, "two words, parseHTTPHeader x2y", 2 + 3 + 2),
        (Feature::Capitals, "HTTPServer Ab ABc", 2),
        (Feature::Long, "internationally seven77 eight888", 8),
        (Feature::Opened, "f(x) and (y) or \n\"z", 2),
        (Feature::Number, "12 345a6", 3),
        (Feature::Digit, "12 345a6", 6),
        (Feature::Signs, "a.b == (c)", 4),
        (Feature::RareSign, "a, b. \"c\" -> d", 2),
        (Feature::Rule, "----- ... ====", 3),
        (Feature::Indent, "a b  c        d", 2),
        (Feature::Line, "a\n\n\tb;\n", 4),
        (Feature::FreshLine, "a\n\n\tb;\n", 3),
        (Feature::Latin, "Österreich señor", 2),
        (Feature::Greek, "да, ναι", 5),
        (Feature::Arabic, "שלום نعم", 7),
        (Feature::Indic, "नमस्ते", 6),
        (Feature::Symbol, "→ “x”，", 4),
        (Feature::Kana, "はい。", 3),
        (Feature::Han, "中文 限", 3),
        (Feature::RareHan, "中文 限", 1),
        (Feature::Hangul, "안녕", 2),
        (Feature::Emoji, "😀👍", 2),
        (Feature::Foreign, "да, 中文x限", 3),
    ];
    assert_eq!(cases.map(|(feature, ..)| feature), Feature::ALL);
    for (place, (feature, text, count)) in cases.into_iter().enumerate() {
        assert_eq!((feature as usize, of(text).count(feature)), (place, count), "{feature:?} in {text}");
    }
}

/// Of any text with much of what the features look at.
fn random_text(rng: &mut fastrand::Rng) -> String {
    let alphabet: Vec<char> = "aaabcXYZ012  \n\t.,\"(--éдשह—の中限한😀".chars().collect();
    (0..rng.usize(..200)).map(|_| alphabet[rng.usize(..alphabet.len())]).collect()
}

#[test]
fn how_a_text_is_cut_changes_nothing() {
    let mut rng = fastrand::Rng::with_seed(3);
    for _ in 0..2_000 {
        let text = random_text(&mut rng);
        let (mut cut, mut rest) = (Features::default(), text.as_bytes());
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(rng.usize(..=rest.len().min(20)));
            cut.add_bytes(piece);
            rest = behind;
        }
        cut.end_string();
        assert_eq!(cut, of(&text), "{text:?}");
    }
}

#[test]
fn escaped_characters_count_as_plain_ones() {
    let mut rng = fastrand::Rng::with_seed(4);
    for _ in 0..2_000 {
        let text = random_text(&mut rng);
        let mut escaped = Features::default();
        for char in text.chars() {
            if rng.bool() {
                char.encode_utf16(&mut [0; 2]).iter().for_each(|unit| escaped.add_utf16(*unit));
            } else {
                escaped.add_bytes(char.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        escaped.end_string();
        assert_eq!(escaped, of(&text), "{text:?}");
    }
}

#[test]
fn strings_do_not_join_and_no_bytes_break_it() {
    let mut features = of("ab");
    features.add_bytes(b"cd");
    assert_eq!(features.count(Feature::Word), 2);
    let mut rng = fastrand::Rng::with_seed(5);
    let bytes: Vec<u8> = (0..10_000).map(|_| rng.u8(..)).collect();
    features.add_bytes(&bytes);
    let _ = features.add_json(&bytes, bytes.len());
    (0..=u16::MAX).for_each(|unit| features.add_utf16(unit));
    assert!(features.bytes() > 10_000 + 100_000);
}

/// What was written as a JSON string, in pieces, against its characters one by one.
#[test]
fn blocks_count_what_single_characters_count() {
    let mut rng = fastrand::Rng::with_seed(6);
    for round in 0..4_000 {
        let alphabet: Vec<char> = match round % 3 {
            0 => "aaaabbcXYZ012  \n\t.,\"(--éдשह—の中限한😀\\/".chars().collect(),
            1 => "\"\"\\a( \n".chars().collect(),
            _ => "abcdefghij klmnopqrstuvwxyz.".chars().collect(),
        };
        let text: String = (0..rng.usize(..300)).map(|_| alphabet[rng.usize(..alphabet.len())]).collect();
        let mut plain = Features::default();
        let mut buffer = [0; 4];
        for char in text.chars() {
            char.encode_utf8(&mut buffer).bytes().for_each(|byte| plain.add_bytes(&[byte]));
        }
        plain.end_string();
        assert_eq!(of(&text), plain, "{text:?}");

        let written = serde_json::to_string(&text).unwrap();
        let written = &written.as_bytes()[1..];
        let (mut counted, mut place) = (Features::default(), 0);
        while written[place..] != b"\""[..] {
            let piece = &written[place..(place + rng.usize(1..200)).min(written.len())];
            let length = closing(piece).unwrap_or_else(|| before_part_of_escape(piece));
            assert!(length > 0 || piece == b"\\", "{text:?}");
            counted.add_json(piece, length).unwrap();
            place += length;
        }
        assert_eq!(closing(written), Some(written.len() - 1), "{text:?}");
        counted.end_string();
        assert_eq!(counted, plain, "{text:?}");
    }
}

/// Bytes that are no text, many of which begin a character.
#[test]
fn blocks_count_what_single_bytes_count_whatever_they_are() {
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..2_000 {
        let bytes: Vec<u8> = match round % 3 {
            0 => vec![rng.u8(0xc0..); rng.usize(..200)],
            1 => (0..rng.usize(..200)).map(|_| rng.u8(0xc0..)).collect(),
            _ => (0..rng.usize(..200)).map(|_| rng.u8(..)).collect(),
        };
        let (mut whole, mut single) = (Features::default(), Features::default());
        whole.add_bytes(&bytes);
        bytes.iter().for_each(|byte| single.add_bytes(&[*byte]));
        assert_eq!(whole, single, "{bytes:x?}");
    }
}
