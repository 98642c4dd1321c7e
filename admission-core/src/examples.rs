//! Runs the worked examples of `docs/`: every block of YAML marked `example` there is a policy, perhaps a view, and what
//! happens then.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::arrival::Arrival;
use crate::ask::Ask;
use crate::control::Receiver;
use crate::outcome::{Reason, Refusal, Retry};
use crate::policy::{Control, Plugin, Policy, Pool, Route};
use crate::queue::{Ticket, Waiter};
use crate::request::Api;
use crate::store::memory::MemoryStore;
use crate::stream::StreamId;
use crate::terms::Terms;
use crate::units::{Millis, Time, Tokens};
use crate::usage::Served;
use crate::vm::{Admission, Joined, LeaseId, Progress, Usage, Vm};

mod shipped;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Example {
    policy: Value,
    /// Pools as the sidecar reports them.
    view: Option<Value>,
    then: Vec<Step>,
}

#[derive(Clone, Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Step {
    /// Time since the beginning.
    at: Option<String>,
    tenant: Option<String>,
    lane: Option<String>,
    objective: Option<String>,
    /// Value of the policy's fairness header.
    user: Option<String>,
    path: Option<String>,
    route_name: Option<String>,
    virtual_host: Option<String>,
    /// The route's own.
    metadata: Option<Value>,
    model: Option<String>,
    prompt: u64,
    output: u64,
    /// Within which the caller wants the first token.
    deadline: Option<String>,
    no_queue: bool,
    /// The same request comes so often, each with the same outcome.
    times: Option<u64>,
    /// The request ends when it has been admitted, as it was estimated.
    is_served: bool,
    /// Size of its body.
    bytes: u64,
    /// The filter decides on requests of its route.
    enabled: Option<bool>,
    /// `admitted`, `waits`, or the reason of the refusal.
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
    /// In the line, of a refusal by a queue.
    position: Option<u64>,
    predicted_wait: Option<String>,
    /// Number of a request that ends here, from 1: of those that were admitted or waited, in the order of their coming.
    ends: Option<usize>,
    /// Numbers of requests in flight whose answers begin here.
    begins: Vec<usize>,
    /// Tokens that the worker reported for it.
    used: Option<u64>,
    /// Of those, prompt tokens that it had in its cache.
    cached: u64,
    /// Numbers of the requests that start here, after their wait, in this order.
    starts: Vec<usize>,
    /// Numbers of the requests whose wait ends here in vain.
    times_out: Vec<usize>,
    /// Numbers of the requests that give way here, and end.
    evicts: Vec<usize>,
}

/// A request that was not refused at once.
enum Standing {
    Runs(LeaseId),
    Waits(Ticket),
}

struct Runner {
    policy: Policy,
    store: MemoryStore,
    vm: Vm,
    start: Time,
    now: Time,
    requests: Vec<Standing>,
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
            Receiver::of(&control).take(&store, view.as_bytes(), start).unwrap();
        }
        Self { vm: Vm::new(policy.keys.clone()), policy, store, start, now: start, requests: Vec::new() }
    }

    fn step(&mut self, step: &Step) {
        if let Some(at) = &step.at {
            self.now = Time(self.start.0 + millis(at).0);
        }
        for number in &step.begins {
            let Standing::Runs(lease) = self.requests[number - 1] else { panic!("{number} waits") };
            self.vm.first_token(&self.store, lease, self.now);
        }
        if let Some(number) = step.ends {
            let cached = Tokens(step.cached);
            let served = |tokens| Served { cached, ..Served::whole(Tokens(tokens), Tokens(0)) };
            let usage = step.used.map_or(Usage::AsEstimated, |tokens| Usage::Served(served(tokens)));
            match self.requests[number - 1] {
                Standing::Runs(lease) => self.vm.release(&self.store, lease, usage, self.now),
                Standing::Waits(ticket) => self.vm.leave(&self.store, ticket, self.now),
            }
        }
        self.look_at_the_queues(step);
        let asks = [step.gets.is_some(), step.in_lane.is_some(), step.in_pool.is_some(), step.mode.is_some()];
        if asks.contains(&true) || step.enabled.is_some() {
            (0..step.times.unwrap_or(1)).for_each(|_| self.request(step));
        }
    }

    /// Carries the messages to whoever waits, and looks who starts and who has waited long enough.
    fn look_at_the_queues(&mut self, step: &Step) {
        let mut progress = self.vm.poll(&self.store, self.now);
        for wake in self.vm.take_wakes() {
            let Progress { started, refused } = self.vm.woken(&self.store, &wake.note, self.now);
            progress.started.extend(started);
            progress.refused.extend(refused);
        }
        let started: Vec<usize> = progress.started.iter().map(|started| self.number_of(started.ticket)).collect();
        for (number, started) in started.iter().zip(&progress.started) {
            self.requests[number - 1] = Standing::Runs(started.admission.lease);
        }
        let refused: Vec<usize> = progress.refused.iter().map(|given_up| self.number_of(given_up.ticket)).collect();
        assert_eq!(
            (&step.starts, &step.times_out),
            (&started, &refused),
            "numbers of those that start, and that time out"
        );
        let evictions: Vec<LeaseId> = self.vm.take_evictions().iter().map(|eviction| eviction.lease).collect();
        let is_evicted = |standing: &Standing| matches!(standing, Standing::Runs(lease) if evictions.contains(lease));
        let evicted: Vec<usize> =
            (1..).zip(&self.requests).filter(|(_, one)| is_evicted(one)).map(|(at, _)| at).collect();
        assert_eq!(step.evicts, evicted, "numbers of those that give way");
        evictions.into_iter().for_each(|lease| self.vm.release(&self.store, lease, Usage::Nothing, self.now));
    }

    fn number_of(&self, ticket: Ticket) -> usize {
        let waits = |standing: &Standing| matches!(standing, Standing::Waits(other) if *other == ticket);
        self.requests.iter().position(waits).expect("a request that waits") + 1
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
            says_json: true,
            wrong_key: false,
            tier: None,
            spoofed: false,
            ttft_deadline: step.deadline.as_deref().map(millis),
            no_queue: step.no_queue,
            sub: self.policy.sub_flow(step.user.as_ref().map(String::as_bytes)),
        };
        let own = step.metadata.clone().map(|own| self.policy.route_of_metadata(own).unwrap());
        let place = arrival.place(step.route_name.as_deref(), step.virtual_host.as_deref());
        let route = self.policy.route(place, own.unwrap_or_default());
        let terms = Terms::of(&self.policy, &arrival, &route);
        assert_eq!(step.mode.clone().unwrap_or(json!(terms.mode).as_str().unwrap().into()), json!(terms.mode), "mode");
        assert_eq!(step.enabled.or(route.enabled), route.enabled, "enabled");
        let model = step.model.as_deref();
        let lane = terms.lane(&self.policy, model);
        assert_eq!(step.in_lane.as_ref().unwrap_or(&lane.name), &lane.name, "lane");
        let Some(first) = self.pool(&route, model) else {
            return assert_eq!(step.gets.as_deref(), Some(Reason::UnknownModel.label()));
        };
        let (pool, decided) = self.decide(step, &terms, Arc::clone(first));
        assert_eq!(step.in_pool.as_ref().unwrap_or(&pool.name), &pool.name, "pool");
        let gets = match decided {
            Ok(Joined::Started(admission)) => self.admitted(step, admission),
            Ok(Joined::Waiting(ticket)) => {
                self.requests.push(Standing::Waits(ticket));
                "waits"
            }
            Err(refusal) => {
                self.check_refusal(step, &refusal);
                refusal.reason.label()
            }
        };
        assert_eq!(step.gets.as_deref().unwrap_or(gets), gets);
    }

    fn admitted(&mut self, step: &Step, admission: Admission) -> &'static str {
        self.requests.push(Standing::Runs(admission.lease));
        if step.is_served {
            self.vm.release(&self.store, admission.lease, Usage::AsEstimated, self.now);
        }
        let endpoint = admission.endpoint.map(|endpoint| endpoint.header);
        assert_eq!(step.endpoint.clone().or(endpoint.clone()), endpoint, "endpoint");
        "admitted"
    }

    fn pool<'a>(&'a self, route: &'a Route, model: Option<&str>) -> Option<&'a Arc<Pool>> {
        let by_model = || self.policy.only_pool().or_else(|| self.policy.pool_for(model.unwrap_or_default()));
        route.pool.as_ref().or_else(by_model)
    }

    /// Lets a request in, to a pool or the one that takes what that refuses, or lets it wait where its lane has a queue; and the pool.
    fn decide(&mut self, step: &Step, terms: &Terms, first: Arc<Pool>) -> (Arc<Pool>, Result<Joined, Refusal>) {
        let (mut asked, mut best) = (first, None::<(Arc<Pool>, Refusal)>);
        loop {
            let refused = match self.vm.admit(&self.store, &self.waiter(step, terms, &asked).request(), self.now) {
                Ok(admission) => return (asked, Ok(Joined::Started(admission))),
                Err(refused) => refused,
            };
            let next = asked.fallback_for(refused.reason).and_then(|name| self.policy.pool(name)).cloned();
            if best.as_ref().is_none_or(|(pool, first)| pool.is_worse(first, &asked, &refused)) {
                best = Some((asked, refused));
            }
            match next {
                Some(next) => asked = next,
                None => break,
            }
        }
        let (pool, refused) = best.expect("the first pool");
        let waiter = self.waiter(step, terms, &pool);
        let decided =
            if step.no_queue { Err(refused) } else { self.vm.enqueue(&self.store, waiter, refused, self.now) };
        (pool, decided)
    }

    fn waiter(&self, step: &Step, terms: &Terms, pool: &Arc<Pool>) -> Waiter {
        let prompt = Tokens(step.prompt);
        let output_limit = (step.output > 0).then_some(Tokens(step.output));
        let output = output_limit.unwrap_or(pool.expected_output).min(pool.expected_output);
        Waiter {
            owner: StreamId::default(),
            ask: Ask { prompt, longest_prompt: prompt, output, output_limit, prompt_read: true, sequences: 1 },
            limits: Arc::clone(&terms.limits),
            pool: Arc::clone(pool),
            classes: pool.classes_of(step.model.as_deref(), prompt),
            lane: Arc::clone(terms.lane(&self.policy, step.model.as_deref())),
            lanes: Arc::clone(self.policy.line_up()),
            tenant_key: Rc::clone(&terms.tenant_key),
            can_be_steered: true,
            bytes: step.bytes,
            kept_bytes: step.bytes,
            deadline: step.deadline.as_deref().map(millis),
            sub: self.policy.sub_flow(step.user.as_ref().map(String::as_bytes)),
            arrived: self.now,
        }
    }

    fn check_refusal(&self, step: &Step, refusal: &Refusal) {
        let limit = refusal.limit.as_ref();
        let (measured, allowed) = (limit.map(|limit| limit.measured), limit.map(|limit| limit.allowed));
        assert_eq!((step.measured.or(measured), step.allowed.or(allowed)), (measured, allowed), "{refusal}");
        let status = self.policy.reject.status(refusal.reason);
        assert_eq!(step.status.unwrap_or(status), status, "{refusal}");
        let position = refusal.place.map(|place| place.position);
        assert_eq!(step.position.or(position), position, "{refusal}");
        let predicted = refusal.place.and_then(|place| place.wait).map(told);
        assert_eq!(step.predicted_wait.clone().or(predicted.clone()), predicted, "{refusal}");
        let wait = match refusal.retry {
            Retry::After(wait) => told(wait),
            Retry::Never => "never".to_owned(),
        };
        assert_eq!(step.retry_after.as_ref().unwrap_or(&wait), &wait, "{refusal}");
    }
}

fn millis(text: &str) -> Millis {
    let duration = humantime::parse_duration(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    Millis(u64::try_from(duration.as_millis()).unwrap())
}

fn told(time: Millis) -> String {
    humantime::format_duration(std::time::Duration::from_millis(time.0)).to_string()
}

/// The blocks marked `example` of one page.
fn examples(page: &str) -> impl Iterator<Item = &str> {
    page.split("```yaml example\n").skip(1).filter_map(|rest| rest.split("```").next())
}

fn run(example: &str) {
    let example: Example = serde_norway::from_str(example).unwrap();
    let mut runner = Runner::new(&example);
    for (index, step) in example.then.iter().enumerate() {
        println!("  step {}", index + 1);
        runner.step(step);
    }
}

#[test]
fn every_worked_example_in_the_documentation_is_true() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let mut pages: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    pages.sort();
    let mut count = 0;
    for page in pages.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        for (number, example) in examples(&text).enumerate() {
            println!("{}, example {}", page.display(), number + 1);
            run(example);
            count += 1;
        }
    }
    assert!(count >= 8, "only {count} examples were found");
}

/// Policies of the last release do what its documentation said. An example that is to come to something else moves from that page to a row
/// of docs/upgrading.md.
#[test]
fn worked_examples_of_the_last_release_are_still_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/releases/0.1/examples.md");
    let page = std::fs::read_to_string(page).unwrap();
    let titles: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!((titles.len(), examples(&page).count()), (15, 15));
    for (title, example) in titles.iter().zip(examples(&page)) {
        println!("{title}");
        run(example);
    }
}
