use std::ops::{Deref, DerefMut};

use super::*;
use crate::estimate::Inputs;
use crate::policy::{Plugin, Route};
use crate::units::Tokens;

mod room;
mod shapes;

const ONE_POOL: &str =
    r#"{"pools": [{"name": "p", "max_in_flight": 1, "max_prompt_tokens": 50}], "body": {"hold_limit": "200B"}}"#;
const TWO_POOLS: &str = r#"{"pools": [{"name": "a", "models": ["a*"], "max_in_flight": 1},
    {"name": "b", "models": ["b"], "max_in_flight": 1}], "body": {"hold_limit": "200B"}}"#;

fn policy(json: &str, header_pause: bool) -> Policy {
    let json = json.replacen('{', &format!("{{\"header_pause\": {header_pause}, "), 1);
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
    *policy
}

fn arrival(api: Api, body_bytes: Option<u64>, encoded: bool) -> Arrival {
    let path = "/v1/x".to_owned();
    Arrival {
        tenant: "t".into(),
        asked_lane: None,
        objectives: Vec::new(),
        path,
        api,
        body_bytes,
        encoded,
        says_json: true,
        wrong_key: false,
        tier: None,
        spoofed: false,
        ttft_deadline: None,
        sub: None,
        no_queue: false,
    }
}

/// An intake whose requests are weighed by estimators that have learned nothing.
struct Weighing<'a> {
    intake: Box<Intake>,
    policy: &'a Policy,
}

impl<'a> Weighing<'a> {
    fn new(arrival: Arrival, terms: Terms, policy: &'a Policy) -> Self {
        Self { intake: Intake::new(arrival, terms, policy, Scanner::default()), policy }
    }

    fn headers(&mut self) -> Next {
        let read = self.intake.headers();
        self.weighed(read)
    }

    fn body(&mut self, bytes: &[u8], end: bool, policy: &Policy) -> Next {
        let read = self.intake.body(bytes, end, policy);
        self.weighed(read)
    }

    fn weighed(&mut self, read: Read) -> Next {
        match read {
            Read::Weigh(pool) => {
                let estimator = Estimator::unlearned(&pool, self.intake.model());
                self.intake.weigh(&estimator, self.policy)
            }
            Read::Known(next) => next,
        }
    }

    fn instead_of(&self, pool: &Pool, reason: Reason, policy: &Policy) -> Option<(Ask, Arc<Pool>)> {
        let other = self.intake.instead_of(pool, reason, policy)?;
        Some((self.intake.ask(other, &Estimator::unlearned(other, self.intake.model())), Arc::clone(other)))
    }
}

impl Deref for Weighing<'_> {
    type Target = Intake;

    fn deref(&self) -> &Intake {
        &self.intake
    }
}

impl DerefMut for Weighing<'_> {
    fn deref_mut(&mut self) -> &mut Intake {
        &mut self.intake
    }
}

fn begun(policy: &Policy, arrival: Arrival) -> Weighing<'_> {
    let terms = Terms::of(policy, &arrival, &Route::default());
    Weighing::new(arrival, terms, policy)
}

fn let_in(intake: &mut Intake) {
    let pool = Arc::clone(intake.pool().unwrap());
    intake.admitted(pool);
}

fn intake(policy: &Policy, size: Option<u64>) -> Weighing<'_> {
    begun(policy, arrival(Api::Chat, size, false))
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
    let Next::Decide(guess, pool) = intake.headers() else { panic!("decide") };
    assert_eq!((guess.prompt, pool.name.as_str()), (Tokens(50), "p"), "400 bytes, cut to what the pool takes");
    let_in(&mut intake);
    assert_eq!(intake.body(br#"{"messages": [{"content": "hi"}], "#, false, &policy), Next::GoOn);
    let Next::Correct(exact) = intake.body(br#""max_tokens": 5}"#, true, &policy) else { panic!("correct") };
    assert!(exact.prompt < Tokens(10) && exact.output == Tokens(5) && exact.prompt_read);
}

#[test]
fn what_the_body_proves_impossible_is_refused_as_soon_as_it_is_seen() {
    let policy = policy(ONE_POOL, false);
    let mut intake = intake(&policy, Some(4_000));
    let_in(&mut intake);
    assert_eq!(intake.body(br#"{"messages": [{"content": ""#, false, &policy), Next::GoOn);
    assert_eq!(reason(intake.body("many words ".repeat(60).as_bytes(), false, &policy)), Some(Reason::Oversize));
}

#[test]
fn a_body_ends_with_the_last_byte_that_was_promised() {
    let policy = policy(ONE_POOL, false);
    let body = br#"{"messages": []}"#;
    let mut intake = intake(&policy, Some(body.len() as u64));
    let_in(&mut intake);
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
        let_in(&mut intake);
        assert_eq!(intake.body(br#"{"messages": [], "max_tokens": 400, "#, false, &policy), Next::GoOn);
        let end = format!(r#""max_tokens": {limit}}}"#);
        assert_eq!(reason(intake.body(end.as_bytes(), true, &policy)), refused);
    }
}

#[test]
fn a_held_request_goes_to_the_pool_of_its_model() {
    let policy = policy(TWO_POOLS, true);
    let mut intake = intake(&policy, Some(40));
    assert_eq!(intake.headers(), Next::Hold);
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
    let_in(&mut intake);
    let Next::Correct(ask) = intake.body(br#""}]}"#, true, &policy) else { panic!("correct") };
    assert!(ask.prompt_read && ask.prompt < Tokens(100));
}

#[test]
fn a_priority_beyond_what_can_be_held_is_refused() {
    let filler = "x".repeat(200);
    for (mode, refused) in [("enforce", Some(Reason::Malformed)), ("shadow", None)] {
        let json = ONE_POOL.replacen('{', &format!(r#"{{"tag_body": true, "mode": "{mode}", "#), 1);
        let policy = policy(&json.replace("50", "500"), true);
        for (begin, rest) in [("", r#", "priority": 1}"#), (r#""priority": 1, "#, "}"), ("", "}")] {
            let mut intake = intake(&policy, None);
            let begin = format!(r#"{{{begin}"messages": [{{"content": "{filler}"}}]"#);
            assert!(matches!(intake.body(begin.as_bytes(), false, &policy), Next::Decide(..)));
            let_in(&mut intake);
            let expected = refused.filter(|_| begin.contains("priority") || rest.contains("priority"));
            assert_eq!(reason(intake.body(rest.as_bytes(), true, &policy)), expected, "{mode} {rest}");
        }
    }
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
    let_in(&mut unread);
    assert_eq!(reason(unread.body(br#"{"model": "c"}"#, true, &one)), Some(Reason::UnknownModel));
}

#[test]
fn what_is_no_json_is_charged_by_size_before_and_after_admission() {
    let policy = policy(ONE_POOL, false);
    for admitted in [false, true] {
        for body in ["--form\r\n", "hello", "[]", r#"{"messages": ["#, r#"{"a": }"#, "\u{0}\u{1}\u{2}", ""] {
            let mut intake = intake(&policy, None);
            if admitted {
                let_in(&mut intake);
            }
            let next = intake.body(body.as_bytes(), true, &policy);
            let (Next::Decide(ask, _) | Next::Correct(ask)) = next else { panic!("{body}: {next:?}") };
            let by_size = Tokens((body.len() as u64).div_ceil(4));
            assert_eq!((ask.prompt, ask.output, ask.prompt_read), (by_size, Tokens(512), false), "{body}");
            assert_eq!(intake.asked(), None, "it teaches nothing");
        }
    }
}

#[test]
fn what_workers_may_read_though_it_cannot_be_read_here_is_refused_before_and_after_admission() {
    let policy = policy(ONE_POOL, false);
    let json = r#"{"prompt": "x"}"#;
    let wide = |bytes_of: fn(u16) -> [u8; 2]| json.encode_utf16().flat_map(bytes_of).collect::<Vec<u8>>();
    let deep = format!(r#"{{"a": {}"#, "[".repeat(200));
    let bodies = [
        wide(u16::to_le_bytes),
        wide(u16::to_be_bytes),
        [b"\xff\xfe", &wide(u16::to_le_bytes)[..]].concat(),
        [b"\xef\xbb\xbf", json.as_bytes()].concat(),
        format!("{json} {json}").into_bytes(),
        deep.into_bytes(),
    ];
    for (admitted, encoded, body) in bodies.iter().flat_map(|body| [(false, false, body), (true, true, body)]) {
        for cut in [1, 2, body.len()] {
            let mut intake = begun(&policy, arrival(Api::Chat, None, encoded));
            if admitted {
                let_in(&mut intake);
            }
            let (begin, rest) = body.split_at(cut);
            let begun = intake.body(begin, false, &policy);
            let next = if reason(begun.clone()).is_some() { begun } else { intake.body(rest, true, &policy) };
            assert_eq!(reason(next), Some(Reason::Malformed), "{admitted} {cut}: {body:?}");
        }
    }
}

#[test]
fn what_is_no_json_goes_to_the_pool_that_is_known_without_it_or_is_told_what_is_wrong() {
    let two = policy(TWO_POOLS, true);
    let Next::Decide(ask, pool) = intake(&two, None).body(br#"{"model": "b", "a": }"#, true, &two) else {
        panic!("decide")
    };
    assert_eq!((pool.name.as_str(), ask.prompt_read), ("b", false), "it had been named");
    for end in [false, true] {
        let Next::Refuse(refusal) = intake(&two, None).body(b"hello", end, &two) else { panic!("refuse") };
        let told = "the request body is not valid: a JSON object was expected at byte 0, so its `model` cannot be read";
        assert_eq!((refusal.reason, refusal.to_string().as_str()), (Reason::Malformed, told));
    }
    let open = policy(&TWO_POOLS.replace(r#", "models": ["b"]"#, ""), true);
    assert_eq!(intake(&open, None).body(b"hello", false, &open), Next::Hold);
    assert!(matches!(intake(&open, None).body(b"hello", true, &open), Next::Decide(_, pool) if pool.name == "b"));
    let lanes = r#"{"lanes": [{"name": "a"}, {"name": "b"}], "lane_rules": [{"model": "x*", "lane": "a"}],
        "pools": [{"name": "p", "models": ["x*"], "max_in_flight": 1, "classes": [{"name": "x", "models": ["x"], "max_in_flight": 1}]}]}"#;
    let lanes = policy(lanes, true);
    let mut unread = intake(&lanes, None);
    assert!(matches!(unread.body(b"hello", true, &lanes), Next::Decide(..)));
    assert_eq!(unread.lane(&lanes).name, "b", "the lane of those whose model is not known");
}

/// A header that says "encoded" is no way around what the body says: workers may not even look at it.
#[test]
fn json_that_claims_to_be_encoded_is_read_all_the_same() {
    let policy =
        policy(r#"{"pools": [{"name": "p", "models": ["m"], "max_in_flight": 1, "max_prompt_tokens": 10}]}"#, false);
    let body = format!(r#"{{"model": "m", "prompt": "{}"}}"#, "word ".repeat(60));
    let mut intake = begun(&policy, arrival(Api::Completions, Some(body.len() as u64), true));
    let_in(&mut intake);
    assert_eq!(reason(intake.body(body.as_bytes(), true, &policy)), Some(Reason::Oversize));
}

#[test]
fn a_stream_of_unknown_size_that_tells_nothing_is_decided_at_once_and_corrected_at_its_end() {
    let policy = policy(r#"{"pools": [{"name": "p", "max_in_flight": 1}]}"#, false);
    let mut intake = begun(&policy, Arrival { says_json: false, ..arrival(Api::Other, None, false) });
    assert!(matches!(intake.headers(), Next::Decide(..)));
    let_in(&mut intake);
    assert_eq!(intake.body(&[7; 4_000], false, &policy), Next::GoOn);
    assert!(matches!(intake.body(b"", true, &policy), Next::Correct(ask) if ask.prompt == Tokens(1_000)));
}

#[test]
fn what_cannot_be_read_is_charged_by_size() {
    let policy = policy(ONE_POOL, false);
    let size = Some(160);
    for (api, encoded) in [(Api::Other, false), (Api::Embeddings, true), (Api::Chat, true)] {
        let mut intake = begun(&policy, arrival(api, size, encoded));
        assert!(matches!(intake.headers(), Next::Decide(ask, _) if ask.prompt == Tokens(40)));
        let_in(&mut intake);
        assert_eq!(intake.body(&[0x1f; 100], false, &policy), Next::GoOn);
        let next = intake.body(&[0x1f; 60], true, &policy);
        assert!(matches!(next, Next::Correct(ask) if ask.prompt == Tokens(40) && !ask.prompt_read), "{next:?}");
    }
    let mut large = begun(&policy, arrival(Api::Chat, Some(4_000), true));
    let_in(&mut large);
    let next = large.body(&[0x1f; 4_000], true, &policy);
    assert!(matches!(next, Next::Correct(ask) if ask.prompt == Tokens(50)), "as at the headers, what fits: {next:?}");
}

#[test]
fn what_depends_on_the_body_waits_for_it() {
    let pool = |more: &str| format!(r#"{{"pools": [{{"name": "p", "models": ["m*"], "max_in_flight": 1 {more}}}]}}"#);
    let rules = |more: &str| {
        format!(
            r#"{{"lanes": [{{"name": "a"}}, {{"name": "b"}}], "lane_rules": [{{"model": "x*", "lane": "a"}}] {more},
                "pools": [{{"name": "p", "max_in_flight": 1}}]}}"#
        )
    };
    let cold = r#"{"pools": [{"name": "p", "max_in_flight": 1, "fallback_pool": "cold"},
        {"name": "cold", "models": ["c"], "max_in_flight": 1}], "routes": [{"match": {"path_prefix": "/"}, "pool": "p"}]}"#;
    for (json, header_pause, wait) in [
        (pool(""), true, Wait::Unread),
        (pool(r#", "classes": [{"name": "long", "min_prompt_tokens": 9, "max_in_flight": 1}]"#), true, Wait::Unread),
        (pool(r#", "classes": [{"name": "x", "models": ["x"], "max_in_flight": 1}]"#), true, Wait::AtHeaders),
        (pool(r#", "classes": [{"name": "x", "models": ["x"], "max_in_flight": 1}]"#), false, Wait::BodyHeld),
        (rules(""), true, Wait::AtHeaders),
        (rules(r#", "tenants": {"t": {"lane": "b"}}"#), true, Wait::Unread),
        (rules("").replacen('{', r#"{"tag_body": true, "#, 1), true, Wait::AtHeaders),
        (cold.to_owned(), true, Wait::AtHeaders),
    ] {
        let policy = policy(&json, header_pause);
        let arrival = arrival(Api::Chat, Some(9), false);
        let route = policy.route(arrival.place(None, None), Route::default());
        let terms = Terms::of(&policy, &arrival, &route);
        assert_eq!(Weighing::new(arrival, terms, &policy).wait(), wait, "{json}");
    }
    let by_model = policy(&rules(""), true);
    assert_eq!(begun(&by_model, arrival(Api::Messages, None, false)).wait(), Wait::AtHeaders, "any body may name one");
    let tagging = policy(&pool("").replacen('{', r#"{"tag_body": true, "#, 1), true);
    assert_eq!(begun(&tagging, arrival(Api::Other, None, false)).wait(), Wait::AtHeaders, "it may name a priority");
    let steering = |pause| policy(&pool(r#", "pick_endpoint": true"#), pause);
    let waits = |pause| begun(&steering(pause), arrival(Api::Chat, None, false)).wait();
    assert_eq!((waits(false), waits(true)), (Wait::Unread, Wait::AtHeaders), "a worker can only be told by headers");
}

#[test]
fn a_route_fixes_the_pool_whatever_the_model() {
    let json = TWO_POOLS.replacen('{', r#"{"routes": [{"match": {"path_prefix": "/v1/x"}, "pool": "b"}], "#, 1);
    let policy = policy(&json, false);
    let arrival = arrival(Api::Chat, Some(14), false);
    let route = policy.route(arrival.place(None, None), Route::default());
    let mut intake = Weighing::new(arrival.clone(), Terms::of(&policy, &arrival, &route), &policy);
    assert!(matches!(intake.headers(), Next::Decide(_, pool) if pool.name == "b"), "known from the headers");
    let_in(&mut intake);
    assert!(matches!(intake.body(br#"{"model": "z"}"#, true, &policy), Next::Correct(_)));
}

#[test]
fn the_fallback_pool_is_asked_with_what_is_known_and_takes_any_model() {
    let json = r#"{"pools": [{"name": "a", "models": ["a*"], "max_in_flight": 1, "fallback_pool": "cold"},
        {"name": "cold", "models": ["c"], "max_in_flight": 1, "expected_output_tokens": 7, "fallback_pool": "last",
         "fallback_on": ["all_busy"]}, {"name": "last", "models": ["l"], "max_in_flight": 1}]}"#;
    let policy = policy(json, true);
    let mut intake = intake(&policy, Some(40));
    let Next::Decide(_, pool) = intake.body(br#"{"model": "a-1"}"#, true, &policy) else { panic!("decide") };
    assert!(intake.instead_of(&pool, Reason::AllBusy, &policy).is_none(), "only for what it is there for");
    let (ask, cold) = intake.instead_of(&pool, Reason::Oversize, &policy).unwrap();
    assert_eq!((cold.name.as_str(), ask.output, ask.prompt_read), ("cold", Tokens(7), true));
    let (_, last) = intake.instead_of(&cold, Reason::AllBusy, &policy).unwrap();
    intake.admitted(last);
    assert_eq!(intake.pool().unwrap().name, "last");
}

/// The pool that took it does not serve the model by its own list.
#[test]
fn a_body_that_streams_on_to_the_fallback_pool_is_not_told_that_its_model_is_unknown() {
    let json = r#"{"pools": [{"name": "a", "models": ["a*"], "max_in_flight": 1, "fallback_pool": "c"},
        {"name": "c", "models": ["c"], "max_in_flight": 1}], "body": {"hold_limit": "20B"}}"#;
    let policy = policy(json, true);
    let mut intake = intake(&policy, None);
    let begin = br#"{"model": "a-1", "messages": ["#;
    let Next::Decide(_, pool) = intake.body(begin, false, &policy) else { panic!("decide") };
    let (_, cold) = intake.instead_of(&pool, Reason::Oversize, &policy).unwrap();
    intake.admitted(cold);
    assert!(matches!(intake.body(b"]}", true, &policy), Next::Correct(_)));
}

/// What was held back proves it: no guess lets it in, and the pool that takes such requests can be asked.
#[test]
fn what_is_too_large_already_when_it_is_decided_is_not_let_in_by_a_guess() {
    let json = r#"{"pools": [{"name": "a", "models": ["a*"], "max_in_flight": 1, "max_prompt_tokens": 50, "fallback_pool": "c"},
        {"name": "c", "models": ["c"], "max_in_flight": 1}], "body": {"hold_limit": "200B"}}"#;
    let policy = policy(json, true);
    for (words, fits) in [("many words ".repeat(100), false), (" ".repeat(400), true)] {
        let mut intake = intake(&policy, Some(40_000));
        let body = format!(r#"{{"model": "a", "messages": [{{"content": "{words}"#);
        let Next::Decide(ask, pool) = intake.body(body.as_bytes(), false, &policy) else { panic!("decide") };
        assert_eq!(fits_ever(&ask, &intake.terms().limits, &pool, &[]).is_ok(), fits, "{ask:?}");
    }
}

#[test]
fn a_lane_that_takes_the_model_is_not_escaped_by_naming_the_model_late() {
    let json = r#"{"lanes": [{"name": "a"}, {"name": "b"}], "lane_rules": [{"model": "x*", "lane": "b"}],
        "default_lane": "a", "pools": [{"name": "p", "max_in_flight": 1}], "body": {"hold_limit": "200B"}}"#;
    for pause in [false, true] {
        let policy = policy(json, pause);
        let late = format!(r#"{{"messages": [{{"content": "{}"#, "x".repeat(300));
        let mut intake = intake(&policy, Some(4_000));
        assert_eq!(reason(intake.body(late.as_bytes(), false, &policy)), Some(Reason::UnknownModel));
        let mut upload = begun(&policy, arrival(Api::Other, Some(4_000), false));
        assert!(matches!(upload.body(&[b'-'; 300], false, &policy), Next::Decide(..)), "it is no JSON");
    }
}

#[test]
fn a_priority_is_replaced_in_any_json_but_given_to_chat_and_completions_alone() {
    let policy = policy(&ONE_POOL.replacen('{', r#"{"tag_body": true, "#, 1), true);
    for (api, body, slots) in [
        (Api::Chat, r#"{"n": 1}"#, true),
        (Api::Embeddings, r#"{"n": 1}"#, false),
        (Api::Embeddings, r#"{"priority": -5}"#, true),
        (Api::Other, r#"{"pri\u006frity": -5}"#, true),
        (Api::Other, r#"{"priority": -5"#, false),
    ] {
        let mut intake = begun(&policy, arrival(api, Some(body.len() as u64), false));
        assert!(matches!(intake.body(body.as_bytes(), true, &policy), Next::Decide(..)), "{body}");
        assert_eq!(intake.rewriting(&policy).is_some(), slots, "{body}");
    }
}

#[test]
fn usage_is_asked_for_where_a_caller_streams_and_does_not_ask_itself() {
    let policy = policy(&ONE_POOL.replacen('{', r#"{"force_usage": true, "#, 1), true);
    let asks = |api, body: &str| {
        let mut intake = begun(&policy, arrival(api, Some(body.len() as u64), false));
        assert!(matches!(intake.body(body.as_bytes(), true, &policy), Next::Decide(..)), "{body}");
        intake.rewriting(&policy).is_some_and(|(changes, _)| changes.include_usage && changes.priority.is_none())
    };
    let silent = r#"{"stream": true, "stream_options": {"include_usage": false}}"#;
    assert!(asks(Api::Chat, r#"{"stream": true}"#) && asks(Api::Completions, silent));
    assert!(!asks(Api::Chat, r#"{"stream": true, "stream_options": {"include_usage": true}}"#), "it asks itself");
    assert!(!asks(Api::Chat, r#"{"stream": false}"#) && !asks(Api::Chat, "{}"), "its answer is plain");
    assert!(!asks(Api::Messages, silent) && !asks(Api::Responses, silent), "those report always");
}

#[test]
fn what_a_limit_cut_short_says_nothing_of_answers_unless_it_is_longer_than_expected() {
    let asked = |limit: Option<u64>| Asked {
        streams: true,
        model: None,
        inputs: Inputs::default(),
        token_ids: Tokens(4),
        sequences: 2,
        limit: limit.map(Tokens),
        plain: true,
    };
    let seen = |limit, output, expected| asked(limit).output_seen(Tokens(output), Tokens(expected)).map(|each| each.0);
    assert_eq!((seen(None, 90, 40), seen(Some(50), 90, 200)), (Some(45), Some(45)), "they ended by themselves");
    assert_eq!((seen(Some(50), 100, 100), seen(Some(50), 100, 60)), (None, Some(50)), "they were cut short");
    assert_eq!(seen(None, 0, 0), None, "embeddings have none");
    assert_eq!(asked(None).prompt_seen(Tokens(10)), Some(Tokens(6)));
    assert_eq!(Asked { plain: false, ..asked(None) }.prompt_seen(Tokens(10)), None, "there was a picture in it");
}
