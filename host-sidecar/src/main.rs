//! Command line of the sidecar.
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, clippy::unreachable)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use clap::{Parser, Subcommand};
use host_sidecar::check::Totals;
use host_sidecar::config::ConfigFile;
use host_sidecar::{Config, Sidecar};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::MissedTickBehavior;
use tracing_subscriber::EnvFilter;

/// How often the configuration is looked at for changes; it is taken over at the second look that finds it.
const LOOK: Duration = Duration::from_secs(1);

/// Reads GPU workers and tells the proxies which are busy.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Scrape and push until told to stop. The configuration is read again when it changes, and on SIGHUP.
    Run {
        /// YAML or JSON.
        #[arg(long)]
        config: PathBuf,
        /// How the log is written, to standard error.
        #[arg(long, value_enum, default_value_t = LogFormat::Text)]
        log_format: LogFormat,
    },
    /// Say what is wrong in configurations of the filter, of the proxy around it and of the sidecar.
    Check {
        /// YAML or JSON, with one document or several.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the JSON Schema of a plugin configuration.
    Schema,
}

/// What is logged unless `RUST_LOG` says otherwise. The libraries of discovery report every attempt that fails; what matters
/// of it, discovery says itself, once.
const LOG: &str = "info,hickory_resolver=off,kube_client=off";

#[derive(Clone, Copy, clap::ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// An object a line.
    Json,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Run { config, log_format } => serve(&config, log_format).map(|()| ExitCode::SUCCESS),
        Command::Check { files } => check(&files),
        Command::Schema => print(&format!("{:#}\n", admission_core::config::schema())).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

/// Scrapes wait for many and do a little for each: threads would cost more in hand-overs than they gain. Pushes have a thread of
/// their own.
fn serve(path: &Path, format: LogFormat) -> Result<(), String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let done = runtime.block_on(run(path, format));
    // A look at a file or at the GPUs may hang in the system for ever. Nobody waits for it.
    runtime.shutdown_background();
    done
}

async fn run(path: &Path, format: LogFormat) -> Result<(), String> {
    log_as(format);
    raise_descriptor_limit();
    let on = |kind| signal(kind).map_err(|error| error.to_string());
    let (mut interrupted, mut terminated) = (on(SignalKind::interrupt())?, on(SignalKind::terminate())?);
    let mut hung_up = on(SignalKind::hangup())?;
    let mut file = ConfigFile::new(path);
    let mut sidecar = Sidecar::start(file.load()?).await.map_err(|error| error.to_string())?;
    print(&format!("listening on {}\n", sidecar.address()))?;
    let mut looks = tokio::time::interval(LOOK);
    // Why: a file is read once two looks agree. Looks made up for after a pause would agree on a half-written one.
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_problem = String::new();
    let (ask, mut reads) = reader(file)?;
    loop {
        let read = tokio::select! {
            _ = interrupted.recv() => break,
            _ = terminated.recv() => break,
            () = sidecar.broken() => return Err("a task has ended that never should".into()),
            _ = hung_up.recv() => {
                ask(Ask::Load);
                continue;
            }
            _ = looks.tick() => {
                ask(Ask::LoadIfChanged);
                continue;
            }
            Some(read) = reads.recv() => read,
        };
        let taken = match read {
            Ok(config) => sidecar.configure(config).map_err(|errors| {
                // A secret that it names may come a moment after it.
                ask(Ask::Forget);
                let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
                lines.join("\n")
            }),
            Err(problem) => {
                sidecar.refused_configuration();
                Err(problem)
            }
        };
        match taken {
            Ok(()) => last_problem.clear(),
            Err(problem) if problem == last_problem => {}
            Err(problem) => {
                tracing::error!(problem, "configuration refused; the one before stays");
                last_problem = problem;
            }
        }
    }
    tracing::info!("stopping");
    sidecar.stop().await;
    Ok(())
}

/// What a [`reader`] is asked for.
enum Ask {
    Load,
    LoadIfChanged,
    Forget,
}

/// What a configuration says, or every mistake in it.
type Read = Result<Config, String>;

/// Questions that wait while the file system hangs; there is nothing in more.
const MOST_ASKED: usize = 4;

/// Reads the configuration on a thread of its own: a file system may hang, and scrapes must go on.
fn reader(mut file: ConfigFile) -> Result<(impl Fn(Ask), UnboundedReceiver<Read>), String> {
    let (ask, asked) = sync_channel(MOST_ASKED);
    let (tell, told) = unbounded_channel();
    let read = move || {
        for ask in asked {
            let read = match ask {
                Ask::Load => Some(file.load()),
                Ask::LoadIfChanged => file.load_if_changed(),
                Ask::Forget => {
                    file.forget();
                    None
                }
            };
            if read.is_some_and(|read| tell.send(read).is_err()) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("configuration".into()).spawn(read);
    thread.map_err(|error| format!("cannot start the thread that reads the configuration: {error}"))?;
    Ok((move |asked| drop(ask.try_send(asked)), told))
}

/// What is logged is chosen by `RUST_LOG`.
fn log_as(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Each connection to a worker takes a descriptor, and of those a program has 1,024 on many systems unless it asks for all
/// that it may have.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, current = limit.current, "the limit of open descriptors stays as it is");
    }
}

/// Fails when there is a mistake in one of the files.
fn check(files: &[PathBuf]) -> Result<ExitCode, String> {
    let mut out = String::new();
    let mut totals = Totals::default();
    let read: Vec<_> = files.iter().map(std::fs::read_to_string).collect();
    let texts: Vec<&str> = read.iter().flatten().map(String::as_str).collect();
    // A token that is kept where the sidecar runs cannot be read here, which is no mistake.
    let mut reports = host_sidecar::check::files(&texts, &|token| token.read().ok()).into_iter();
    for (file, read) in files.iter().zip(&read) {
        let name = file.display().to_string();
        match read {
            Ok(_) => {
                let report = reports.next().unwrap_or_default();
                report.lines(&name).for_each(|line| out.extend([line.as_str(), "\n"]));
                totals.add(&report);
            }
            Err(error) => {
                out.extend([name.as_str(), ": cannot be read: ", &error.to_string(), "\n"]);
                totals.unreadable();
            }
        }
    }
    print(&format!("{out}{totals}\n"))?;
    Ok(if totals.errors == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(text: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| format!("cannot write to standard output: {error}"))
}
