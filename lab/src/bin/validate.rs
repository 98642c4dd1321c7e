//! Every shipped configuration, checked by the program that reads it in earnest.
//!
//! What the filter and the sidecar themselves say of their configurations is a unit test of [`shipped`].

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use testkit::checkout;
use testkit::shipped;

fn main() -> ExitCode {
    lab::exit(all())
}

/// Asks Envoy about the plain bootstrap, about the same with the watched filter in its place and with what istio.yaml,
/// istio-pull.yaml and istio-steering.yaml add to a proxy, and asks the schemas about every WasmPlugin and every plugin configuration.
///
/// # Errors
/// The first configuration that is refused, with what was said against it.
fn all() -> Result<()> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let plain = shipped::document(&checkout::shipped("envoy.yaml"))?;
    let istio = shipped::documents(&checkout::shipped("istio.yaml"))?;
    let pulling = shipped::documents(&checkout::shipped("istio-pull.yaml"))?;
    let steering = shipped::documents(&checkout::shipped("istio-steering.yaml"))?;
    let steered = [istio.as_slice(), &steering].concat();
    let bootstraps = [
        ("envoy.yaml", plain.clone()),
        ("ecds/sluice.yaml", with_watched_filter(plain.clone())?),
        ("envoy.yaml with the watched filter of its comment", with_filter_of_comment(plain.clone())?),
        ("pools.yaml", shipped::document(&checkout::shipped("pools.yaml"))?),
        ("istio.yaml", with_envoy_filters(plain.clone(), &istio)?),
        ("istio.yaml with istio-steering.yaml", with_envoy_filters(plain.clone(), &steered)?),
        ("istio-pull.yaml", with_envoy_filters(plain, &pulling)?),
    ];
    for (name, mut bootstrap) in bootstraps {
        shipped::set_module(&mut bootstrap, &checkout::filter());
        ask_envoy(folder.path(), name, &bootstrap)?;
    }
    let plugins = istio.iter().chain(&pulling).filter(|document| document["kind"] == "WasmPlugin");
    let plugins: Vec<&Value> = plugins.collect();
    ensure!(plugins.len() == 2, "istio.yaml or istio-pull.yaml has no WasmPlugin");
    for plugin in plugins {
        let name = &plugin["metadata"]["name"];
        // The schema speaks of what is Istio's own; the rest is every Kubernetes object's.
        let own = json!({"spec": plugin["spec"]});
        ask_schema(folder.path(), "wasmplugin.schema.json", &own, &format!("the WasmPlugin {name}"))?;
    }
    for file in ["envoy.yaml", "ecds/sluice.yaml", "istio.yaml", "istio-pull.yaml", "policy.yaml", "pools.yaml"] {
        let documents = shipped::documents(&checkout::shipped(file))?;
        let configs: Vec<Value> = documents.iter().flat_map(shipped::plugin_configs).collect();
        ensure!(!configs.is_empty(), "{file} has no plugin configuration");
        for (index, plugin) in configs.iter().enumerate() {
            let subject = format!("plugin configuration {} of {file}", index + 1);
            ask_schema(folder.path(), "plugin.schema.json", plugin, &subject)?;
        }
    }
    Ok(())
}

/// The filter as the comment in envoy.yaml says to load it, where the shipped files are.
fn with_filter_of_comment(mut bootstrap: Value) -> Result<Value> {
    let filter = shipped::named(&mut shipped::http_manager(&mut bootstrap, "public")?["http_filters"], "sluice")?;
    *filter = shipped::watched_filter()?;
    let source = filter.pointer_mut("/config_discovery/config_source/path_config_source");
    let folder = checkout::shipped("ecds");
    *source.context("the comment in envoy.yaml watches no file")? =
        json!({"path": folder.join("sluice.yaml"), "watched_directory": {"path": folder}});
    Ok(bootstrap)
}

fn with_watched_filter(mut bootstrap: Value) -> Result<Value> {
    let watched = shipped::document(&checkout::shipped("ecds/sluice.yaml"))?;
    let resource = &watched["resources"][0];
    let name = resource["name"].as_str().context("the watched filter has no name")?;
    let filter = shipped::named(&mut shipped::http_manager(&mut bootstrap, "public")?["http_filters"], name)?;
    filter["typed_config"] = resource["typed_config"].clone();
    Ok(bootstrap)
}

fn with_envoy_filters(mut bootstrap: Value, documents: &[Value]) -> Result<Value> {
    let listeners = bootstrap["static_resources"]["listeners"].as_array_mut();
    // What Istio's proxy has of its own is a listener for requests.
    listeners.context("the bootstrap has no listeners")?.retain(|listener| listener["name"] == "public");
    let clusters = bootstrap["static_resources"]["clusters"].as_array_mut().context("the bootstrap has no clusters")?;
    for cluster in clusters.iter_mut().filter_map(Value::as_object_mut) {
        cluster.remove("load_balancing_policy");
        cluster.insert("lb_policy".into(), "LEAST_REQUEST".into());
    }
    for document in documents.iter().filter(|document| document["kind"] == "EnvoyFilter") {
        for patch in document["spec"]["configPatches"].as_array().context("an EnvoyFilter without configPatches")? {
            let value = &patch["patch"]["value"];
            match (patch["applyTo"].as_str(), patch["patch"]["operation"].as_str()) {
                (Some("LISTENER"), Some("ADD")) => {
                    let listeners = bootstrap["static_resources"]["listeners"].as_array_mut();
                    listeners.context("the bootstrap has no listeners")?.push(value.clone());
                }
                (Some("NETWORK_FILTER"), Some("MERGE")) => {
                    shipped::merge(shipped::http_manager(&mut bootstrap, "public")?, &value["typed_config"]);
                }
                (Some("HTTP_ROUTE"), Some("MERGE")) => {
                    let manager = shipped::http_manager(&mut bootstrap, "public")?;
                    let routes = manager.pointer_mut("/route_config/virtual_hosts/0/routes");
                    let routes = routes.and_then(Value::as_array_mut).context("the bootstrap has no routes")?;
                    routes.iter_mut().for_each(|route| shipped::merge(route, value));
                }
                (Some("CLUSTER"), Some("MERGE")) => {
                    let clusters = bootstrap["static_resources"]["clusters"].as_array_mut();
                    let clusters = clusters.context("the bootstrap has no clusters")?;
                    clusters.iter_mut().for_each(|cluster| shipped::merge(cluster, value));
                }
                (to, how) => bail!("an EnvoyFilter that applies to {to:?} by {how:?} is not validated yet"),
            }
        }
    }
    Ok(bootstrap)
}

fn ask_envoy(folder: &Path, name: &str, bootstrap: &Value) -> Result<()> {
    let file = folder.join("bootstrap.json");
    fs::write(&file, bootstrap.to_string()).context("cannot write a bootstrap")?;
    let mut envoy = Command::new(checkout::envoy());
    envoy.args(["--mode", "validate", "--log-level", "error", "--config-path"]).arg(file);
    succeeds(&mut envoy).with_context(|| format!("Envoy refuses {name}"))?;
    println!("    Envoy takes {name}");
    Ok(())
}

fn ask_schema(folder: &Path, schema: &str, value: &Value, subject: &str) -> Result<()> {
    let file = folder.join("value.json");
    fs::write(&file, value.to_string()).with_context(|| format!("cannot write {subject}"))?;
    let mut check = Command::new(checkout::python_program("check-jsonschema"));
    check.arg("--schemafile").arg(checkout::shipped("schemas").join(schema)).arg(file);
    succeeds(&mut check).with_context(|| format!("{subject} does not fit {schema}"))?;
    println!("    {subject} fits {schema}");
    Ok(())
}

/// Runs a program whose output is of interest only when it fails.
fn succeeds(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    let said = || [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    ensure!(output.status.success(), "{name} ended with {}:\n{}", output.status, String::from_utf8_lossy(&said()));
    Ok(())
}
