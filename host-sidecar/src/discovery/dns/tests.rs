use std::net::Ipv4Addr;

use self::server::{NameServer, Reply};
use super::*;
use crate::config::discover::{Origin, Pages, Role};
use crate::discovery::tests::{News, ready};

mod server;

const FAST: Pace = Pace {
    ttl: (Duration::from_millis(5), Duration::from_secs(60)),
    no_ttl: Duration::from_millis(5),
    retry: (Duration::from_millis(5), Duration::from_millis(20)),
    answer: Duration::from_millis(100),
    look: Duration::from_secs(10),
};

fn dns(name: &str, records: Records, server: SocketAddr) -> Dns {
    Dns { name: name.into(), records, servers: vec![server] }
}

fn news(dns: Dns) -> News {
    let source = Source { origin: Origin::Dns(dns.clone()), pages: Pages::default(), role: Role::Both };
    News::of(|teller| async move { follow(&dns, &source, teller, &FAST).await })
}

fn a(last: u8, ttl: u32) -> (RData, u32) {
    (RData::A(Ipv4Addr::new(10, 0, 0, last).into()), ttl)
}

fn aaaa(ttl: u32) -> (RData, u32) {
    (RData::AAAA("fd00::7".parse::<std::net::Ipv6Addr>().unwrap().into()), ttl)
}

fn nothing() -> Reply {
    Reply::None { code: 0, soa: Some(0) }
}

#[tokio::test]
async fn workers_come_and_go_as_their_records_do() {
    let server = NameServer::start().await;
    server.set("llm.svc", "A", Reply::Records(vec![a(8, 0), a(7, 0)]));
    let mut news = news(dns("llm.svc", Records::Addresses(8_000), server.address));
    assert_eq!(news.members().await, [ready("10.0.0.7:8000"), ready("10.0.0.8:8000")]);
    server.set("llm.svc", "A", Reply::Records(vec![a(8, 0), a(9, 0)]));
    assert_eq!(news.addresses().await, ["10.0.0.8:8000", "10.0.0.9:8000"]);
    server.set("llm.svc", "A", nothing());
    server.set("llm.svc", "AAAA", Reply::Records(vec![aaaa(0)]));
    assert_eq!(news.addresses().await, ["[fd00::7]:8000"], "AAAA where there is no A");
    server.set("llm.svc", "A", Reply::Records(vec![a(7, 0)]));
    assert_eq!(news.addresses().await, ["10.0.0.7:8000"], "one family only");
}

#[tokio::test]
async fn a_name_is_looked_up_again_at_the_soonest_ttl_of_its_answer() {
    let server = NameServer::start().await;
    let look = async |dns: &Dns| look(dns, &FAST).await.unwrap();
    let addresses = dns("llm.svc", Records::Addresses(1), server.address);
    server.set("llm.svc", "A", Reply::Records(vec![a(7, 30), a(8, 20)]));
    assert_eq!(look(&addresses).await.ttl, Some(20));
    server.alias("llm.svc", "A", "other.svc", 10, vec![a(7, 30)]);
    let aliased = look(&addresses).await;
    assert_eq!((aliased.values.len(), aliased.ttl), (1, Some(10)), "an alias grows old too");
    for (soa, expected) in [(Some(15), Some(15)), (None, None)] {
        server.set("llm.svc", "A", Reply::None { code: 3, soa });
        server.set("llm.svc", "AAAA", Reply::None { code: 3, soa });
        assert_eq!(look(&addresses).await, Answer { values: Vec::new(), ttl: expected });
    }
    let services = dns("llm.svc", Records::Services, server.address);
    server.set("llm.svc", "SRV", Reply::services(&[("w-1.svc", 8_001)], 25));
    server.set("w-1.svc", "A", Reply::Records(vec![a(1, 12)]));
    assert_eq!(look(&services).await.ttl, Some(12), "so do the addresses of a target");
}

#[tokio::test]
async fn services_name_targets_and_ports() {
    let server = NameServer::start().await;
    let services = [("w-1.svc", 8_001), ("w-2.svc", 8_002), ("gone.svc", 8_003), (".", 8_004), ("w-1.svc", 0)];
    server.set("_http._tcp.llm.svc", "SRV", Reply::services(&services, 0));
    server.set("w-1.svc", "A", Reply::Records(vec![a(1, 0), a(3, 0)]));
    server.set("w-2.svc", "A", nothing());
    server.set("w-2.svc", "AAAA", Reply::Records(vec![aaaa(0)]));
    let mut news = news(dns("_http._tcp.llm.svc", Records::Services, server.address));
    assert_eq!(news.addresses().await, ["10.0.0.1:8001", "10.0.0.3:8001", "[fd00::7]:8002"]);
    server.set("w-2.svc", "AAAA", Reply::None { code: 2, soa: None });
    let error = news.error().await;
    assert!(matches!(&error, LookError::Refused(why) if why.contains("w-2.svc")), "no part of an answer: {error:?}");
    server.set("w-2.svc", "AAAA", nothing());
    assert_eq!(news.addresses_despite_errors().await, ["10.0.0.1:8001", "10.0.0.3:8001"]);
}

#[tokio::test]
async fn that_there_is_nobody_is_believed_when_it_is_said_twice() {
    for code in [0, 3] {
        let server = NameServer::start().await;
        server.set("llm.svc", "A", Reply::Records(vec![a(7, 0)]));
        let mut news = news(dns("llm.svc", Records::Addresses(8_000), server.address));
        assert_eq!(news.addresses().await, ["10.0.0.7:8000"]);
        server.set("llm.svc", "A", Reply::None { code, soa: Some(0) });
        assert_eq!(news.error().await, LookError::Empty("llm.svc names nobody".into()));
        assert_eq!(news.next().await, Found::all(Vec::new()));
        server.set("llm.svc", "A", Reply::Records(vec![a(7, 0)]));
        assert_eq!(news.addresses().await, ["10.0.0.7:8000"]);
    }
}

#[tokio::test]
async fn whatever_fails_the_last_word_stands() {
    let server = NameServer::start().await;
    server.set("llm.svc", "A", Reply::Records(vec![a(7, 0)]));
    let mut news = news(dns("llm.svc", Records::Addresses(8_000), server.address));
    assert_eq!(news.addresses().await, ["10.0.0.7:8000"]);
    type Is = fn(&LookError) -> bool;
    let failures: [(Reply, Is); 4] = [
        (Reply::None { code: 2, soa: None }, |error| matches!(error, LookError::Refused(_))),
        (Reply::None { code: 5, soa: None }, |error| matches!(error, LookError::Refused(_))),
        (Reply::Referral, |error| matches!(error, LookError::Refused(why) if why.contains("names others"))),
        (Reply::Silence, |error| matches!(error, LookError::Timeout)),
    ];
    for (reply, is_it) in failures {
        server.set("llm.svc", "A", reply);
        for _ in 0..2 {
            let error = news.error().await;
            assert!(is_it(&error), "{error:?}");
        }
        server.set("llm.svc", "A", Reply::Records(vec![a(7, 0)]));
        news.recovery().await;
    }
}

#[tokio::test]
async fn a_name_server_that_is_away_is_told() {
    let unused = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap();
    drop(unused);
    let error = look(&dns("llm.svc", Records::Addresses(1), address), &FAST).await.unwrap_err();
    assert!(matches!(error, LookError::Connection(_) | LookError::Timeout), "{error:?}");
}

#[tokio::test]
async fn a_long_answer_comes_over_tcp() {
    let server = NameServer::start().await;
    server.set("llm.svc", "A", Reply::Long((1..=200).map(|last| a(last, 0)).collect()));
    let answer = look(&dns("llm.svc", Records::Addresses(1), server.address), &FAST).await.unwrap();
    assert_eq!(answer.values.len(), 200);
}

#[tokio::test]
async fn a_failure_is_no_reason_to_go_on_to_the_next_name() {
    let server = NameServer::start().await;
    let (asker, _) = Asker::new(&dns("unused", Records::Services, server.address), &FAST).unwrap();
    let names = ["llm.prod.svc.", "llm.svc."].map(|name| Name::from_ascii(name).unwrap());
    server.set("llm.svc", "A", Reply::Records(vec![a(7, 0)]));
    assert_eq!(asker.addresses(&names).await.unwrap().values, [IpAddr::from([10, 0, 0, 7])]);
    server.set("llm.prod.svc", "A", Reply::None { code: 2, soa: None });
    assert!(matches!(asker.addresses(&names).await, Err(LookError::Refused(_))));
}

#[test]
fn names_are_completed_as_resolv_conf_says() {
    let domains = ["prod.svc.cluster.local.", "cluster.local."].map(|name| Name::from_ascii(name).unwrap()).into();
    let search = Search { domains, ndots: 2 };
    let names = |name| search.names(name).unwrap().iter().map(Name::to_string).collect::<Vec<_>>();
    assert_eq!(names("llm"), ["llm.prod.svc.cluster.local.", "llm.cluster.local.", "llm."]);
    assert_eq!(names("llm.svc"), ["llm.svc.prod.svc.cluster.local.", "llm.svc.cluster.local.", "llm.svc."]);
    assert_eq!(names("a.b.c"), ["a.b.c.", "a.b.c.prod.svc.cluster.local.", "a.b.c.cluster.local."]);
    assert_eq!(names("_http._tcp.llm."), ["_http._tcp.llm."]);
    let long = format!("{0}.{0}.{0}.{1}", "x".repeat(63), "y".repeat(55));
    assert_eq!(names(&long), [format!("{long}.")], "what would get too long is left out");
}

fn follower() -> Follower<'static> {
    Follower::new("llm.svc", &PACE)
}

fn answer(workers: &[&str], ttl: Option<u32>) -> Result<Answer<Member>, LookError> {
    Ok(Answer { values: workers.iter().map(|address| ready(address)).collect(), ttl })
}

#[test]
fn the_next_look_is_at_the_ttl_within_bounds() {
    let mut follower = follower();
    let mut pause = |ttl| follower.hear(answer(&["w:1"], ttl), 0.5).1.as_secs();
    assert_eq!([Some(0), Some(1), Some(30), Some(3_600), None].map(&mut pause), [1, 1, 30, 60, 5]);
}

#[test]
fn failures_are_tried_again_ever_later_and_an_answer_ends_that() {
    let mut follower = follower();
    let mut pause = |heard, jitter| follower.hear(heard, jitter).1.as_millis();
    let pauses = [0; 7].map(|_| pause(Err(LookError::Timeout), 0.0));
    assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000]);
    assert_eq!(pause(Err(LookError::Timeout), 1.0), 15_000);
    assert_eq!(pause(answer(&["w:1"], Some(10)), 0.0), 10_000);
    assert_eq!(pause(Err(LookError::Timeout), 0.0), 1_000);
}

#[test]
fn an_empty_answer_counts_once_it_has_stood_for_two_looks() {
    let mut follower = follower();
    let mut found = |heard| follower.hear(heard, 0.0).0;
    let doubt = Found::failed(LookError::Empty("llm.svc names nobody".into()));
    assert_eq!(found(answer(&[], None)), doubt, "so it is at the start");
    assert_eq!(found(Err(LookError::Timeout)), Found::failed(LookError::Timeout));
    assert_eq!(found(answer(&[], None)), Found::all(Vec::new()), "a failure says nothing either way");
    assert_eq!(found(answer(&[], None)), Found::all(Vec::new()));
    assert_eq!(found(answer(&["w:1"], None)), Found::all(vec![ready("w:1")]));
    assert_eq!(found(answer(&[], None)), doubt, "and again after each worker");
}

#[tokio::test]
async fn nothing_is_asked_twice_before_its_time() {
    let server = NameServer::start().await;
    server.set("llm.svc", "A", Reply::Records(vec![a(7, 3_600)]));
    let mut news = news(dns("llm.svc", Records::Addresses(8_000), server.address));
    news.addresses().await;
    let asked = server.asked();
    tokio::time::sleep(FAST.ttl.0 * 10).await;
    assert_eq!(server.asked(), asked);
}
