//! What can be wrong with a body.

use fastrand::Rng;
use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::echo::{Echo, PREFIX};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait};

use super::with_echo;

/// What becomes of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The worker gets it byte for byte.
    Passes,
    /// It is refused with this status and reason.
    Refused(u16, &'static str),
}

use Fate::Passes;

const MALFORMED: Fate = Fate::Refused(400, "malformed");
const OVERSIZE: Fate = Fate::Refused(413, "oversize");
const UNKNOWN: Fate = Fate::Refused(404, "unknown_model");

/// A body, what becomes of it where one pool takes whatever is no JSON, and where the pool hangs on the model.
struct Case {
    name: &'static str,
    body: Vec<u8>,
    one_pool: Fate,
    by_model: Fate,
}

fn case(name: &'static str, body: impl Into<Vec<u8>>, fate: Fate) -> Case {
    Case { name, body: body.into(), one_pool: fate, by_model: fate }
}

/// What is no JSON before its model could be read.
fn unreadable(name: &'static str, body: impl Into<Vec<u8>>) -> Case {
    Case { by_model: MALFORMED, ..case(name, body, Passes) }
}

/// A chat request with this behind its model.
fn chat(rest: &str) -> String {
    format!(r#"{{"model": "{MODEL}", {rest}}}"#)
}

fn content(text: &str) -> String {
    chat(&format!(r#""messages": [{{"role": "user", "content": "{text}"}}], "max_tokens": 1"#))
}

/// So many brackets within each other, that of the body itself counted.
fn nested(depth: usize, open: &str, close: &str) -> String {
    chat(&format!(r#""metadata": {}1{}"#, open.repeat(depth - 1), close.repeat(depth - 1)))
}

fn nesting() -> Vec<Case> {
    vec![
        case("127 deep", nested(127, "[", "]"), Passes),
        case("128 deep", nested(128, "[", "]"), MALFORMED),
        case("objects 128 deep", nested(128, r#"{"a":"#, "}"), MALFORMED),
        case("200,000 deep", nested(200_000, "[", "]"), MALFORMED),
        case("deep and never closed", chat(&format!(r#""messages": {}"#, "[".repeat(100_000))), MALFORMED),
        case("a model that is a tree", r#"{"model": [[["sim"]]], "messages": []}"#, UNKNOWN),
        case("messages that are a tree", chat(r#""messages": [[[[{"content": {"content": [[]]}}]]]]"#), Passes),
        case(
            "100,000 keys",
            chat(&(0..100_000).map(|key| format!(r#""{key}": 0,"#)).collect::<String>()) + " ",
            Passes,
        ),
    ]
}

fn numbers() -> Vec<Case> {
    let limit = |number: &str| chat(&format!(r#""messages": [], "max_tokens": {number}"#));
    let answers = |number: &str| chat(&format!(r#""messages": [], "max_tokens": 64, "n": {number}"#));
    vec![
        // Python reads this as infinite, which is no count to any worker.
        case("max_tokens beyond all", limit("1e999"), Passes),
        case("max_tokens beyond all but one", limit("1e308"), OVERSIZE),
        case("max_tokens of 60 digits", limit(&"9".repeat(60)), OVERSIZE),
        case("max_tokens of 200,000 digits", limit(&"9".repeat(200_000)), OVERSIZE),
        case("max_tokens just below 2^64", limit("18446744073709551615"), OVERSIZE),
        case("max_tokens below zero", limit("-1e999"), Passes),
        case("max_tokens as text", limit(r#""64""#), Passes),
        case("max_tokens that is no number", limit("NaN"), Passes),
        case("n beyond all", answers("1e308"), OVERSIZE),
        case("n with 60 digits behind the point", answers(&format!("5000.{}", "0".repeat(60))), OVERSIZE),
        case("n below zero", answers("-9223372036854775809"), Passes),
        case("n of a fraction", answers("0.000000000000000000000000001"), Passes),
        case("numbers that say nothing", chat(r#""a": -0, "b": 1E+0000001, "c": 0.1e-9999999999"#), Passes),
        case("a token id beyond all", chat(r#""prompt": [1e400, -1, 4294967296], "max_tokens": 1"#), Passes),
    ]
}

fn texts() -> Vec<Case> {
    let wide = |units: &mut dyn Iterator<Item = u16>, little: bool| -> Vec<u8> {
        units.flat_map(|unit| if little { unit.to_le_bytes() } else { unit.to_be_bytes() }).collect()
    };
    let plain = content("Hello.");
    let marked = [&[0xef, 0xbb, 0xbf], plain.as_bytes()].concat();
    let utf32: Vec<u8> = plain.chars().flat_map(|sign| u32::from(sign).to_be_bytes()).collect();
    let invalid = [br#"{"model": "sim", "messages": [{"content": ""#, &b"\xff\xfe\xc3\x28\xed\xa0\x80"[..], br#""}]}"#];
    let nul = [br#"{"model": "sim", "messages": [{"content": "a"#, &b"\0"[..], br#"b"}]}"#].concat();
    vec![
        case("a lone high surrogate", content(r"\ud800"), Passes),
        case("a lone low surrogate", content(r"\udc00 and more"), Passes),
        case("surrogates the wrong way round", content(r"\udc00\ud800"), Passes),
        case("a surrogate and a letter", content(r"\ud83dA"), Passes),
        case("a surrogate at the end of its string", content(r"\ud83d\"), Passes),
        case("a lone surrogate in the model", r#"{"model": "sim\ud800", "messages": []}"#, Passes),
        case("a model of a lone surrogate", r#"{"model": "\ud800", "messages": []}"#, UNKNOWN),
        case("an escaped model", r#"{"\u006dodel": "\u0073im", "messages": []}"#, Passes),
        case("bytes that are no UTF-8", invalid.concat(), Passes),
        case("a model that is no UTF-8", b"{\"model\": \"\xff\xfe\", \"messages\": []}".to_vec(), UNKNOWN),
        case("a byte order mark", marked, MALFORMED),
        case("UTF-16, least byte first", wide(&mut plain.encode_utf16(), true), MALFORMED),
        case("UTF-16, greatest byte first", wide(&mut plain.encode_utf16(), false), MALFORMED),
        case("UTF-32", utf32, MALFORMED),
        case("a NUL in a text", nul, Passes),
        case("an escaped NUL", content(r"a\u0000b"), Passes),
        case("a NUL behind the object", [plain.as_bytes(), b"\0"].concat(), MALFORMED),
        case("nothing but NULs", vec![0; 1_000], MALFORMED),
        case("5,000 escapes", content(&r"\u0041".repeat(5_000)), Passes),
        case("a model of 200,000 bytes", format!(r#"{{"model": "{}"}}"#, "x".repeat(200_000)), UNKNOWN),
        case("a key of 200,000 bytes", chat(&format!(r#""{}": 1"#, "x".repeat(200_000))), Passes),
    ]
}

fn documents() -> Vec<Case> {
    let plain = content("Hello.");
    vec![
        case("two models, the last known", r#"{"model": "nobody's", "messages": [], "model": "sim"}"#, Passes),
        case("two models, the last unknown", r#"{"model": "sim", "messages": [], "model": "nobody's"}"#, UNKNOWN),
        case("two limits", chat(r#""max_tokens": 1, "max_tokens": 9000000, "messages": []"#), OVERSIZE),
        case("10,000 limits", chat(&r#""max_tokens": 1,"#.repeat(10_000)) + " ", Passes),
        case("two documents", format!("{plain}{plain}"), MALFORMED),
        case("rubbish behind the object", format!("{plain}]"), MALFORMED),
        case("blanks around the object", format!(" \t\r\n{plain} \t\r\n"), Passes),
        case("a model that is null", r#"{"model": null, "messages": []}"#, UNKNOWN),
        case("an object without anything", "{}", UNKNOWN),
        // What stood before the mistake names the model.
        case("a comma too many", chat(r#""messages": [],"#), Passes),
        case("a comment", chat(r#"/* no */ "messages": []"#), Passes),
        case("cut off in a text", &plain.as_bytes()[..40], Passes),
        case("cut off in an escape", chat(r#""messages": [{"content": "\u00"#), Passes),
        unreadable("single quotes", "{'model': 'sim'}"),
        unreadable("null", "null"),
        unreadable("a text", "\"sim\""),
        unreadable("a list", format!("[{plain}]")),
        unreadable("blanks", " ".repeat(10_000)),
        unreadable("a form", "model=sim&messages=hello"),
        unreadable("rubbish before the object", format!("x{plain}")),
    ]
}

/// The pieces of a request, each of which is written by itself.
fn cut(bytes: &[u8], rng: &mut Rng) -> Vec<Vec<u8>> {
    let longest = (bytes.len() / 8).max(2);
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    while !rest.is_empty() {
        let (piece, behind) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        pieces.push(piece.to_vec());
        rest = behind;
    }
    pieces
}

async fn fate(rig: &Rig, pieces: Vec<Vec<u8>>, body: &[u8]) -> Result<Fate, String> {
    let mut pieces = pieces.into_iter();
    let mut caller = RawCaller::send(rig.address, &pieces.next().unwrap_or_default()).await;
    for piece in pieces {
        caller.send_more(&piece).await;
        tokio::task::yield_now().await;
    }
    let (head, answer) = caller.last_answer().await;
    let status = head.split_whitespace().nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let reason = head.lines().find_map(|line| line.strip_prefix("x-sluice-reason: "));
    let known = [MALFORMED, OVERSIZE, UNKNOWN].into_iter();
    match (status, reason) {
        (200, None) if answer == body => Ok(Passes),
        (_, Some(reason)) => {
            let whole = serde_json::from_slice::<Value>(&answer).is_ok_and(|answer| answer["error"].is_object());
            let refused =
                known.clone().find(|fate| matches!(fate, Fate::Refused(s, r) if (*s, *r) == (status, reason)));
            refused.filter(|_| whole).ok_or_else(|| head.clone() + &String::from_utf8_lossy(&answer))
        }
        _ => Err(format!("{head}, {} bytes of {}", answer.len(), body.len())),
    }
}

async fn judged(wait: Wait) {
    let cases = [nesting(), numbers(), texts(), documents()].into_iter().flatten();
    let cases: Vec<Case> = cases.collect();
    let echo = Echo::start().await;
    let setup = Setup::new(2, wait).with("/pools/0/max_model_len", 8_192.into());
    let setup = setup.with("/tenants/*", json!({"max_tokens_in_flight": 1_000_000}));
    let rig = Rig::start(with_echo(setup, &echo)).await;
    let (path, mut rng) = (format!("{PREFIX}{CHAT}"), Rng::with_seed(20_260));
    let close: [(&str, &[u8]); 1] = [("connection", b"close")];
    let mut wrong = Vec::new();
    for Case { name, body, one_pool, by_model } in &cases {
        let expected = if wait == Wait::Unread { *one_pool } else { *by_model };
        let (sized, chunked) = (request_bytes(&path, &close, body, true), request_bytes(&path, &close, body, false));
        for pieces in [vec![sized], cut(&chunked, &mut rng)] {
            let count = pieces.len();
            let fate = fate(&rig, pieces, body).await;
            if fate != Ok(expected) {
                wrong.push(format!("{name}, in {count} pieces: {fate:?}, not {expected:?}"));
            }
        }
        rig.nothing_trapped().await;
    }
    assert!(wrong.is_empty(), "{wait:?}: {wrong:#?}");
    rig.nothing_is_held().await;
}

#[tokio::test]
async fn every_odd_body_has_its_fate_unread() {
    judged(Wait::Unread).await;
}

#[tokio::test]
async fn every_odd_body_has_its_fate_at_headers() {
    judged(Wait::AtHeaders).await;
}

#[tokio::test]
async fn every_odd_body_has_its_fate_with_the_body_held() {
    judged(Wait::BodyHeld).await;
}
