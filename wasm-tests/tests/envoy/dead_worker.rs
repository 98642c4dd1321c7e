//! Workers that die behind the shipped files of a plain Envoy: what that costs callers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::parts::{MODEL, Parts, Program, Programs, Stage};
use wasm_tests::rig::eventually;

/// Callers that ask again as soon as they are answered.
const CALLERS: usize = 16;

/// Connections that may fail beyond those of the dead worker's requests: what is under way when it dies.
const A_FEW: usize = 4;

const FLAGS: [&str; 4] = ["--model", MODEL, "--base-ms", "5"];

const STAGE: Stage = Stage {
    workers: 3,
    worker_flags: &FLAGS,
    envoy_threads: 2,
    policy: |policy| {
        policy["tenants"]["*"] = json!({"tier": "paid"});
        Ok(())
    },
    bootstrap: |_| Ok(()),
};

/// The answers to callers in a loop.
#[derive(Default)]
struct Answers {
    stop: AtomicBool,
    served: AtomicUsize,
    /// Answers that Sluice has given.
    refused: AtomicUsize,
    /// Everything else: the proxy's own errors, and answers that broke off.
    failed: AtomicUsize,
}

impl Answers {
    fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }

    async fn ask(&self, parts: &Parts) {
        let body =
            json!({"model": MODEL, "max_tokens": 10, "messages": [{"role": "user", "content": "Say something."}]});
        let url = format!("http://{}/v1/chat/completions", parts.with);
        while !self.stop.load(Ordering::Relaxed) {
            let answer = parts.client.post(&url).header("x-tenant-id", "acme").json(&body).send().await;
            let status = answer.as_ref().map(|answer| answer.status().as_u16()).unwrap_or_default();
            let is_ours = answer.as_ref().is_ok_and(|answer| answer.headers().contains_key("x-sluice-reason"));
            let is_whole = match answer {
                Ok(answer) => answer.bytes().await.is_ok(),
                Err(_) => false,
            };
            let counter = match (is_ours, status == 200 && is_whole) {
                (true, _) => &self.refused,
                (false, true) => &self.served,
                (false, false) => &self.failed,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lets so many more be served.
    async fn serve(&self, more: usize) {
        let goal = self.served() + more;
        eventually("callers are served", async || {
            let served = self.served();
            (served >= goal).then_some(()).ok_or(format!("{served} of {goal}"))
        })
        .await;
    }
}

async fn running(parts: &Parts, worker: &Program) -> usize {
    let page = parts.client.get(format!("http://{}/sim/stats", worker.address)).send().await.expect("a worker");
    let stats: Value = page.json().await.expect("its numbers");
    ["running", "waiting"].into_iter().map(|field| stats[field].as_u64().expect("a number") as usize).sum()
}

#[tokio::test]
async fn a_worker_that_dies_costs_no_more_than_the_requests_it_had() {
    let mut parts = Parts::start(&Programs::built().expect("programs"), &STAGE).await.expect("the shipped files");
    let answers = Answers::default();
    let dead = parts.workers.remove(0);
    let at = dead.address;
    let inside = AtomicUsize::new(0);
    let callers = join_all((0..CALLERS).map(|_| answers.ask(&parts)));
    let story = async {
        answers.serve(200).await;
        inside.store(running(&parts, &dead).await, Ordering::Relaxed);
        drop(dead);
        answers.serve(1_000).await;
        let (failed, refused) = (answers.failed.load(Ordering::Relaxed), answers.refused.load(Ordering::Relaxed));
        let most = CALLERS / 3 + 1 + A_FEW;
        assert!(failed <= most.max(inside.load(Ordering::Relaxed) + A_FEW), "{failed} failed, {refused} refused");
        assert_eq!(refused, 0, "the others have room");
        // It comes back, and gets work again.
        let port = at.port().to_string();
        let flags: Vec<&str> = FLAGS.into_iter().chain(["--port", &port]).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let programs = Programs::built().expect("programs");
        let back = Program::start(&programs.worker, &flags, &folder.path().join("log")).await.expect("it comes back");
        eventually("it gets work again", async || {
            let running = running(&parts, &back).await;
            (running > 0).then_some(()).ok_or_else(|| "none".to_owned())
        })
        .await;
        assert_eq!(answers.failed.load(Ordering::Relaxed), failed, "none of the requests since");
        answers.stop.store(true, Ordering::Relaxed);
        back
    };
    let (_, back) = tokio::join!(callers, tokio::time::timeout(Duration::from_secs(120), story));
    drop(back.expect("the story ends"));
}

#[tokio::test]
async fn without_a_sidecar_it_costs_no_more_either() {
    let mut parts = Parts::start(&Programs::built().expect("programs"), &STAGE).await.expect("the shipped files");
    let answers = Answers::default();
    let dead = parts.workers.remove(0);
    let callers = join_all((0..CALLERS).map(|_| answers.ask(&parts)));
    let story = async {
        answers.serve(50).await;
        let sidecar = parts.sidecar.id().expect("the sidecar runs").to_string();
        let killed = std::process::Command::new("kill").args(["-9", &sidecar]).status().expect("kill");
        assert!(killed.success());
        eventually("the view is too old", async || {
            let state = parts.state().await.map_err(|error| error.to_string())?;
            let age = state["pools"]["llama"]["view"]["age_ms"].as_u64();
            age.filter(|age| *age > 5_000).map(drop).ok_or_else(|| format!("{age:?}"))
        })
        .await;
        let before = answers.failed.load(Ordering::Relaxed);
        let inside = running(&parts, &dead).await;
        drop(dead);
        answers.serve(1_000).await;
        let failed = answers.failed.load(Ordering::Relaxed) - before;
        let most = (CALLERS / 3 + 1).max(inside) + A_FEW;
        assert!(failed <= most, "{failed} failed, {inside} were at the worker");
        answers.stop.store(true, Ordering::Relaxed);
    };
    let (_, story) = tokio::join!(callers, tokio::time::timeout(Duration::from_secs(120), story));
    story.expect("the story ends");
}
