//! The engine as a child process.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::{cores, scenario};
use testkit::checkout;
use testkit::parts::MODEL;

/// Loading Python packages takes a minute of one core, and several where other work is done on it.
const START_DEADLINE: Duration = Duration::from_secs(900);

const GLANCE: Duration = Duration::from_millis(500);

/// The vLLM that `cargo xtask test-vllm` has installed, and a model for it.
#[derive(Clone, Debug)]
pub struct Installed {
    python: PathBuf,
    model: PathBuf,
}

impl Installed {
    /// Writes the model, of random weights, beside the installed packages.
    ///
    /// # Errors
    /// When the packages are missing or the model cannot be written.
    pub fn with_model() -> Result<Self> {
        let folder = checkout::root().join("target/vllm");
        let installed = Self { python: folder.join("venv/bin/python"), model: folder.join("tiny") };
        let script = checkout::root().join("lab/assets/tiny_model.py");
        let mut write = Command::new(&installed.python);
        write.arg(script).arg(&installed.model).arg(scenario::CONTEXT_TOKENS.to_string());
        let status = write.status().context("vLLM is not installed: `cargo xtask test-vllm` installs it")?;
        ensure!(status.success(), "the script that writes the model ended with {status}");
        Ok(installed)
    }
}

/// A running vLLM; it and the processes it has started end when this is dropped.
pub struct Engine {
    pub address: SocketAddr,
    child: Child,
    folder: TempDir,
}

impl Engine {
    /// Starts it on its core and waits until it serves.
    ///
    /// # Errors
    /// With the end of its log when it exits or does not serve in time.
    pub async fn start(installed: &Installed, client: &reqwest::Client) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("sluice-vllm-").tempdir()?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let log = File::create(folder.path().join("log"))?;
        let mut command = Command::new(&installed.python);
        command
            .args(["-m", "vllm.entrypoints.openai.api_server", "--model"])
            .arg(&installed.model)
            .args(["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", &address.port().to_string()])
            .args(scenario::ENGINE_FLAGS)
            .args(["--max-model-len", &scenario::CONTEXT_TOKENS.to_string()])
            .args(["--max-num-seqs", &scenario::SEQUENCES.to_string()])
            .args(["--num-gpu-blocks-override", &scenario::KV_BLOCKS.to_string()])
            .envs([("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")])
            .envs([("VLLM_CPU_KVCACHE_SPACE", "1"), ("OMP_NUM_THREADS", "1")])
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // So that what it starts can be ended with it.
            .process_group(0);
        let child = on_its_core(move || command.spawn().context("cannot start vLLM"))?;
        let mut engine = Self { address, child, folder };
        engine.wait_until_ready(client).await?;
        Ok(engine)
    }

    async fn wait_until_ready(&mut self, client: &reqwest::Client) -> Result<()> {
        let (began, url) = (Instant::now(), format!("http://{}/health", self.address));
        while began.elapsed() < START_DEADLINE {
            if let Some(status) = self.child.try_wait()? {
                bail!("vLLM exited with {status} before it was ready:\n{}", self.log_end());
            }
            if client.get(&url).send().await.is_ok_and(|answer| answer.status().is_success()) {
                println!("    vLLM      {} after {:.0} s", self.address, began.elapsed().as_secs_f64());
                return Ok(());
            }
            tokio::time::sleep(GLANCE).await;
        }
        bail!("vLLM was not ready after {START_DEADLINE:?}:\n{}", self.log_end())
    }

    fn log_end(&self) -> String {
        let file: PathBuf = self.folder.path().join("log");
        let log = std::fs::read_to_string(file).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines.get(lines.len().saturating_sub(30)..).unwrap_or_default().join("\n")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Nothing to be done about either: what cannot be ended has ended.
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// A process has the cores of the thread that started it, so one is made for that.
fn on_its_core<T: Send>(start: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let started = scope.spawn(|| {
            cores::only_that_of_the_engine()?;
            start()
        });
        started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// It cannot be told to take any and say which.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr())?.port())
}
