use super::*;
use crate::policy::Plugin;
use crate::units::Tokens;
#[cfg(target_family = "wasm")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const ONE_POOL: &str =
    r#"{"pools": [{"name": "p", "max_in_flight": 1, "max_prompt_tokens": 50}], "body": {"hold_limit": "200B"}}"#;
const TWO_POOLS: &str = r#"{"pools": [{"name": "a", "models": ["a*"], "max_in_flight": 1},
    {"name": "b", "models": ["b"], "max_in_flight": 1}], "body": {"hold_limit": "200B"}}"#;

fn policy(json: &str, header_pause: bool) -> Policy {
    let json = json.replacen('{', &format!("{{\"header_pause\": {header_pause}, "), 1);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    *policy
}

fn intake(policy: &Policy, size: Option<u64>) -> Intake {
    let arrival = Arrival { tenant: "t".into(), asked_lane: None, api: Api::Chat, body_bytes: size, encoded: false };
    Intake::new(arrival, policy)
}

fn reason(next: Next) -> Option<Reason> {
    match next {
        Next::Refuse(refusal) => Some(refusal.reason),
        _ => None,
    }
}

#[test]
fn waits_in_the_first_place_that_applies() {
    for (json, header_pause, size, wait) in [
        (ONE_POOL, false, Some(9), Wait::Unread),
        (ONE_POOL, true, Some(9), Wait::Unread),
        (ONE_POOL, true, None, Wait::AtHeaders),
        (ONE_POOL, false, None, Wait::BodyHeld),
        (TWO_POOLS, true, Some(9), Wait::AtHeaders),
        (TWO_POOLS, false, Some(9), Wait::BodyHeld),
    ] {
        assert_eq!(intake(&policy(json, header_pause), size).wait(), wait, "{header_pause} {size:?} {json}");
    }
}

#[test]
fn an_unread_request_is_decided_by_size_and_corrected_at_its_end() {
    let policy = policy(ONE_POOL, false);
    let mut intake = intake(&policy, Some(400));
    let Next::Decide(guess, pool) = intake.headers(&policy) else { panic!("decide") };
    assert_eq!((guess.prompt, pool.name.as_str()), (Tokens(50), "p"), "400 bytes, cut to what the pool takes");
    intake.admitted();
    assert_eq!(intake.body(br#"{"messages": [{"content": "hi"}], "#, false, &policy), Next::GoOn);
    let Next::Correct(exact) = intake.body(br#""max_tokens": 5}"#, true, &policy) else { panic!("correct") };
    assert!(exact.prompt < Tokens(10) && exact.output == Tokens(5) && exact.prompt_read);
}

#[test]
fn what_the_body_proves_impossible_is_refused_as_soon_as_it_is_seen() {
    let policy = policy(ONE_POOL, false);
    let mut intake = intake(&policy, Some(4_000));
    intake.admitted();
    assert_eq!(intake.body(br#"{"messages": [{"content": ""#, false, &policy), Next::GoOn);
    assert_eq!(reason(intake.body("many words ".repeat(60).as_bytes(), false, &policy)), Some(Reason::Oversize));
}

#[test]
fn a_body_ends_with_the_last_byte_that_was_promised() {
    let policy = policy(ONE_POOL, false);
    let body = br#"{"messages": []}"#;
    let mut intake = intake(&policy, Some(body.len() as u64));
    intake.admitted();
    assert!(matches!(intake.body(body, false, &policy), Next::Correct(_)));
    assert!(intake.ended());
    assert_eq!(intake.body(b"", true, &policy), Next::GoOn);
}

#[test]
fn output_counts_against_a_cap_only_once_its_limit_is_certain() {
    let policy = policy(
        r#"{"tenants": {"t": {"max_tokens_in_flight": 200}}, "pools": [{"name": "p", "max_in_flight": 1}]}"#,
        false,
    );
    for (limit, refused) in [(10, None), (300, Some(Reason::Oversize))] {
        let mut intake = intake(&policy, Some(4_000));
        intake.admitted();
        assert_eq!(intake.body(br#"{"messages": [], "max_tokens": 400, "#, false, &policy), Next::GoOn);
        let end = format!(r#""max_tokens": {limit}}}"#);
        assert_eq!(reason(intake.body(end.as_bytes(), true, &policy)), refused);
    }
}

#[test]
fn a_held_request_goes_to_the_pool_of_its_model() {
    let policy = policy(TWO_POOLS, true);
    let mut intake = intake(&policy, Some(40));
    assert_eq!(intake.headers(&policy), Next::Hold);
    assert_eq!(intake.body(br#"{"messages": [], "#, false, &policy), Next::Hold);
    let Next::Decide(ask, pool) = intake.body(br#""model": "a-1"}"#, true, &policy) else { panic!("decide") };
    assert_eq!((pool.name.as_str(), ask.prompt_read), ("a", true));
}

#[test]
fn beyond_the_hold_limit_a_request_is_decided_from_what_was_seen() {
    let policy = policy(TWO_POOLS, true);
    let long = format!(r#"{{"model": "b", "messages": [{{"content": "{}"#, "word ".repeat(50));
    let mut intake = intake(&policy, Some(4_000));
    let Next::Decide(ask, pool) = intake.body(long.as_bytes(), false, &policy) else { panic!("decide") };
    assert!(pool.name == "b" && !ask.prompt_read && ask.prompt > Tokens(900), "the rest counts by size: {ask:?}");
    intake.admitted();
    let Next::Correct(ask) = intake.body(br#""}]}"#, true, &policy) else { panic!("correct") };
    assert!(ask.prompt_read && ask.prompt < Tokens(100));
}

#[test]
fn a_model_that_no_pool_serves_is_told_so() {
    let two = policy(TWO_POOLS, true);
    assert_eq!(reason(intake(&two, None).body(br#"{"model": "c"}"#, true, &two)), Some(Reason::UnknownModel));
    assert_eq!(reason(intake(&two, None).body(br#"{}"#, true, &two)), Some(Reason::UnknownModel));
    let late = format!(r#"{{"messages": "{}"#, "x".repeat(300));
    assert_eq!(reason(intake(&two, None).body(late.as_bytes(), false, &two)), Some(Reason::UnknownModel));
    let one = policy(r#"{"pools": [{"name": "p", "models": ["a*"], "max_in_flight": 1}]}"#, false);
    let mut unread = intake(&one, Some(14));
    unread.admitted();
    assert_eq!(reason(unread.body(br#"{"model": "c"}"#, true, &one)), Some(Reason::UnknownModel));
}

#[test]
fn malformed_bodies_are_refused_before_and_after_admission() {
    let policy = policy(ONE_POOL, false);
    for admitted in [false, true] {
        for body in ["", "[]", r#"{"messages": ["#, r#"{"a": }"#] {
            let mut intake = intake(&policy, Some(40));
            if admitted {
                intake.admitted();
            }
            assert_eq!(reason(intake.body(body.as_bytes(), true, &policy)), Some(Reason::Malformed), "{body}");
        }
    }
}

/// A header that says "encoded" is no way around what the body says: workers may not even look at it.
#[test]
fn json_that_claims_to_be_encoded_is_read_all_the_same() {
    let policy =
        policy(r#"{"pools": [{"name": "p", "models": ["m"], "max_in_flight": 1, "max_prompt_tokens": 10}]}"#, false);
    let body = format!(r#"{{"model": "m", "prompt": "{}"}}"#, "word ".repeat(60));
    let arrival = Arrival {
        tenant: "t".into(),
        asked_lane: None,
        api: Api::Completions,
        body_bytes: Some(body.len() as u64),
        encoded: true,
    };
    let mut intake = Intake::new(arrival, &policy);
    intake.admitted();
    assert_eq!(reason(intake.body(body.as_bytes(), true, &policy)), Some(Reason::Oversize));
}

#[test]
fn what_claims_to_be_encoded_and_is_neither_json_nor_compressed_is_malformed() {
    let policy = policy(ONE_POOL, false);
    let utf16: Vec<u8> = r#"{"prompt": "x"}"#.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for body in [&utf16[..], b"\xef\xbb\xbf{}", br#"{"a": "#] {
        let arrival = Arrival { tenant: "t".into(), asked_lane: None, api: Api::Chat, body_bytes: None, encoded: true };
        let mut intake = Intake::new(arrival, &policy);
        assert_eq!(reason(intake.body(body, true, &policy)), Some(Reason::Malformed), "{body:?}");
    }
}

#[test]
fn a_stream_of_unknown_size_that_tells_nothing_is_decided_at_once_and_corrected_at_its_end() {
    let policy = policy(r#"{"pools": [{"name": "p", "max_in_flight": 1}]}"#, false);
    let arrival = Arrival { tenant: "t".into(), asked_lane: None, api: Api::Other, body_bytes: None, encoded: false };
    let mut intake = Intake::new(arrival, &policy);
    assert!(matches!(intake.headers(&policy), Next::Decide(..)));
    intake.admitted();
    assert_eq!(intake.body(&[7; 4_000], false, &policy), Next::GoOn);
    assert!(matches!(intake.body(b"", true, &policy), Next::Correct(ask) if ask.prompt == Tokens(1_000)));
}

#[test]
fn what_cannot_be_read_is_charged_by_size() {
    let policy = policy(ONE_POOL, false);
    let size = Some(160);
    for (api, encoded) in [(Api::Other, false), (Api::Embeddings, false), (Api::Chat, true)] {
        let arrival = Arrival { tenant: "t".into(), asked_lane: None, api, body_bytes: size, encoded };
        let mut intake = Intake::new(arrival, &policy);
        assert!(matches!(intake.headers(&policy), Next::Decide(ask, _) if ask.prompt == Tokens(40)));
        intake.admitted();
        assert_eq!(intake.body(&[0x1f; 100], false, &policy), Next::GoOn);
        let next = intake.body(&[0x1f; 60], true, &policy);
        assert!(matches!(next, Next::Correct(ask) if ask.prompt == Tokens(40) && !ask.prompt_read), "{next:?}");
    }
}
