//! An attacker that asks for another protocol, in which no one reads what it sends.

use serde_json::{Value, json};
use wasm_tests::bootstrap::virtual_hosts;
use wasm_tests::caller::{CHAT, RawCaller, chat, request_bytes};
use wasm_tests::rig::{MODEL, Rig, Setup, Wait, eventually};
use wasm_tests::switching::{DEAF, Switching};

/// A route of a path's beginning to a cluster, which takes upgrades.
fn route(prefix: &str, cluster: &str) -> Value {
    let upgrades = json!([{"upgrade_type": "websocket"}, {"upgrade_type": "other"}]);
    json!({"match": {"prefix": prefix}, "route": {"cluster": cluster, "timeout": "0s", "upgrade_configs": upgrades}})
}

fn upgrade(path: &str, tenant: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nx-tenant-id: {tenant}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    )
}

async fn setup(wait: Wait) -> (Switching, Setup) {
    let worker = Switching::start().await;
    let mut setup = Setup::new(2, wait).with("/tenants/evil", json!({"max_in_flight": 1}));
    setup.clusters = vec![("switching", worker.address())];
    let mut connect = route("/", "switching");
    connect["match"] = json!({"connect_matcher": {}});
    connect["route"]["upgrade_configs"] = json!([{"upgrade_type": "CONNECT"}]);
    setup.virtual_hosts = virtual_hosts(&[connect, route("/ws", "switching"), route("/", "workers")]);
    (worker, setup)
}

/// Opens a tunnel, through which what is sent comes back; the answer's head where it does not open.
async fn opens(rig: &Rig, head: &str) -> Result<RawCaller, String> {
    let mut caller = RawCaller::send(rig.address, head.as_bytes()).await;
    let answer = caller.read_until("\r\n\r\n").await;
    if !(answer.starts_with("HTTP/1.1 101") || answer.starts_with("HTTP/1.1 200")) {
        return Err(answer);
    }
    assert!(caller.send_more(b"there and ").await && caller.send_more(b"back").await);
    let echo = caller.read_until("there and back").await;
    if echo.contains("there and back") { Ok(caller) } else { Err(echo) }
}

/// An attacker with a cap of one opens WebSockets, and a CONNECT.
#[tokio::test]
async fn a_tunnel_is_held_to_the_cap_until_it_ends() {
    for wait in [Wait::Unread, Wait::AtHeaders, Wait::BodyHeld] {
        let (_worker, setup) = setup(wait).await;
        let routes = json!([{"match": {"path_prefix": "/"}, "pool": "main"}]);
        let rig = Rig::start(setup.with("/routes", routes)).await;
        let connect = "CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\nx-tenant-id: evil\r\n\r\n".to_owned();
        for head in [upgrade("/ws", "evil"), connect] {
            let first = opens(&rig, &head).await.unwrap();
            assert_eq!(rig.held().await.0, 1, "{wait:?}");
            for again in [&head, &upgrade("/ws/other", "evil")] {
                let refused = opens(&rig, again).await.err().unwrap();
                assert!(
                    refused.starts_with("HTTP/1.1 429") && refused.contains("tenant_requests"),
                    "{wait:?}: {refused}"
                );
            }
            assert_eq!(rig.ask("evil", &[]).await, (429, "tenant_requests".to_owned()), "{wait:?}");
            drop(first);
            rig.nothing_is_held().await;
        }
        rig.nothing_trapped().await;
    }
}

/// An attacker asks a worker that knows no upgrades for one, and sends a request behind it that no one judges. Envoy keeps that back until a
/// worker agrees, which this one does not.
#[tokio::test]
async fn nothing_goes_through_before_the_worker_has_agreed() {
    let (worker, setup) = setup(Wait::Unread).await;
    let rig = Rig::start(setup).await;
    let hidden = request_bytes(CHAT, &[], chat(MODEL, 1, false).to_string().as_bytes(), true);
    for protocol in ["websocket", "other"] {
        let other = upgrade(DEAF, "evil").replace("websocket", protocol);
        let mut caller = RawCaller::send(rig.address, &[other.as_bytes(), &hidden].concat()).await;
        assert_eq!(caller.status().await, Some(200), "the worker's own answer to what it takes for a GET");
        drop(caller);
        rig.nothing_is_held().await;
        assert_eq!(worker.behind(), 0, "{protocol}");
    }
    rig.nothing_trapped().await;
}

/// Over HTTP/2 a WebSocket is an extended CONNECT.
#[tokio::test]
async fn an_extended_connect_is_held_to_the_cap() {
    let (_worker, setup) = setup(Wait::Unread).await;
    let rig = Rig::start(setup).await;
    let stream = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    let (mut client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    eventually("extended CONNECT is allowed", async || {
        let client = client.clone().ready().await.unwrap();
        client.is_extended_connect_protocol_enabled().then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    let mut ask = || {
        let request = hyper::Request::builder().method("CONNECT").uri("http://x/ws").header("x-tenant-id", "evil");
        let request = request.extension(h2::ext::Protocol::from_static("websocket")).body(()).unwrap();
        client.send_request(request, false).unwrap()
    };
    let (first, mut sending) = ask();
    let mut answer = first.await.unwrap();
    assert_eq!(answer.status(), 200);
    sending.send_data("there and back".into(), false).unwrap();
    assert_eq!(answer.body_mut().data().await.unwrap().unwrap(), "there and back");
    let (second, _) = ask();
    let refused = second.await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), refused.headers()["x-sluice-reason"].as_bytes()),
        (429, b"tenant_requests".as_slice())
    );
    sending.send_reset(h2::Reason::CANCEL);
    rig.nothing_is_held().await;
    connection.abort();
    rig.nothing_trapped().await;
}

#[tokio::test]
async fn a_route_may_refuse_tunnels_and_one_without_a_pool_does() {
    let (_worker, setup) = setup(Wait::Unread).await;
    let more = json!({"name": "second", "models": ["second"], "max_in_flight": 9});
    let mut setup = setup.with(
        "/routes",
        json!([
            {"match": {"path_prefix": "/ws/closed"}, "upgrades": "refuse"},
            {"match": {"path_prefix": "/ws/main"}, "pool": "main"},
        ]),
    );
    setup.policy["pools"].as_array_mut().unwrap().push(more);
    let rig = Rig::start(setup).await;
    for (path, answer, reason) in [("/ws/closed", "403", "upgrade_refused"), ("/ws/any", "404", "unknown_model")] {
        let refused = opens(&rig, &upgrade(path, "acme")).await.err().unwrap();
        assert!(refused.starts_with(&format!("HTTP/1.1 {answer}")) && refused.contains(reason), "{refused}");
    }
    // One with a body, which a worker that knows no upgrades would serve.
    let body = chat(MODEL, 1, false).to_string();
    let length = format!("content-length: {}\r\n\r\n{body}", body.len());
    let posted = upgrade("/ws/main", "acme")
        .replace("GET ", "POST ")
        .replace("websocket\r\n\r\n", &format!("other\r\n{length}"));
    let refused = opens(&rig, &posted).await.err().unwrap();
    assert!(refused.starts_with("HTTP/1.1 403") && refused.contains("upgrade_refused"), "{refused}");
    drop(opens(&rig, &upgrade("/ws/main", "acme")).await.unwrap());
    rig.nothing_is_held().await;
    rig.nothing_trapped().await;
}
