//! Weights that follow what workers report: a linear regression kept as sums, so that what several VMs saw adds up.
//!
//! Every request adds its inputs, divided by what was estimated, so that relative errors count. What is believed before
//! any request is the family's weights, each uncertain by itself and all uncertain together: a few requests move the
//! common scale, and only what many say moves one weight alone.

use super::weights::{Inputs, Weights};
use crate::record::{Reader, Writer};

/// Products of each two inputs, each pair once.
const PAIRS: usize = Weights::COUNT * (Weights::COUNT + 1) / 2;

/// Requests from which the fit is believed more than the family: enough that one of them says little.
const ENOUGH: f64 = 20.0;

/// Requests that count, the newest most, while estimates are good; and the fewest, when they are not, as after a model
/// was replaced under its name.
const MEMORY: (f64, f64) = (2_000.0, 250.0);

/// Relative errors up to here call for no faster forgetting.
const USUAL_ERROR: f64 = 0.06;

/// Relative error of a good estimate, which sets how much a request says against what was believed before.
const NOISE: f64 = 0.03;

/// While requests are few, the family counts more, as much more as the square of so many over them: one of few that is odd must
/// not move what is estimated.
const CAUTION: f64 = 75.0;

/// How far all weights of text may be off together, relative.
const COMMON_DOUBT: f64 = 0.2;

/// How far a weight of text may be off by itself: relative, and in tokens.
const OWN_DOUBT: (f64, f64) = (0.4, 0.05);

/// How far the weights of messages, tools and chats may be off, in tokens.
const OTHER_DOUBT: [f64; 3] = [1.0, 10.0, 4.0];

/// The most that messages, tools and chats may weigh.
const OTHER_MOST: [f64; 3] = [64.0, 512.0, 4_096.0];

/// A weight of text stays between a quarter and four times its family's, and a little.
const MOST_CHANGE: (f64, f64) = (4.0, 0.25);

/// Rounds of the solver, which stops when nothing moves.
const ROUNDS: usize = 500;

/// No sum of believable requests is larger.
const LARGEST_SUM: f32 = 1e12;

type Values = [f64; Weights::COUNT];

/// What requests said so far, the older the less.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sums {
    /// How many requests, less what was forgotten or not believed.
    count: f32,
    targets: [f32; Weights::COUNT],
    pairs: [f32; PAIRS],
}

impl Default for Sums {
    fn default() -> Self {
        Self { count: 0.0, targets: [0.0; Weights::COUNT], pairs: [0.0; PAIRS] }
    }
}

impl Sums {
    /// Adds a request that was estimated at `estimate` tokens and cost `ratio` times as many, as far as it is believed.
    pub(super) fn add(&mut self, inputs: &Inputs, estimate: f64, ratio: f64, belief: f64) {
        let scaled = inputs.counts().map(|count| count as f64 / estimate.max(1.0));
        self.count += belief as f32;
        for (sum, value) in self.targets.iter_mut().zip(scaled) {
            *sum += (belief * ratio * value) as f32;
        }
        let pairs =
            scaled.iter().enumerate().flat_map(|(at, one)| scaled.iter().skip(at).map(move |other| one * other));
        for (sum, product) in self.pairs.iter_mut().zip(pairs) {
            *sum += (belief * product) as f32;
        }
    }

    /// Adds what others saw, of `requests` requests, and forgets as many, faster the larger the usual error is.
    pub(super) fn merge(&mut self, other: &Self, requests: f64, error: f64) {
        let memory = (MEMORY.0 * USUAL_ERROR / error.max(USUAL_ERROR)).max(MEMORY.1);
        let kept = (memory / (memory + requests)) as f32;
        self.count = self.count * kept + other.count;
        let sums = self.targets.iter_mut().chain(&mut self.pairs);
        for (sum, more) in sums.zip(other.targets.iter().chain(&other.pairs)) {
            *sum = (*sum * kept + more).clamp(-LARGEST_SUM, LARGEST_SUM);
        }
    }

    /// The weights that fit best what was believed and what was seen, within their bounds.
    pub(super) fn weights(&self, family: &Weights) -> Weights {
        if f64::from(self.count) < ENOUGH {
            return *family;
        }
        let caution = 1.0 + (CAUTION / f64::from(self.count)).powi(2);
        let (mut matrix, mut right) = before(family.values(), caution);
        let mut pairs = self.pairs.iter();
        for at in 0..Weights::COUNT {
            for other in at..Weights::COUNT {
                let sum = pairs.next().copied().map(f64::from).unwrap_or_default();
                add(&mut matrix, at, other, sum);
                if at != other {
                    add(&mut matrix, other, at, sum);
                }
            }
        }
        for (value, sum) in right.iter_mut().zip(&self.targets) {
            *value += f64::from(*sum);
        }
        Weights::new(solve(&matrix, &right, family.values()))
    }

    pub(super) fn write(&self, out: &mut Writer) {
        let all = [self.count].into_iter().chain(self.targets).chain(self.pairs);
        all.for_each(|value| out.u32(value.to_bits()));
    }

    /// Nothing of sums that requests cannot have made: then all begins anew.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut sums = Self::default();
        let all = [&mut sums.count].into_iter().chain(&mut sums.targets).chain(&mut sums.pairs);
        let mut believable = true;
        for place in all {
            *place = f32::from_bits(reader.u32()?);
            believable &= (0.0..=LARGEST_SUM).contains(place);
        }
        Some(if believable { sums } else { Self::default() })
    }
}

fn add(matrix: &mut [Values; Weights::COUNT], row: usize, column: usize, value: f64) {
    if let Some(cell) = matrix.get_mut(row).and_then(|row| row.get_mut(column)) {
        *cell += value;
    }
}

/// What was believed before, as sums: the inverse of (own doubts + common doubt × weights × weights'), by the formula of
/// Sherman and Morrison, and its product with the weights.
fn before(family: &Values, caution: f64) -> ([Values; Weights::COUNT], Values) {
    let text = Weights::COUNT - OTHER_DOUBT.len();
    let own = |at: usize, weight: f64| match at.checked_sub(text).and_then(|at| OTHER_DOUBT.get(at)) {
        Some(doubt) => doubt.powi(2),
        None => (OWN_DOUBT.0 * weight + OWN_DOUBT.1).powi(2),
    };
    let mut certainty = [0.0; Weights::COUNT];
    let mut common = [0.0; Weights::COUNT];
    let mut length = 1.0;
    for (at, ((certain, common), weight)) in certainty.iter_mut().zip(&mut common).zip(family).enumerate() {
        *certain = caution * NOISE.powi(2) / own(at, *weight);
        if at < text {
            *common = weight / own(at, *weight);
            length += COMMON_DOUBT.powi(2) * *common * weight;
        }
    }
    let mut matrix = [[0.0; Weights::COUNT]; Weights::COUNT];
    for (at, (row, certain)) in matrix.iter_mut().zip(&certainty).enumerate() {
        let one = common.get(at).copied().unwrap_or_default();
        for (cell, other) in row.iter_mut().zip(&common) {
            *cell = -caution * (NOISE * COMMON_DOUBT).powi(2) * one * other / length;
        }
        if let Some(cell) = row.get_mut(at) {
            *cell += certain;
        }
    }
    let right = matrix.map(|row| row.iter().zip(family).map(|(cell, weight)| cell * weight).sum());
    (matrix, right)
}

/// Weights within their bounds for which the quadratic form is least, one after the other until none moves.
fn solve(matrix: &[Values; Weights::COUNT], right: &Values, family: &Values) -> Values {
    let mut weights = *family;
    for _ in 0..ROUNDS {
        let mut moved = 0.0_f64;
        for (at, ((row, right), first)) in matrix.iter().zip(right).zip(family).enumerate() {
            let product: f64 = row.iter().zip(&weights).map(|(cell, weight)| cell * weight).sum();
            let (Some(weight), Some(own)) = (weights.get_mut(at), row.get(at)) else { continue };
            let (least, most) = bounds(at, *first);
            let better = (*weight + (right - product) / own.max(f64::MIN_POSITIVE)).clamp(least, most);
            moved = moved.max((better - *weight).abs() / most);
            *weight = better;
        }
        if moved < 1e-5 {
            break;
        }
    }
    weights
}

fn bounds(at: usize, family: f64) -> (f64, f64) {
    let text = Weights::COUNT - OTHER_MOST.len();
    match at.checked_sub(text).and_then(|at| OTHER_MOST.get(at)) {
        Some(most) => (0.0, *most),
        None => (family / MOST_CHANGE.0, family * MOST_CHANGE.0 + MOST_CHANGE.1),
    }
}
