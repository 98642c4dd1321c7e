//! What reports teach, and what they cannot do.

use super::super::*;
use crate::family::Family;
use crate::record::Record;
use crate::request::text::Features;

/// A prompt of words, numbers, code and Chinese in some proportion.
pub(super) fn text(rng: &mut fastrand::Rng) -> Features {
    let pieces = [
        "the word is said and forgotten ",
        "internationalisation of Requirements ",
        "2025-11-21T10:00 1234567 ",
        "\n    if (self.count >= 10) {\n        return getValue(x, \"y\");\n    }\n",
        "限制请求的数量，",
        "HTTPServer x_y_z ",
    ];
    let proportions: Vec<u32> = pieces.iter().map(|_| rng.u32(1..20).pow(2)).collect();
    let mut text = Features::default();
    for _ in 0..rng.u32(30..200) {
        let mut at = rng.u32(..proportions.iter().sum::<u32>());
        let piece = pieces.iter().zip(&proportions).find(|(_, share)| {
            let found = at < **share;
            at = at.saturating_sub(**share);
            found
        });
        text.add_bytes(piece.unwrap().0.as_bytes());
    }
    text
}

fn prompt(rng: &mut fastrand::Rng) -> Inputs {
    Inputs::new(&text(rng), rng.u64(1..9), rng.u64(..3), Api::Chat)
}

/// What a worker with this tokenizer reports, with what no feature explains.
pub(super) fn reported(truth: &Weights, inputs: &Inputs, rng: &mut fastrand::Rng) -> u64 {
    (truth.tokens(inputs).0 as f64 * (0.97 + 0.06 * rng.f64())) as u64
}

fn observed(inputs: Inputs, prompt: u64) -> Observed {
    Observed { inputs, prompt: Some(Tokens(prompt)), output: None, tenant: 0 }
}

pub(super) const PRIOR: Family = Family::Generic;

fn teach(model: &mut Experience, inputs: Inputs, prompt: u64) {
    let mut batch = Batch::default();
    batch.observe(&observed(inputs, prompt), &model.belief(PRIOR.weights()));
    model.merge(&batch);
}

/// Teaches what so many requests cost with Gemma's tokenizer, times as much, a few to a batch.
fn teach_many(model: &mut Experience, requests: usize, times: f64, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut told = 0;
    while told < requests {
        let (mut batch, now) = (Batch::default(), model.belief(PRIOR.weights()));
        for _ in 0..(requests - told).min(10) {
            let inputs = prompt(&mut rng);
            let prompt = reported(Family::Gemma.weights(), &inputs, &mut rng) as f64 * times;
            batch.observe(&observed(inputs, prompt as u64), &now);
            told += 1;
        }
        model.merge(&batch);
    }
}

fn taught(requests: usize, seed: u64) -> Experience {
    let mut model = Experience::default();
    teach_many(&mut model, requests, 1.0, seed);
    model
}

/// How far two sets of weights are apart, in the mean of many prompts and in the worst.
pub(super) fn distances(one: &Weights, other: &Weights) -> (f64, f64) {
    let mut rng = fastrand::Rng::with_seed(77);
    let errors = (0..200).map(|_| {
        let inputs = prompt(&mut rng);
        (one.tokens(&inputs).0 as f64 / other.tokens(&inputs).0 as f64 - 1.0).abs()
    });
    errors.fold((0.0, 0.0), |(mean, worst), error| (mean + error / 200.0, f64::max(worst, error)))
}

/// The worst of these distances.
fn apart(one: &Weights, other: &Weights) -> f64 {
    distances(one, other).1
}

fn weights(model: &Experience) -> Weights {
    model.belief(PRIOR.weights()).weights
}

#[test]
fn fifty_requests_teach_another_tokenizer() {
    let before = apart(PRIOR.weights(), Family::Gemma.weights());
    let after = apart(&weights(&taught(50, 1)), Family::Gemma.weights());
    assert!(before > 0.10 && after < 0.05, "{before} before, {after} after");
    assert_eq!(weights(&taught(19, 1)), *PRIOR.weights(), "a few requests teach nothing yet");
}

/// Only what stands beside the text differs from the family.
#[test]
fn what_a_template_puts_around_messages_and_tools_is_learned() {
    let (per_message, per_tool) = (12.0, 60.0);
    let mut values = *PRIOR.weights().values();
    let [.., message, tool, _] = &mut values;
    (*message, *tool) = (per_message, per_tool);
    let truth = Weights::new(values);
    let (mut rng, mut model) = (fastrand::Rng::with_seed(8), Experience::default());
    let many = Inputs::new(&text(&mut rng), 20, 10, Api::Chat);
    let error = |model: &Experience| weights(model).tokens(&many).0 as f64 / truth.tokens(&many).0 as f64 - 1.0;
    let before = error(&model);
    for _ in 0..200 {
        let inputs = Inputs::new(&text(&mut rng), rng.u64(1..30), rng.u64(..12), Api::Chat);
        let prompt = reported(&truth, &inputs, &mut rng);
        teach(&mut model, inputs, prompt);
    }
    let [.., message, tool, _] = *weights(&model).values();
    let after = error(&model);
    let found = format!("{before} before, {after} after; {message} for a message, {tool} for a tool");
    assert!(before.abs() > 0.1 && after.abs() < 0.03, "{found}");
    assert!((message / per_message - 1.0).abs() < 0.25 && (tool / per_tool - 1.0).abs() < 0.1, "{found}");
}

#[test]
fn ten_percent_of_lies_move_little() {
    for lie in [0, 1, 1 << 32, u64::MAX, 10_000_000_000] {
        lies_move_little(|_| lie);
    }
    lies_move_little(|truth| truth * 10);
    lies_move_little(|truth| truth / 10);
    lies_move_little(|truth| truth * 3 / 2);
}

fn lies_move_little(lie: impl Fn(u64) -> u64) {
    let (mut rng, mut plain) = (fastrand::Rng::with_seed(5), Experience::default());
    let mut lied = plain.clone();
    for request in 0..300 {
        let inputs = prompt(&mut rng);
        let truth = reported(Family::Gemma.weights(), &inputs, &mut rng);
        teach(&mut plain, inputs, truth);
        teach(&mut lied, inputs, if request % 10 == 0 { lie(truth) } else { truth });
    }
    let moved = apart(&weights(&lied), &weights(&plain));
    assert!(moved < 0.05, "{moved}, where a hundred were reported as {}", lie(100));
}

/// Where few requests were seen, the odd one may be all that is known of its kind of text, so that the worst prompt may move more.
#[test]
fn one_odd_request_moves_little() {
    for seed in 0..12 {
        for (place, requests) in [(0, 11), (0, 21), (5, 21), (0, 60), (20, 60), (55, 60)] {
            for times in [0.25, 0.5, 1.25, 1.5, 4.0] {
                let (mean, worst) = moved_by_one(place, requests, times, seed);
                let (most, worst_most) = if requests < 60 { (0.03, 0.2) } else { (0.02, 0.1) };
                let odd = format!("{mean}, {worst} by one of {requests}, {times} times as long, seed {seed}");
                assert!(mean < most && worst < worst_most, "{odd}");
            }
        }
    }
}

fn moved_by_one(place: usize, requests: usize, times: f64, seed: u64) -> (f64, f64) {
    let (mut rng, mut plain) = (fastrand::Rng::with_seed(seed), Experience::default());
    let mut odd = plain.clone();
    for request in 0..requests {
        let inputs = prompt(&mut rng);
        let truth = reported(PRIOR.weights(), &inputs, &mut rng);
        teach(&mut plain, inputs, truth);
        teach(&mut odd, inputs, if request == place { (truth as f64 * times) as u64 } else { truth });
    }
    distances(&weights(&odd), &weights(&plain))
}

#[test]
fn the_order_and_size_of_batches_hardly_matters() {
    let (mut rng, now) = (fastrand::Rng::with_seed(6), Experience::default().belief(PRIOR.weights()));
    let mut seen: Vec<Observed> = Vec::new();
    for _ in 0..400 {
        let inputs = prompt(&mut rng);
        seen.push(observed(inputs, reported(Family::Cl100k.weights(), &inputs, &mut rng)));
    }
    let merged = |seen: &[Observed], size: usize| {
        let mut model = Experience::default();
        for some in seen.chunks(size) {
            let mut batch = Batch::default();
            some.iter().for_each(|one| batch.observe(one, &now));
            model.merge(&batch);
        }
        weights(&model)
    };
    let one_by_one = merged(&seen, 1);
    for size in [7, 64, 200] {
        rng.shuffle(&mut seen);
        let moved = apart(&merged(&seen, size), &one_by_one);
        assert!(moved < 0.01, "{moved} in batches of {size}");
    }
}

#[test]
fn a_model_that_is_replaced_is_followed() {
    for times in [0.5, 1.4, 2.5] {
        let (mut model, mut rng) = (taught(2_000, 3), fastrand::Rng::with_seed(4));
        teach_many(&mut model, 2_000, times, 5);
        let now = weights(&model);
        let mut inputs = prompt(&mut rng);
        for _ in 0..100 {
            let error = now.tokens(&inputs).0 as f64 / Family::Gemma.weights().tokens(&inputs).0 as f64;
            assert!((0.93..1.07).contains(&(error / times)), "{error} instead of {times}");
            inputs = prompt(&mut rng);
        }
    }
}

#[test]
fn whatever_is_reported_weights_are_numbers_and_records_stay_small() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut model = Experience::default();
    for round in 0..3_000 {
        let mut batch = Batch::default();
        for _ in 0..rng.usize(1..4) {
            let huge = || if round % 7 == 0 { u64::MAX } else { 1 };
            let mut text = Features::default();
            let bytes: Vec<u8> = (0..rng.usize(..300)).map(|_| rng.u8(..)).collect();
            text.add_bytes(&bytes);
            let inputs = Inputs::new(&text, huge(), huge(), Api::Chat);
            let prompt = Some(Tokens(rng.u64(..) >> rng.u32(..64)));
            let output = Some(Tokens(rng.u64(..) >> rng.u32(..64)));
            let now = model.belief(PRIOR.weights());
            batch.observe(&Observed { inputs, prompt, output, tenant: rng.u8(..) }, &now);
        }
        model.merge(&batch);
        if round % 100 == 0 {
            let belief = model.belief(PRIOR.weights());
            assert!(belief.weights.values().iter().all(|weight| weight.is_finite() && *weight >= 0.0));
            assert!(belief.tolerance.is_finite());
            let bytes = model.encode();
            assert!(bytes.len() <= 4_096, "{}", bytes.len());
            assert_eq!(Experience::decode(&bytes).as_ref(), Some(&model));
        }
    }
}

#[test]
fn a_batch_is_bounded() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (inputs, now) = (prompt(&mut rng), Experience::default().belief(PRIOR.weights()));
    let (mut full, mut fuller) = (Batch::default(), Batch::default());
    let seen = Observed { output: Some(Tokens(9)), ..observed(inputs, now.weights.tokens(&inputs).0) };
    assert!(full.is_empty());
    (0..MOST_OBSERVED).for_each(|_| full.observe(&seen, &now));
    (0..MOST_OBSERVED * 3).for_each(|_| fuller.observe(&seen, &now));
    let (mut one, mut other) = (Experience::default(), Experience::default());
    one.merge(&full);
    other.merge(&fuller);
    assert_eq!(one, other);
}

#[test]
fn records_of_other_builds_are_kept_and_foreign_bytes_refused() {
    let model = taught(60, 2);
    let mut bytes = model.encode();
    let readable = (1..bytes.len()).filter(|length| Experience::decode(&bytes[..*length]).is_some());
    assert_eq!(readable.count(), 2, "only between its three sections may it be cut");
    bytes.extend_from_slice(&[200, 2, 0, 0, 0, 7, 7]);
    assert_eq!(Experience::decode(&bytes).unwrap().encode(), bytes);
    assert_eq!(Experience::decode(b"{\"a\":1}"), None);
    assert_eq!(Experience::decode(&[]), Some(Experience::default()));
}

#[test]
fn absurd_numbers_in_a_record_begin_it_anew() {
    let bytes = taught(60, 2).encode();
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..2_000 {
        let mut damaged = bytes.clone();
        let place = rng.usize(10..damaged.len() - 4);
        let absurd = [f32::NAN, f32::INFINITY, -1.0, f32::MAX, f32::from_bits(rng.u32(..))];
        damaged[place..place + 4].copy_from_slice(&absurd[rng.usize(..absurd.len())].to_le_bytes());
        let Some(model) = Experience::decode(&damaged) else { continue };
        let belief = model.belief(PRIOR.weights());
        assert!(belief.weights.values().iter().all(|weight| weight.is_finite() && *weight >= 0.0));
        assert!(belief.tolerance.is_finite() && belief.tolerance > 0.0);
    }
}
