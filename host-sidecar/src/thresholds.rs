//! What an operator reads and changes through `/busy_threshold`.

use admission_core::saturation::BusyThresholds;
use serde::{Deserialize, Serialize};

mod kept;

pub use kept::{Kept, NotKept};

/// Body of `POST /busy_threshold`: any number sets, none at all reads.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThresholdRequest {
    /// The pool's model.
    pub model: String,
    /// See [`BusyThresholds`]; null or absent leaves what stands.
    pub active_decode_blocks_threshold: Option<f64>,
    /// See [`BusyThresholds`]; null or absent leaves what stands.
    pub active_prefill_tokens_threshold: Option<u64>,
    /// See [`BusyThresholds`]; null or absent leaves what stands.
    pub active_prefill_tokens_threshold_frac: Option<f64>,
}

/// One model's thresholds; what is not set is null.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ModelThresholds {
    /// The pool's model.
    pub model: String,
    /// What stands.
    #[serde(flatten)]
    pub thresholds: BusyThresholds,
}

/// Thresholds that were set instead of the configuration's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Override {
    /// Thresholds that count.
    pub set: BusyThresholds,
    /// The configuration's own; once that is another, it counts again.
    pub instead_of: BusyThresholds,
}

/// Thresholds as a request would have them.
#[derive(Clone, Debug, PartialEq)]
pub struct Requested {
    /// Answer to the request.
    pub thresholds: ModelThresholds,
    /// Pools whose thresholds it names, and what they are to be.
    pub set: Vec<(String, Override)>,
}

impl ThresholdRequest {
    /// Whether it changes nothing.
    pub fn is_read(&self) -> bool {
        self.active_decode_blocks_threshold.is_none()
            && self.active_prefill_tokens_threshold.is_none()
            && self.active_prefill_tokens_threshold_frac.is_none()
    }

    /// `standing` with the numbers of this request.
    ///
    /// # Errors
    /// A sentence that names the number that is out of its range.
    pub fn merged_into(&self, standing: BusyThresholds) -> Result<BusyThresholds, String> {
        let merged = BusyThresholds {
            active_decode_blocks_threshold: self
                .active_decode_blocks_threshold
                .or(standing.active_decode_blocks_threshold),
            active_prefill_tokens_threshold: self
                .active_prefill_tokens_threshold
                .or(standing.active_prefill_tokens_threshold),
            active_prefill_tokens_threshold_frac: self
                .active_prefill_tokens_threshold_frac
                .or(standing.active_prefill_tokens_threshold_frac),
        };
        merged.validate().map(|()| merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(json: &str) -> ThresholdRequest {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn numbers_are_merged_and_null_cannot_unset() {
        let first = request(r#"{"model":"m","active_decode_blocks_threshold":0.9}"#);
        let standing = first.merged_into(BusyThresholds::default()).unwrap();
        let second =
            request(r#"{"model":"m","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":5}"#);
        let merged = second.merged_into(standing).unwrap();
        assert_eq!(merged.active_decode_blocks_threshold, Some(0.9));
        assert_eq!(merged.active_prefill_tokens_threshold, Some(5));
        assert_eq!(merged.active_prefill_tokens_threshold_frac, None);
    }

    #[test]
    fn without_numbers_it_reads() {
        assert!(request(r#"{"model":"m","active_decode_blocks_threshold":null}"#).is_read());
        assert!(!request(r#"{"model":"m","active_prefill_tokens_threshold_frac":64}"#).is_read());
    }

    #[test]
    fn a_number_out_of_range_is_named() {
        let wrong = request(r#"{"model":"m","active_decode_blocks_threshold":1.5}"#);
        assert!(wrong.merged_into(BusyThresholds::default()).unwrap_err().contains("between 0 and 1"));
    }

    #[test]
    fn what_is_not_set_is_null() {
        let unset = ModelThresholds { model: "m".into(), thresholds: BusyThresholds::default() };
        assert_eq!(
            serde_json::to_value(&unset).unwrap(),
            serde_json::json!({
                "model": "m",
                "active_decode_blocks_threshold": null,
                "active_prefill_tokens_threshold": null,
                "active_prefill_tokens_threshold_frac": null,
            })
        );
    }
}
