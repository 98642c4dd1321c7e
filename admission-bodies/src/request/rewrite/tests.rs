use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::*;
use crate::request::{Broken, Scanner};

fn scanned(chunks: &[&[u8]]) -> (Slots, Result<(), Broken>) {
    let mut scanner = Scanner::default();
    chunks.iter().for_each(|chunk| scanner.feed(chunk));
    let whole = scanner.finish();
    (scanner.slots().clone(), whole)
}

fn slots(body: &[u8]) -> Slots {
    let (slots, whole) = scanned(&[body]);
    assert_eq!(whole, Ok(()), "{}", String::from_utf8_lossy(body));
    slots
}

/// The body with priority -3.
fn tagged(body: &str) -> Option<String> {
    with_priority(body.as_bytes(), &slots(body.as_bytes()), -3).map(|body| String::from_utf8(body).unwrap())
}

fn noted(body: &str) -> Vec<&str> {
    let range = |at: &Range<u64>| at.start as usize..at.end as usize;
    slots(body.as_bytes()).notes().map(|note| &body[range(&note.at)]).collect()
}

fn with_priority(body: &[u8], slots: &Slots, priority: i32) -> Option<Vec<u8>> {
    rewritten(body, slots, Changes { priority: Some(priority), include_usage: false })
}

/// The body made to ask for usage.
fn asking(body: &str) -> Option<String> {
    let changes = Changes { priority: None, include_usage: true };
    rewritten(body.as_bytes(), &slots(body.as_bytes()), changes).map(|body| String::from_utf8(body).unwrap())
}

#[test]
fn a_body_without_a_priority_gets_one_as_its_first_key() {
    let cases = [
        (r#"{"model": "m"}"#, r#"{"priority":-3,"model": "m"}"#),
        ("{}", r#"{"priority":-3}"#),
        (" \r\n\t{ \n } \n", " \r\n\t{\"priority\":-3 \n } \n"),
        (" { \"a\" : { } } ", " {\"priority\":-3, \"a\" : { } } "),
        (r#"{"":0}"#, r#"{"priority":-3,"":0}"#),
    ];
    for (body, expected) in cases {
        assert_eq!(tagged(body).as_deref(), Some(expected), "{body}");
    }
}

#[test]
fn a_stream_is_made_to_end_with_its_usage_whatever_its_options_say() {
    let cases = [
        (r#"{}"#, r#"{"stream_options":{"include_usage":true}}"#),
        (r#"{"stream": true}"#, r#"{"stream_options":{"include_usage":true},"stream": true}"#),
        (r#"{"stream_options": null}"#, r#"{"stream_options": {"include_usage":true}}"#),
        (r#"{"stream_options": [1, {"include_usage": 2}]}"#, r#"{"stream_options": {"include_usage":true}}"#),
        (r#"{"stream_options": { }}"#, r#"{"stream_options": {"include_usage":true }}"#),
        (
            r#"{"stream_options": {"x": {"include_usage": 0}}}"#,
            r#"{"stream_options": {"include_usage":true,"x": {"include_usage": 0}}}"#,
        ),
        (
            r#"{"stream_options": {"include_usage": false, "x": 1}}"#,
            r#"{"stream_options": {"include_usage": true, "x": 1}}"#,
        ),
        (
            r#"{"stream_options": {"include\u005fusage": {"a": [1]}}, "b": {"include_usage": 1}}"#,
            r#"{"stream_options": {"include\u005fusage": true}, "b": {"include_usage": 1}}"#,
        ),
        (
            r#"{"stream_options": null, "stream_options": {"a": 1, "include_usage": 0, "include_usage": "no"}}"#,
            r#"{"stream_options": {"include_usage":true}, "stream_options": {"a": 1, "include_usage": true, "include_usage": true}}"#,
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(asking(body).as_deref(), Some(expected), "{body}");
    }
    let both = rewritten(b"{ }", &slots(b"{ }"), Changes { priority: Some(1), include_usage: true });
    assert_eq!(both.as_deref(), Some(&br#"{"priority":1,"stream_options":{"include_usage":true} }"#[..]));
    assert_eq!(asking(&format!("{{{}}}", [r#""stream_options":1"#; MAX_NOTED + 1].join(","))), None);
}

#[test]
fn every_number_is_written_as_it_is() {
    for priority in [i32::MIN, -1, 0, 7, i32::MAX] {
        for body in [r#"{"a": 1}"#, r#"{"priority": "x"}"#] {
            let changes = Changes { priority: Some(priority), include_usage: true };
            let tagged = rewritten(body.as_bytes(), &slots(body.as_bytes()), changes).unwrap();
            assert!(tagged.len() <= body.len() + 2 * MAX_WRITTEN, "fits into the room made for it");
            assert_eq!(serde_json::from_slice::<Value>(&tagged).unwrap()["priority"], priority);
        }
    }
}

#[test]
fn a_value_of_any_kind_is_replaced_from_its_first_byte_to_its_last() {
    let values = [
        "0",
        "-12",
        "1.5e+300",
        "null",
        "true",
        "NaN",
        "-Infinity",
        r#""""#,
        r#""5""#,
        r#""\"}, \\""#,
        r#""\u007d世\\\\""#,
        "{}",
        "{ }",
        "[]",
        "[ [ ], {} ]",
        r#"{"priority": {"priority": [1, "]", {"a": 2}]}, "b": "}"}"#,
        r#"["priority", 1]"#,
    ];
    for value in values {
        for (before, behind) in [
            ("{\"priority\":", "}"),
            ("{\"a\": [1], \"priority\" \n:\t", " \n, \"z\": 2 } "),
            (" { \"priority\": ", ",\"b\":{\"priority\":2}}"),
        ] {
            let body = format!("{before}{value}{behind}");
            assert_eq!(noted(&body), [value], "{body}");
            assert_eq!(tagged(&body), Some(format!("{before}-3{behind}")), "{body}");
        }
    }
}

#[test]
fn any_spelling_of_the_key_is_the_key_and_no_other_is() {
    for key in [r"pri\u006frity", r"\u0070\u0072\u0069\u006F\u0072\u0069\u0074\u0079", r"\u0070riorit\u0079"] {
        assert_eq!(tagged(&format!(r#"{{"{key}": 9}}"#)), Some(format!(r#"{{"{key}": -3}}"#)));
    }
    // Taken for the key, one of these would hide from us that the worker finds no priority.
    for key in [
        "Priority",
        "priority ",
        "priorit",
        r"priority\u0000",
        r"priority\ud83d",
        r"\ud83dpriority",
        r"prior\ude00ity",
        r"priority\n",
        r"priorit\\u0079",
        r"pri\\ority",
        "prioritypriorityprioritypriority",
    ] {
        let body = format!(r#"{{"{key}": 9}}"#);
        assert_eq!(tagged(&body), Some(format!(r#"{{"priority":-3,"{key}": 9}}"#)));
    }
}

#[test]
fn a_priority_within_something_else_is_left_alone() {
    let body = r#"{"messages": [{"role": "user", "priority": 1, "content": "{\"priority\": 2}"}],
        "metadata": {"priority": 3}, "tools": [{"a": {"priority": [4]}}], "stop": "priority", "x": ["priority", 5]}"#;
    assert_eq!(tagged(body), Some(body.replacen('{', "{\"priority\":-3,", 1)));
    let last = r#"{"priority": 0, "metadata": {"priority": 3}, "x": [{"priority": 1}], "priority": {"priority": 8}}"#;
    assert_eq!(
        tagged(last).as_deref(),
        Some(r#"{"priority": -3, "metadata": {"priority": 3}, "x": [{"priority": 1}], "priority": -3}"#)
    );
}

#[test]
fn of_a_key_that_stands_several_times_all_are_replaced_or_the_body_is_refused() {
    let body = |times: usize| format!("{{{}}}", vec![r#""priority":[1]"#; times].join(", "));
    for times in 1..=MAX_NOTED {
        assert_eq!(tagged(&body(times)), Some(body(times).replace("[1]", "-3")));
    }
    for times in [MAX_NOTED + 1, MAX_NOTED + 2, 1_000] {
        assert!(slots(body(times).as_bytes()).too_many());
        assert_eq!(tagged(&body(times)), None);
    }
}

#[test]
fn chunk_borders_anywhere_change_nothing() {
    let body = r#" { "a": {"priority": 1}, "pri\u006frity" : "\u0031\"}" , "priority":12, "priority": {"x": [1]},"b":2,
        "stream_options": {"include_usage": [1]}, "stream_options" : 2, "stream_options":{ "z": "\u0031" } } "#;
    let body = body.as_bytes();
    let whole = slots(body);
    assert_eq!(whole.noted, 3 + 3);
    for border in 0..=body.len() {
        let (first, second) = body.split_at(border);
        assert_eq!(scanned(&[first, second]), (whole.clone(), Ok(())), "border at {border}");
    }
    let bytes: Vec<&[u8]> = body.chunks(1).collect();
    assert_eq!(scanned(&bytes), (whole, Ok(())));
}

#[test]
fn slots_of_another_body_or_of_part_of_one_write_nothing() {
    let body = br#"{"a": 1, "priority": 22, "b": 3}"#;
    let whole = slots(body);
    for end in 0..body.len() {
        let (begun, _) = scanned(&[&body[..end]]);
        assert_eq!(with_priority(&body[..end], &begun, 1), None, "ends at {end}");
        assert_eq!(with_priority(body, &begun, 1), None, "ends at {end}");
        assert_eq!(with_priority(&body[..end], &whole, 1), None, "ends at {end}");
    }
    let others = [
        "",
        "{",
        "{}",
        " ",
        r#" {"a": 1, "priority": 22, "b": 3}"#,
        r#"{"a": 1, "priority": 22, "b": 3}x"#,
        r#"["a": 1, "priority": 22, "b": 3}"#,
        r#"{"a": 1, "priority": 22, "b": 3]"#,
    ];
    for other in others {
        assert_eq!(with_priority(other.as_bytes(), &whole, 1), None, "{other}");
    }
    assert_eq!(with_priority(body, &Slots::default(), 1), None);
    let far = Slots { begin: u64::MAX - 1, end: u64::MAX, ..Slots::default() };
    assert_eq!(with_priority(body, &far, 1), None);
}

/// All entries of an object, in their order, equal keys too.
#[derive(Debug, PartialEq)]
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Entries;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Entries, M::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(All)
    }
}

/// A JSON parser reads the same from the tagged body as from the body, but for the priority, whichever of equal keys it
/// takes.
fn check(body: &[u8], slots: &Slots, priority: i32) {
    let shown = String::from_utf8_lossy(body);
    let mut entries = serde_json::from_slice::<Entries>(body).unwrap();
    let times = entries.0.iter().filter(|(key, _)| key == "priority").count();
    let tagged = with_priority(body, slots, priority);
    let options = entries.0.iter().any(|(key, _)| key == "stream_options");
    assert!(slots.too_many() == (times > MAX_NOTED) || options, "{shown}");
    assert_eq!(tagged.is_none(), slots.too_many(), "{shown}");
    let Some(tagged) = tagged else { return };
    check_usage(body, slots);
    entries.0.iter_mut().filter(|(key, _)| key == "priority").for_each(|(_, value)| *value = priority.into());
    if times == 0 {
        entries.0.insert(0, ("priority".to_owned(), priority.into()));
    }
    assert_eq!(serde_json::from_slice::<Entries>(&tagged).unwrap(), entries, "{shown}");
    let mut value = serde_json::from_slice::<Value>(body).unwrap();
    value["priority"] = priority.into();
    assert_eq!(serde_json::from_slice::<Value>(&tagged).unwrap(), value, "{shown}");
}

/// A JSON parser finds that every one of the options asks for usage, and all else as it was.
fn check_usage(body: &[u8], slots: &Slots) {
    let shown = String::from_utf8_lossy(body);
    let asking = rewritten(body, slots, Changes { priority: None, include_usage: true }).unwrap();
    let asking = serde_json::from_slice::<Entries>(&asking).unwrap().0;
    let mut before = serde_json::from_slice::<Entries>(body).unwrap().0;
    if !before.iter().any(|(key, _)| key == "stream_options") {
        before.insert(0, ("stream_options".to_owned(), Value::Null));
    }
    for (key, options) in &mut before {
        if key == "stream_options" {
            let mut object = options.as_object().cloned().unwrap_or_default();
            object.insert("include_usage".to_owned(), true.into());
            *options = object.into();
        }
    }
    assert_eq!(asking, before, "{shown}");
}

fn blanks(rng: &mut fastrand::Rng, out: &mut String) {
    while rng.u8(..3) == 0 {
        out.push(*rng.choice(&[' ', '\t', '\r', '\n']).unwrap());
    }
}

fn string(rng: &mut fastrand::Rng, out: &mut String) {
    let parts =
        ["priority", "\\u0070", "r", "\\\"", "\\\\", "{", "}", "[", "]", ",", ":", "世", "\\ud83d\\ude00", "\\n"];
    out.push('"');
    for _ in 0..rng.usize(..4) {
        out.push_str(rng.choice(parts).unwrap());
    }
    out.push('"');
}

fn document(rng: &mut fastrand::Rng, depth: u32, object: bool, out: &mut String) {
    out.push(if object { '{' } else { '[' });
    blanks(rng, out);
    for entry in 0..rng.usize(..12) {
        if entry > 0 {
            out.push(',');
            blanks(rng, out);
        }
        if object {
            match rng.u8(..8) {
                0 | 1 => out.push_str(r#""priority""#),
                2 => out.push_str(rng.choice([r#""stream_options""#, r#""include_usage""#]).unwrap()),
                3 => out.push_str(rng.choice([r#""pri\u006frity""#, r#""Priority""#, r#""model""#, r#""n""#]).unwrap()),
                _ => string(rng, out),
            }
            blanks(rng, out);
            out.push(':');
            blanks(rng, out);
        }
        match rng.u8(..5) {
            0 if depth < 4 => document(rng, depth + 1, true, out),
            1 if depth < 4 => document(rng, depth + 1, false, out),
            2 => string(rng, out),
            _ => out
                .push_str(rng.choice(["0", "-7", "1.25e-3", "null", "true", "false", "18446744073709551615"]).unwrap()),
        }
        blanks(rng, out);
    }
    out.push(if object { '}' } else { ']' });
}

#[test]
fn a_json_parser_reads_all_else_unchanged() {
    let mut rng = fastrand::Rng::with_seed(13);
    let mut refused = 0;
    for _ in 0..20_000 {
        let mut body = String::new();
        blanks(&mut rng, &mut body);
        document(&mut rng, 1, true, &mut body);
        blanks(&mut rng, &mut body);
        let slots = slots(body.as_bytes());
        let chunks: Vec<&[u8]> = body.as_bytes().chunks(rng.usize(1..9)).collect();
        assert_eq!(scanned(&chunks), (slots.clone(), Ok(())), "{body}");
        check(body.as_bytes(), &slots, rng.i32(..));
        refused += u32::from(slots.too_many());
    }
    assert!(refused > 0, "too many are among them");
}

#[test]
fn no_bytes_and_no_slots_break_the_writer() {
    let mut rng = fastrand::Rng::with_seed(17);
    let mut read = 0;
    for _ in 0..20_000 {
        let mut body = String::new();
        document(&mut rng, 3, true, &mut body);
        let mut body = body.into_bytes();
        for _ in 0..rng.usize(..4) {
            let place = rng.usize(..body.len());
            body[place] = *rng.choice(b"{}[]\",:\\ 1p\xff").unwrap();
        }
        let (slots, whole) = scanned(&[&body]);
        if whole.is_ok() && serde_json::from_slice::<Entries>(&body).is_ok() {
            check(&body, &slots, rng.i32(..));
            read += 1;
        }
        let mut at = || if rng.bool() { rng.u64(..40) } else { rng.u64(..) };
        let places = [Place::Priority, Place::Options, Place::IncludeUsage, Place::NoUsage { has_keys: true }];
        let notes = std::array::from_fn(|index| Note { place: places[index % 4], at: at()..at() });
        let wild = Slots { notes, noted: rng.usize(..9), ..slots };
        let _ = with_priority(&body, &wild, 0);
        let _ = with_priority(&body, &Slots { begin: rng.u64(..3), end: rng.u64(..60), ..wild }, 0);
    }
    assert!(read > 1_000, "{read} were JSON");
}
