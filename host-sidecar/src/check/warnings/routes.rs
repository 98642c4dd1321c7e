//! Of routes that callers could choose.

use admission_core::platform;

use crate::check::Notes;
use crate::check::envoy::Filter;
use crate::check::warnings::tenants::strips_first;

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
