//! A filter that asks for its view.

use std::time::Duration;

use serde_json::json;
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::played::Played;
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use wasm_tests::sidecar;
use wasm_tests::view;

/// A policy that asks this sidecar.
fn asking(setup: Setup, played: &Played) -> Setup {
    let mut setup = setup.with("/view", played.play().policy());
    setup.clusters.push(("sidecar", played.address()));
    setup
}

async fn more_questions(played: &Played, count: usize) {
    let before = played.play().questions.len();
    eventually("it asks on", async || {
        let asked = played.play().questions.len() - before;
        (asked >= count).then_some(()).ok_or(format!("{asked} of {count}"))
    })
    .await;
}

async fn generation(rig: &Rig) -> u64 {
    rig.state().await["view"]["generation"].as_u64().unwrap_or(0)
}

#[tokio::test]
async fn one_vm_asks_however_many_there_are() {
    for threads in [1, 4] {
        let played = Played::start().await;
        let rig = Rig::start(asking(Setup::new(threads, Wait::Unread), &played)).await;
        more_questions(&played, 20).await;
        let most = played.play().most_at_once;
        let questions = played.play().questions.clone();
        assert_eq!(most, 1, "{threads} threads");
        assert!(questions.iter().all(|question| question["proxy"] == questions[0]["proxy"]), "one process, one name");
        assert_eq!(questions[0].get("have"), None, "nothing stands at first");
        let last = questions.last().unwrap();
        assert_eq!((&last["have"]["epoch"], last.get("needs_whole")), (&json!(7), None), "{last}");
        assert!(generation(&rig).await >= 19);
        assert!(rig.count("sluice_views_total", &[("outcome", "taken")]).await >= 19);
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn what_is_pulled_decides_as_what_is_pushed() {
    let played = Played::start().await;
    let rig = Rig::start(asking(Setup::new(2, Wait::Unread), &played)).await;
    played.play().workers = vec![view::busy(rig.worker.address())];
    eventually("it is shed", async || {
        let answer = rig.ask("acme", &[]).await;
        (answer == (503, "all_busy".into())).then_some(()).ok_or(format!("{answer:?}"))
    })
    .await;
    played.play().workers = vec![view::free(rig.worker.address(), 0)];
    eventually("it is served", async || {
        let answer = rig.ask("acme", &[]).await;
        (answer.0 == 200).then_some(()).ok_or(format!("{answer:?}"))
    })
    .await;
    eventually("the next question says what was admitted", async || {
        let last = played.play().questions.last().cloned().unwrap_or_default();
        let admitted = last["admitted"]["main"]["requests"].as_u64();
        admitted.is_some_and(|requests| requests >= 1).then_some(()).ok_or(last.to_string())
    })
    .await;
}

#[tokio::test]
async fn another_vm_asks_when_the_one_that_did_has_died() {
    let played = Played::start().await;
    let rig = Rig::start(asking(Setup::new(2, Wait::Unread), &played).faulty()).await;
    more_questions(&played, 3).await;
    let body = chat(MODEL, 1, false).to_string();
    let command = request_bytes(CHAT, &[("x-sluice-test-fault", b"asker")], body.as_bytes(), true);
    // The VM that is told may be the one that asks, and may die before it answers.
    let _ = RawCaller::send(rig.address, &command).await.status().await;
    eventually("the VM has died", async || {
        rig.envoy.log().contains("proxy_on_tick").then_some(()).ok_or_else(|| rig.envoy.log())
    })
    .await;
    more_questions(&played, 10).await;
    let names = played.play().questions.iter().map(|question| question["proxy"].clone()).collect::<Vec<_>>();
    assert!(names.iter().all(|name| *name == names[0]), "the process is the same");
    eventually("its answers are taken", async || {
        let last = played.play().questions.last().cloned().unwrap_or_default();
        (last.get("needs_whole").is_none() && last["have"]["generation"].as_u64() > Some(5))
            .then_some(())
            .ok_or(last.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_wrong_token_is_counted_and_said_once_and_shown_nowhere() {
    let played = Played::start().await;
    let setup = asking(Setup::new(2, Wait::Unread), &played);
    played.play().token = "rotated".into();
    let mut rig = Rig::start(setup).await;
    eventually("it is tried on", async || {
        let strangers = played.play().strangers;
        let counted = rig.count("sluice_views_total", &[("outcome", "unauthorized")]).await;
        (strangers >= 6 && counted >= 6).then_some(()).ok_or(format!("{strangers} {counted}"))
    })
    .await;
    assert_eq!(played.play().questions.len(), 0);
    let log = rig.envoy.log();
    let said = log.matches("does not accept the token (view.pull.token)").count();
    assert!((1..=3).contains(&said), "once for each VM that has asked, and there are three: {log}");
    assert!(!log.contains("to-be-pulled") && !rig.state().await.to_string().contains("to-be-pulled"));

    rig.reconfigure(|policy| policy["view"]["pull"]["token"] = json!("rotated"));
    more_questions(&played, 3).await;
    eventually("the views are taken", async || {
        let state = rig.state().await["view"].clone();
        (state["generation"].as_u64() > Some(2)).then_some(()).ok_or(state.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_sidecar_that_hangs_or_is_gone_is_asked_again() {
    let played = Played::start().await;
    let rig = Rig::start(asking(Setup::new(2, Wait::Unread), &played)).await;
    more_questions(&played, 2).await;
    played.play().wait = Duration::from_secs(3_600);
    eventually("a question has had no answer", async || {
        let failed = rig.count("sluice_views_total", &[("outcome", "failed")]).await;
        (failed >= 1).then_some(()).ok_or(failed.to_string())
    })
    .await;
    played.play().wait = Duration::from_millis(50);
    let before = generation(&rig).await;
    eventually("views are taken again", async || {
        let now = generation(&rig).await;
        (now > before + 2).then_some(()).ok_or(format!("{before} {now}"))
    })
    .await;
    assert!(rig.envoy.log().contains("views are taken again"));
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_real_sidecar_answers_with_what_is_new_and_may_restart() {
    let rig_worker = worker_sim::Worker::start(worker_sim::Config { model: MODEL.into(), ..Default::default() });
    let worker = rig_worker.await.expect("start a worker");
    let more = json!({"api": {"token": "to-be-pulled"}});
    let first = sidecar::start(worker.address(), &more).await;
    let address = first.address();
    let policy = json!({"pull": {"cluster": "sidecar", "token": "to-be-pulled"}});
    let mut setup = Setup::new(2, Wait::Unread).with("/view", policy);
    setup.clusters.push(("sidecar", address));
    let rig = Rig::start(setup).await;
    // From its first request on the filter is known, with its pools.
    rig.ask("acme", &[]).await;
    let live = async || rig.state().await["pools"]["main"]["view"]["live_workers"].clone();
    eventually("the worker is known", async || {
        let live = live().await;
        (live == 1).then_some(()).ok_or(live.to_string())
    })
    .await;
    let epoch = async || rig.state().await["view"]["epoch"].as_u64().unwrap_or(0);
    let before = epoch().await;
    eventually("it hears that its answers are taken", async || {
        let taken = sidecar::metric(&first, "sluice_sidecar_pushes_total{proxy=\"(pulling)\",result=\"taken\"}").await;
        (taken >= 5.0).then_some(()).ok_or(taken.to_string())
    })
    .await;
    first.stop().await;
    let listen = json!(address.to_string());
    let _second = sidecar::start(worker.address(), &json!({"api": {"token": "to-be-pulled"}, "listen": listen})).await;
    eventually("the restarted one is obeyed", async || {
        let now = epoch().await;
        (now > before).then_some(()).ok_or(now.to_string())
    })
    .await;
    worker.stop().await;
    eventually("that its worker is gone is known", async || {
        let live = live().await;
        (live == 0).then_some(()).ok_or(live.to_string())
    })
    .await;
    rig.nothing_trapped().await;
}
