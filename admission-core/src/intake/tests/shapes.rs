//! Bodies on paths that say nothing, and requests that are refused for what they are.

use super::*;
use crate::policy::Limits;

/// Engines serve the same under many names. A long prompt is refused under every name, and what is no JSON is charged by its size.
#[test]
fn a_body_is_read_by_its_shape_whatever_its_path_says() {
    let policy = policy(
        r#"{"pools": [{"name": "p", "max_in_flight": 9, "max_prompt_tokens": 100, "max_sequences": 8}]}"#,
        false,
    );
    let long = "word ".repeat(200);
    let begin = |says_json: bool| begun(&policy, Arrival { says_json, ..arrival(Api::Other, None, false) });
    for field in ["messages", "prompt", "input", "inputs", "text_input", "text"] {
        let value = if field == "messages" { format!(r#"[{{"content": "{long}"}}]"#) } else { format!("\"{long}\"") };
        for says_json in [true, false] {
            let next = begin(says_json).body(format!(r#"{{"{field}": {value}}}"#).as_bytes(), true, &policy);
            let Next::Decide(ask, pool) = next else { panic!("{field}: {next:?}") };
            assert!(ask.prompt_read && fits_ever(&ask, &Limits::default(), &pool, &[]).is_err(), "{field}: {ask:?}");
        }
    }
    let asks = |body: &[u8], says_json| match begin(says_json).body(body, true, &policy) {
        Next::Decide(ask, _) => (ask.prompt_read, ask.sequences),
        next => panic!("{next:?}"),
    };
    assert_eq!(asks(br#"{"inputs": "x", "parameters": {"best_of": 3}}"#, true), (true, 3));
    assert_eq!(asks(br#"{"query": "x", "data": [1, 2]}"#, true), (false, 0), "nothing that a model is asked");
    assert_eq!(asks(b"RIFF....WAVE", false), (false, 0));
    assert_eq!(asks(&[0, 0, 1, 0], false), (false, 0), "samples of a recording");
    for (body, says_json) in [(b"\0{\0}".as_slice(), true), (b"\xef\xbb\xbf{}", true), (b"\xef\xbb\xbf{}", false)] {
        let next = begin(says_json).body(body, true, &policy);
        assert!(matches!(&next, Next::Refuse(refusal) if refusal.reason == Reason::Malformed), "{body:?}: {next:?}");
    }
}

#[test]
fn the_background_is_for_routes_that_allow_it() {
    let policy = policy(ONE_POOL, false);
    let body = br#"{"input": "x", "background": true}"#;
    for (api, allowed, refused) in [
        (Api::Responses, None, true),
        (Api::Other, None, true),
        (Api::Responses, Some(true), false),
        (Api::Chat, Some(false), true),
    ] {
        let arrival = arrival(api, None, false);
        let mut route = Route::default();
        route.background = allowed;
        let terms = Terms::of(&policy, &arrival, &route);
        let next = Weighing::new(arrival, terms, &policy).body(body, true, &policy);
        assert_eq!(
            matches!(&next, Next::Refuse(refusal) if refusal.reason == Reason::Malformed),
            refused,
            "{api:?}: {next:?}"
        );
    }
}

#[test]
fn a_route_says_what_its_requests_are() {
    let policy = policy(ONE_POOL, false);
    let route = policy.route_of_metadata(serde_json::json!({"api": "pooling"})).unwrap();
    let next = {
        let arrival = arrival(Api::Other, None, false).on(&route);
        let terms = Terms::of(&policy, &arrival, &route);
        Weighing::new(arrival, terms, &policy).body(br#"{"input": ["a", "b"], "n": 9}"#, true, &policy)
    };
    assert!(matches!(next, Next::Decide(ask, _) if (ask.output, ask.sequences) == (Tokens(0), 0)));
}

#[test]
fn a_key_that_is_no_tenants_is_refused_at_the_headers() {
    for json in [ONE_POOL, TWO_POOLS] {
        let policy = policy(json, false);
        let mut intake = begun(&policy, Arrival { wrong_key: true, ..arrival(Api::Chat, Some(9), false) });
        let next = intake.headers();
        assert!(matches!(&next, Next::Refuse(refusal) if refusal.reason == Reason::UnknownKey), "{next:?}");
    }
}

/// A field that is not known here may be the one that the worker reads, so what a decoy leaves out is charged by its bytes.
#[test]
fn a_decoy_makes_nothing_cheaper() {
    let policy =
        policy(r#"{"pools": [{"name": "p", "models": ["m"], "max_in_flight": 9, "max_model_len": 100}]}"#, false);
    let ask = |api, body: &str| match begun(&policy, arrival(api, None, false)).body(body.as_bytes(), true, &policy) {
        Next::Decide(ask, _) => ask,
        next => panic!("{body}: {next:?}"),
    };
    let numbers = format!(r#"{{"prompt": "", "secret_ids": [{}0]}}"#, "7,".repeat(200));
    assert!(ask(Api::Other, &numbers).prompt.0 >= 100, "by its size, and without a model it goes to the only pool");
    for (api, limit) in [(Api::Chat, None), (Api::Other, Some(Tokens(1)))] {
        let body = r#"{"model": "m", "messages": [{"content": "x"}], "n_predict": 1}"#;
        assert_eq!(ask(api, body).output_limit, limit, "{api:?}: a key that its workers do not read");
    }
    let ranked = format!(r#"{{"model": "m", "query": "x", "documents": [{}"y"]}}"#, r#""a word or two","#.repeat(100));
    let ask = ask(Api::Pooling, &ranked);
    assert!(
        ask.prompt == Tokens(100) && !ask.prompt_read,
        "all its texts, as far as fits, which are no prompt: {ask:?}"
    );
    let tensors = begun(&policy, arrival(Api::Other, None, false)).body(b"{\"inputs\": []}\x01\x02", true, &policy);
    assert!(
        matches!(tensors, Next::Decide(ask, _) if !ask.prompt_read),
        "tensors behind their description: {tensors:?}"
    );
}
