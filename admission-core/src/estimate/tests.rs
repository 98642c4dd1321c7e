use std::sync::Arc;

use super::*;
use crate::family::Family;
use crate::policy::{Plugin, Policy};
use crate::request::Scanner;
use crate::request::text::Features;

mod isolation;
mod learning;
mod sampling;

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
        let mut text = Features::default();
        text.add_bytes(sample.as_bytes());
        let estimate = Family::Generic.weights().tokens(&Inputs::of_text(&text)).0;
        assert!(estimate * 8 >= fewest * 7 && estimate * 8 <= most * 9, "{estimate}, {fewest} to {most}: {sample}");
    }
}

#[test]
fn output_is_the_smaller_of_limit_and_expectation_for_each_sequence() {
    let policy = policy();
    let pool = policy.only_pool().unwrap();
    let estimator = Estimator::unlearned(pool, None);
    let output = |body| estimator.from_body(&facts(body), Api::Completions, pool).output;
    assert_eq!(output(r#"{"prompt": "x"}"#), Tokens(100));
    assert_eq!(output(r#"{"prompt": "x", "max_tokens": 30, "n": 2}"#), Tokens(60));
    assert_eq!(output(r#"{"prompt": "x", "max_tokens": 4000000}"#), Tokens(100));
    assert_eq!(output(r#"{"prompt": "x", "n": 18446744073709551615}"#), Tokens(u64::MAX));
}

#[test]
fn token_ids_are_counted_exactly() {
    let policy = policy();
    let ids = facts(r#"{"prompt": [5, 6, 7]}"#);
    let pool = policy.only_pool().unwrap();
    assert_eq!(Estimator::unlearned(pool, None).from_body(&ids, Api::Completions, pool).prompt, Tokens(3));
}

#[test]
fn no_list_beside_a_prompt_hides_how_long_it_is() {
    let policy = policy();
    let pool = policy.only_pool().unwrap();
    let estimator = Estimator::unlearned(pool, None);
    let long = "word ".repeat(5_000);
    for (body, api) in [
        (format!(r#"{{"messages": [{{"role": "user", "content": "{long}"}}], "prompt": ["a", "b"]}}"#), Api::Chat),
        (format!(r#"{{"prompt": "{long}", "input": ["a", "b"]}}"#), Api::Completions),
        (format!(r#"{{"prompt": ["a", "b"], "suffix": "{long}"}}"#), Api::Completions),
        (format!(r#"{{"input": "{long}", "input_ids": [1, 2], "prompt": ["a", "b"]}}"#), Api::Responses),
    ] {
        let ask = estimator.from_body(&facts(&body), api, pool);
        assert!(ask.longest_prompt.0 > 4_000 && ask.longest_prompt <= ask.prompt, "{ask:?}");
    }
    let several =
        estimator.from_body(&facts(&format!(r#"{{"prompt": ["{long}", "{long}"]}}"#)), Api::Completions, pool);
    assert!(several.longest_prompt.0 * 2 < several.prompt.0 + 100, "{several:?}");
}

#[test]
fn size_stands_in_for_what_was_not_read() {
    let policy = policy();
    let pool = policy.only_pool().unwrap();
    let estimator = Estimator::unlearned(pool, None);
    assert_eq!(estimator.from_size(4_001, Api::Chat, pool).prompt, Tokens(1_001));
    assert_eq!(estimator.from_size(4_001, Api::Embeddings, pool).output, Tokens(0));
    assert_eq!(estimator.from_size(4_001, Api::Other, pool).output, Tokens(100), "who knows what it generates");
    let (mib, each) = (1 << 20, &pool.estimate);
    assert_eq!(estimator.from_size(mib, Api::Audio, pool).prompt, Tokens(2 * each.recording_tokens));
    let image = estimator.from_size(mib, Api::Images, pool);
    assert_eq!((image.prompt, image.output), (Tokens(each.image_tokens), Tokens(each.image_tokens)));
    let images = estimator.from_body(&facts(r#"{"prompt": "a cat", "n": 3}"#), Api::Images, pool);
    assert_eq!((images.output, images.sequences), (Tokens(3 * each.image_tokens), 3));
    let part = facts(r#"{"prompt": "one two"#);
    let whole = part.bytes + 400;
    let ask = estimator.from_part(&part, whole, Api::Completions, pool);
    assert_eq!(ask.prompt, estimator.belief.weights.tokens(&Inputs::of_text(&part.text)).plus(Tokens(100)));
    assert!(!ask.prompt_read);
}

#[test]
fn output_is_bounded_by_what_the_pool_leaves_and_reserved_in_full_only_where_the_policy_says_so() {
    let pool = |output: &str| {
        let json = format!(
            r#"{{"pools": [{{"name": "p", "max_in_flight": 1, "max_model_len": 1000, "expected_output_tokens": 100,
            "estimate": {{"output": "{output}", "image_tokens": 960}}}}]}}"#
        );
        let Ok(Plugin::Filter(policy)) = Plugin::parse(json.as_bytes()) else { panic!("{json}") };
        Arc::clone(policy.only_pool().unwrap())
    };
    let ask = |pool: &Pool, body: &str| Estimator::unlearned(pool, None).from_body(&facts(body), Api::Chat, pool);
    let plain = r#"{"messages": [{"content": "hello"}]"#;
    let (expected, most) = (pool("expected"), pool("max_tokens"));
    assert_eq!(ask(&expected, &format!("{plain}}}")).output, Tokens(100));
    let all = ask(&most, &format!("{plain}}}"));
    assert_eq!(all.prompt.plus(all.output), Tokens(1_000), "all there is room for");
    assert_eq!(ask(&most, &format!(r#"{plain}, "max_tokens": 300}}"#)).output, Tokens(300));
    let picture = ask(&expected, r#"{"messages": [{"content": [{"image_url": {"url": "data:"}}]}]}"#);
    assert!(picture.prompt >= Tokens(960) && picture.prompt.plus(picture.output) == Tokens(1_000), "{picture:?}");
}

#[test]
fn text_made_to_look_cheap_costs_what_any_vocabulary_makes_of_it() {
    let of = |text: &str| {
        let mut features = Features::default();
        features.add_bytes(text.as_bytes());
        Family::ALL.map(|family| family.weights().tokens(&Inputs::of_text(&features)).0).into_iter().min().unwrap()
    };
    assert!(of(&"7".repeat(30_000)) >= 10_000);
    assert!(of(&"qxzjv".repeat(6_000)) >= 7_000);
    assert!(of(&"鑫".repeat(10_000)) >= 2_500);
}
