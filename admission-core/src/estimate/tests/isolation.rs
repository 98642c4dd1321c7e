//! What one tenant can do to the estimates of others.

use super::super::*;
use super::learning::{PRIOR, distances, reported, text};
use crate::family::Family;
use crate::record::Record;
use crate::request::text::Features;

const LIAR: u8 = 1;

/// A request of the liar: what the filter counts of it, and what its worker reports.
type Lie = fn(&mut fastrand::Rng, u64) -> (Features, u64);

/// Nine of ten requests are the liar's, from the request `from` on; the others are those of so many tenants.
struct Attack {
    lie: Lie,
    from: usize,
    others: u8,
}

/// Mean errors of all estimates of others' requests: as they were made, and as the family alone makes them.
struct Outcome {
    errors: (f64, f64),
    model: Experience,
}

impl Attack {
    fn outcome(&self) -> Outcome {
        let (mut rng, truth) = (fastrand::Rng::with_seed(3), Family::Gemma.weights());
        let (mut model, mut errors, mut requests) = (Experience::default(), (0.0, 0.0), 0.0);
        for round in 0..300 {
            let (mut batch, now) = (Batch::default(), model.belief(PRIOR.weights()));
            for request in 0..10 {
                let visible = text(&mut rng);
                let tokens = reported(truth, &Inputs::new(&visible, 1, 0, Api::Chat), &mut rng);
                let lies = round * 10 + request >= self.from && rng.u8(..10) > 0;
                let (tenant, (seen, prompt)) = if lies {
                    (LIAR, (self.lie)(&mut rng, tokens))
                } else {
                    (LIAR + rng.u8(1..=self.others), (visible, tokens))
                };
                let inputs = Inputs::new(&seen, 1, 0, Api::Chat);
                if !lies {
                    let error = |weights: &Weights| (weights.tokens(&inputs).0 as f64 / tokens as f64).ln().abs();
                    errors.0 += error(if model.fits(tenant) { &now.weights } else { &now.family });
                    errors.1 += error(&now.family);
                    requests += 1.0;
                }
                batch.observe(&Observed { inputs, prompt: Some(Tokens(prompt)), output: None, tenant }, &now);
            }
            model.merge(&batch);
        }
        Outcome { errors: (errors.0 / requests, errors.1 / requests), model }
    }
}

/// Several prompts of which a template renders none, beside as much as was reported.
fn hidden(rng: &mut fastrand::Rng, reported: u64) -> (Features, u64) {
    let mut all = text(rng);
    (0..rng.usize(3..8)).for_each(|_| all.add(&text(rng)));
    (all, reported)
}

/// Text that the filter does not see and a template renders.
fn unseen(rng: &mut fastrand::Rng, reported: u64) -> (Features, u64) {
    (text(rng), reported * rng.u64(3..8))
}

#[test]
fn a_tenant_that_makes_nine_requests_of_ten_and_lies_moves_no_others_beyond_their_family() {
    for (lie, kind) in [(hidden as Lie, "hidden"), (unseen, "unseen")] {
        for (from, others) in [(0, 1), (0, 8), (1_000, 1), (1_000, 8)] {
            let Outcome { errors: (mean, family), model } = Attack { lie, from, others }.outcome();
            let of = format!("{mean} off, the family {family}: {kind} from {from} on, {others} others");
            let now = model.belief(PRIOR.weights());
            let (learned, _) = distances(&now.weights, Family::Gemma.weights());
            assert!(learned > 0.4, "what was learned is {learned} off; {of}");
            assert!(mean < family + 0.1, "{of}");
            assert!(model.fits(LIAR) && (LIAR + 1..=LIAR + others).all(|tenant| !model.fits(tenant)), "{of}");
            assert!(!model.fits(LIAR + others + 1), "nor one of whom nothing is known: {of}");
            assert_eq!(Experience::decode(&model.encode()).as_ref(), Some(&model), "{of}");
        }
    }
}

#[test]
fn tenants_are_estimated_by_what_was_learned_while_it_fits_them() {
    let Outcome { errors: (mean, family), model } = Attack { lie: hidden, from: usize::MAX, others: 8 }.outcome();
    assert!(mean < family / 4.0 && (0..u8::MAX).all(|tenant| model.fits(tenant)), "{mean}, the family {family}");
}
