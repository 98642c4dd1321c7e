//! `sluice-sidecar check`: what it understands, what it says, and how it ends.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

mod policies;
mod proxies;
mod shipped;
mod together;

use shipped::{Bootstrap, FILTER, istio, path_of};

/// Everything said of a document.
fn said(document: &Value) -> Vec<String> {
    said_of(&document.to_string())
}

fn said_of(text: &str) -> Vec<String> {
    host_sidecar::check::text(text).lines("f").collect()
}

/// Exactly one warning, at this place, with these words.
#[track_caller]
fn assert_warns(document: &Value, place: &str, words: &str) {
    let said = said(document);
    let start = format!("warning: f: {place}: ");
    assert!(
        matches!(&said[..], [one] if one.starts_with(&start) && one.contains(words)),
        "{place}: {words}\n{said:#?}"
    );
}

#[track_caller]
fn assert_silent(document: &Value) {
    assert_eq!(said(document), [""; 0]);
}

const PLUGIN: &str = "{pools: [{name: llama, max_in_flight: 4, kv: {headroom: 2}}]}";
const PROBLEM: &str = "pools[0].kv.headroom: 2 is not a share of at least 0 and below 1";

#[test]
fn every_kind_shows_its_mistakes_where_they_were_written() {
    let policy: Value = serde_norway::from_str(PLUGIN).unwrap();
    let text = json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": policy.to_string()});
    let object = json!({"@type": "type.googleapis.com/google.protobuf.Struct", "value": policy});
    let filter = |configuration: &Value| {
        json!({"@type": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
               "config": {"failure_policy": "FAIL_RELOAD", "configuration": configuration}})
    };
    let wrapped = json!({"@type": "type.googleapis.com/xds.type.v3.TypedStruct",
        "type_url": "type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm",
        "value": {"config": {"failurePolicy": "FAIL_RELOAD", "configuration": text}}});
    let listener = |config: Value| {
        json!({"name": "l", "filter_chains": [{"filters": [{"typed_config":
            {"stream_idle_timeout": "60s", "http_filters": [{"typed_config": config}]}}]}]})
    };
    let inside = "filter_chains[0].filters[0].typed_config.http_filters[0].typed_config";
    let patch = |to: &str, value: Value| {
        json!({"kind": "EnvoyFilter", "spec": {"configPatches": [
            {"applyTo": "CLUSTER", "patch": {"operation": "REMOVE"}},
            {"applyTo": to, "patch": {"operation": "ADD", "value": value}}]}})
    };
    for (document, place) in [
        (policy.clone(), String::new()),
        (
            json!({"kind": "WasmPlugin", "spec": {"failStrategy": "FAIL_RELOAD", "pluginConfig": policy}}),
            "spec.pluginConfig.".into(),
        ),
        (
            json!({"static_resources": {"listeners": [listener(filter(&text))]}}),
            format!("static_resources.listeners[0].{inside}.config.configuration.value."),
        ),
        (
            json!({"static_resources": {"listeners": [listener(filter(&object))]}}),
            format!("static_resources.listeners[0].{inside}.config.configuration.value."),
        ),
        (json!({"resources": [listener(filter(&text))]}), format!("resources[0].{inside}.config.configuration.value.")),
        (
            json!({"resources": [{"typed_config": filter(&object)}]}),
            "resources[0].typed_config.config.configuration.value.".into(),
        ),
        (
            json!({"@type": "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig", "typed_config": filter(&text)}),
            "typed_config.config.configuration.value.".into(),
        ),
        (
            patch("LISTENER", listener(filter(&text))),
            format!("spec.configPatches[1].patch.value.{inside}.config.configuration.value."),
        ),
        (
            patch("HTTP_FILTER", json!({"name": "x", "typed_config": wrapped})),
            "spec.configPatches[1].patch.value.typed_config.value.config.configuration.value.".into(),
        ),
    ] {
        assert_eq!(said(&document), [format!("f: {place}{PROBLEM}")], "{document}");
    }
}

#[test]
fn both_roles_and_the_sidecars_own_are_understood() {
    assert_eq!(
        said_of("{role: control, token_sha256: abc}"),
        ["f: token_sha256: must be 64 hexadecimal digits, the SHA-256 of the token"]
    );
    let sidecar = "{proxies: [{url: 'http://127.0.0.1:15010', token: t}], pools: [{name: p, workers: ['127.0.0.1']}]}";
    assert_eq!(said_of(sidecar), ["f: pools[0].workers[0]: \"127.0.0.1\" is not host:port"]);
    assert_eq!(said_of("pools: [{name: p, workers: ['127.0.0.1:1']}]"), ["f: proxies: missing"]);
    let slow = "{proxies: [{url: 'http://127.0.0.1:1', token: t}], pools: [{name: p, workers: ['127.0.0.1:1']}], \
                scrape: {interval: 3s}}";
    let said = said_of(slow);
    assert!(matches!(&said[..], [one] if one.starts_with("warning: f: scrape.interval (3s) is longer")), "{said:?}");
}

#[test]
fn every_mistake_is_said_at_once_and_those_of_shape_too() {
    let said = said_of("{pools: [{name: p, max_in_flight: many}, {max_in_flight: 1}], tenannt: {}}");
    let starts =
        ["f: tenannt: unknown field", "f: pools[0].max_in_flight: invalid type", "f: pools[1]: missing field `name`"];
    assert!(starts.iter().all(|start| said.iter().any(|line| line.starts_with(start))), "{said:#?}");
    assert_eq!(said.len(), 3);
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.filter()["configuration"]["value"] = "{".into();
    let said = said_of(&bootstrap.0.to_string());
    let start = format!("f: {FILTER}.configuration.value: not JSON: ");
    assert!(matches!(&said[..], [one] if one.starts_with(&start)), "{said:?}");
}

#[test]
fn what_has_no_configuration_says_so() {
    for document in
        [json!({"kind": "WasmPlugin"}), json!({"kind": "WasmPlugin", "spec": {"failStrategy": "FAIL_RELOAD"}})]
    {
        assert_eq!(
            said(&document),
            ["f: spec.pluginConfig: the plugin has no configuration; it needs at least `pools`"]
        );
    }
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.filter().as_object_mut().unwrap().remove("configuration");
    let path = format!("{FILTER}.configuration");
    assert_eq!(said(&bootstrap.0), [format!("f: {path}: the plugin has no configuration; it needs at least `pools`")]);
}

#[test]
fn what_is_not_understood_is_an_error() {
    for text in ["kind: Deployment", "a: 1", "[]", "text", "{pool: []}"] {
        let said = said_of(text);
        assert!(
            matches!(&said[..], [one] if one.starts_with("f: not recognised; understood are ")),
            "{text}: {said:?}"
        );
    }
    for text in ["", "---\n---\n", "null"] {
        assert_eq!(said_of(text), ["f: is empty"]);
    }
    assert!(said_of("a: [")[0].starts_with("f: neither YAML nor JSON: "));
    assert!(said_of("pools: []\npools: []")[0].contains("duplicate entry with key \"pools\""));
    let bare = json!({"static_resources": {"listeners": []}});
    assert_eq!(said(&bare), ["f: no filter of Sluice is in it, nor one that is loaded from elsewhere"]);
}

#[test]
fn filters_of_others_and_filters_from_elsewhere_are_left_alone() {
    let mut bootstrap = Bootstrap::shipped();
    let mut other = bootstrap.filters()[2].clone();
    other["typed_config"]["config"] = json!({"name": "other", "configuration": {"value": "not ours"}});
    bootstrap.filters().insert(0, other);
    assert_silent(&bootstrap.0);
    let mut bootstrap = Bootstrap::shipped();
    bootstrap.0["static_resources"]["listeners"].as_array_mut().unwrap().pop();
    bootstrap.filters()[2] = json!({"name": "sluice", "config_discovery": {
        "type_urls": ["type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm"], "default_config": {}}});
    assert_silent(&bootstrap.0);
}

#[test]
fn several_documents_are_told_apart() {
    let text = format!("---\n{PLUGIN}\n---\n# nothing\n---\nkind: Deployment\n---\n{PLUGIN}\n");
    let said = said_of(&format!("{text}---\na: [\n---\n{PLUGIN}\n"));
    assert_eq!(said[0], format!("f, document 1: {PROBLEM}"));
    assert!(said[1].starts_with("f, document 2: not recognised"), "{said:?}");
    assert_eq!(said[2], format!("f, document 3: {PROBLEM}"));
    // Where one document ends is unknown once it cannot be read.
    assert!(said[3].starts_with("f, document 4: neither YAML nor JSON: "), "{said:?}");
    assert_eq!(said.len(), 4);
}

#[test]
fn the_program_says_all_and_fails_only_for_errors() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("wrong.yaml", PLUGIN);
    write("odd.yaml", "{tiers: {a: {max_in_flight: 5}}, pools: [{name: llama, max_in_flight: 4}]}");
    let (code, out) = run(folder.path(), &["odd.yaml"]);
    let odd = "warning: odd.yaml: tiers.a.max_in_flight: 5 never binds: all `pools` together let in 4\n";
    assert_eq!((code, out), (0, format!("{odd}1 file, 1 document: no errors, 1 warning\n")));
    let (code, out) = run(folder.path(), &["wrong.yaml", "odd.yaml", "none.yaml"]);
    assert_eq!(code, 1);
    assert!(out.starts_with(&format!("wrong.yaml: {PROBLEM}\n{odd}none.yaml: cannot be read: ")), "{out}");
    assert!(out.ends_with("\n3 files, 2 documents: 2 errors, 1 warning\n"), "{out}");
    assert_ne!(run(folder.path(), &[]).0, 0);
}

#[test]
fn pools_alone_are_the_sidecars_when_they_say_where_workers_are() {
    let folder = tempfile::tempdir().unwrap();
    for pool in ["workers: [w]", "discover: [{file: {}}]"] {
        std::fs::write(folder.path().join("pools.yaml"), format!("pools: [{{name: p, {pool}}}]")).unwrap();
        let (code, out) = run(folder.path(), &["pools.yaml"]);
        assert!(code == 1 && out.contains("pools.yaml: proxies: missing"), "{out}");
    }
}

#[test]
fn shipped_files_have_neither_errors_nor_warnings() {
    for (files, said) in [
        (&["envoy.yaml", "istio.yaml", "ecds/sluice.yaml", "sidecar.yaml"][..], "4 files, 7 documents"),
        (&["istio-pull.yaml"], "1 file, 3 documents"),
        (&["policy.yaml", "pools.yaml"], "2 files, 2 documents"),
        (&["sidecar-discovery.yaml"], "1 file, 1 document"),
    ] {
        let (code, out) = run(&path_of("."), files);
        assert_eq!((code, out), (0, format!("{said}: no errors, no warnings\n")));
    }
    assert_eq!(istio().len(), 4);
}

#[test]
fn the_example_in_the_documentation_is_true() {
    let page = std::fs::read_to_string(path_of("../docs/checking.md")).unwrap();
    let (_, example) = page.split_once("```yaml\n").unwrap();
    let (file, rest) = example.split_once("```\n").unwrap();
    let (_, answer) = rest.split_once("```\n").unwrap();
    let (answer, _) = answer.split_once("```\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("sluice.yaml"), file).unwrap();
    assert_eq!(run(folder.path(), &["sluice.yaml"]), (1, answer.to_owned()));
}

fn run(folder: &Path, files: &[&str]) -> (i32, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_sluice-sidecar"));
    let output = program.arg("check").args(files).current_dir(folder).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

/// Files as the last release shipped them, and so as operators have them, are taken as they are. A field that is renamed or narrowed
/// gets a row of docs/upgrading.md, and its file here says what it looks like after that. A reserve without terms is still read, and named.
#[test]
fn the_files_of_the_last_release_have_no_fault() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testkit/releases/0.1");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    assert_eq!(files.len(), 8);
    for path in files {
        let mut said = said_of(&std::fs::read_to_string(&path).unwrap());
        said.retain(|line| !(line.starts_with("warning: ") && line.contains("lanes[0].reserve: ")));
        assert_eq!(said, [""; 0], "{}", path.display());
    }
}
