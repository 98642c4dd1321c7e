//! No prompt, answer, key or token is in any log, metric, page or crash message: marked ones go every way there is, and every
//! output is searched for them.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing_subscriber::fmt::MakeWriter;
use wasm_tests::bootstrap;
use wasm_tests::caller::{CHAT, RawCaller, request_bytes};
use wasm_tests::echo::Echo;
use wasm_tests::rig::{MODEL, Rig, Setup, TOKEN, Wait, eventually};
use wasm_tests::scripted::Scripted;
use wasm_tests::sidecar;
use worker_sim::Fault;

const PROMPT: &str = "mark-prompt-7c1f";
const COMPLETION: &str = "mark-completion-e02b";
const KEY: &str = "mark-key-51aa";
const BEARER: &str = "mark-bearer-90d3";
const TOOL: &str = "mark-tool-argument-3b7e";
const PICTURE: &str = "mark-picture-f4c8";
const WRONG: &str = "mark-wrong-token-26d0";
const PULL: &str = "mark-pull-token-b91c";

/// What must stand nowhere. The control listener's token is that of every rig.
const MARKS: [&str; 9] = [PROMPT, COMPLETION, KEY, BEARER, TOOL, PICTURE, WRONG, PULL, TOKEN];

/// Every API with a body that is full of marks, plain and streamed.
fn bodies() -> Vec<(&'static str, Value)> {
    let call = json!({"id": "c", "type": "function", "function": {"name": "find", "arguments": format!("{{\"q\": \"{TOOL}\"}}")}});
    let messages = json!([
        {"role": "user", "content": [
            {"type": "text", "text": PROMPT},
            {"type": "image_url", "image_url": {"url": format!("https://example.com/{PICTURE}.png")}},
        ]},
        {"role": "assistant", "content": COMPLETION, "tool_calls": [call]},
        {"role": "user", "content": format!("{PROMPT} and {TOOL}")},
    ]);
    let tools = json!([{"type": "function", "function": {"name": "find", "description": TOOL, "parameters": {}}}]);
    // An echo of this is an answer with this text.
    let answer =
        json!([{"index": 0, "message": {"content": COMPLETION}, "delta": {"content": COMPLETION}, "text": COMPLETION}]);
    let of = |fields: Value| -> Value {
        let mut body = json!({"model": MODEL, "max_tokens": 2, "user": KEY, "choices": answer});
        fields.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        body
    };
    let apis = [
        (CHAT, of(json!({"messages": messages, "tools": tools}))),
        ("/v1/completions", of(json!({"prompt": PROMPT, "suffix": TOOL}))),
        ("/v1/messages", of(json!({"messages": messages, "system": PROMPT}))),
        ("/v1/responses", of(json!({"input": PROMPT, "instructions": TOOL, "max_output_tokens": 2}))),
        ("/v1/embeddings", of(json!({"input": PROMPT}))),
        ("/v1/anything", of(json!({"anything": PROMPT}))),
    ];
    let streamed = |(path, body): &(&'static str, Value)| {
        let mut body = body.clone();
        body["stream"] = json!(true);
        (*path, body)
    };
    apis.iter().cloned().chain(apis.iter().map(streamed)).collect()
}

/// What every request of these tests is sent with.
const HEADERS: [(&str, &str); 5] = [
    ("x-api-key", KEY),
    ("authorization", "Bearer mark-bearer-90d3"),
    ("cookie", "session=mark-bearer-90d3"),
    ("x-sluice-lane", "interactive"),
    ("x-prompt", PROMPT),
];

fn headers_with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let others = HEADERS.iter().copied().filter(|(name, _)| more.iter().all(|(other, _)| other != name));
    others.chain(more.iter().copied()).collect()
}

/// One pool of a few places, whose keys are told by their digests, and an access log of all that is ours.
fn setup(wait: Wait, clusters: Vec<(&'static str, std::net::SocketAddr)>) -> Setup {
    let digest = hex::encode(Sha256::digest(KEY));
    let sources = json!([{"header": "x-tenant-id"}, {"api_key": {"header": "x-api-key", "sha256": {digest: "keyed"}}}]);
    let queue = json!({"max_requests": 1, "max_wait": "100ms"});
    let lanes = json!([{"name": "interactive", "priority": 100}, {"name": "standard", "queue": queue}, {"name": "batch", "preemptible": true, "priority": -1}]);
    let tenants = json!({
        "keyed": {}, "capped": {"max_in_flight": 1}, "slow": {"requests_per_minute": 1}, "poor": {"tokens_per_minute": 1},
        "watched": {"mode": "shadow", "max_in_flight": 1},
    });
    let mut setup = Setup::new(1, wait).with("/tenant", json!({"sources": sources})).with("/tenants", tenants);
    setup = setup.with("/lanes", lanes).with("/default_lane", json!("standard"));
    setup = setup.with("/pools/0/max_in_flight", json!(2)).with("/pools/0/max_prompt_tokens", json!(5_000));
    let routes = [("/echo/", "echo"), ("/scripted/", "scripted")]
        .map(|(prefix, to)| bootstrap::route_without_prefix(prefix, to));
    setup.virtual_hosts = bootstrap::virtual_hosts(&routes);
    setup.clusters = clusters;
    setup.access_log = json!({
        "sluice": "%FILTER_STATE(wasm.sluice.decision:TYPED)%",
        "tenant": "%REQ(x-sluice-tenant)%", "lane": "%REQ(x-sluice-lane)%", "pool": "%REQ(x-sluice-pool)%",
        "prompt": "%REQ(x-sluice-prompt-tokens)%", "reason": "%RESP(x-sluice-reason)%", "status": "%RESPONSE_CODE%",
    });
    setup
}

/// All that a proxy with the filter shows of itself, at the finest level of its log.
async fn outputs(rig: &Rig) -> Vec<(&'static str, String)> {
    let admin = async |path| rig.envoy.admin(path).await.unwrap();
    // A trap takes the control role along until it is loaded again.
    eventually("there is a state page", async || rig.state_if_served().await.map(drop)).await;
    vec![
        ("the log, access log included", rig.envoy.log()),
        ("/stats", admin("/stats").await),
        ("/stats/prometheus", rig.envoy.prometheus().await.unwrap()),
        ("/clusters", admin("/clusters").await),
        ("/server_info", admin("/server_info").await),
        ("the state page", rig.state().await.to_string()),
    ]
}

fn assert_unmarked(outputs: &[(&'static str, String)]) {
    for (name, output) in outputs {
        for mark in MARKS {
            let lines: Vec<&str> = output.lines().filter(|line| line.contains(mark)).collect();
            assert!(lines.is_empty(), "{mark} is in {name}: {lines:?}");
        }
    }
}

/// As much as the wasm runtime and the filter will say.
async fn say_all(rig: &Rig) {
    let client = testkit::envoy::direct_client().unwrap();
    let url = format!("{}/logging?wasm=trace", rig.envoy.admin_url());
    assert!(client.post(url).send().await.unwrap().status().is_success());
}

/// Posts marks; the status and reason, and the answer among those that others get.
async fn post(rig: &Rig, path: &str, more: &[(&str, &str)], body: &Value, refusals: &mut Vec<String>) -> (u16, String) {
    let (tenant, more): (Vec<_>, Vec<_>) = more.iter().copied().partition(|(name, _)| *name == "x-tenant-id");
    let tenant = tenant.first().map_or("", |(_, tenant)| *tenant);
    let answer = rig.post_to(path, tenant, &headers_with(&more), body.to_string()).await;
    let reason = wasm_tests::rig::reason_of(&answer);
    let (status, head) = (answer.status().as_u16(), format!("{:?}", answer.headers()));
    let text = answer.text().await.unwrap_or_default();
    if !reason.is_empty() {
        refusals.push(head + &text);
    }
    (status, reason)
}

/// Admitted, refused, queued, evicted, in shadow; whole, broken, too large; answered plainly, by a stream, by an error, not at
/// all: nothing that is marked comes out.
#[tokio::test]
async fn what_callers_send_and_get_is_in_no_output() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let event = |text: &str| format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n");
        let (echo, scripted) =
            (Echo::start().await, Scripted::start(&[vec![event(COMPLETION) + "data: [DONE]\n\n"]]).await);
        let rig = Rig::start(setup(wait, vec![("echo", echo.address()), ("scripted", scripted.address())])).await;
        say_all(&rig).await;
        let mut refusals = Vec::new();
        let mut reasons = std::collections::BTreeSet::new();
        for (path, body) in bodies() {
            for prefix in ["", "/echo"] {
                post(&rig, &format!("{prefix}{path}"), &[], &body, &mut refusals).await;
            }
        }
        let (_, chat) = &bodies()[0];
        let (_, stream) = &bodies()[6];
        assert_eq!(post(&rig, "/scripted/v1/chat/completions", &[], stream, &mut refusals).await.0, 200);
        assert_eq!(rig.seen("x-sluice-tenant").as_deref(), Some("keyed"), "the key names a tenant and is not its name");
        for fault in [Fault::Refuse503, Fault::Refuse429, Fault::Truncate, Fault::AbsurdUsage] {
            rig.worker.set_faults([fault]);
            post(&rig, CHAT, &[], stream, &mut refusals).await;
        }
        rig.worker.set_faults([]);

        // Refusals, a family after the other.
        let mut large = chat.clone();
        large["messages"][0]["content"] = json!(format!("{PROMPT} ").repeat(2_000));
        let mut unknown = chat.clone();
        unknown["model"] = json!("somebody-elses");
        for (tenant, body) in
            [("", &large), ("", &unknown), ("slow", chat), ("slow", chat), ("poor", chat), ("poor", chat)]
        {
            reasons.insert(post(&rig, CHAT, &[("x-tenant-id", tenant)], body, &mut refusals).await.1);
        }
        let broken = [
            format!("\u{feff}{chat}"),
            format!("{chat}{PROMPT}"),
            format!("{{\"model\": \"{PROMPT}"),
            format!("{PROMPT}{chat}"),
            format!("{{\"model\": \"{MODEL}\", \"messages\": \"{PROMPT}"),
        ];
        for body in broken {
            let answer = rig.post_to(CHAT, "", &HEADERS, body).await;
            reasons.insert(wasm_tests::rig::reason_of(&answer));
            refusals.push(answer.text().await.unwrap_or_default());
        }
        let _held = hold(&rig, "capped", "interactive", chat).await;
        reasons.insert(post(&rig, CHAT, &[("x-tenant-id", "capped")], chat, &mut refusals).await.1);
        let shadow = post(&rig, CHAT, &[("x-tenant-id", "watched")], &large, &mut refusals).await;
        assert_eq!(shadow, (400, String::new()), "the worker's own refusal");
        let mut victim = hold(&rig, "acme", "batch", chat).await;
        let urgent = [("x-tenant-id", "acme"), ("x-sluice-lane", "standard")];
        assert_eq!(post(&rig, CHAT, &urgent, chat, &mut refusals).await.0, 200);
        let (evicted, body) = victim.last_answer().await;
        assert!(evicted.contains("x-sluice-reason: evicted"), "{evicted}");
        refusals.push(evicted + &String::from_utf8_lossy(&body));
        let _other = hold(&rig, "acme", "interactive", chat).await;
        reasons.insert(post(&rig, CHAT, &urgent, chat, &mut refusals).await.1);
        let reasons: Vec<&str> = reasons.iter().map(String::as_str).filter(|reason| !reason.is_empty()).collect();
        let met =
            ["malformed", "oversize", "tenant_request_rate", "tenant_requests", "tenant_token_rate", "unknown_model"];
        assert!(
            met.iter().all(|reason| reasons.contains(reason)) && reasons.len() > met.len(),
            "{wait:?}: {reasons:?}"
        );

        for token in [WRONG, TOKEN] {
            rig.control("GET", "/sluice/v1/state", Some(token), Vec::new()).await;
            rig.control("POST", "/sluice/v1/view", Some(token), format!("{{\"{PROMPT}").into_bytes()).await;
        }
        let mut outputs = outputs(&rig).await;
        outputs.push(("refusals", refusals.join("\n")));
        // That the model of a refused request is told to its caller is known, and that is no prompt.
        assert!(outputs.last().unwrap().1.contains("somebody-elses"));
        assert_unmarked(&outputs);
        rig.nothing_trapped().await;
    }
}

/// A request that the worker never answers, while it answers others.
async fn hold(rig: &Rig, tenant: &str, lane: &str, body: &Value) -> RawCaller {
    let headers: [(&str, &[u8]); 4] = [
        ("x-tenant-id", tenant.as_bytes()),
        ("x-sluice-lane", lane.as_bytes()),
        ("x-api-key", KEY.as_bytes()),
        ("connection", b"close"),
    ];
    let request = request_bytes(CHAT, &headers, body.to_string().as_bytes(), true);
    rig.hanging(&request).await
}

/// A panic's own message quotes what it failed on. What is written instead is enough to find the mistake.
#[tokio::test]
async fn a_crash_says_where_and_nothing_of_the_request() {
    let echo = Echo::start().await;
    let setup = setup(Wait::Unread, vec![("echo", echo.address()), ("scripted", echo.address())]);
    let rig = Rig::start(setup.faulty()).await;
    say_all(&rig).await;
    for how in ["formatted", "sliced", "unwrapped", "fixed", "answer"] {
        let said = rig.envoy.log().len();
        let (_, body) = &bodies()[0];
        let answer = rig
            .post_to("/echo/v1/chat/completions", "", &headers_with(&[("x-sluice-test-fault", how)]), body.to_string())
            .await;
        // An answer that has begun is broken off.
        assert_eq!(answer.status(), if how == "answer" { 200 } else { 503 }, "{how}");
        let seen = answer.text().await.unwrap_or_default();
        eventually("the crash is in the log", async || {
            let log = rig.envoy.log()[said..].to_owned();
            let place = format!("Sluice {} panicked at src/faults.rs:", env!("CARGO_PKG_VERSION"));
            (log.contains(&place) && log.contains("[critical][wasm]")).then_some(()).ok_or(log)
        })
        .await;
        assert_eq!(rig.envoy.log()[said..].contains("a fixed message"), how == "fixed");
        // A VM is not loaded again within a second of the last time.
        eventually("it serves again", async || {
            let status = rig.ask("acme", &[]).await.0;
            (status == 200).then_some(()).ok_or(status.to_string())
        })
        .await;
        let mut outputs = outputs(&rig).await;
        outputs.push(("what the caller sees", seen));
        assert_unmarked(&outputs);
    }
}

/// Whatever shape a secret was written in by mistake, the log names its place and does not repeat it.
#[tokio::test]
async fn a_secret_in_a_bad_configuration_is_not_repeated() {
    let mut rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    say_all(&rig).await;
    let source = |api_key: Value| json!({"sources": [{"api_key": api_key}]});
    let wrong = [
        ("/tenant", source(json!({"header": "x", "sha256": {KEY: "acme"}})), "tenant.sources[0].api_key.sha256: "),
        ("/tenant", source(json!({"header": "x", "sha256": {KEY: 7}})), "tenant.sources[0].api_key.sha256: "),
        ("/tenant", source(json!({"header": "x", "sha256": KEY})), "tenant.sources[0].api_key.sha256: "),
        ("/tenant", source(json!({KEY: "acme"})), "tenant.sources[0].api_key: "),
        ("/tenant", source(json!(KEY)), "tenant.sources[0].api_key: "),
        ("/view", json!({"pull": {"cluster": "c", "token": [PULL]}}), "view.pull.token: "),
        ("/view", json!({"pull": {"cluster": "", "token": PULL}}), "view.pull.cluster: "),
        ("/view", json!({"pull": {"cluster": "c", "token": format!("{PULL}\n")}}), "view.pull.token: "),
    ];
    for (pointer, value, place) in wrong {
        let said = |log: &str| log.matches(&format!("the configuration is refused: {place}")).count();
        let before = said(&rig.envoy.log());
        rig.reconfigure(|policy| policy[pointer.trim_start_matches('/')] = value.clone());
        eventually("it is refused", async || {
            let log = rig.envoy.log();
            (said(&log) > before).then_some(()).ok_or(format!("{value}: {log}"))
        })
        .await;
    }
    assert_eq!(rig.ask("acme", &[]).await, (200, String::new()), "the former one stays");
    assert_unmarked(&outputs(&rig).await);
}

/// Where the log of a test goes.
#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The sidecar with all its tokens, right and wrong, at the finest level of its log.
#[tokio::test]
async fn the_sidecar_tells_no_token() {
    let written = Written::default();
    let log = tracing_subscriber::fmt().json().flatten_event(true).with_max_level(tracing::Level::TRACE);
    // Of this thread, which is where all of this test runs, its sidecars included: others have sidecars of their own.
    let _log = tracing::subscriber::set_default(log.with_writer(written.clone()).finish());
    let rig = Rig::start(Setup::new(1, Wait::Unread)).await;
    rig.ask("acme", &[]).await;
    let control = format!("http://{}", rig.control_address());
    let mut shown = Vec::new();
    for token in [TOKEN, WRONG] {
        let more = json!({"api": {"token": PULL}, "proxies": [{"url": control, "token": token}]});
        let sidecar = sidecar::start(rig.worker.address(), &more).await;
        let client = testkit::envoy::direct_client().unwrap();
        let result = if token == TOKEN { "taken" } else { "unauthorized" };
        eventually("the proxy is told", async || {
            let log =
                client.get(format!("http://{}/metrics", sidecar.address())).send().await.unwrap().text().await.unwrap();
            let told =
                log.lines().any(|line| line.contains("pushes_total") && line.contains(result) && !line.ends_with(" 0"));
            told.then_some(()).ok_or(log)
        })
        .await;
        for (method, path) in [
            ("GET", "/v1/view"),
            ("POST", "/v1/view"),
            ("GET", "/busy_threshold"),
            ("POST", "/busy_threshold"),
            ("GET", "/metrics"),
            ("GET", "/readyz"),
            ("GET", "/healthz"),
            ("GET", "/nowhere"),
        ] {
            for bearer in [PULL, WRONG] {
                let url = format!("http://{}{path}", sidecar.address());
                let request =
                    client.request(method.parse().unwrap(), url).bearer_auth(bearer).json(&json!({"model": PROMPT}));
                let answer = request.send().await.unwrap();
                shown.push(format!("{:?}", answer.headers()));
                // The model that a caller asks for by name is told to that caller.
                shown.push(answer.text().await.unwrap().replace(PROMPT, ""));
            }
        }
        sidecar.stop().await;
    }
    let log = written.text();
    assert!(
        log.contains("\"level\":\"TRACE\"")
            || log.contains("\"level\":\"DEBUG\"")
            || log.contains("\"level\":\"INFO\""),
        "{log}"
    );
    assert_unmarked(&[
        ("the sidecar's log", log),
        ("its pages", shown.join("\n")),
        ("the proxy's log", rig.envoy.log()),
    ]);
}
