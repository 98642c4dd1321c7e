//! Runs the worked examples of `docs/`: every block of YAML marked `example` there is a policy, perhaps a view, and what
//! happens then.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::control::take_view;
use crate::decide::{Ask, Rules};
use crate::outcome::{Refusal, Retry};
use crate::policy::{Control, Plugin, Policy, Pool, Route};
use crate::request::Api;
use crate::store::memory::MemoryStore;
use crate::terms::{Arrival, Terms};
use crate::units::{Time, Tokens};
use crate::vm::{LeaseId, Request, Usage, Vm};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    policy: Value,
    /// Pools as the sidecar reports them.
    view: Option<Value>,
    then: Vec<Step>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Step {
    /// Time since the beginning.
    at: Option<String>,
    tenant: Option<String>,
    lane: Option<String>,
    objective: Option<String>,
    path: Option<String>,
    route_name: Option<String>,
    virtual_host: Option<String>,
    /// The route's own.
    metadata: Option<Value>,
    model: Option<String>,
    prompt: u64,
    output: u64,
    /// `admitted`, or the reason of the refusal.
    gets: Option<String>,
    in_lane: Option<String>,
    in_pool: Option<String>,
    mode: Option<String>,
    measured: Option<u64>,
    allowed: Option<u64>,
    /// Before jitter and bounds; `never`.
    retry_after: Option<String>,
    status: Option<u16>,
    endpoint: Option<String>,
    /// Number of an admitted request, from 1, that ends here.
    ends: Option<usize>,
    /// Tokens that the worker reported for it.
    used: Option<u64>,
}

struct Runner {
    policy: Policy,
    store: MemoryStore,
    vm: Vm,
    start: Time,
    now: Time,
    admitted: Vec<LeaseId>,
}

impl Runner {
    fn new(example: &Example) -> Self {
        let policy = match Plugin::parse(example.policy.to_string().as_bytes()) {
            Ok(Plugin::Filter(policy)) => *policy,
            other => panic!("{other:?}"),
        };
        let (start, store) = (Time(1_000_000), MemoryStore::default());
        if let Some(pools) = &example.view {
            let control = json!({"role": "control", "token_sha256": "00".repeat(32)}).to_string();
            let Ok(Plugin::Control(control)) = Plugin::parse(control.as_bytes()) else { panic!("control") };
            let control = Control { keys: policy.keys.clone(), ..control };
            let view = json!({"version": 1, "epoch": 1, "generation": 1, "pools": pools}).to_string();
            take_view(&store, &control, view.as_bytes(), start).unwrap();
        }
        Self { vm: Vm::new(policy.keys.clone()), policy, store, start, now: start, admitted: Vec::new() }
    }

    fn step(&mut self, step: &Step) {
        if let Some(at) = &step.at {
            let at = humantime::parse_duration(at).unwrap().as_millis();
            self.now = Time(self.start.0 + u64::try_from(at).unwrap());
        }
        if let Some(number) = step.ends {
            let usage = step.used.map_or(Usage::AsEstimated, |tokens| Usage::Reported(Tokens(tokens)));
            self.vm.release(&self.store, self.admitted[number - 1], usage, self.now);
        }
        if step.gets.is_some() || step.in_lane.is_some() || step.in_pool.is_some() || step.mode.is_some() {
            self.request(step);
        }
    }

    fn request(&mut self, step: &Step) {
        let path = step.path.clone().unwrap_or_else(|| "/v1/chat/completions".to_owned());
        let arrival = Arrival {
            tenant: step.tenant.clone().unwrap_or_else(|| self.policy.default_tenant.clone()),
            asked_lane: step.lane.clone(),
            objectives: step.objective.iter().cloned().collect(),
            api: Api::of_path(&path),
            path,
            body_bytes: None,
            encoded: false,
            spoofed: false,
        };
        let own = step.metadata.clone().map(|own| self.policy.route_of_metadata(own).unwrap());
        let place = arrival.place(step.route_name.as_deref(), step.virtual_host.as_deref());
        let route = self.policy.route(place, own.unwrap_or_default());
        let terms = Terms::of(&self.policy, &arrival, &route);
        assert_eq!(step.mode.clone().unwrap_or(json!(terms.mode).as_str().unwrap().into()), json!(terms.mode), "mode");
        let model = step.model.as_deref();
        let lane = terms.lane(&self.policy, model);
        assert_eq!(step.in_lane.as_ref().unwrap_or(&lane.name), &lane.name, "lane");
        let mut pool = Arc::clone(self.pool(&route, model));
        let mut decided = self.decide(step, &terms, &pool);
        while let Err(refusal) = &decided
            && let Some(other) = pool.fallback_for(refusal.reason).and_then(|name| self.policy.pool(name))
        {
            pool = Arc::clone(other);
            decided = self.decide(step, &terms, &pool);
        }
        assert_eq!(step.in_pool.as_ref().unwrap_or(&pool.name), &pool.name, "pool");
        if let Err(refusal) = &decided {
            self.check_refusal(step, refusal);
        }
        let gets = decided.map_or_else(|refusal| refusal.reason.label(), |()| "admitted");
        assert_eq!(step.gets.as_deref().unwrap_or(gets), gets);
    }

    fn pool<'a>(&'a self, route: &'a Route, model: Option<&str>) -> &'a Arc<Pool> {
        let by_model = || self.policy.only_pool().or_else(|| self.policy.pool_for(model.unwrap_or_default()));
        route.pool.as_ref().or_else(by_model).expect("no pool serves the model")
    }

    fn decide(&mut self, step: &Step, terms: &Terms, pool: &Pool) -> Result<(), Refusal> {
        let prompt = Tokens(step.prompt);
        let output_limit = (step.output > 0).then_some(Tokens(step.output));
        let output = output_limit.unwrap_or(pool.expected_output).min(pool.expected_output);
        let classes = pool.classes_of(step.model.as_deref(), prompt);
        let lane = terms.lane(&self.policy, step.model.as_deref());
        let rules = Rules { tenant: &terms.limits, pool, lane, classes: &classes };
        let ask = Ask { prompt, longest_prompt: prompt, output, output_limit, prompt_read: true };
        let request = Request { ask, rules, tenant_key: &terms.tenant_key, can_be_steered: true };
        let admission = self.vm.admit(&self.store, &request, self.now)?;
        self.admitted.push(admission.lease);
        let endpoint = admission.endpoint.map(|endpoint| endpoint.header);
        assert_eq!(step.endpoint.clone().or(endpoint.clone()), endpoint, "endpoint");
        Ok(())
    }

    fn check_refusal(&self, step: &Step, refusal: &Refusal) {
        let limit = refusal.limit.as_ref();
        let (measured, allowed) = (limit.map(|limit| limit.measured), limit.map(|limit| limit.allowed));
        assert_eq!((step.measured.or(measured), step.allowed.or(allowed)), (measured, allowed), "{refusal}");
        let status = self.policy.reject.status(refusal.reason);
        assert_eq!(step.status.unwrap_or(status), status, "{refusal}");
        let wait = match refusal.retry {
            Retry::After(wait) => humantime::format_duration(std::time::Duration::from_millis(wait.0)).to_string(),
            Retry::Never => "never".to_owned(),
        };
        assert_eq!(step.retry_after.as_ref().unwrap_or(&wait), &wait, "{refusal}");
    }
}

/// The blocks marked `example` of one page.
fn examples(page: &str) -> impl Iterator<Item = &str> {
    page.split("```yaml example\n").skip(1).filter_map(|rest| rest.split("```").next())
}

#[test]
fn every_worked_example_in_the_documentation_is_true() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut pages: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    let mut run = 0;
    for page in pages.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        for (number, example) in examples(&text).enumerate() {
            let example: Example = serde_norway::from_str(example).unwrap_or_else(|error| panic!("{page:?}: {error}"));
            println!("{}, example {}", page.display(), number + 1);
            let mut runner = Runner::new(&example);
            for (index, step) in example.then.iter().enumerate() {
                println!("  step {}", index + 1);
                runner.step(step);
            }
            run += 1;
        }
    }
    assert!(run >= 8, "only {run} examples were found");
}
