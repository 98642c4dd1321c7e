//! Keeps one task for everything that is to be asked or told: workers, exporters, sources, budgets and proxies come and
//! go.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};
use tracing::warn;

use crate::config::{self, LISTED, PrometheusQuery, Proxy, Push, Source};
use crate::courier::Courier;
use crate::fetch::{Peer, token};
use crate::push::Pusher;
use crate::shared::Shared;
use crate::table::{ProxyId, Target, Way};
use crate::told::Told;
use crate::{discovery, hardware, prometheus, scrape};

/// All tasks of a sidecar but its server.
pub struct Conductor {
    shared: Arc<Shared>,
    /// Where pushes run: a thousand scrapes that are due at once must not stand before one of them.
    tellers: Handle,
    tasks: JoinSet<()>,
    scrapes: BTreeMap<Target, Vec<AbortHandle>>,
    sources: Kept<(String, Source)>,
    budgets: Kept<(String, PrometheusQuery)>,
    proxies: Kept<(Proxy, Push, Duration)>,
    told: BTreeMap<String, ProxyId>,
    local_gpus: Kept<config::Hardware>,
}

impl Conductor {
    /// Starts nothing yet. Pushes run on `tellers`.
    pub fn new(shared: Arc<Shared>, tellers: Handle) -> Self {
        Self {
            shared,
            tellers,
            tasks: JoinSet::new(),
            scrapes: BTreeMap::new(),
            sources: Kept::default(),
            budgets: Kept::default(),
            proxies: Kept::default(),
            told: BTreeMap::new(),
            local_gpus: Kept::default(),
        }
    }

    /// Runs for ever; ends only when one of its tasks has that never should.
    pub async fn run(mut self) {
        let (mut revisions, mut configured) = (self.shared.revisions(), self.shared.configured());
        self.follow_configuration();
        let mut targets = None;
        loop {
            let current = revisions.borrow_and_update().targets;
            if targets.replace(current) != Some(current) {
                self.follow_targets();
            }
            tokio::select! {
                () = configured.changed() => self.follow_configuration(),
                // Fails only when the sender is gone, and `shared` holds it.
                _ = revisions.changed() => {}
                Some(ended) = self.tasks.join_next() => match ended {
                    Ok(()) => {}
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => {
                        tracing::error!(%error, "a task has failed");
                        return;
                    }
                },
            }
        }
    }

    fn follow_targets(&mut self) {
        let Self { shared, tasks, scrapes, .. } = self;
        let wanted: BTreeMap<_, _> = shared.read(|table| table.targets().map(|target| (target, ())).collect());
        scrapes.retain(|target, handles| {
            let stays = wanted.contains_key(target);
            if !stays {
                handles.iter().for_each(AbortHandle::abort);
            }
            stays
        });
        for target in wanted.into_keys() {
            if scrapes.contains_key(&target) {
                continue;
            }
            let mut handles = vec![tasks.spawn(scrape::run(Arc::clone(shared), target.clone()))];
            if target.hardware_url.is_some() {
                handles.push(tasks.spawn(hardware::follow_exporter(Arc::clone(shared), target.clone())));
            }
            scrapes.insert(target, handles);
        }
    }

    fn follow_configuration(&mut self) {
        let Self { shared, tellers, tasks, sources, budgets, proxies, told, local_gpus, .. } = self;
        let here = &Handle::current();
        let config = shared.config();
        let wanted =
            config.pools.iter().flat_map(|pool| pool.discover.iter().map(|source| (pool.name.clone(), source.clone())));
        sources.align(wanted.collect(), tasks, here, |(pool, source)| follow_source(Arc::clone(shared), pool, source));
        let wanted = config.pools.iter().filter_map(|pool| {
            let query = pool.dispatch_budget.as_ref()?.prometheus.clone()?;
            Some((pool.name.clone(), query))
        });
        budgets
            .align(wanted.collect(), tasks, here, |(pool, query)| prometheus::follow(Arc::clone(shared), pool, query));
        let wanted = config.hardware.nvml.then_some(config.hardware);
        if wanted.is_none() {
            shared.set_local_gpus(Vec::new());
        }
        local_gpus.align(wanted.into_iter().collect(), tasks, here, |hardware| {
            hardware::follow_local(Arc::clone(shared), hardware)
        });
        told.retain(|url, id| {
            let stays = config.proxies.iter().any(|proxy| proxy.url == *url);
            if !stays {
                shared.update(|table| table.forget(*id));
            }
            stays
        });
        for proxy in &config.proxies {
            told.entry(proxy.url.clone())
                .or_insert_with(|| shared.update(|table| table.register(&proxy.url, Way::Pushed)));
        }
        let wanted = config.proxies.iter().map(|proxy| (proxy.clone(), config.push, config.scrape.interval));
        proxies.align(wanted.collect(), tasks, tellers, |(proxy, push, interval)| {
            push_to(Arc::clone(shared), proxy, push, interval)
        });
    }
}

async fn follow_source(shared: Arc<Shared>, pool: String, source: Source) {
    let name = source.name();
    debug_assert_ne!(name, LISTED);
    discovery::run(source, |found| {
        shared.counters.looked(&pool, &name, found.label());
        shared.update(|table| table.found(&pool, &name, found));
    })
    .await;
}

/// Its certificates and token have been read once before; should they not be readable now, they are tried again.
async fn push_to(shared: Arc<Shared>, proxy: Proxy, push: Push, interval: Duration) {
    let id = shared.update(|table| table.register(&proxy.url, Way::Pushed));
    let courier = Courier::new(shared.epoch, push.heartbeat, interval);
    loop {
        match (Peer::new(&proxy.tls, proxy.unix_socket()), token(&proxy.token).await) {
            (Ok(peer), Ok(token)) => {
                let timeout = push.timeout;
                return Pusher { shared, peer, id, proxy, timeout, token, courier, told: Told::default() }.run().await;
            }
            (Err(error), _) => warn!(proxy = proxy.url, %error, "its certificates cannot be used; trying on"),
            (_, Err(error)) => warn!(proxy = proxy.url, error, "its token cannot be read; trying on"),
        }
        tokio::time::sleep(push.heartbeat).await;
    }
}

/// Tasks by what they were started for.
struct Kept<S>(Vec<(S, AbortHandle)>);

impl<S> Default for Kept<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S: Clone + PartialEq> Kept<S> {
    /// Ends tasks that nothing in `wanted` stands for, and starts those that are missing on `runtime`.
    fn align<F>(&mut self, wanted: Vec<S>, tasks: &mut JoinSet<()>, runtime: &Handle, start: impl Fn(S) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.retain(|(spec, handle)| {
            let stays = wanted.contains(spec);
            if !stays {
                handle.abort();
            }
            stays
        });
        for spec in wanted {
            if !self.0.iter().any(|(known, _)| *known == spec) {
                let handle = tasks.spawn_on(start(spec.clone()), runtime);
                self.0.push((spec, handle));
            }
        }
    }
}
