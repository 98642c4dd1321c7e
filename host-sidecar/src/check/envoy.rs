//! Filters of ours in what Envoy reads, and what stands around them.

use serde_json::Value;

use super::node::Node;

/// A wasm filter of ours.
#[derive(Clone)]
pub struct Filter<'a> {
    /// What Envoy calls the plugin's configuration; ours is inside, as `configuration`.
    pub plugin: Node<'a>,
    /// Only where the whole of it is written.
    pub listener: Option<Node<'a>>,
    /// The HTTP connection manager. Only where the whole of it is written.
    pub manager: Option<Node<'a>>,
    /// Every cluster of the document.
    pub clusters: Vec<Node<'a>>,
}

/// A route that leads to a cluster.
pub struct Route<'a> {
    pub node: Node<'a>,
    /// Its `route`.
    pub action: Node<'a>,
    pub host: Node<'a>,
}

/// The filters of a bootstrap or of resources.
pub fn filters<'a>(document: &Node<'a>) -> Vec<Filter<'a>> {
    let around = Around { clusters: clusters(document), ..Around::default() };
    let mut found = Vec::new();
    walk(document, &around, true, &mut found);
    found
}

/// The filters that an EnvoyFilter puts into a proxy.
pub fn patched_filters<'a>(document: &Node<'a>) -> Vec<Filter<'a>> {
    let mut found = Vec::new();
    for patch in patches(document) {
        // What is merged says nothing of what is already there.
        let whole = patch.operation != Some("MERGE");
        walk(&patch.value, &Around::default(), whole, &mut found);
    }
    found
}

/// One patch of an EnvoyFilter.
pub struct Patch<'a> {
    pub applies_to: Option<&'a str>,
    pub operation: Option<&'a str>,
    pub value: Node<'a>,
}

/// The patches of an EnvoyFilter that have a value.
pub fn patches<'a>(document: &Node<'a>) -> Vec<Patch<'a>> {
    let patches = document.get("spec").map(|spec| spec.items("configPatches")).unwrap_or_default();
    let patches = patches.iter().filter_map(|entry| {
        let patch = entry.get("patch")?;
        Some(Patch {
            applies_to: entry.text("applyTo"),
            operation: patch.text("operation"),
            value: patch.get("value")?,
        })
    });
    patches.collect()
}

/// Whether a filter of the document is loaded from elsewhere, where it cannot be seen.
pub fn is_discovered(node: &Node<'_>) -> bool {
    let wasm = |discovery: &Node<'_>| discovery.get("type_urls").is_some_and(|types| types.mentions(WASM));
    node.get("config_discovery").is_some_and(|discovery| wasm(&discovery)) || node.children().iter().any(is_discovered)
}

/// Filters of ours that are loaded from elsewhere.
// Why by their name: what they will be is not in the document.
pub fn discovered<'a>(node: &Node<'a>) -> Vec<Node<'a>> {
    let is_ours = node.text("name").is_some_and(|name| name.contains("sluice"));
    let own = node.get("config_discovery").filter(|_| is_ours && is_discovered(node));
    own.into_iter().chain(node.children().iter().flat_map(discovered)).collect()
}

/// The same as filters, of which only what surrounds them can be seen.
pub fn discovered_filters<'a>(document: &Node<'a>) -> Vec<Filter<'a>> {
    let around = Around { clusters: clusters(document), ..Around::default() };
    let mut found = Vec::new();
    walk_discovered(document, &around, &mut found);
    found
}

fn walk_discovered<'a>(node: &Node<'a>, around: &Around<'a>, found: &mut Vec<Filter<'a>>) {
    let around = around.with(node);
    let is_ours = node.text("name").is_some_and(|name| name.contains("sluice"));
    if let Some(plugin) = node.get("config_discovery").filter(|_| is_ours && is_discovered(node)) {
        let Around { listener, manager, clusters } = around;
        return found.push(Filter { plugin, listener, manager, clusters });
    }
    for child in node.children() {
        walk_discovered(&child, &around, found);
    }
}

const WASM: &str = "envoy.extensions.filters.http.wasm.v3.Wasm";

#[derive(Clone, Default)]
struct Around<'a> {
    listener: Option<Node<'a>>,
    manager: Option<Node<'a>>,
    clusters: Vec<Node<'a>>,
}

impl<'a> Around<'a> {
    /// The same with a node that may be one of these itself.
    fn with(&self, node: &Node<'a>) -> Self {
        let mut around = self.clone();
        if node.get("filter_chains").is_some() || node.get("default_filter_chain").is_some() {
            around.listener = Some(node.clone());
        }
        if node.get("http_filters").is_some() {
            around.manager = Some(node.clone());
        }
        around
    }
}

fn walk<'a>(node: &Node<'a>, around: &Around<'a>, whole: bool, found: &mut Vec<Filter<'a>>) {
    let around = if whole { around.with(node) } else { around.clone() };
    for any in ["typed_config", "default_config"].iter().filter_map(|name| node.get(name)) {
        if let Some(plugin) = wasm_plugin(&any).filter(is_ours) {
            let Around { listener, manager, clusters } = around.clone();
            found.push(Filter { plugin, listener, manager, clusters });
        }
    }
    for child in node.children() {
        walk(&child, &around, whole, found);
    }
}

/// The type and the content of a typed configuration, by either way of writing it.
pub fn typed<'a>(any: &Node<'a>) -> Option<(&'a str, Node<'a>)> {
    let name = |url: &'a str| url.rsplit('/').next().unwrap_or(url);
    match name(any.text("@type")?) {
        "xds.type.v3.TypedStruct" | "udpa.type.v1.TypedStruct" => {
            Some((name(any.text("type_url")?), any.get("value")?))
        }
        own => Some((own, any.clone())),
    }
}

fn wasm_plugin<'a>(any: &Node<'a>) -> Option<Node<'a>> {
    let (name, content) = typed(any)?;
    if name == WASM { content.get("config") } else { None }
}

/// By its name, its module or what it is configured with.
fn is_ours(plugin: &Node<'_>) -> bool {
    let is_named =
        ["name", "root_id", "vm_config"].iter().filter_map(|name| plugin.get(name)).any(|it| it.mentions("sluice"));
    let (_, json) = configuration(plugin);
    let config: Option<Value> = serde_json::from_str(&json).ok();
    is_named || config.is_some_and(|config| config.get("pools").or_else(|| config.get("token_sha256")).is_some())
}

/// Where a plugin's configuration begins, and what the plugin is given.
fn configuration(plugin: &Node<'_>) -> (String, String) {
    match plugin.down(&["configuration", "value"]) {
        Some(Node { path, value: Value::String(text) }) => (path, text.clone()),
        Some(Node { path, value }) => (path, value.to_string()),
        None => (plugin.place("configuration"), String::new()),
    }
}

fn clusters<'a>(document: &Node<'a>) -> Vec<Node<'a>> {
    let fixed = document.get("static_resources").map(|resources| resources.items("clusters")).unwrap_or_default();
    let told = document.items("resources").into_iter();
    let is_cluster = |node: &Node<'_>| node.text("@type").is_some_and(|name| name.ends_with(".Cluster"));
    fixed.into_iter().chain(told.filter(is_cluster)).collect()
}

impl<'a> Filter<'a> {
    /// Where our configuration begins, and what the filter is given.
    pub fn configuration(&self) -> (String, String) {
        configuration(&self.plugin)
    }

    /// The name that filters in one VM share their state by.
    pub fn root_id(&self) -> &'a str {
        self.plugin.text("root_id").unwrap_or_default()
    }

    /// The name that its VM has beside the code.
    pub fn vm_id(&self) -> &'a str {
        self.plugin.get("vm_config").and_then(|vm| vm.text("vm_id")).unwrap_or_default()
    }

    /// The HTTP filters that see a request before this one; `None` where that cannot be known.
    pub fn earlier(&self) -> Option<Vec<Node<'a>>> {
        let filters = self.manager.as_ref()?.items("http_filters").into_iter();
        let is_this = |filter: &Node<'_>| self.plugin.path.starts_with(&format!("{}.", filter.path));
        Some(filters.take_while(|filter| !is_this(filter)).collect())
    }

    /// The routes to clusters that are written beside the filter.
    pub fn routes(&self) -> Vec<Route<'a>> {
        let hosts = self.manager.as_ref().and_then(|manager| manager.get("route_config"));
        let hosts = hosts.map(|config| config.items("virtual_hosts")).unwrap_or_default();
        let routes = hosts.into_iter().flat_map(|host| {
            let leading = host.items("routes").into_iter().filter_map(|node| Some((node.get("route")?, node)));
            leading.map(|(action, node)| Route { node, action, host: host.clone() }).collect::<Vec<_>>()
        });
        routes.collect()
    }

    /// The clusters that its routes lead to, as far as the document has them.
    pub fn reached(&self) -> Vec<&Node<'a>> {
        let routes = self.routes();
        let names: Vec<&str> = routes.iter().flat_map(Route::clusters).collect();
        let is_reached = |cluster: &&Node<'a>| cluster.text("name").is_some_and(|name| names.contains(&name));
        self.clusters.iter().filter(is_reached).collect()
    }
}

impl<'a> Route<'a> {
    fn clusters(&self) -> Vec<&'a str> {
        let weighted = self.action.get("weighted_clusters").map(|split| split.items("clusters")).unwrap_or_default();
        weighted.iter().filter_map(|cluster| cluster.text("name")).chain(self.action.text("cluster")).collect()
    }
}
