//! Of the control role: who reaches it, and whether it can do its work.

use std::net::IpAddr;

use admission_core::config::ControlConfig;

use super::proxy;
use crate::check::Notes;
use crate::check::envoy::Filter;
use crate::check::node::Node;

const SWITCH: &str = "allow_on_headers_stop_iteration";

/// A WasmPlugin is put into listeners that serve callers.
pub fn in_istio(path: &str, notes: &mut Notes) {
    let message = format!(
        "the control role needs a listener of its own, on loopback or a Unix socket, and `{SWITCH}: true`; a WasmPlugin \
         gives it neither, so add the listener by an EnvoyFilter"
    );
    notes.warn(path, message);
}

/// Its listener, as far as it is written beside it.
pub fn in_envoy(config: &ControlConfig, filter: &Filter<'_>, notes: &mut Notes) {
    if !filter.plugin.is_true(SWITCH) {
        let message = "must be true: a view is read while its headers wait, and without it every push would hang";
        notes.warn(filter.plugin.place(SWITCH), message);
    }
    let Some(listener) = &filter.listener else { return };
    let more = listener.items("additional_addresses").into_iter().filter_map(|more| more.get("address"));
    for address in listener.get("address").into_iter().chain(more).filter(|address| !is_local(address)) {
        let message = "others than this machine may reach it: what is said here decides who is served; bind it to \
                       127.0.0.1, ::1 or a Unix socket";
        notes.warn(address.path, message);
    }
    let buffer = proxy::buffer_of(Some(listener));
    if buffer < config.max_view {
        let message = format!(
            "{buffer} is too little: a view is held whole while it is read; at least `max_view`, {}, is needed",
            config.max_view
        );
        notes.warn(listener.place("per_connection_buffer_limit_bytes"), message);
    }
}

fn is_local(address: &Node<'_>) -> bool {
    match address.down(&["socket_address"]).and_then(|socket| socket.text("address")) {
        Some(ip) => ip.parse().is_ok_and(|ip: IpAddr| ip.is_loopback()),
        // A Unix socket, or a listener that only the proxy itself reaches.
        None => true,
    }
}
