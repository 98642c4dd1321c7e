//! The proxies that are told, and what they said they admitted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use admission_core::view::{Credit, ViewAnswer};

/// Names a proxy for as long as the sidecar runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProxyId(u64);

/// How a proxy comes to its views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is in the configuration and told.
    Pushed,
    /// It asks.
    Pulled,
}

/// A proxy for the metrics page and for readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRow {
    /// Its URL, or the name that it gave itself.
    pub name: Arc<str>,
    /// How it comes to its views.
    pub way: Way,
    /// When it last took one.
    pub taken_at: Option<Duration>,
    /// The pools it has views of since.
    pub holds: Vec<Arc<str>>,
    /// Pools that it needs views of and that are not configured here.
    pub unknown: BTreeSet<String>,
}

/// Counts of proxies for one pool, as they were known at one moment. Shared by all scrapes that begin between two
/// answers.
pub type Credits = Arc<BTreeMap<ProxyId, Credit>>;

/// All proxies.
#[derive(Debug, Default)]
pub struct Proxies {
    next: u64,
    known: BTreeMap<ProxyId, Proxy>,
    /// By pool.
    credits: BTreeMap<String, Credits>,
}

#[derive(Debug)]
struct Proxy {
    name: Arc<str>,
    way: Way,
    taken_at: Option<Duration>,
    holds: Vec<Arc<str>>,
    heard_at: Option<Duration>,
    /// Waiting requests by pool, as last sent.
    queued: BTreeMap<String, u64>,
    /// Requests by pool that wait for nothing but the pool, in lanes without a dispatch budget; `None` where the filter does not count them.
    demand: Option<BTreeMap<String, u64>>,
    /// Pools that it needs views of and that are not configured here.
    unknown: BTreeSet<String>,
}

/// The other proxies that share a pool with one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Number of proxies.
    pub proxies: u64,
    /// Requests that wait in those proxies for nothing but the pool.
    pub demand: u64,
}

impl Proxy {
    fn demand_for(&self, pool: &str) -> u64 {
        self.demand.as_ref().unwrap_or(&self.queued).get(pool).copied().unwrap_or(0)
    }
}

/// A proxy that has said nothing for so long holds nothing back: what waited in it has gone or waits elsewhere.
const SILENT: Duration = Duration::from_secs(10);

impl Proxies {
    pub fn register(&mut self, name: &str, way: Way) -> ProxyId {
        if let Some((id, _)) = self.known.iter().find(|(_, proxy)| *proxy.name == *name) {
            return *id;
        }
        let id = ProxyId(self.next);
        self.next += 1;
        let (name, holds, queued) = (name.into(), Vec::new(), BTreeMap::new());
        let unknown = BTreeSet::new();
        self.known
            .insert(id, Proxy { name, way, taken_at: None, holds, heard_at: None, queued, demand: None, unknown });
        id
    }

    pub fn forget(&mut self, proxy: ProxyId) {
        self.known.remove(&proxy);
        for credits in self.credits.values_mut().filter(|credits| credits.contains_key(&proxy)) {
            Arc::make_mut(credits).remove(&proxy);
        }
    }

    /// Only the pools that `stays` names are configured from now on.
    pub fn forget_pools(&mut self, stays: impl Fn(&str) -> bool) {
        self.credits.retain(|pool, _| stays(pool));
        for proxy in self.known.values_mut() {
            proxy.unknown.retain(|pool| !stays(pool));
        }
    }

    /// Remembers which pools a proxy needs views of and are not known here, and gives those that no other proxy has named yet.
    pub fn needs(&mut self, proxy: ProxyId, needs: &BTreeSet<String>, is_known: impl Fn(&str) -> bool) -> Vec<String> {
        let unknown: BTreeSet<String> = needs.iter().filter(|pool| !is_known(pool)).cloned().collect();
        let is_named = |pool: &String| self.known.values().any(|proxy| proxy.unknown.contains(pool));
        let new = unknown.iter().filter(|pool| !is_named(pool)).cloned().collect();
        if let Some(memory) = self.known.get_mut(&proxy) {
            memory.unknown = unknown;
        }
        new
    }

    /// Remembers what a proxy said, and which pools it has views of if it took one; returns the pools whose count fell.
    pub fn said(
        &mut self,
        proxy: ProxyId,
        answer: &ViewAnswer,
        now: Duration,
        took: Option<Vec<Arc<str>>>,
        is_known: impl Fn(&str) -> bool,
    ) -> Vec<Arc<str>> {
        let Some(memory) = self.known.get_mut(&proxy) else { return Vec::new() };
        memory.heard_at = Some(now);
        (memory.queued, memory.demand) = (answer.queued.clone(), answer.demand.clone());
        for counts in [Some(&mut memory.queued), memory.demand.as_mut()].into_iter().flatten() {
            counts.retain(|pool, _| is_known(pool));
        }
        if let Some(pools) = took {
            memory.taken_at = Some(now);
            memory.holds = pools;
        }
        let mut fell = Vec::new();
        for pool in answer.admitted.keys().filter(|pool| is_known(pool)) {
            let said = answer.credit(pool).unwrap_or_default();
            let credits = self.credits.entry(pool.clone()).or_default();
            let before = credits.get(&proxy).copied();
            if before == Some(said) {
                continue;
            }
            Arc::make_mut(credits).insert(proxy, said);
            if before.is_some_and(|before| said.admitted.requests < before.admitted.requests) {
                fell.push(Arc::from(pool.as_str()));
            }
        }
        fell
    }

    pub fn rows(&self) -> impl Iterator<Item = ProxyRow> {
        self.known.values().map(|Proxy { name, way, taken_at, holds, unknown, .. }| ProxyRow {
            name: Arc::clone(name),
            way: *way,
            taken_at: *taken_at,
            holds: holds.clone(),
            unknown: unknown.clone(),
        })
    }

    /// What is known of all of them for a pool.
    pub fn credits(&self, pool: &str) -> Credits {
        self.credits.get(pool).cloned().unwrap_or_default()
    }

    /// Counts of a proxy for a pool, as it last sent them.
    pub fn credit(&self, proxy: ProxyId, pool: &str) -> Option<Credit> {
        self.credits.get(pool)?.get(&proxy).copied()
    }

    /// Requests that wait for a pool in all proxies heard of late, those apart that wait for their own lane's dispatch budget
    /// or their tenant's caps, where the filter counts them apart; `None` when no proxy was heard.
    pub fn queued(&self, pool: &str, now: Duration) -> Option<u64> {
        let counts = self.heard(now).map(|(_, proxy)| proxy.demand_for(pool));
        counts.fold(None, |sum, count| Some(sum.unwrap_or(0_u64).saturating_add(count)))
    }

    /// Other proxies heard of late that name a pool, and the requests that wait in them.
    pub fn others(&self, proxy: ProxyId, pool: &str, now: Duration) -> Others {
        let others = self.heard(now).filter(|(id, other)| **id != proxy && other.queued.contains_key(pool));
        others.fold(Others::default(), |sum, (_, other)| Others {
            proxies: sum.proxies.saturating_add(1),
            demand: sum.demand.saturating_add(other.demand_for(pool)),
        })
    }

    /// Number of proxies heard of late that name a pool.
    pub fn serving(&self, pool: &str, now: Duration) -> usize {
        self.heard(now).filter(|(_, proxy)| proxy.queued.contains_key(pool)).count()
    }

    fn heard(&self, now: Duration) -> impl Iterator<Item = (&ProxyId, &Proxy)> {
        let is_recent = move |at: Duration| now.saturating_sub(at) < SILENT;
        self.known.iter().filter(move |(_, proxy)| proxy.heard_at.is_some_and(is_recent))
    }

    /// Takes back what a scrape was credited with that began before a proxy restarted, or went.
    pub fn drop_outlived(&self, pool: &str, credits: &mut Credits) {
        let standing = self.credits.get(pool);
        let is_outlived = |proxy: &ProxyId, credit: &Credit| {
            let now = standing.and_then(|standing| standing.get(proxy)).copied().unwrap_or_default();
            credit.admitted.requests > now.admitted.requests
        };
        if credits.iter().any(|(proxy, credit)| is_outlived(proxy, credit)) {
            let outlived: Vec<_> =
                credits.iter().filter(|(proxy, credit)| is_outlived(proxy, credit)).map(|(proxy, _)| *proxy).collect();
            let credits = Arc::make_mut(credits);
            for proxy in outlived {
                credits.insert(proxy, Credit::default());
            }
        }
    }
}
