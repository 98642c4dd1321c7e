use super::*;
use crate::estimate::{Inputs, Observed};
use crate::request::Api;
use crate::request::Scanner;
use crate::vm::Lesson;

/// One pool with models of two patterns, and a proxy around it.
fn proxy() -> Proxy {
    let json = br#"{"pools": [{"name": "p", "models": ["llama*", "tiny"], "max_in_flight": 100, "expected_output_tokens": 500}]}"#;
    let Ok(Plugin::Filter(policy)) = Plugin::parse(json) else { panic!("policy") };
    Proxy { policy: Rc::new(*policy), ..Proxy::new(1, 1) }
}

fn inputs(words: usize) -> Inputs {
    let mut scanner = Scanner::default();
    scanner.feed(format!(r#"{{"messages": [{{"content": "{}"}}]}}"#, "word ".repeat(words)).as_bytes());
    let facts = scanner.facts();
    Inputs::new(&facts.text, facts.messages, 0, Api::Chat)
}

impl Proxy {
    fn estimate(&self, vm: &mut Vm, model: Option<&str>, tenant: &str) -> (u64, u64) {
        let pool = self.policy.only_pool().unwrap();
        let estimator = vm.estimator(&*self.store, pool, model, tenant, self.now);
        (estimator.belief.weights.tokens(&inputs(500)).0, estimator.usual_output.0)
    }

    fn teach(&self, vm: &mut Vm, model: &str, tenant: &str, output: u64) {
        self.teach_prompt(vm, model, tenant, (700, output));
    }

    fn teach_prompt(&self, vm: &mut Vm, model: &str, tenant: &str, (prompt, output): (u64, u64)) {
        let observed =
            Observed { inputs: inputs(500), prompt: Some(Tokens(prompt)), output: Some(Tokens(output)), tenant: 0 };
        let lesson = Lesson { model: Some(model), tenant_key: tenant, observed };
        vm.learn(&*self.store, self.policy.only_pool().unwrap(), lesson, self.now);
    }
}

#[test]
fn what_one_vm_learns_all_know_a_second_later() {
    let mut proxy = proxy();
    let (mut one, mut other) = (proxy.vm(), proxy.vm());
    let before = proxy.estimate(&mut other, Some("llama-3"), "t");
    assert!((500..600).contains(&before.0) && before.1 == 500, "{before:?}");
    for _ in 0..60 {
        proxy.teach(&mut one, "llama-3", "t", 90);
        proxy.now.0 += TICK.0;
        one.tick(&*proxy.store, proxy.now).unwrap();
    }
    let after = proxy.estimate(&mut other, Some("llama-9"), "t");
    assert!((680..=720).contains(&after.0) && (85..=100).contains(&after.1), "{after:?}");
    assert_eq!(proxy.estimate(&mut other, Some("tiny"), "t").1, 500, "another model");
    assert_eq!(proxy.estimate(&mut other, None, "t").1, after.1, "of the pool's requests whose model is not read yet");
    assert_eq!(proxy.estimate(&mut other, Some("llama-3"), "u"), after, "a tenant of whom nothing is known yet");
}

#[test]
fn what_many_requests_of_one_tenant_teach_is_not_held_against_another_whose_own_say_otherwise() {
    let mut proxy = proxy();
    let mut vm = proxy.vm();
    let before = proxy.estimate(&mut vm, Some("tiny"), "u").0;
    for round in 0..200 {
        proxy.teach_prompt(&mut vm, "tiny", "t", (before / 2, 9));
        if round % 10 == 0 {
            proxy.teach_prompt(&mut vm, "tiny", "u", (before, 9));
        }
        proxy.now.0 += TICK.0;
        vm.tick(&*proxy.store, proxy.now).unwrap();
    }
    let after = ["t", "u", "v"].map(|tenant| proxy.estimate(&mut vm, Some("tiny"), tenant).0);
    assert!(after[0] < before * 2 / 3 && after[1..] == [before; 2], "{before} before, {after:?}");
}

#[test]
fn models_that_callers_invent_add_no_keys() {
    let mut proxy = proxy();
    let mut vm = proxy.vm();
    let mut keys = Vec::new();
    for round in 0..200 {
        proxy.teach(&mut vm, &format!("llama-{round}"), &format!("tenant-{round}"), 10);
        proxy.teach(&mut vm, &format!("other-{round}"), &format!("tenant-{round}"), 10);
        proxy.now.0 += TICK.0;
        vm.tick(&*proxy.store, proxy.now).unwrap();
        keys = proxy.store.keys();
    }
    let models: Vec<_> = keys.iter().filter(|key| key.contains("/model/")).collect();
    assert_eq!(models.len(), 3, "{models:?}");
    assert!(models.iter().all(|key| proxy.store.read(key).0.unwrap().len() <= 4_096));
}

#[test]
fn models_that_no_policy_names_any_more_are_forgotten() {
    let mut proxy = proxy();
    let mut vm = proxy.vm();
    for model in ["llama-3", "tiny"] {
        (0..40).for_each(|_| proxy.teach(&mut vm, model, "t", 40));
    }
    proxy.now.0 += 10 * TICK.0;
    vm.tick(&*proxy.store, proxy.now).unwrap();
    let json = br#"{"pools": [{"name": "p", "models": ["llama*", "large"], "max_in_flight": 1}]}"#;
    let Ok(Plugin::Filter(newer)) = Plugin::parse(json) else { panic!("policy") };
    let is_used = |pool: &str, label: &str| newer.pool(pool).is_some_and(|pool| pool.has_model_label(label));
    proxy.store.fail_on("/tiny", 1);
    assert!(!vm.forget_models(&*proxy.store, is_used), "another VM was faster");
    assert!(vm.forget_models(&*proxy.store, is_used));
    let held = |label: &str| proxy.store.read(&proxy.policy.keys.model("p", label)).0.unwrap().len();
    assert_eq!(
        (held("tiny"), held("llama*") > 100, held(proxy.policy.only_pool().unwrap().model_label(None)) > 100),
        (0, true, true)
    );
    let mut other = proxy.vm();
    for vm in [&mut vm, &mut other] {
        assert_eq!(proxy.estimate(vm, Some("tiny"), "t").1, 500, "as if nothing had been learned");
        assert!(proxy.estimate(vm, Some("llama-3"), "t").1 < 60);
    }
    (0..40).for_each(|_| proxy.teach(&mut vm, "tiny", "t", 40));
    proxy.now.0 += 10 * TICK.0;
    vm.tick(&*proxy.store, proxy.now).unwrap();
    assert!(held("tiny") > 100, "it can be learned again");
}

#[test]
fn what_others_were_faster_at_is_told_later_and_what_is_no_record_teaches_nothing() {
    let mut proxy = proxy();
    let mut vm = proxy.vm();
    for _ in 0..30 {
        proxy.teach(&mut vm, "tiny", "t", 40);
    }
    let key = proxy.policy.keys.model("p", "tiny");
    proxy.store.fail_on("/tiny", crate::store::MAX_ATTEMPTS);
    proxy.now.0 += TICK.0;
    vm.tick(&*proxy.store, proxy.now).unwrap();
    assert_eq!(proxy.store.read(&key).0, None);
    proxy.now.0 += 10 * TICK.0;
    vm.tick(&*proxy.store, proxy.now).unwrap();
    let mut other = proxy.vm();
    assert!(proxy.estimate(&mut other, Some("tiny"), "t").1 < 60);
    proxy.store.put(&key, b"{}");
    let mut third = proxy.vm();
    assert_eq!(proxy.estimate(&mut third, Some("tiny"), "t").1, 500);
    proxy.teach(&mut third, "tiny", "t", 40);
    proxy.now.0 += 10 * TICK.0;
    third.tick(&*proxy.store, proxy.now).unwrap();
}
