//! Everything that runs, and carrying out what the script says.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::relay::Relay;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::callers::{BOUND, Door};
use super::history::{Fence, History, Incident, Kind, Life, SLACK, Standing};
use super::members::Members;
use super::policy::{Draw, FULL_WORKER, VIEW_HOLD};
use super::proxy::{Proxy, Setup, THREADS};
use super::script::{Act, Code, SidecarTrouble, Trouble, WORKERS, What};
use super::workers::Seat;
use testkit::parts::{self, POOL, Program, Programs, TOKEN};
use testkit::shipped;
use testkit::state_page::{self, held_and_waiting, nothing_is_held};

/// Between two looks at what runs.
const LOOK: Duration = Duration::from_millis(500);

/// State pages that are kept.
const PAGES: usize = 2_000;

/// Longest time until nothing is held once nobody asks.
const PATIENCE: Duration = Duration::from_secs(30);

/// Age of a proxy from which its memory is compared: its first connections and buffers stand.
const WARM: Duration = Duration::from_secs(6);

const MIB: f64 = 1024.0 * 1024.0;

/// Everything that runs. All ends when this is dropped.
pub struct Stage {
    pub clock: Instant,
    pub history: History,
    pub seats: Vec<Seat>,
    /// The last state pages, and when they were taken.
    pub pages: VecDeque<(Duration, Value)>,
    pub door: watch::Sender<Door>,
    client: reqwest::Client,
    programs: Programs,
    setup: Setup,
    proxy: Proxy,
    /// Proxies that end when their last request has, by their number.
    retiring: JoinSet<Result<(usize, Life)>>,
    relay: Relay,
    sidecar: Option<Program>,
    troubled: Option<SidecarTrouble>,
    draw: Draw,
    code: Code,
    birth: Birth,
    samples: Vec<Sample>,
    members: Members,
    folder: TempDir,
}

/// Of the proxy that runs.
#[derive(Clone, Copy)]
struct Birth {
    at: Duration,
    code: Code,
}

/// The memory of the proxy that runs.
#[derive(Clone, Copy, Debug)]
struct Sample {
    life: usize,
    at: Duration,
    vms: u64,
    bytes: u64,
}

/// What is left when all is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rest {
    pub held: u64,
    pub waiting: u64,
    /// Requests that proxies still have in hand.
    pub in_hand: u64,
    /// VMs beyond those it had when it was warm.
    pub more_vms: u64,
    /// The last proxy's memory after its first seconds, and at the end with the build it began with.
    pub rss_mib: (f64, f64),
}

impl Stage {
    /// Starts everything; requests can be sent when this returns.
    ///
    /// # Errors
    /// What does not start.
    pub async fn start(programs: &Programs, trapping: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("sluice-chaos-").tempdir()?;
        let client = testkit::envoy::direct_client()?;
        let clock = Instant::now();
        let mut seats = Vec::new();
        for number in 0..WORKERS {
            seats.push(Seat::start(number, clock).await?);
        }
        let workers: Vec<_> = seats.iter().map(Seat::address).collect();
        let mut setup = Setup::new(programs, trapping, &workers, folder.path())?;
        let (draw, code) = (Draw::first(), Code::Trapping);
        setup.write(code, &draw.policy().to_string(), draw.header_pause())?;
        let proxy = setup.start(&programs.envoy, 0, WORKERS).await?;
        let relay = Relay::start(proxy.control).await?;
        let door = watch::Sender::new(Door { life: 0, address: proxy.address });
        let standing = Standing { draw: draw.clone(), written: Duration::ZERO, sure: Duration::ZERO, life: 0 };
        let history = History { policies: vec![standing], lives: vec![Life::default()], ..History::default() };
        let birth = Birth { at: clock.elapsed(), code };
        let mut stage = Self {
            clock,
            history,
            seats,
            pages: VecDeque::new(),
            door,
            client,
            programs: programs.clone(),
            setup,
            proxy,
            retiring: JoinSet::new(),
            relay,
            sidecar: None,
            troubled: None,
            draw,
            code,
            birth,
            samples: Vec::new(),
            members: Members::default(),
            folder,
        };
        stage.write_sidecar_config(TOKEN)?;
        stage.start_sidecar().await?;
        Ok(stage)
    }

    /// Carries out a script, each act at its time or as soon as those before it are done, and looks at everything meanwhile.
    ///
    /// # Errors
    /// What could not be carried out.
    pub async fn play(&mut self, acts: &[Act], begin: Instant, end: Duration) -> Result<()> {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for act in acts {
            self.look_until(begin + act.at, &mut looks).await?;
            println!("    {:>6.1} s  {}", self.clock.elapsed().as_secs_f64(), act.what);
            self.perform(&act.what).await.with_context(|| format!("{} (at {:?})", act.what, self.clock.elapsed()))?;
        }
        self.look_until(begin + end, &mut looks).await
    }

    async fn look_until(&mut self, at: Instant, looks: &mut tokio::time::Interval) -> Result<()> {
        loop {
            tokio::select! {
                () = sleep_until(at) => return Ok(()),
                _ = looks.tick() => self.look().await?,
            }
        }
    }

    async fn look(&mut self) -> Result<()> {
        self.seats.iter_mut().try_for_each(Seat::look)?;
        let at = self.clock.elapsed();
        let (vms, bytes) = (self.proxy.vms().await?, self.proxy.envoy.resident_bytes()?);
        self.samples.push(Sample { life: self.proxy.life, at, vms, bytes });
        self.proxy.count().await?;
        // There is none for a moment after a trap.
        if let Ok(page) = state_page::fetch(&self.client, self.proxy.control).await {
            let age = page["pools"][POOL]["view"]["age_ms"].as_u64().map(Duration::from_millis);
            if let Some((age, left)) = age.and_then(|age| Some((age, VIEW_HOLD.checked_sub(age)?))) {
                // Why not from before the page was asked for: the view may have come since.
                self.history.saw_view(self.proxy.life, self.clock.elapsed().saturating_sub(age), at + left);
            }
            if self.members.look(&page) {
                let from = self.pages.back().map_or(Duration::ZERO, |(last, _)| last.saturating_sub(SLACK));
                self.history.fences.push(Fence { life: self.proxy.life, from, until: at + SLACK });
            }
            if self.pages.len() == PAGES {
                self.pages.pop_front();
            }
            self.pages.push_back((at, page));
        }
        while let Some(ended) = self.retiring.try_join_next() {
            let (number, life) = ended.context("a task broke down")??;
            self.history.lives[number] = life;
        }
        Ok(())
    }

    async fn perform(&mut self, what: &What) -> Result<()> {
        match what {
            What::Trouble(number, trouble) => self.trouble(*number, *trouble).await,
            What::Well(number) => self.well(*number).await,
            What::Sidecar(trouble) => self.trouble_sidecar(*trouble),
            What::SidecarWell => self.sidecar_well().await,
            What::Policy(draw) => self.change(self.code, draw.clone()).await,
            What::Mistake(mistake) => {
                let before = self.proxy.versions().await?;
                self.setup.write(self.code, &self.draw.mistaken(*mistake), self.draw.header_pause())?;
                self.proxy.until_taken(before, true).await?;
                // Who starts now must find a good one.
                self.change(self.code, self.draw.clone()).await
            }
            What::Code(code) => self.change(*code, self.draw.clone()).await,
            What::Trap => self.trap().await,
            What::Kill => self.kill().await,
            What::Replace => self.replace().await,
        }
    }

    async fn trouble(&mut self, number: usize, trouble: Trouble) -> Result<()> {
        let (kind, life, from) = (Kind::Worker(number), self.proxy.life, self.clock.elapsed());
        self.history.incidents.push(Incident { kind, life, from, until: Duration::MAX });
        self.seats[number].trouble(trouble).await
    }

    async fn well(&mut self, number: usize) -> Result<()> {
        self.seats[number].well().await?;
        let now = self.clock.elapsed();
        let open = |incident: &&mut Incident| incident.kind == Kind::Worker(number);
        if let Some(incident) = self.history.incidents.iter_mut().rev().find(open) {
            incident.until = incident.until.min(now);
        }
        Ok(())
    }

    fn trouble_sidecar(&mut self, trouble: SidecarTrouble) -> Result<()> {
        self.troubled = Some(trouble);
        match trouble {
            SidecarTrouble::Killed => self.sidecar = None,
            SidecarTrouble::Paused => self.signal_sidecar(Signal::STOP)?,
            SidecarTrouble::Partitioned => self.relay.set_cut(true),
            SidecarTrouble::WrongToken => {
                self.write_sidecar_config("wrong")?;
                self.signal_sidecar(Signal::HUP)?;
            }
        }
        Ok(())
    }

    async fn sidecar_well(&mut self) -> Result<()> {
        match self.troubled.take() {
            Some(SidecarTrouble::Killed) => self.start_sidecar().await,
            Some(SidecarTrouble::Paused) => self.signal_sidecar(Signal::CONT),
            Some(SidecarTrouble::Partitioned) => {
                self.relay.set_cut(false);
                Ok(())
            }
            Some(SidecarTrouble::WrongToken) => {
                self.write_sidecar_config(TOKEN)?;
                self.signal_sidecar(Signal::HUP)
            }
            None => Ok(()),
        }
    }

    fn signal_sidecar(&self, signal: Signal) -> Result<()> {
        let id = self.sidecar.as_ref().context("no sidecar runs")?.id()?;
        let pid = Pid::from_raw(i32::try_from(id)?).context("no process")?;
        kill_process(pid, signal).context("cannot signal the sidecar")
    }

    fn sidecar_file(&self) -> PathBuf {
        self.folder.path().join("sidecar.json")
    }

    fn write_sidecar_config(&self, token: &str) -> Result<()> {
        let workers: Vec<_> = self.seats.iter().map(Seat::address).collect();
        let mut config = parts::sidecar_config(&self.programs.sidecar_config, self.relay.address(), &workers)?;
        config["proxies"][0]["token"] = token.into();
        let detector = json!({"detector": "concurrency", "mode": "requests", "max_concurrency": FULL_WORKER});
        shipped::named(&mut config["pools"], POOL)?["saturation"] = detector;
        std::fs::write(self.sidecar_file(), config.to_string()).context("cannot write the sidecar's configuration")
    }

    async fn start_sidecar(&mut self) -> Result<()> {
        let (file, log) = (self.sidecar_file(), self.folder.path().join("sidecar.log"));
        let file = file.to_str().context("the temporary folder has a name that is not UTF-8")?;
        self.sidecar = Some(Program::start(&self.programs.sidecar, &["run", "--config", file], &log).await?);
        Ok(())
    }

    /// Changes to another policy or build, and notes from when on everybody follows it.
    async fn change(&mut self, code: Code, draw: Draw) -> Result<()> {
        let before = self.proxy.versions().await?;
        let written = self.clock.elapsed();
        if code != self.code {
            self.history.swaps.push((self.proxy.life, written));
            self.members.expect(u64::from(THREADS));
        }
        let mut policy = draw.policy();
        // The proxy passes over a version that says what the last one said.
        let longest = 30 + self.history.policies.len();
        policy["reject"] = json!({"retry_after": {"max": format!("{longest}s")}});
        self.setup.write(code, &policy.to_string(), draw.header_pause())?;
        self.proxy.until_taken(before, false).await?;
        let sure = self.clock.elapsed() + SLACK;
        self.history.policies.push(Standing { draw: draw.clone(), written, sure, life: self.proxy.life });
        (self.code, self.draw) = (code, draw);
        Ok(())
    }

    async fn trap(&mut self) -> Result<()> {
        let life = self.proxy.life;
        let from = self.clock.elapsed();
        self.history.lives[life].traps += 1;
        self.members.expect(1);
        let request = self.client.post(format!("http://{}/v1/chat/completions", self.proxy.address));
        // On a connection of its own, which may be any thread's; what becomes of it is not asked.
        let request = request.header("x-sluice-test-fault", "trap").header("connection", "close").body("{}");
        let _ = request.timeout(PATIENCE).send().await;
        self.history.incidents.push(Incident { kind: Kind::Trap, life, from, until: self.clock.elapsed() });
        Ok(())
    }

    async fn kill(&mut self) -> Result<()> {
        let life = self.proxy.life;
        let counted = self.proxy.count().await?.clone();
        let from = self.clock.elapsed();
        self.proxy.envoy.kill().await?;
        let log_end = self.proxy.envoy.log_end();
        // It gets ports of its own, so that nobody who asks the one that is gone reaches the other.
        self.proxy = self.setup.start(&self.programs.envoy, life + 1, self.up()).await?;
        self.take_over();
        let traps = self.history.lives[life].traps;
        self.history.lives[life] = Life { counted, killed: true, traps, log_end };
        self.history.incidents.push(Incident { kind: Kind::Kill, life, from, until: self.clock.elapsed() });
        Ok(())
    }

    async fn replace(&mut self) -> Result<()> {
        let next = self.setup.start(&self.programs.envoy, self.proxy.life + 1, self.up()).await?;
        let former = std::mem::replace(&mut self.proxy, next);
        self.take_over();
        let traps = self.history.lives[former.life].traps;
        self.retiring.spawn(retire(former, traps));
        Ok(())
    }

    /// Workers that are not killed at present.
    fn up(&self) -> usize {
        self.seats.iter().filter(|seat| seat.is_up()).count()
    }

    /// Leads everybody to the proxy that has just been started.
    fn take_over(&mut self) {
        let Proxy { life, address, control, .. } = self.proxy;
        self.door.send_replace(Door { life, address });
        self.relay.lead_to(control);
        self.history.lives.push(Life::default());
        self.members = Members::default();
        self.birth = Birth { at: self.clock.elapsed(), code: self.code };
    }

    /// Ends all troubles, waits until nothing is held, and says what is left.
    ///
    /// # Errors
    /// When something does not answer any more.
    pub async fn settle(&mut self) -> Result<Rest> {
        for number in 0..self.seats.len() {
            self.well(number).await?;
        }
        self.sidecar_well().await?;
        // As when the proxy was started, so that its memory can be compared.
        self.change(self.birth.code, Draw::first()).await?;
        let deadline = Instant::now() + PATIENCE;
        let rest = loop {
            self.look().await?;
            let rest = self.rest().await?;
            let done = (rest.held, rest.waiting, rest.in_hand, rest.more_vms) == (0, 0, 0, 0);
            if (done && self.retiring.is_empty()) || Instant::now() > deadline {
                break rest;
            }
            sleep(LOOK).await;
        };
        while let Some(ended) = self.retiring.join_next().await {
            let (number, life) = ended.context("a task broke down")??;
            self.history.lives[number] = life;
        }
        // What was counted last becomes the proxy's with the next tick.
        sleep(SLACK).await;
        let life = self.proxy.life;
        self.history.lives[life].counted = self.proxy.count().await?.clone();
        self.history.lives[life].log_end = self.proxy.envoy.log_end();
        Ok(rest)
    }

    /// The last proxy's VMs and memory, as time went on.
    pub fn memory_log(&self) -> String {
        let own = self.samples.iter().filter(|sample| sample.life == self.proxy.life);
        let shown = own.map(|Sample { at, vms, bytes, .. }| {
            format!("{:.1} s: {vms} VMs, {:.1} MiB", at.as_secs_f64(), *bytes as f64 / MIB)
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    /// The last lines that the proxy has logged.
    pub fn log_end(&self) -> String {
        self.proxy.envoy.log_end()
    }

    async fn rest(&self) -> Result<Rest> {
        let page = state_page::fetch(&self.client, self.proxy.control).await?;
        let (held, waiting) = held_and_waiting(&page);
        let held = if held == 0 && !nothing_is_held(&page) { 1 } else { held };
        let (in_hand, vms, warm) = (self.proxy.in_hand().await?, self.proxy.vms().await?, self.warm()?);
        let rss_mib = (warm.bytes as f64 / MIB, self.proxy.envoy.resident_bytes()? as f64 / MIB);
        // A VM that has trapped, and one of a build that has gone, is kept until its thread has something to do for the filter again.
        let more_vms = vms.saturating_sub(warm.vms + 2 * u64::from(THREADS));
        Ok(Rest { held, waiting, in_hand, more_vms, rss_mib })
    }

    /// The proxy's memory once it was warm.
    fn warm(&self) -> Result<Sample> {
        let own = |sample: &&Sample| sample.life == self.proxy.life && sample.at >= self.birth.at + WARM;
        self.samples.iter().find(own).copied().context("the last proxy's memory was never taken")
    }
}

/// Waits until a proxy that gets no more requests has none, and ends it.
async fn retire(mut proxy: Proxy, traps: u64) -> Result<(usize, Life)> {
    // Who has just asked for its address is not yet in it.
    sleep(SLACK).await;
    let deadline = Instant::now() + BOUND + SLACK;
    while proxy.in_hand().await? > 0 {
        proxy.count().await?;
        ensure!(Instant::now() < deadline, "a proxy that gets no more requests still has some");
        sleep(LOOK).await;
    }
    sleep(SLACK).await;
    let (counted, log_end) = (proxy.count().await?.clone(), proxy.envoy.log_end());
    let life = proxy.life;
    proxy.envoy.stop().await?;
    Ok((life, Life { counted, killed: false, traps, log_end }))
}
