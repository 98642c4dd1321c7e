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
    let now = setting.request_thresholds(&set, ms(1)).unwrap();
    assert_eq!(now.thresholds.active_decode_blocks_threshold, Some(0.4));
    assert!(setting.worker("a1:1", ms(1)).busy);
    assert_eq!(setting.table.revision().states, before + 1);
    let wrong = ThresholdRequest { active_decode_blocks_threshold: Some(2.0), ..set };
    assert!(matches!(setting.request_thresholds(&wrong, ms(2)), Err(ThresholdError::OutOfRange(_))));
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
    setting.request_thresholds(&set, ms(1)).unwrap();
    assert_eq!(setting.worker("a1:1", ms(1)).blocks_until_busy, Some(11));
    assert!(setting.table.revision().numbers > numbers);
    assert_eq!(setting.worker("b1:1", ms(1)).blocks_until_busy, None, "its pool has no such threshold");
}

#[test]
fn an_unknown_model_may_be_read_but_not_set() {
    let mut setting = setting();
    let read = ThresholdRequest { model: "a".into(), ..ThresholdRequest::default() };
    let standing = setting.request_thresholds(&read, ms(0)).unwrap();
    assert_eq!(standing.thresholds, BusyThresholds::default());
    let set = ThresholdRequest { active_prefill_tokens_threshold: Some(1), ..read };
    assert_eq!(setting.request_thresholds(&set, ms(0)), Err(ThresholdError::UnknownModel("a".into())));
    let named = setting.table.thresholds().into_iter().map(|row| row.model).collect::<Vec<_>>();
    assert_eq!(named, ["model-a", "b"], "a pool without a model is known by its name");
}

#[test]
fn the_models_of_a_pool_are_those_of_the_configuration_and_of_its_workers_pages() {
    let mut setting = setting();
    let more = CONFIG.replace("model: model-a", "model: model-a\n  models: [adapter]");
    setting.table.configure(&Config::parse(&more).unwrap());
    setting.settle();
    let page = |models: &[&str]| Reading {
        models: models.iter().map(|name| (*name).to_owned()).collect(),
        ..reading(vec![rank(1)])
    };
    setting.scrape_reading("a1:1", page(&["base", "adapter"]), ms(0));
    setting.scrape_reading("b1:1", page(&["base", "other"]), ms(0));
    let named = |setting: &Setting| setting.table.thresholds().into_iter().map(|row| row.model).collect::<Vec<_>>();
    assert_eq!(named(&setting), ["model-a", "adapter", "base", "b", "base", "other"]);
    for (model, pool) in [("adapter", 0), ("base", 0), ("other", 3)] {
        let set = ThresholdRequest {
            model: model.into(),
            active_prefill_tokens_threshold: Some(7),
            ..ThresholdRequest::default()
        };
        assert!(setting.request_thresholds(&set, ms(1)).is_ok(), "{model}");
        assert_eq!(setting.table.thresholds()[pool].thresholds.active_prefill_tokens_threshold, Some(7), "{model}");
    }
}

#[test]
fn what_was_set_counts_after_a_restart_until_the_configuration_says_something_else() {
    let mut setting = setting();
    let over = |instead_of| Override {
        set: BusyThresholds { active_decode_blocks_threshold: Some(0.4), ..BusyThresholds::default() },
        instead_of,
    };
    let configured = setting.table.thresholds()[0].thresholds;
    setting.table.set_thresholds("a", &over(BusyThresholds::default()), ms(0));
    assert_eq!(setting.table.thresholds()[0].thresholds, configured, "it was set instead of others");
    setting.table.set_thresholds("a", &over(configured), ms(0));
    assert_eq!(setting.table.thresholds()[0].thresholds.active_decode_blocks_threshold, Some(0.4));
    setting.table.set_thresholds("gone", &over(configured), ms(0));
}

/// The limit that proxies are sent, for prompts that they count themselves.
#[test]
fn proxies_learn_how_many_prompt_tokens_a_worker_may_have_to_read() {
    let limit = |setting: &Setting| setting.pool("a", ms(1)).prefill_limit;
    let mut setting = setting_of(&CONFIG.replace("0.85}", "0.85, active_prefill_tokens_threshold: 1000}"));
    assert_eq!(limit(&setting), None, "nothing is known of its workers");
    setting.scrape_reading("a1:1", reading(vec![rank(1), RankReport { rank: 1, ..rank(1) }]), ms(0));
    assert_eq!(limit(&setting), Some(2_000), "for each rank");
    setting.scrape("a2:1", 1, ms(0));
    assert_eq!(limit(&setting), Some(1_000), "the least");
    setting.scrape_reading("a2:1", Reading { engine: Engine::Dynamo, ..reading(vec![rank(1)]) }, ms(0));
    assert_eq!(limit(&setting), Some(2_000), "a frontend stands for many workers");
    assert_eq!(setting.pool("b", ms(1)).prefill_limit, None);
}

#[test]
fn what_makes_a_worker_busy_is_named_while_it_is() {
    let busy_by = |setting: &Setting, at| {
        let pools = setting.table.snapshot(at).pools;
        pools[0].workers.iter().map(|row| row.busy_by.clone()).collect::<Vec<_>>()
    };
    let mut setting = setting();
    setting.settle();
    assert_eq!(busy_by(&setting, ms(1)), [vec![""; 0], vec![]]);
    setting.scrape("a1:1", 90, ms(10));
    assert_eq!(busy_by(&setting, ms(11)), [vec!["active_decode_blocks_threshold"], vec![]]);
    assert_eq!(busy_by(&setting, ms(1_500))[1], [""; 0], "old numbers are held to by default");
    let full = CONFIG.replace("model: model-a", "model: model-a\n  when_stale: full");
    setting.table.configure(&Config::parse(&full).unwrap());
    assert_eq!(busy_by(&setting, ms(1_500))[1], ["when_stale"]);
}
