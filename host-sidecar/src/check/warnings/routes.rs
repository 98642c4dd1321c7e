//! Of routes that callers could choose, and of routes that the filter sees too early.

use admission_core::config::{Config, Mode, RouteConfig, Upgrades};
use admission_core::platform;

use crate::check::Notes;
use crate::check::envoy::{Filter, Route, filters, typed};
use crate::check::node::{Node, join};
use crate::check::warnings::tenants::{is_opaque, strips_first};

/// Namespace of a route's metadata that is ours.
const METADATA: &str = "sluice";

/// Fields of a route's metadata that may loosen.
const LOOSE: [&str; 3] = ["tier", "api", "background"];

/// A route that looks at a header of ours, which the proxy looks at once before the filter has taken a caller's own off:
/// the filter judges a request by that route.
pub fn chosen_by_callers(filter: &Filter<'_>, notes: &mut Notes) {
    let Some(manager) = &filter.manager else { return };
    let hosts = manager.get("route_config").map(|config| config.items("virtual_hosts")).unwrap_or_default();
    for matched in hosts.iter().flat_map(|host| host.items("routes")).filter_map(|route| route.get("match")) {
        for header in matched.items("headers") {
            let Some(name) = header.text("name").map(str::to_ascii_lowercase) else { continue };
            if platform::is_ours(&name) && !strips_first(manager, &name) {
                let message = format!(
                    "callers who send {name:?} are judged by this route and not by their own; take it off before routes are \
                     chosen, with `early_header_mutation_extensions`"
                );
                notes.warn(header.place("name"), message);
            }
        }
    }
}

/// Virtual hosts, which callers choose by their Host header, and for which the policy loosens something.
pub fn loose_hosts(config: &Config, path: &str, notes: &mut Notes) {
    for (index, route) in config.routes.iter().enumerate() {
        let by_host = route.matches.as_ref().is_some_and(|matches| matches.virtual_host.is_some());
        if let Some(field) = loosens(route).filter(|_| by_host) {
            let message = format!(
                "callers choose the virtual host by their Host header, so `{field}` holds for any who write it; tell such requests by a \
                 `route_name` or a listener of their own"
            );
            notes.warn(join(path, &format!("routes[{index}].match.virtual_host")), message);
        }
    }
}

/// Routes of the proxy that callers choose by a header, a query or their Host, and for which something is loosened.
pub fn loose_routes(config: &Config, filter: &Filter<'_>, notes: &mut Notes) {
    let (Some(manager), Some(earlier)) = (&filter.manager, filter.earlier()) else { return };
    let is_set = |header: &str| strips_first(manager, header) || earlier.iter().any(|filter| filter.mentions(header));
    for route in filter.routes() {
        let Some((field, place)) = loosened(config, &route) else { continue };
        let matched = route.node.get("match");
        let items = |list: &str| matched.as_ref().map(|matched| matched.items(list)).unwrap_or_default();
        let header = items("headers").into_iter().find_map(|header| header.text("name").filter(|name| !is_set(name)));
        let query = items("query_parameters").into_iter().find_map(|query| query.text("name"));
        let host = route.host.items("domains").iter().all(|domain| *domain.value != "*");
        let chosen = match (header, query, host) {
            (Some(header), ..) => format!("the header {header:?}"),
            (None, Some(query), _) => format!("the query parameter {query:?}"),
            (None, None, true) => "their Host header".to_owned(),
            (None, None, false) => continue,
        };
        let message = format!(
            "callers choose this route by {chosen}, so `{field}` holds for any who write that; have what authenticates them set it, or take \
             theirs off first"
        );
        notes.warn(place, message);
    }
}

/// A field that loosens something on a route of the proxy, and its place.
fn loosened(config: &Config, route: &Route<'_>) -> Option<(String, String)> {
    let metadata = route.node.down(&["metadata", "filter_metadata", METADATA]);
    let own = metadata.and_then(|metadata| {
        let is = |field: &str, value: &str| metadata.get(field).is_some_and(|found| *found.value == value);
        let is_false = |field: &str| metadata.get(field).is_some_and(|found| *found.value == false);
        let named = LOOSE.iter().find(|field| metadata.get(field).is_some()).copied();
        let said = is_false("enabled").then_some("enabled: false");
        let said = said.or(is("mode", "shadow").then_some("mode: shadow"));
        let field = said.or(is("upgrades", "pass").then_some("upgrades: pass")).or(named)?;
        Some((field.to_owned(), metadata.path.clone()))
    });
    own.or_else(|| {
        let name = route.node.text("name")?;
        let is_for_it = |entry: &&RouteConfig| {
            entry.matches.as_ref().is_some_and(|matches| matches.route_name.as_deref() == Some(name))
        };
        let field = config.routes.iter().filter(is_for_it).find_map(loosens)?;
        Some((field, route.node.place("name")))
    })
}

fn loosens(route: &RouteConfig) -> Option<String> {
    let field = match route {
        RouteConfig { enabled: Some(false), .. } => "enabled: false",
        RouteConfig { mode: Some(Mode::Shadow), .. } => "mode: shadow",
        RouteConfig { upgrades: Some(Upgrades::Pass), .. } => "upgrades: pass",
        RouteConfig { background: Some(true), .. } => "background",
        RouteConfig { tier: Some(_), .. } => "tier",
        RouteConfig { api: Some(_), .. } => "api",
        _ => return None,
    };
    Some(field.to_owned())
}

/// A filter before ours that may have the proxy choose the route again, while nothing between asks the proxy to.
// Why: the proxy shows a filter the route as it was when another one last asked for it, and no call of ours asks.
pub fn seen_too_early(config: &Config, filter: &Filter<'_>, notes: &mut Notes) {
    let Some(earlier) = filter.earlier() else { return };
    let by_name = |matches: &admission_core::config::RouteMatchConfig| {
        matches.route_name.is_some() || matches.virtual_host.is_some()
    };
    let of_policy = config.routes.iter().filter_map(|route| route.matches.as_ref()).any(by_name);
    let of_metadata =
        filter.routes().iter().any(|route| route.node.down(&["metadata", "filter_metadata", METADATA]).is_some());
    if !of_policy && !of_metadata {
        return;
    }
    let behind = earlier.iter().rev().take_while(|filter| !asks_for_the_route(filter));
    let Some((clears, setting)) = behind.filter_map(|filter| Some((filter, clears_the_route(filter)?))).last() else {
        return;
    };
    let message = format!(
        "{setting} has the proxy choose the route again, and this filter would see the one before; put \
         envoy.filters.http.header_mutation between them, such as one that removes \"x-sluice-nothing\", which has it choose then"
    );
    notes.warn(&clears.path, message);
}

/// A second filter of the same namespace in a chain.
pub fn twice(config: &Config, filter: &Filter<'_>, notes: &mut Notes) {
    let same = |other: &Node<'_>| {
        let ours = filters(other).into_iter();
        let mut configs = ours.filter_map(|filter| serde_json::from_str::<Config>(&filter.configuration().1).ok());
        configs.any(|other| other.namespace == config.namespace)
    };
    if filter.earlier().is_some_and(|earlier| earlier.iter().any(same)) {
        let message = format!(
            "a filter before it has the namespace {:?} as well and judges every request first; this one lets them pass: give it a namespace of \
             its own, or take it out",
            config.namespace
        );
        notes.warn(&filter.plugin.path, message);
    }
}

fn kind<'a>(filter: &Node<'a>) -> Option<&'a str> {
    let (name, _) = filter.get("typed_config").as_ref().and_then(typed)?;
    Some(name)
}

fn asks_for_the_route(filter: &Node<'_>) -> bool {
    kind(filter).is_some_and(|name| name.contains(".header_mutation.") || name.contains(".rbac."))
}

/// The setting by which a filter may have the proxy choose the route again.
fn clears_the_route(filter: &Node<'_>) -> Option<String> {
    fn is_set(node: &Node<'_>) -> bool {
        node.get("clear_route_cache").is_some_and(|set| *set.value == true) || node.children().iter().any(is_set)
    }
    if is_set(filter) {
        return Some("`clear_route_cache`".to_owned());
    }
    let name = kind(filter).unwrap_or("a filter that is loaded from elsewhere");
    (is_opaque(filter) && !name.contains(".ext_authz.")).then(|| format!("{name}, where it changes a header,"))
}
