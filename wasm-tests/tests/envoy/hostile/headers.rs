//! What can be wrong with headers and paths.

use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait};
use worker_sim::Fault;

use super::EVERY_WAIT;

async fn status(rig: &Rig, headers: &[(&str, &[u8])]) -> Option<u16> {
    let body = chat(MODEL, 1, false).to_string();
    RawCaller::send(rig.address, &request_bytes(CHAT, headers, body.as_bytes(), true)).await.status().await
}

#[tokio::test]
async fn floods_of_headers_end_at_the_proxys_limits_and_ours_never_pass() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(1, wait)).await;
        let names: Vec<String> = (0..2_000).map(|number| format!("x-sluice-flood-{number}")).collect();
        let flood = |count: usize| names[..count].iter().map(|name| (&**name, &b"x"[..])).collect::<Vec<_>>();
        // Envoy takes a hundred headers of 60 KiB together, and answers 431 to more.
        assert_eq!(status(&rig, &flood(90)).await, Some(200), "{wait:?}");
        let seen = rig.worker.stats().last_headers;
        assert!(!seen.keys().any(|name| name.contains("flood")), "{wait:?}: {seen:?}");
        for headers in [flood(2_000), vec![("x-any", &[b'x'; 100_000][..])], vec![("x-tenant-id", &[b'x'; 61_440][..])]]
        {
            assert_eq!(status(&rig, &headers).await, Some(431), "{wait:?}");
        }
        assert_eq!(rig.worker.stats().received, 1);
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn long_names_are_cut_and_stay_apart() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let mut names = Vec::new();
    for last in *b"ab" {
        let mut name = vec![b'x'; 50_000];
        name.push(last);
        assert_eq!(status(&rig, &[("x-tenant-id", &name)]).await, Some(200));
        names.extend(rig.seen("x-sluice-tenant"));
    }
    assert!(names[0] != names[1] && names.iter().all(|name| (128..160).contains(&name.len())), "{names:?}");
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_name_that_comes_twice_is_that_of_nobody_known() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let _held = rig.hold("capped", 4).await;
    rig.worker.set_faults([]);
    let twice: [(&str, &[u8]); 2] = [("x-tenant-id", b"acme"), ("x-tenant-id", b"capped")];
    assert_eq!(status(&rig, &twice).await, Some(200), "it is not `capped`, whose cap is full");
    assert_eq!(rig.seen("x-sluice-tenant").as_deref(), Some("acme,capped"), "nor `acme`");
    let lanes: [(&str, &[u8]); 2] = [("x-sluice-lane", b"standard"), ("x-sluice-lane", b"interactive")];
    assert_eq!(status(&rig, &lanes).await, Some(200));
    assert_eq!(rig.seen("x-sluice-lane").as_deref(), Some("standard"), "the default one");
}

#[tokio::test]
async fn bytes_that_are_no_text_trap_in_no_header() {
    for wait in EVERY_WAIT {
        let rig = Rig::start(Setup::new(1, wait)).await;
        for name in [
            "x-tenant-id",
            "authorization",
            "x-sluice-lane",
            "x-sluice-no-queue",
            "x-llm-d-inference-objective",
            "x-gateway-inference-objective",
            "x-llm-d-slo-ttft-ms",
            "x-slo-ttft-ms",
            "content-encoding",
            "x-gateway-destination-endpoint",
            "x-request-id",
            "accept-encoding",
        ] {
            for value in [&b"\xff\xfe\x80"[..], b"\xed\xa0\x80", b"\"\\,;=", &[0x80; 4_000]] {
                assert_eq!(status(&rig, &[(name, value)]).await, Some(200), "{wait:?} {name} {value:?}");
            }
        }
        rig.nothing_is_held().await;
        rig.nothing_trapped().await;
    }
}

#[tokio::test]
async fn odd_paths_end_well() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    let body = chat(MODEL, 1, false).to_string();
    let long = format!("/v1/{}", "%2e%2e/".repeat(6_000));
    for path in
        ["/v1/chat/completions?\u{80}", "/%", "/%f", "/%ff%fe/chat/completions", "//////", "/?#?#", "/v1/../..", &long]
    {
        let status =
            RawCaller::send(rig.address, &request_bytes(path, &[], body.as_bytes(), true)).await.status().await;
        assert!(status.is_some_and(|status| (200..500).contains(&status)), "{path}: {status:?}");
    }
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}

/// However its path is written, a request to a public listener is none to the control role, right token or not.
#[tokio::test]
async fn no_spelling_reaches_the_control_role_from_a_public_listener() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    assert_eq!(rig.ask("acme", &[]).await.0, 200);
    for target in [
        "/sluice/v1/state",
        "/sluice/v1/state/",
        "//sluice/v1/state",
        "/sluice/v1/%73tate",
        "/x/../sluice/v1/state",
        "/sluice%2fv1%2fstate",
        "http://control/sluice/v1/state",
    ] {
        for (address, listener) in [(rig.address, "public"), (rig.neighbour, "neighbour")] {
            let request = format!(
                "GET {target} HTTP/1.1\r\nhost: control\r\nx-envoy-original-path: /sluice/v1/state\r\n\
                 authorization: Bearer {TOKEN}\r\nconnection: close\r\n\r\n"
            );
            let (head, body) = RawCaller::send(address, request.as_bytes()).await.last_answer().await;
            assert!(head.starts_with("HTTP/1.1 404"), "{target} {listener}: {head}");
            assert!(!String::from_utf8_lossy(&body).contains("members"), "{target} {listener}");
        }
    }
    rig.nothing_trapped().await;
}

/// Headers by which Envoy lets services inside order retries and timeouts mean nothing from outside, whoever a caller says
/// it is: one request that fails is one request to the worker.
#[tokio::test]
async fn callers_cannot_order_retries() {
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    rig.worker.set_faults([Fault::Refuse503]);
    let headers: [(&str, &[u8]); 5] = [
        ("x-forwarded-for", b"10.0.0.1"),
        ("x-envoy-internal", b"true"),
        ("x-envoy-retry-on", b"5xx"),
        ("x-envoy-max-retries", b"20"),
        ("x-envoy-upstream-rq-timeout-ms", b"1"),
    ];
    assert_eq!(status(&rig, &headers).await, Some(503));
    assert_eq!(rig.worker.stats().received, 1);
    rig.nothing_is_held().await;
}
