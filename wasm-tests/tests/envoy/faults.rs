//! What breaks, and what it costs.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use worker_sim::Fault;

fn epochs(state: &Value) -> BTreeSet<u64> {
    state["members"].as_array().unwrap().iter().map(|member| member["epoch"].as_u64().unwrap()).collect()
}

/// Requests held in the pool under each epoch.
fn held_by_epoch(state: &Value) -> Vec<(u64, u64)> {
    let columns = state["pools"]["main"]["columns"].as_array();
    let mut held: Vec<_> = columns
        .into_iter()
        .flatten()
        .map(|column| (column["epoch"].as_u64().unwrap(), column["held"]["requests"].as_u64().unwrap()))
        .collect();
    held.sort_unstable();
    held
}

#[tokio::test]
async fn a_trap_voids_what_its_vm_held_and_the_proxy_serves_on() {
    for (threads, wait) in
        [(1, Wait::Unread), (2, Wait::Unread), (4, Wait::Unread), (2, Wait::AtHeaders), (2, Wait::BodyHeld)]
    {
        let rig = Rig::start(Setup::new(threads, wait).faulty()).await;
        rig.worker.set_faults([Fault::Hang]);
        let body = chat(MODEL, 1, false).to_string();
        let request = request_bytes(CHAT, &[("x-tenant-id", b"acme")], body.as_bytes(), true);
        let mut holders = Vec::new();
        // Which thread takes a connection is the kernel's choice, so go on until every thread holds something.
        let everyone_holds = |state: &Value| held_by_epoch(state).len() == threads as usize;
        while !everyone_holds(&rig.state().await) {
            assert!(holders.len() < 200, "the kernel never chose some thread");
            holders.push(RawCaller::send(rig.address, &request).await);
            let count = holders.len() as u64;
            eventually("it is held", async || {
                let held = rig.held().await.0;
                (held == count).then_some(()).ok_or(format!("{held} of {count}"))
            })
            .await;
        }
        let before = rig.state().await;
        let commanded = request_bytes(CHAT, &[("x-sluice-test-fault", b"trap")], body.as_bytes(), true);
        let status = RawCaller::send(rig.address, &commanded).await.status().await;
        assert!(matches!(status, Some(503) | None), "{status:?}");

        eventually("the dead VM's holdings are void", async || {
            let state = rig.state_if_served().await?;
            let sum = |held: &[(u64, u64)]| held.iter().map(|(_, requests)| requests).sum::<u64>();
            let (was, now) = (held_by_epoch(&before), sum(&held_by_epoch(&state)));
            // A live VM that stalls meanwhile comes back under another epoch, with all that it holds.
            let done = was.iter().any(|(epoch, held)| !epochs(&state).contains(epoch) && now == sum(&was) - held);
            done.then_some(()).ok_or(format!("{before}\n{state}"))
        })
        .await;

        rig.worker.set_faults([]);
        eventually("every thread serves", async || {
            let mut statuses = Vec::new();
            for _ in 0..20 {
                statuses.push(RawCaller::send(rig.address, &request).await.status().await);
            }
            statuses.iter().all(|status| *status == Some(200)).then_some(()).ok_or(format!("{statuses:?}"))
        })
        .await;
        drop(holders);
        rig.nothing_is_held().await;
        assert!(rig.envoy.stat("wasm.sluice.vm_reload_success").await.unwrap() >= 1);
    }
}

#[tokio::test]
async fn a_bad_configuration_is_refused_whole_and_the_former_one_stays() {
    let mut rig = Rig::start(Setup::new(2, Wait::Unread)).await;
    let fail = "extension_config_discovery.http_filter.sluice.config_fail";
    let reload = "extension_config_discovery.http_filter.sluice.config_reload";
    let failed = rig.envoy.stat(fail).await.unwrap();
    rig.reconfigure(|policy| {
        policy["tenants"]["capped"]["max_in_flight"] = json!(0);
        policy["tenants"]["capped"]["tier"] = json!("no such tier");
        policy["pools"][0]["kv"] = json!({"headroom": 2});
    });
    eventually("Envoy refuses it", async || match rig.envoy.stat(fail).await.unwrap() {
        count if count > failed => Ok(()),
        count => Err(count.to_string()),
    })
    .await;
    for path in ["tenants.capped.max_in_flight", "tenants.capped.tier", "pools[0].kv.headroom"] {
        assert!(
            rig.envoy.log().contains(&format!("the configuration is refused: {path}: ")),
            "{path}: {}",
            rig.envoy.log()
        );
    }
    for _ in 0..40 {
        assert_eq!(RawCaller::send(rig.address, &ordinary()).await.status().await, Some(200));
    }
    assert_eq!(rig.state().await["pools"]["main"]["admitted"]["requests"], 40, "the former policy counts them");

    let reloaded = rig.envoy.stat(reload).await.unwrap();
    rig.reconfigure(|policy| policy["pools"][0]["max_prompt_tokens"] = json!(1));
    eventually("a good one is taken after it", async || match rig.envoy.stat(reload).await.unwrap() {
        count if count > reloaded => Ok(()),
        count => Err(count.to_string()),
    })
    .await;
    eventually("it holds on every thread", async || {
        let mut statuses = Vec::new();
        for _ in 0..20 {
            statuses.push(RawCaller::send(rig.address, &ordinary()).await.status().await);
        }
        statuses.iter().all(|status| *status == Some(413)).then_some(()).ok_or(format!("{statuses:?}"))
    })
    .await;
    rig.nothing_is_held().await;
}

fn ordinary() -> Vec<u8> {
    request_bytes(CHAT, &[], chat(MODEL, 1, false).to_string().as_bytes(), true)
}

/// Counts, leases and callers survive a change of configuration; what was admitted under the old is released under it.
#[tokio::test]
async fn a_new_configuration_keeps_counts() {
    let mut rig = Rig::start(Setup::new(2, Wait::Unread)).await;
    let holders = rig.hold("capped", 4).await;
    rig.reconfigure(|policy| policy["tenants"]["capped"]["max_in_flight"] = json!(2));
    eventually("the lower cap is said", async || {
        let answer = rig.post("capped", &[], &chat(MODEL, 1, false)).await;
        assert_eq!(answer.status(), 429);
        let text = answer.text().await.unwrap();
        text.contains("allows 2").then_some(()).ok_or(text)
    })
    .await;
    assert_eq!(rig.held().await, (4, 4), "what was admitted stays");
    drop(holders);
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
