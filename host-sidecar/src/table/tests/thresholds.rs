//! Thresholds that are set at run time.

use super::*;

#[test]
fn thresholds_count_at_once_by_the_last_samples() {
    let mut setting = setting();
    setting.settle();
    setting.scrape("a1:1", 50, ms(0));
    let before = setting.table.revision().states;
    let set = ThresholdRequest {
        model: "model-a".into(),
        active_decode_blocks_threshold: Some(0.4),
        ..ThresholdRequest::default()
    };
    let now = setting.table.request_thresholds(&set, ms(1)).unwrap();
    assert_eq!(now.thresholds.active_decode_blocks_threshold, Some(0.4));
    assert!(setting.worker("a1:1", ms(1)).busy);
    assert_eq!(setting.table.revision().states, before + 1);
    let wrong = ThresholdRequest { active_decode_blocks_threshold: Some(2.0), ..set };
    assert!(matches!(setting.table.request_thresholds(&wrong, ms(2)), Err(ThresholdError::OutOfRange(_))));
    assert_eq!(setting.table.thresholds()[0], now, "a refused change leaves what stood");
}

/// A proxy hears of other thresholds though no number of an engine has changed.
#[test]
fn the_blocks_that_make_a_worker_busy_change_with_its_thresholds() {
    let mut setting = setting();
    setting.settle();
    setting.scrape("a1:1", 50, ms(0));
    assert_eq!(setting.worker("a1:1", ms(1)).blocks_until_busy, Some(36), "86 of 100 are more than 0.85");
    let numbers = setting.table.revision().numbers;
    let set = ThresholdRequest {
        model: "model-a".into(),
        active_decode_blocks_threshold: Some(0.6),
        ..ThresholdRequest::default()
    };
    setting.table.request_thresholds(&set, ms(1)).unwrap();
    assert_eq!(setting.worker("a1:1", ms(1)).blocks_until_busy, Some(11));
    assert!(setting.table.revision().numbers > numbers);
    assert_eq!(setting.worker("b1:1", ms(1)).blocks_until_busy, None, "its pool has no such threshold");
}

#[test]
fn an_unknown_model_may_be_read_but_not_set() {
    let mut setting = setting();
    let read = ThresholdRequest { model: "a".into(), ..ThresholdRequest::default() };
    let standing = setting.table.request_thresholds(&read, ms(0)).unwrap();
    assert_eq!(standing.thresholds, BusyThresholds::default());
    let set = ThresholdRequest { active_prefill_tokens_threshold: Some(1), ..read };
    assert_eq!(setting.table.request_thresholds(&set, ms(0)), Err(ThresholdError::UnknownModel("a".into())));
    let named = setting.table.thresholds().into_iter().map(|row| row.model).collect::<Vec<_>>();
    assert_eq!(named, ["model-a", "b"], "a pool without a model is known by its name");
}
