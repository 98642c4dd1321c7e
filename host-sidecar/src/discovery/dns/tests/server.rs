//! A name server on loopback, over UDP and TCP, whose answers a test sets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hickory_resolver::proto::op::{Message, OpCode, ResponseCode};
use hickory_resolver::proto::rr::Record;
use hickory_resolver::proto::rr::rdata::{CNAME, NS, SOA, SRV};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;

use super::*;

/// What is answered to a question.
#[derive(Clone)]
pub enum Reply {
    /// Data and TTL of each record.
    Records(Vec<(RData, u32)>),
    /// Records that do not fit into a datagram.
    Long(Vec<(RData, u32)>),
    /// No record: a response code, and the TTL of the SOA record that says so.
    None { code: u16, soa: Option<u32> },
    /// An alias with its TTL, and the records of the other name.
    Alias(Name, u32, Vec<(RData, u32)>),
    /// Ask another.
    Referral,
    /// Nothing at all.
    Silence,
}

impl Reply {
    /// SRV records of targets and ports.
    pub fn services(services: &[(&str, u16)], ttl: u32) -> Self {
        let record = |(target, port): &(&str, u16)| (RData::SRV(SRV::new(0, 0, *port, name(target))), ttl);
        Self::Records(services.iter().map(record).collect())
    }
}

pub struct NameServer {
    pub address: SocketAddr,
    zone: Zone,
    _tasks: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Zone {
    replies: Arc<Mutex<HashMap<(Name, String), Reply>>>,
    asked: Arc<AtomicUsize>,
}

impl NameServer {
    pub async fn start() -> Self {
        // A port that is free for both.
        let (udp, tcp) = loop {
            let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            if let Ok(tcp) = TcpListener::bind(udp.local_addr().unwrap()).await {
                break (udp, tcp);
            }
        };
        let zone = Zone::default();
        let mut tasks = JoinSet::new();
        let address = udp.local_addr().unwrap();
        tasks.spawn(datagrams(udp, zone.clone()));
        tasks.spawn(connections(tcp, zone.clone()));
        Self { address, zone, _tasks: tasks }
    }

    /// What is answered from now on. A name that was never set does not exist.
    pub fn set(&self, of: &str, kind: &str, reply: Reply) {
        self.zone.replies.lock().unwrap().insert((name(of), kind.into()), reply);
    }

    pub fn alias(&self, of: &str, kind: &str, other: &str, ttl: u32, records: Vec<(RData, u32)>) {
        self.set(of, kind, Reply::Alias(name(other), ttl, records));
    }

    /// How many questions have come.
    pub fn asked(&self) -> usize {
        self.zone.asked.load(Ordering::Relaxed)
    }
}

fn name(text: &str) -> Name {
    let mut name = Name::from_ascii(text).unwrap();
    name.set_fqdn(true);
    name
}

async fn datagrams(socket: UdpSocket, zone: Zone) {
    let mut buffer = [0; 4_096];
    loop {
        let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
        if let Some(answer) = zone.answer(&buffer[..length], false) {
            socket.send_to(&answer, from).await.unwrap();
        }
    }
}

async fn connections(listener: TcpListener, zone: Zone) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        // Who hangs up in the middle is the test's business.
        let _ = connection(stream, &zone).await;
    }
}

async fn connection(mut stream: TcpStream, zone: &Zone) -> std::io::Result<()> {
    loop {
        let length = stream.read_u16().await?;
        let mut question = vec![0; length.into()];
        stream.read_exact(&mut question).await?;
        let Some(answer) = zone.answer(&question, true) else { return Ok(()) };
        stream.write_u16(answer.len().try_into().unwrap()).await?;
        stream.write_all(&answer).await?;
    }
}

impl Zone {
    fn answer(&self, question: &[u8], is_stream: bool) -> Option<Vec<u8>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let asked = Message::from_vec(question).unwrap();
        let query = asked.queries[0].clone();
        let key = (query.name().to_lowercase(), query.query_type().to_string());
        let reply = self.replies.lock().unwrap().get(&key).cloned();
        let mut answer = Message::response(asked.metadata.id, OpCode::Query);
        let of = query.name().clone();
        answer.add_query(query);
        let record = |name: &Name, (data, ttl): (RData, u32)| Record::from_rdata(name.clone(), ttl, data);
        match reply.unwrap_or(Reply::None { code: 3, soa: Some(0) }) {
            Reply::Silence => return None,
            Reply::Long(_) if !is_stream => answer.metadata.truncation = true,
            Reply::Records(records) | Reply::Long(records) => {
                answer.add_answers(records.into_iter().map(|data| record(&of, data)));
            }
            Reply::Alias(other, ttl, records) => {
                answer.add_answer(record(&of, (RData::CNAME(CNAME(other.clone())), ttl)));
                answer.add_answers(records.into_iter().map(|data| record(&other, data)));
            }
            Reply::Referral => {
                answer.add_authority(record(&of, (RData::NS(NS(name("ns.svc"))), 60)));
            }
            Reply::None { code, soa } => {
                answer.metadata.response_code = ResponseCode::from(0, code.try_into().unwrap());
                if let Some(ttl) = soa {
                    let soa = SOA::new(name("ns.svc"), name("admin.svc"), 1, 1, 1, 1, ttl);
                    answer.add_authority(record(&name("svc"), (RData::SOA(soa), 3_600)));
                }
            }
        }
        Some(answer.to_vec().unwrap())
    }
}
