//! What the built module is: how large, what it asks its host for, and what it tells of the machine that built it.

use std::collections::BTreeSet;

use wasm_tests::artefacts;
use wasmparser::{Parser, Payload};

/// Proxies fetch and compile it, some with every restart.
const MOST_BYTES: usize = 2 << 20;

/// What the filter asks its proxy for, by the interface that all proxies have which run such modules.
const PROXY: &[&str] = &[
    // Requests and answers.
    "proxy_get_header_map_pairs",
    "proxy_set_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_add_header_map_value",
    "proxy_replace_header_map_value",
    "proxy_remove_header_map_value",
    "proxy_get_buffer_bytes",
    "proxy_set_buffer_bytes",
    "proxy_get_property",
    "proxy_set_property",
    "proxy_send_local_response",
    "proxy_continue_stream",
    "proxy_close_stream",
    // What the threads of a proxy share.
    "proxy_get_shared_data",
    "proxy_set_shared_data",
    "proxy_register_shared_queue",
    "proxy_resolve_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_dequeue_shared_queue",
    // Time, metrics, logs, a thread's turn.
    "proxy_get_current_time_nanoseconds",
    "proxy_set_tick_period_milliseconds",
    "proxy_define_metric",
    "proxy_increment_metric",
    "proxy_record_metric",
    "proxy_log",
    "proxy_done",
    "proxy_set_effective_context",
    // A view that is asked for, from the cluster that the configuration names.
    "proxy_http_call",
    // Methods of the bindings' traits that the filter never calls. Their tables of methods keep them in the module.
    "proxy_call_foreign_function",
    "proxy_get_status",
    "proxy_grpc_call",
    "proxy_grpc_cancel",
    "proxy_grpc_close",
    "proxy_grpc_send",
    "proxy_grpc_stream",
];

/// What the filter and Rust's standard library ask WASI for. None of it opens a file or a connection.
const WASI: &[&str] = &[
    // The proxy's clock that never goes back, and seeds for samples and jitter.
    "clock_time_get",
    "random_get",
    // Whether a panic is to print a backtrace; a proxy gives a module no variables but those it is told to.
    "environ_get",
    "environ_sizes_get",
    // What a panic says, which the proxy logs, and its end.
    "fd_write",
    "proc_exit",
];

/// What tests run, in both variants.
fn modules() -> [Vec<u8>; 2] {
    [artefacts::filter(), artefacts::faulty_filter()].map(|path| std::fs::read(path).expect("a module"))
}

#[test]
fn the_module_is_at_most_two_mebibytes() {
    // Only this one is released.
    let [released, _] = modules();
    assert!(released.len() <= MOST_BYTES, "{} bytes", released.len());
}

#[test]
fn the_module_imports_what_is_listed_and_no_more() {
    let listed = |module: &str, names: &[&str]| names.iter().map(|name| format!("{module}.{name}")).collect::<Vec<_>>();
    let allowed = BTreeSet::from_iter([listed("env", PROXY), listed("wasi_snapshot_preview1", WASI)].concat());
    for module in modules() {
        assert_eq!(imports(&module), allowed);
    }
}

fn imports(module: &[u8]) -> BTreeSet<String> {
    let mut imports = BTreeSet::new();
    for payload in Parser::new(0).parse_all(module) {
        if let Payload::ImportSection(section) = payload.expect("a section") {
            for import in section.into_imports() {
                let import = import.expect("an import");
                imports.insert(format!("{}.{}", import.module, import.name));
            }
        }
    }
    imports
}

#[test]
fn the_module_names_no_folder_of_the_machine_that_built_it() {
    let checkout = env!("CARGO_MANIFEST_DIR").trim_end_matches("wasm-tests");
    let folders = [checkout, "/.cargo/", "/root/", "/home/", "/Users/"];
    for module in modules() {
        let text = String::from_utf8_lossy(&module);
        for folder in folders {
            assert!(!text.contains(folder), "{folder}");
        }
        // Where a panic was is told all the same.
        assert!(text.contains("crates/serde_json-"));
        assert!(text.contains("admission-core/src/"));
    }
}
