//! How far off estimates have been, so that what is far off beyond that is not believed.

use crate::record::{Reader, Writer};

/// Classes of errors, each √2 as wide as the one before.
const CLASSES: usize = 20;

/// The widest error of the first class.
const FINEST: f64 = 0.002;

/// Requests that count, the newest most.
const MEMORY: f32 = 150.0;

/// Before any: so many requests, off so far.
const AT_FIRST: (f32, f64) = (8.0, 0.05);

/// Of a normal distribution, its standard deviation over the median of what it is off.
const DEVIATION: f64 = 1.48;

/// A tolerance never below this: estimates of some kinds of text are off as far.
const LEAST_TOLERANCE: f64 = 0.1;

/// Tolerances above this would believe anything.
const MOST_TOLERANCE: f64 = 2.0;

/// Classes of |ln (reported ÷ estimated)|, fading.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Errors([f32; CLASSES]);

/// How much of a request that is off so far is believed: all within the tolerance, less beyond so that its pull does not
/// grow, and nothing beyond three tolerances.
pub(super) fn belief(error: f64, tolerance: f64) -> f64 {
    let times = error.abs() / tolerance;
    match times {
        ..=1.0 => 1.0,
        1.0..3.0 => (3.0 - times) / 2.0 / times,
        _ => 0.0,
    }
}

impl Default for Errors {
    fn default() -> Self {
        let mut errors = Self([0.0; CLASSES]);
        errors.put(AT_FIRST.1, AT_FIRST.0);
        errors
    }
}

impl Errors {
    /// Of nothing yet, to be merged.
    pub(super) const fn none() -> Self {
        Self([0.0; CLASSES])
    }

    /// Adds one.
    pub(super) fn add(&mut self, error: f64) {
        self.put(error, 1.0);
    }

    /// Adds what others saw, and forgets as many.
    pub(super) fn merge(&mut self, other: &Self) {
        let kept = MEMORY / (MEMORY + other.0.iter().sum::<f32>());
        for (class, more) in self.0.iter_mut().zip(&other.0) {
            *class = *class * kept + more;
        }
    }

    /// The usual error, as a standard deviation that outliers do not widen.
    pub(super) fn usual(&self) -> f64 {
        let half = self.0.iter().sum::<f32>() / 2.0;
        let mut below = 0.0;
        for (at, class) in self.0.iter().enumerate() {
            if below + class >= half && *class > 0.0 {
                let within = f64::from((half - below) / class);
                let start = if at == 0 { 0.0 } else { edge(at - 1) };
                return DEVIATION * (start + within * (edge(at) - start));
            }
            below += class;
        }
        AT_FIRST.1
    }

    /// Errors that are taken in full.
    pub(super) fn tolerance(&self) -> f64 {
        (2.5 * self.usual()).clamp(LEAST_TOLERANCE, MOST_TOLERANCE)
    }

    fn put(&mut self, error: f64, count: f32) {
        let at = (0..CLASSES - 1).find(|at| error.abs() <= edge(*at)).unwrap_or(CLASSES - 1);
        if let Some(class) = self.0.get_mut(at) {
            *class += count;
        }
    }

    pub(super) fn write(&self, out: &mut Writer) {
        self.0.iter().for_each(|class| out.u32(class.to_bits()));
    }

    /// Begins anew when these are no counts.
    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut errors = Self([0.0; CLASSES]);
        for class in &mut errors.0 {
            *class = f32::from_bits(reader.u32()?);
        }
        let believable = errors.0.iter().all(|class| (0.0..=1e6).contains(class));
        Some(if believable { errors } else { Self::default() })
    }
}

/// The widest error of a class.
fn edge(class: usize) -> f64 {
    FINEST * std::f64::consts::SQRT_2.powi(i32::try_from(class).unwrap_or(i32::MAX))
}
