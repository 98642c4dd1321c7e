//! Envoy processes, which end with the program that starts them, however that ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::artefacts;

/// Longest time that Envoy is given to compile the module.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// The shell script that is Envoy's parent. It reads a pipe whose other end is in the test program alone, so the pipe closes when
/// that program drops it, exits or is killed; then the script kills Envoy and removes its folder.
// Why: statics are not dropped at the end of a program, a killed program drops nothing, and `PR_SET_PDEATHSIG` would end Envoy with
// the thread that started it, which is that of one test.
const PARENT: &str = r#"
trap '' HUP INT QUIT TERM
folder=$1
shift
"$@" </dev/null 2>"$folder/log" &
envoy=$!
echo $envoy >"$folder/id.new"
mv "$folder/id.new" "$folder/id"
read -r line
kill -KILL $envoy
wait $envoy
rm -rf "$folder"
"#;

/// A running Envoy. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Process {
    parent: Child,
    id: u32,
    threads: u32,
    admin: String,
    folder: PathBuf,
    /// Number of the configuration that was written last.
    version: u64,
}

impl Process {
    /// Starts Envoy with so many worker threads and waits until it is ready. It reads its clusters and listeners from files, and
    /// has none at first but the listeners of the bootstrap.
    pub(crate) async fn start(threads: u32, bootstrap: impl FnOnce(&Path) -> Value) -> Self {
        let folder = tempfile::Builder::new().prefix("sluice-envoy-").tempdir().expect("a folder").keep();
        let bootstrap = bootstrap(&folder).to_string();
        std::fs::write(folder.join("bootstrap.json"), bootstrap).expect("write the bootstrap");
        let mut parent = Command::new("sh");
        parent.args(["-c", PARENT, "sh"]).arg(&folder).arg(artefacts::envoy());
        parent.args(["--disable-hot-restart", "--log-level", "warning", "--component-log-level", "wasm:info"]);
        // So that who waits for a line of an access log waits no ten seconds for it.
        parent.args(["--file-flush-interval-msec", "100"]);
        // A listener that is removed goes immediately, with its connections.
        parent.args(["--drain-time-s", "0"]);
        parent.args(["--service-cluster", "sluice", "--service-node", "sluice"]);
        parent.args(["--concurrency", &threads.to_string()]);
        parent.arg("--config-path").arg(folder.join("bootstrap.json"));
        parent.arg("--admin-address-path").arg(folder.join("admin"));
        // Why: a pipe to our own output that outlived us would keep its reader waiting.
        parent.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let parent = parent.spawn().expect("start a shell");
        let mut process = Self { parent, id: 0, threads, admin: String::new(), folder, version: 0 };
        process.write(&[], &[]);
        process.wait_until_ready().await;
        process
    }

    async fn wait_until_ready(&mut self) {
        let client = testkit::envoy::direct_client().expect("a client");
        let deadline = Instant::now() + START_DEADLINE;
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
        while Instant::now() < deadline {
            let (id, admin) = (read("id"), read("admin"));
            if let Ok(id) = id.trim().parse() {
                assert!(is_running(id), "Envoy exited before it was ready:\n{}", read("log"));
                let ready = client.get(format!("http://{admin}/ready")).send().await;
                if !admin.is_empty() && ready.is_ok_and(|answer| answer.status() == 200) {
                    (self.id, self.admin) = (id, format!("http://{admin}"));
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("Envoy was not ready after {START_DEADLINE:?}:\n{}", read("log"));
    }

    /// Number of the process.
    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    /// Worker threads.
    pub(crate) fn threads(&self) -> u32 {
        self.threads
    }

    /// Address of the admin interface.
    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    /// The file of the log.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// True while the process runs.
    pub(crate) fn is_running(&self) -> bool {
        is_running(self.id)
    }

    /// Writes the clusters and the listeners that Envoy is to have, beside those of its bootstrap.
    pub(crate) fn write(&mut self, clusters: &[Value], listeners: &[Value]) {
        self.write_clusters(clusters);
        self.write_listeners(listeners);
    }

    /// Writes the clusters.
    pub(crate) fn write_clusters(&mut self, clusters: &[Value]) {
        self.write_resources("clusters.json", "type.googleapis.com/envoy.config.cluster.v3.Cluster", clusters);
    }

    /// Writes the listeners.
    pub(crate) fn write_listeners(&mut self, listeners: &[Value]) {
        self.write_resources("listeners.json", "type.googleapis.com/envoy.config.listener.v3.Listener", listeners);
    }

    fn write_resources(&mut self, file: &str, kind: &str, resources: &[Value]) {
        self.version += 1;
        let mut resources = resources.to_vec();
        resources.iter_mut().for_each(|resource| resource["@type"] = kind.into());
        let text = serde_json::json!({"version_info": self.version.to_string(), "resources": resources}).to_string();
        // By renaming, which is what Envoy looks out for.
        let next = self.folder.join("next");
        std::fs::write(&next, text).expect("write resources");
        std::fs::rename(&next, self.folder.join(file)).expect("rename resources");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.parent.stdin.take());
        let _ = self.parent.wait();
    }
}

/// True while a process of this number has not ended.
fn is_running(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The name of the program is the second field, in brackets, and may hold anything.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| !fields.starts_with(['Z', 'X']))
}
