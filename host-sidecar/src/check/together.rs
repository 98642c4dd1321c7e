//! Configurations that do not fit together: policies, control roles, sidecars and proxies, in whatever files they are.

use std::collections::BTreeSet;

use admission_core::config::{Config, ControlConfig, PluginConfig, PoolConfig, StalePolicy};
use sha2::{Digest, Sha256};

use super::kinds::{self, Carrier, Kind, Written};
use super::node::{Node, join};
use super::{Finding, Notes, envoy, warnings};
use crate::config::TokenSource;

/// A document of one of the files.
pub struct Part<'a> {
    /// Number of its file, from 0.
    pub file: usize,
    /// Number of the document in its file, from 1.
    pub document: usize,
    pub kind: Kind,
    pub node: Node<'a>,
}

/// Reads a token; `None` where it cannot be read here.
pub type ReadToken<'a> = &'a dyn Fn(&TokenSource) -> Option<String>;

/// A configuration that was read, and where.
struct Read<'a, T> {
    part: &'a Part<'a>,
    path: String,
    what: T,
}

/// A filter's policy, and what it is written into.
struct Policy<'a> {
    config: Config,
    written: Written<'a>,
}

/// All configurations of the files that can be read.
struct All<'a> {
    parts: &'a [Part<'a>],
    policies: Vec<Read<'a, Policy<'a>>>,
    roles: Vec<Read<'a, ControlConfig>>,
    sidecars: Vec<Read<'a, crate::Config>>,
    found: Vec<(usize, Finding)>,
}

/// Findings, each with the number of its file.
pub fn findings(parts: &[Part<'_>], token: ReadToken<'_>) -> Vec<(usize, Finding)> {
    let mut all = All::of(parts);
    all.pools_fit();
    all.tokens_fit(token);
    all.views_have_a_source();
    all.waits_fit();
    all.choices_are_heeded();
    all.found
}

impl<'a> All<'a> {
    fn of(parts: &'a [Part<'a>]) -> Self {
        let mut all = Self { parts, policies: Vec::new(), roles: Vec::new(), sidecars: Vec::new(), found: Vec::new() };
        for part in parts {
            if part.kind == Kind::Sidecar {
                let config = crate::Config::from_value(part.node.value.clone());
                all.sidecars.extend(config.ok().map(|what| Read { part, path: String::new(), what }));
            }
            for written in kinds::written(&part.node, part.kind) {
                let path = written.path.clone();
                match written.config() {
                    Some(PluginConfig::Filter(config)) => {
                        let what = Policy { config: *config, written };
                        all.policies.push(Read { part, path, what });
                    }
                    Some(PluginConfig::Control(what)) => all.roles.push(Read { part, path, what }),
                    None => {}
                }
            }
        }
        all
    }

    fn warn(&mut self, part: &Part<'_>, path: String, message: String) {
        let mut notes = Notes::default();
        notes.warn(path, message);
        self.note(part, notes);
    }

    fn note(&mut self, part: &Part<'_>, notes: Notes) {
        self.found.extend(notes.findings(part.document).map(|finding| (part.file, finding)));
    }

    /// Pools have one name in policies and sidecars.
    fn pools_fit(&mut self) {
        let sidecars = self.sidecars.iter().flat_map(|sidecar| &sidecar.what.pools);
        let known: BTreeSet<String> = sidecars.map(|pool| pool.name.clone()).collect();
        let policies = self.policies.iter().flat_map(|policy| &policy.what.config.pools);
        let wanted: BTreeSet<String> = policies.map(|pool| pool.name.clone()).collect();
        if known.is_empty() || wanted.is_empty() {
            return;
        }
        let mut warnings = Vec::new();
        for Read { part, path, what } in &self.policies {
            let pools = what.config.pools.iter().enumerate();
            for (index, pool) in pools.filter(|(_, pool)| pool.needs_view() && !known.contains(&pool.name)) {
                let message = format!(
                    "no sidecar of these files has a pool {:?}, so nothing is known of its workers; they have {}",
                    pool.name,
                    list(&known)
                );
                warnings.push((*part, join(path, &format!("pools[{index}].name")), message));
            }
        }
        for Read { part, what, .. } in &self.sidecars {
            for (index, pool) in what.pools.iter().enumerate().filter(|(_, pool)| !wanted.contains(&pool.name)) {
                let message = format!(
                    "no policy of these files has a pool {:?}, so its views change nothing; they have {}",
                    pool.name,
                    list(&wanted)
                );
                warnings.push((*part, format!("pools[{index}].name"), message));
            }
        }
        warnings.into_iter().for_each(|(part, path, message)| self.warn(part, path, message));
    }

    /// Sidecars show the tokens that control roles ask for, and filters those of sidecars.
    fn tokens_fit(&mut self, token: ReadToken<'_>) {
        let mut warnings = Vec::new();
        for Read { part, what, .. } in self.sidecars.iter().filter(|_| !self.roles.is_empty()) {
            for (index, proxy) in what.proxies.iter().enumerate() {
                let Some(shown) = token(&proxy.token) else { continue };
                let digest = hex::encode(Sha256::digest(shown));
                if self.roles.iter().all(|role| !role.what.token_sha256.eq_ignore_ascii_case(&digest)) {
                    let message = "no control role of these files has this token's SHA-256 as its `token_sha256`: every push would be answered 401";
                    warnings.push((*part, format!("proxies[{index}].{}", field_of(&proxy.token)), message.to_owned()));
                }
            }
        }
        let answering: Vec<_> = self.sidecars.iter().map(|sidecar| sidecar.what.api_token.as_ref()).collect();
        for Read { part, path, what } in self.policies.iter().filter(|_| !answering.is_empty()) {
            let Some(pull) = &what.config.view.pull else { continue };
            let place = join(path, "view.pull.token");
            if answering.iter().all(Option::is_none) {
                let message =
                    "no sidecar of these files has an `api` token, without which none answers who asks for views";
                warnings.push((*part, place, message.to_owned()));
            } else if answering
                .iter()
                .flatten()
                .filter_map(|source| token(source))
                .all(|known| known != pull.token.reveal())
                && answering.iter().flatten().all(|source| token(source).is_some())
            {
                let message = "is the `api` token of no sidecar of these files: every question would be answered 401";
                warnings.push((*part, place, message.to_owned()));
            }
        }
        warnings.into_iter().for_each(|(part, path, message)| self.warn(part, path, message));
    }

    /// A filter that refuses everything without a view has one from somewhere, where all of its proxy is in the files.
    fn views_have_a_source(&mut self) {
        let mut warnings = Vec::new();
        for Read { part, path, what } in &self.policies {
            let Policy { config, written } = what;
            let is_seen = match &written.carrier {
                Carrier::Alone => false,
                // Why not alone: its proxy's listeners are in other files.
                Carrier::WasmPlugin(_) => !self.sidecars.is_empty(),
                Carrier::Filter(_) => part.kind == Kind::Bootstrap && part.node.get("dynamic_resources").is_none(),
            };
            let has_role = self.roles.iter().any(|role| role.what.namespace == config.namespace);
            if !is_seen || config.view.pull.is_some() || has_role {
                continue;
            }
            for (index, _) in config.pools.iter().enumerate().filter(|(_, pool)| refuses_without_view(pool)) {
                let message = format!(
                    "without a view everything is refused (stale_view), and nothing in these files brings one, neither a control role of the \
                     namespace {:?} nor `view.pull`: give the pool a `max_in_flight`, or add one of both",
                    config.namespace
                );
                warnings.push((*part, join(path, &format!("pools[{index}]")), message));
            }
        }
        warnings.into_iter().for_each(|(part, path, message)| self.warn(part, path, message));
    }

    /// Choices of worker by WasmPlugins have as many clusters that heed them, where EnvoyFilters are in the files.
    fn choices_are_heeded(&mut self) {
        let filters = self.parts.iter().filter(|part| part.kind == Kind::EnvoyFilter);
        let patches: Vec<_> =
            filters.flat_map(|part| envoy::patches(&part.node).into_iter().map(move |patch| (part, patch))).collect();
        let heeds =
            |patch: &envoy::Patch<'_>| patch.applies_to == Some("CLUSTER") && warnings::heeds_endpoints(&patch.value);
        let heeding: Vec<_> = patches.iter().filter(|(_, patch)| heeds(patch)).collect();
        let mut choosing = Vec::new();
        let mut plugins = 0;
        for Read { part, path, what } in &self.policies {
            let Policy { config, written: Written { carrier: Carrier::WasmPlugin(_), .. } } = what else { continue };
            plugins += 1;
            let pools = config.pools.iter().enumerate().filter(|(_, pool)| pool.pick_endpoint);
            choosing.extend(pools.map(|(index, _)| (*part, join(path, &format!("pools[{index}].pick_endpoint")))));
        }
        let mut warnings = Vec::new();
        // Which cluster serves which pool is not written anywhere.
        if !patches.is_empty() && choosing.len() > heeding.len() {
            let message = format!(
                "pools that choose a worker: {}, EnvoyFilters of these files by which a cluster heeds that: {}; add the shipped istio-steering.yaml \
                 for the Service of the workers, or take this out",
                choosing.len(),
                heeding.len()
            );
            warnings.extend(choosing.iter().map(|(part, path)| (*part, path.clone(), message.clone())));
        }
        if plugins > 0 && choosing.is_empty() {
            let message = "no pool of these files says `pick_endpoint: true`, so there is no choice to heed";
            warnings.extend(heeding.iter().map(|(part, patch)| (*part, patch.value.path.clone(), message.to_owned())));
        }
        warnings.into_iter().for_each(|(part, path, message)| self.warn(part, path, message));
    }

    /// The surroundings of a filter that is loaded by ECDS fit the policy that another file has for it.
    fn waits_fit(&mut self) {
        let is_loaded = |policy: &&Read<'_, Policy<'_>>| {
            let Carrier::Filter(filter) = &policy.what.written.carrier else { return false };
            policy.part.kind == Kind::Resources && filter.manager.is_none()
        };
        let loaded: Vec<&Config> = self.policies.iter().filter(is_loaded).map(|policy| &policy.what.config).collect();
        if loaded.is_empty() {
            return;
        }
        let mut found = Vec::new();
        for part in self.parts.iter().filter(|part| matches!(part.kind, Kind::Bootstrap | Kind::Resources)) {
            let mut notes = Notes::default();
            for filter in envoy::discovered_filters(&part.node) {
                warnings::around_discovered(&filter, &loaded, &mut notes);
            }
            found.push((part, notes));
        }
        found.into_iter().for_each(|(part, notes)| self.note(part, notes));
    }
}

fn refuses_without_view(pool: &PoolConfig) -> bool {
    match pool.stale.then {
        StalePolicy::LocalCaps => pool.max_in_flight.is_none(),
        StalePolicy::Reject => true,
        StalePolicy::Admit => false,
    }
}

fn field_of(token: &TokenSource) -> &'static str {
    match token {
        TokenSource::Inline(_) => "token",
        TokenSource::File(_) => "token_file",
    }
}

fn list(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")
}
