//! Workers by a name in DNS, looked up again when its records have grown old.
//!
//! [`Follower`] is the pure part: what an answer means, and when to look again.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt, stream};
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError, NoRecords};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{TokioResolver, system_conf};

use super::{Condition, Found, LookError, Member, Teller};
use crate::backoff;
use crate::config::discover::{Dns, Records, Source};

/// When to look again, and how long to wait for an answer.
struct Pace {
    /// The bounds of a TTL: below, a server could be flooded; above, a new worker would be missed for too long.
    ttl: (Duration, Duration),
    /// The TTL of an answer without records that does not say how long it holds.
    no_ttl: Duration,
    /// The pauses after failures: the first, and up to which it doubles.
    retry: (Duration, Duration),
    /// For one try of one question to one of the configured servers; those of `/etc/resolv.conf` have it there.
    answer: Duration,
    /// For a whole look, with all its questions and tries.
    look: Duration,
}

const PACE: Pace = Pace {
    ttl: (Duration::from_secs(1), Duration::from_secs(60)),
    no_ttl: Duration::from_secs(5),
    retry: (Duration::from_secs(1), Duration::from_secs(30)),
    answer: Duration::from_secs(2),
    look: Duration::from_secs(15),
};

/// How often a question is asked again that a configured server does not answer.
const TRIES_AGAIN: usize = 1;

/// How many targets of SRV records are looked up at once.
const AT_ONCE: usize = 16;

/// Looks up for ever.
pub async fn run<P: FnMut(Found) + Send>(dns: &Dns, source: &Source, teller: Teller<P>) {
    follow(dns, source, teller, &PACE).await;
}

async fn follow<P: FnMut(Found) + Send>(dns: &Dns, source: &Source, mut teller: Teller<P>, pace: &Pace) {
    let mut follower = Follower::new(&dns.name, pace);
    loop {
        let look = tokio::time::timeout(pace.look, look(dns, pace)).await;
        let heard = look.unwrap_or(Err(LookError::Timeout)).map(|answer| answer.map(|at| member(at, source)));
        let (found, pause) = follower.hear(heard, fastrand::f64());
        teller.tell(found);
        tokio::time::sleep(pause).await;
    }
}

fn member(at: SocketAddr, source: &Source) -> Member {
    let address = at.to_string();
    let (metrics_url, hardware_url) = source.pages.urls(&address);
    Member { address, condition: Condition::Ready, metrics_url, hardware_url, role: source.role }
}

/// What a name server knows, until when.
#[derive(Debug, PartialEq, Eq)]
struct Answer<T> {
    /// None when there are no such records.
    values: Vec<T>,
    /// Seconds; `None` where nobody has said.
    ttl: Option<u32>,
}

impl<T> Answer<T> {
    fn map<U>(self, to: impl FnMut(T) -> U) -> Answer<U> {
        Answer { values: self.values.into_iter().map(to).collect(), ttl: self.ttl }
    }
}

/// The sooner of two, where one may not be said.
fn sooner(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    a.into_iter().chain(b).min()
}

/// Follows one name.
struct Follower<'a> {
    name: &'a str,
    pace: &'a Pace,
    /// Looks in a row that failed.
    failures: u32,
    /// Looks since the last worker that found none.
    empty: u32,
}

impl<'a> Follower<'a> {
    fn new(name: &'a str, pace: &'a Pace) -> Self {
        Self { name, pace, failures: 0, empty: 0 }
    }

    /// What to tell of a look, and how long to wait for the next. `jitter` is random in 0 to 1.
    ///
    /// A name server that starts up or has lost its source may say for a moment that there is nothing; so that is believed
    /// only of two looks, of which the second comes when the first has grown old.
    fn hear(&mut self, heard: Result<Answer<Member>, LookError>, jitter: f64) -> (Found, Duration) {
        let Answer { values, ttl } = match heard {
            Ok(answer) => answer,
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                let (first, longest) = self.pace.retry;
                return (Found::failed(error), backoff::pause(first, longest, self.failures, jitter));
            }
        };
        self.failures = 0;
        self.empty = if values.is_empty() { self.empty.saturating_add(1) } else { 0 };
        let found = match self.empty {
            1 => Found::failed(LookError::Empty(format!("{} names nobody", self.name))),
            _ => Found::all(values),
        };
        let (shortest, longest) = self.pace.ttl;
        let ttl = ttl.map_or(self.pace.no_ttl, |seconds| Duration::from_secs(seconds.into()));
        (found, ttl.clamp(shortest, longest))
    }
}

async fn look(dns: &Dns, pace: &Pace) -> Result<Answer<SocketAddr>, LookError> {
    let (asker, search) = Asker::new(dns, pace)?;
    let names = search.names(&dns.name).map_err(LookError::Unreadable)?;
    match dns.records {
        Records::Addresses(port) => Ok(asker.addresses(&names).await?.map(|ip| SocketAddr::new(ip, port))),
        Records::Services => asker.services(&names).await,
    }
}

/// How a name is completed.
#[derive(Debug, Default)]
struct Search {
    domains: Vec<Name>,
    /// A name with fewer dots is completed before it is asked for as it is.
    ndots: usize,
}

impl Search {
    /// The full names to ask for, in their order.
    fn names(&self, name: &str) -> Result<Vec<Name>, String> {
        let mut name = Name::from_ascii(name).map_err(|error| format!("{name:?} is not a domain name: {error}"))?;
        if name.is_fqdn() {
            return Ok(vec![name]);
        }
        let is_long = usize::from(name.num_labels()) > self.ndots;
        // One that gets too long that way cannot exist.
        let mut names: Vec<_> =
            self.domains.iter().filter_map(|domain| name.clone().append_domain(domain).ok()).collect();
        name.set_fqdn(true);
        names.insert(if is_long { 0 } else { names.len() }, name);
        Ok(names)
    }
}

/// Asks name servers. One lives for one look, so that changes of `/etc/resolv.conf` and `/etc/hosts` count; it remembers
/// nothing, so that every look is one.
struct Asker(TokioResolver);

impl Asker {
    fn new(dns: &Dns, pace: &Pace) -> Result<(Self, Search), LookError> {
        let (config, mut options) = match dns.servers.as_slice() {
            [] => system_conf::read_system_conf()
                .map_err(|error| LookError::Unreadable(format!("/etc/resolv.conf: {error}")))?,
            servers => configured(servers, pace),
        };
        options.cache_size = 0;
        // The resolver's own search takes a failure for an answer and goes on to the next name.
        let search = Search { domains: config.search().to_vec(), ndots: options.ndots };
        let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options);
        let resolver = builder.build().map_err(|error| LookError::Connection(error.to_string()))?;
        Ok((Self(resolver), search))
    }

    /// A records of the first name that has any, or AAAA records. One family only, since a worker that has both would count
    /// twice.
    async fn addresses(&self, names: &[Name]) -> Result<Answer<IpAddr>, LookError> {
        let address = |data: &RData| match data {
            RData::A(a) => Some(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) => Some(IpAddr::V6(aaaa.0)),
            _ => None,
        };
        self.first(names, &[RecordType::A, RecordType::AAAA], address).await
    }

    /// Priorities and weights are left alone: every target is a worker, and which takes a request is decided by load.
    async fn services(&self, names: &[Name]) -> Result<Answer<SocketAddr>, LookError> {
        let service = |data: &RData| match data {
            RData::SRV(srv) if srv.port > 0 && !srv.target.is_root() => Some((srv.target.clone(), srv.port)),
            _ => None,
        };
        let Answer { values: services, mut ttl } = self.first(names, &[RecordType::SRV], service).await?;
        let answers: Vec<_> = stream::iter(services)
            .map(|(target, port)| async move {
                let answer = self.addresses(&[target]).await?;
                Ok(answer.map(|ip| SocketAddr::new(ip, port)))
            })
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let mut values = Vec::new();
        for answer in answers {
            values.extend(answer.values);
            ttl = sooner(ttl, answer.ttl);
        }
        Ok(Answer { values, ttl })
    }

    /// Of the first of `kinds` of the first of `names` that has any. When none has, all had to say so.
    async fn first<T>(
        &self,
        names: &[Name],
        kinds: &[RecordType],
        read: impl Fn(&RData) -> Option<T>,
    ) -> Result<Answer<T>, LookError> {
        let mut ttl = None;
        for name in names {
            for kind in kinds {
                let (records, until) = self.ask(name, *kind).await?;
                let values: Vec<T> = records.iter().filter_map(&read).collect();
                if !values.is_empty() {
                    return Ok(Answer { values, ttl: until });
                }
                ttl = sooner(ttl, until);
            }
        }
        Ok(Answer { values: Vec::new(), ttl })
    }

    async fn ask(&self, name: &Name, kind: RecordType) -> Result<(Vec<RData>, Option<u32>), LookError> {
        match self.0.lookup(name.clone(), kind).await {
            Ok(lookup) => {
                let ttl = lookup.answers().iter().map(|record| record.ttl).min();
                Ok((lookup.answers().iter().map(|record| record.data.clone()).collect(), ttl))
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(NoRecords { ns: Some(_), soa: None, .. }))) => {
                Err(LookError::Refused(format!("{name} {kind}: the name server only names others")))
            }
            Err(NetError::Dns(DnsError::NoRecordsFound(none))) => Ok((Vec::new(), none.negative_ttl)),
            Err(error) => Err(failure(name, kind, &error)),
        }
    }
}

fn configured(servers: &[SocketAddr], pace: &Pace) -> (ResolverConfig, ResolverOpts) {
    let server = |at: &SocketAddr| {
        let on_port = |mut connection: ConnectionConfig| {
            connection.port = at.port();
            connection
        };
        NameServerConfig::new(at.ip(), true, [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(on_port).into())
    };
    let mut options = ResolverOpts::default();
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = pace.answer;
    options.attempts = TRIES_AGAIN;
    (ResolverConfig::from_name_servers(servers.iter().map(server).collect()), options)
}

fn failure(name: &Name, kind: RecordType, error: &NetError) -> LookError {
    match error {
        NetError::Timeout => LookError::Timeout,
        NetError::Dns(DnsError::ResponseCode(code)) => {
            LookError::Refused(format!("{name} {kind}: the name server answers {code}"))
        }
        NetError::Proto(_) | NetError::Truncated | NetError::ForeignClassRecord { .. } => {
            LookError::Unreadable(format!("{name} {kind}: {error}"))
        }
        _ => LookError::Connection(format!("{name} {kind}: {error}")),
    }
}

#[cfg(test)]
mod tests;
