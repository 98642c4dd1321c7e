//! From what is written to what is meant.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use admission_core::control::MAX_POOLS;
use admission_core::policy::is_name;
use serde_norway::Value;
use url::Url;

use super::discover::{self, Pages, RawSource, Role, Source};
use super::raw::{self, Part, Unknown};
use super::tls::tls;
use super::{
    Config, ConfigError, Pool, Proxy, Push, Scrape, TokenSource, UNIX, Worker, engine, hardware, saturation,
    without_secrets,
};

const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9090);
const SCRAPE: Scrape = Scrape {
    interval: Duration::from_millis(100),
    timeout: Duration::from_secs(1),
    stale_after: Duration::from_millis(500),
    down_after: Duration::from_secs(2),
};
const PUSH: Push = Push { heartbeat: Duration::from_secs(1), timeout: Duration::from_secs(1) };

const NO_TEXT: &str = "must be a text: put it in quotes";
const NO_OBJECT: &str = "must be an object, which holds its token as `token_file` or `token`";

const BUSY_HYSTERESIS: f64 = 0.05;

/// Longer is a mistake in writing, and beyond what a clock can add up.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The meaning of `raw`, or every mistake in it.
pub fn check(raw: raw::Config) -> Result<Config, Vec<ConfigError>> {
    let mut errors = Errors::default();
    errors.unknown("", &raw.unknown);
    let listen = listen(&mut errors, raw.listen);
    let scrape = scrape(&mut errors, raw.scrape);
    let push = push(&mut errors, raw.push);
    let (api_token, thresholds_file) = api(&mut errors, raw.api);
    let hardware = hardware::check(&mut errors, "hardware", raw.hardware);
    // Those that ask are not listed, and show the token of `api`.
    let nobody_listed = raw.proxies.is_none() && api_token.is_some();
    let proxies = if nobody_listed { Vec::new() } else { proxies(&mut errors, raw.proxies) };
    let pools = pools(&mut errors, raw.pools);
    errors.or(Config { listen, scrape, push, api_token, thresholds_file, hardware, proxies, pools })
}

/// The mistakes found so far.
#[derive(Default)]
pub struct Errors(Vec<ConfigError>);

impl Errors {
    /// What has been read, unless there is a mistake in it.
    pub fn or<T>(self, value: T) -> Result<T, Vec<ConfigError>> {
        if self.0.is_empty() { Ok(value) } else { Err(self.0) }
    }

    pub fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(ConfigError::new(path, message));
    }

    /// As [`Self::unknown`] where a token may stand: a key without a value may be one, so the message must not repeat it.
    fn unknown_beside_secrets(&mut self, path: &str, keys: &Unknown) {
        for (key, value) in keys {
            match value {
                Value::Null => self.add(path, "holds a field without a value, which is none that there is"),
                _ => self.add(join(path, key), "no such field"),
            }
        }
    }

    pub fn unknown(&mut self, path: &str, keys: &Unknown) {
        for key in keys.keys() {
            self.add(join(path, key), "no such field");
        }
    }

    /// The value when it is there and of the right kind.
    pub fn take<T>(&mut self, path: &str, part: Option<Part<T>>) -> Option<T> {
        match part?.0 {
            Ok(value) => Some(value),
            Err(wrong) => {
                self.add(join(path, &wrong.path), wrong.message);
                None
            }
        }
    }

    /// The value, whose absence is a mistake.
    pub fn require<T>(&mut self, path: &str, part: Option<Part<T>>) -> Option<T> {
        if part.is_none() {
            self.add(path, "missing");
        }
        self.take(path, part)
    }

    /// The elements of the right kind with their paths; that there is none is a mistake.
    pub fn elements<T>(&mut self, path: &str, list: Option<Part<Vec<Part<T>>>>) -> Vec<(String, T)> {
        let Some(list) = self.require(path, list) else { return Vec::new() };
        if list.is_empty() {
            self.add(path, "must not be empty");
        }
        let elements = list.into_iter().enumerate();
        elements.filter_map(|(at, part)| part_of(self, format!("{path}[{at}]"), part)).collect()
    }

    pub fn duration(&mut self, path: &str, part: Option<Part<String>>, default: Duration) -> Duration {
        let Some(text) = self.take(path, part) else { return default };
        match humantime::parse_duration(&text) {
            Ok(Duration::ZERO) => self.add(path, "must be longer than zero"),
            Ok(duration) if duration > LONGEST => self.add(path, "must be at most 24h"),
            Ok(duration) => return duration,
            Err(_) => self.add(path, format!("{text:?} is not a duration such as \"100ms\" or \"2s\"")),
        }
        default
    }
}

pub fn part_of<T>(errors: &mut Errors, path: String, part: Part<T>) -> Option<(String, T)> {
    errors.take(&path, Some(part)).map(|value| (path, value))
}

/// A path and what stands below it.
pub fn join(path: &str, key: &str) -> String {
    match (path, key) {
        ("", key) => key.to_owned(),
        (path, "") => path.to_owned(),
        (path, key) => format!("{path}.{key}"),
    }
}

fn listen(errors: &mut Errors, part: Option<Part<String>>) -> SocketAddr {
    let Some(text) = errors.take("listen", part) else { return LISTEN };
    text.parse().unwrap_or_else(|_| {
        errors.add("listen", format!("{text:?} is not ip:port"));
        LISTEN
    })
}

fn scrape(errors: &mut Errors, part: Option<Part<raw::Scrape>>) -> Scrape {
    let raw = errors.take("scrape", part).unwrap_or_default();
    errors.unknown("scrape", &raw.unknown);
    Scrape {
        interval: errors.duration("scrape.interval", raw.interval, SCRAPE.interval),
        timeout: errors.duration("scrape.timeout", raw.timeout, SCRAPE.timeout),
        stale_after: errors.duration("scrape.stale_after", raw.stale_after, SCRAPE.stale_after),
        down_after: errors.duration("scrape.down_after", raw.down_after, SCRAPE.down_after),
    }
}

fn push(errors: &mut Errors, part: Option<Part<raw::Push>>) -> Push {
    let raw = errors.take("push", part).unwrap_or_default();
    errors.unknown("push", &raw.unknown);
    Push {
        heartbeat: errors.duration("push.heartbeat", raw.heartbeat, PUSH.heartbeat),
        timeout: errors.duration("push.timeout", raw.timeout, PUSH.timeout),
    }
}

fn api(errors: &mut Errors, part: Option<Part<raw::Api>>) -> (Option<TokenSource>, Option<PathBuf>) {
    let Some(raw) = errors.take("api", part.map(|part| hidden(part, NO_OBJECT))) else { return (None, None) };
    errors.unknown_beside_secrets("api", &raw.unknown);
    let file = raw.thresholds_file.and_then(|part| named(errors, "api.thresholds_file", Some(part), None));
    (token(errors, "api", raw.token, raw.token_file), file.map(PathBuf::from))
}

fn proxies(errors: &mut Errors, list: Option<Part<Vec<Part<raw::Proxy>>>>) -> Vec<Proxy> {
    let mut once = Once::default();
    let mut proxies = Vec::new();
    let list = list.map(|Part(list)| {
        let list = list.map(|list| list.into_iter().map(|part| hidden(part, NO_OBJECT)).collect());
        hidden(Part(list), "must be a list of objects with `url` and `token_file`")
    });
    for (path, raw) in errors.elements("proxies", list) {
        errors.unknown_beside_secrets(&path, &raw.unknown);
        let url = proxy_url(errors, &join(&path, "url"), raw.url);
        let is_https = url.as_ref().is_none_or(|url| url.starts_with("https:"));
        let tls = tls(errors, &join(&path, "tls"), raw.tls, is_https);
        let token = token(errors, &path, raw.token, raw.token_file);
        if let Some(url) = &url {
            once.note(errors, url, &join(&path, "url"));
        }
        proxies.extend(url.zip(token).map(|(url, token)| Proxy { url, tls, token }));
    }
    proxies
}

fn proxy_url(errors: &mut Errors, path: &str, part: Option<Part<String>>) -> Option<String> {
    let text = errors.require(path, part)?;
    if let Some(socket) = text.strip_prefix(UNIX) {
        if !socket.starts_with('/') {
            errors.add(
                path,
                format!("{text:?} must name a socket by its whole path, such as unix:/run/sluice/control.sock"),
            );
        }
        return Some(text);
    }
    let url = http_url(errors, path, &text)?;
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        let text = without_secrets(&text);
        errors.add(path, format!("{text:?} must end after the port; the path of the view is added to it"));
        return None;
    }
    Some(url.as_str().trim_end_matches('/').to_owned())
}

/// What was written in a place may be a token without what belongs around it, so the message must not repeat it.
fn hidden<T>(part: Part<T>, message: &str) -> Part<T> {
    Part(part.0.map_err(|wrong| raw::Wrong { message: message.into(), ..wrong }))
}

/// A URL that the sidecar can fetch.
pub(super) fn http_url(errors: &mut Errors, path: &str, text: &str) -> Option<Url> {
    let problem = match Url::parse(text) {
        Err(error) => format!("{:?} is not a URL: {error}", without_secrets(text)),
        Ok(url) if !matches!(url.scheme(), "http" | "https") => {
            format!("{:?} must begin with http:// or https://", without_secrets(text))
        }
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            "a URL must not hold a user or a password".to_owned()
        }
        Ok(url) => return Some(url),
    };
    errors.add(path, problem);
    None
}

pub(super) fn token(
    errors: &mut Errors,
    path: &str,
    inline: Option<Part<String>>,
    file: Option<Part<String>>,
) -> Option<TokenSource> {
    if inline.is_some() == file.is_some() {
        errors.add(path, "exactly one of token and token_file must be set");
        return None;
    }
    let file = errors.take(&join(path, "token_file"), file).map(|file| TokenSource::File(PathBuf::from(file)));
    let path = join(path, "token");
    let inline = TokenSource::Inline(match file {
        Some(file) => return Some(file),
        None => errors.take(&path, inline.map(|part| hidden(part, NO_TEXT)))?,
    });
    match inline.read() {
        Ok(_) => Some(inline),
        Err(message) => {
            errors.add(path, message);
            None
        }
    }
}

fn pools(errors: &mut Errors, list: Option<Part<Vec<Part<raw::Pool>>>>) -> Vec<Pool> {
    let (mut names, mut models, mut found) = (Once::default(), Once::default(), Found::default());
    let mut pools = Vec::new();
    let elements = errors.elements("pools", list);
    if elements.len() > MAX_POOLS {
        let message = format!("{} pools are more than {MAX_POOLS}, the most that proxies take", elements.len());
        errors.add("pools", message);
    }
    for (path, raw) in elements {
        errors.unknown(&path, &raw.unknown);
        let name = named(errors, &join(&path, "name"), raw.name, None);
        if let Some(name) = name.as_ref().filter(|name| !name.is_empty() && !is_name(name)) {
            let message = "it must have at most 128 letters, digits, `.`, `_` and `-`: proxies would refuse every view";
            errors.add(join(&path, "name"), format!("{name:?} is no name of a pool; {message}"));
        }
        let model = named(errors, &join(&path, "model"), raw.model, name.as_deref());
        if let (Some(name), Some(model)) = (&name, &model) {
            names.note(errors, name, &join(&path, "name"));
            models.note(errors, model, &join(&path, "model"));
        }
        let more = raw.models.map(|list| errors.elements(&join(&path, "models"), Some(list))).unwrap_or_default();
        for (path, model) in &more {
            models.note(errors, model, path);
        }
        let engine = engine::check(errors, &join(&path, "engine"), raw.engine);
        let busy = errors.take(&join(&path, "busy"), raw.busy).unwrap_or_default();
        if let Err(message) = busy.validate() {
            errors.add(join(&path, "busy"), message);
        }
        let busy_hysteresis = hysteresis(errors, &join(&path, "busy_hysteresis"), raw.busy_hysteresis);
        let when_stale = errors.take(&join(&path, "when_stale"), raw.when_stale).unwrap_or_default();
        let when_unreadable = errors.take(&join(&path, "when_unreadable"), raw.when_unreadable).unwrap_or_default();
        let saturation = saturation::saturation(errors, &join(&path, "saturation"), raw.saturation);
        let dispatch_budget = saturation::dispatch_budget(errors, &join(&path, "dispatch_budget"), raw.dispatch_budget);
        let max_num_batched_tokens = errors.take(&join(&path, "max_num_batched_tokens"), raw.max_num_batched_tokens);
        if max_num_batched_tokens == Some(0) {
            errors.add(join(&path, "max_num_batched_tokens"), "must be at least 1");
        }
        let (workers, discover) = members(errors, &path, raw.workers, raw.discover, &mut found);
        let urls = workers.iter().flat_map(|worker| worker.hardware_url.iter().chain([&worker.metrics_url]));
        let is_https = urls.into_iter().any(|url| url.starts_with("https:"));
        let is_https = is_https || discover.iter().any(Source::may_take_tls);
        let tls = tls(errors, &join(&path, "tls"), raw.tls, is_https);
        let Some((name, model)) = name.zip(model) else { continue };
        let models = std::iter::once(model).chain(more.into_iter().map(|(_, model)| model)).collect();
        pools.push(Pool {
            name,
            models,
            engine,
            busy,
            busy_hysteresis,
            when_stale,
            when_unreadable,
            saturation,
            dispatch_budget,
            max_num_batched_tokens,
            tls,
            workers,
            discover,
        });
    }
    pools
}

fn hysteresis(errors: &mut Errors, path: &str, part: Option<Part<f64>>) -> f64 {
    let share = errors.take(path, part).unwrap_or(BUSY_HYSTERESIS);
    if !(0.0..1.0).contains(&share) {
        errors.add(path, format!("is {share}; it must be at least 0 and below 1"));
    }
    share
}

fn named(errors: &mut Errors, path: &str, part: Option<Part<String>>, default: Option<&str>) -> Option<String> {
    let text = match (part, default) {
        (None, Some(default)) => return Some(default.to_owned()),
        (part, _) => errors.require(path, part)?,
    };
    if text.is_empty() {
        errors.add(path, "must not be empty");
    }
    Some(text)
}

/// What no two pools may share.
#[derive(Default)]
struct Found {
    addresses: Once,
    sources: Once,
}

fn members(
    errors: &mut Errors,
    path: &str,
    listed: Option<Part<Vec<Part<raw::Worker>>>>,
    discover: Option<Part<Vec<Part<RawSource>>>>,
    found: &mut Found,
) -> (Vec<Worker>, Vec<Source>) {
    if listed.is_none() && discover.is_none() {
        errors.add(path, "workers or discover must be set");
    }
    let mut parts = Vec::new();
    if listed.is_some() {
        parts = errors.elements(&join(path, "workers"), listed);
    }
    let workers = workers(errors, parts, &mut found.addresses, &Pages::default(), Role::default());
    let mut sources = Vec::new();
    if discover.is_some() {
        for (path, raw) in errors.elements(&join(path, "discover"), discover) {
            let Some(source) = discover::source(errors, &path, raw) else { continue };
            found.sources.note(errors, &source.name(), &path);
            sources.push(source);
        }
    }
    (workers, sources)
}

/// The meaning of `parts`, each with its path. `pages` and `role` hold for workers that do not say them.
pub fn workers(
    errors: &mut Errors,
    parts: Vec<(String, raw::Worker)>,
    addresses: &mut Once,
    pages: &Pages,
    role: Role,
) -> Vec<Worker> {
    let mut workers = Vec::new();
    for (path, raw) in parts {
        let Some(worker) = worker(errors, &path, raw, pages, role) else { continue };
        addresses.note(errors, &worker.address, &path);
        workers.push(worker);
    }
    workers
}

fn worker(errors: &mut Errors, path: &str, raw: raw::Worker, pages: &Pages, role_of_all: Role) -> Option<Worker> {
    let object = match raw {
        raw::Worker::Address(address) => {
            let address = address_of(errors, path, address)?;
            let (metrics_url, hardware_url) = pages.urls(&address);
            return Some(Worker { address, metrics_url, hardware_url, draining: false, role: role_of_all });
        }
        raw::Worker::Object(object) => object,
    };
    errors.unknown(path, &object.unknown);
    let at = join(path, "address");
    let address = errors.require(&at, object.address).and_then(|address| address_of(errors, &at, address));
    let draining = errors.take(&join(path, "draining"), object.draining).unwrap_or(false);
    let role = errors.take(&join(path, "role"), object.role).unwrap_or(role_of_all);
    let mut page = |field: &str, part: Option<Part<String>>| {
        let at = join(path, field);
        let url = errors.take(&at, part)?;
        Some(http_url(errors, &at, &url).map(String::from))
    };
    let (metrics, hardware) = (page("metrics_url", object.metrics_url), page("hardware_url", object.hardware_url));
    let address = address?;
    let (metrics_url, hardware_url) = pages.urls(&address);
    let (metrics_url, hardware_url) = (metrics.unwrap_or(Some(metrics_url))?, hardware.unwrap_or(hardware_url));
    Some(Worker { address, metrics_url, hardware_url, draining, role })
}

fn address_of(errors: &mut Errors, path: &str, text: String) -> Option<String> {
    if is_host_and_port(&text) {
        return Some(text);
    }
    errors.add(path, format!("{text:?} is not host:port"));
    None
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_host = match host.strip_prefix('[') {
        Some(inside) => inside.strip_suffix(']').is_some_and(|inside| inside.parse::<Ipv6Addr>().is_ok()),
        None => !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
    };
    is_port && is_host
}

/// Where each value was first seen.
#[derive(Default)]
pub struct Once(BTreeMap<String, String>);

impl Once {
    fn note(&mut self, errors: &mut Errors, value: &str, path: &str) {
        if let Some(first) = self.0.get(value) {
            errors.add(path, format!("{value:?} is already taken by {first}"));
        } else {
            self.0.insert(value.to_owned(), path.to_owned());
        }
    }
}

#[cfg(test)]
mod tests;
