//! Programs of the package `lab`: what each needs before it can run, built by one invocation of cargo.

use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::workspace::Workspace;
use crate::{artefacts, command, tools, vllm};

/// A program of the lab.
pub struct Program {
    package: &'static str,
    name: &'static str,
    needs: &'static [Need],
}

/// Something that must be there before a program of the lab can run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Envoy and the other tools; the filter as released.
    Filter,
    /// The filter that fails on command.
    FaultyFilter,
    /// The modules that the filter is compared with.
    OtherFilters,
    /// worker-sim and the sidecar, as quick to build as it goes.
    Programs,
    /// The sidecar as released.
    ReleasedSidecar,
    /// A real vLLM.
    Vllm,
}

use Need::{FaultyFilter, Filter, OtherFilters, Programs, ReleasedSidecar, Vllm};

pub const DEMO: Program = Program::of("lab-demo", &[Filter, Programs]);
pub const CHAOS: Program = Program::of("lab-chaos", &[Filter, FaultyFilter, Programs]);
pub const SOAK: Program = Program::of("lab-soak", &[Filter, Programs]);
pub const OVERLOAD: Program = Program::of("lab-overload", &[Filter, Programs]);
pub const FILTER: Program = Program::of("lab-filter", &[Filter, OtherFilters]);
pub const SIDECAR: Program = Program::of("lab-sidecar", &[Filter, ReleasedSidecar]);
pub const VLLM: Program = Program::of("lab-vllm", &[Filter, ReleasedSidecar, Vllm]);
pub const VALIDATE: Program = Program::of("lab-validate", &[Filter]);
// Why a package of its own: with the simulation in it the core takes half as long again to compile.
pub const SIMULATE: Program = Program { package: "lab-simulate", name: "lab-simulate", needs: &[] };
pub const REFERENCE: Program = Program::of("lab-reference", &[]);

impl Program {
    const fn of(name: &'static str, needs: &'static [Need]) -> Self {
        Self { package: "lab", name, needs }
    }

    /// Installs and builds what the program needs, and runs it.
    ///
    /// # Errors
    /// When something cannot be had or does not build, and when the program fails.
    pub fn run(&self, workspace: &Workspace, arguments: &[String]) -> Result<()> {
        // Why: whoever asks what there is to ask for is not to wait for Envoy.
        if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
            self.build_natives(workspace, &[])?;
        } else {
            self.build(workspace)?;
        }
        self.run_built(workspace, arguments)
    }

    /// Installs and builds what the program needs.
    ///
    /// # Errors
    /// When something cannot be had or does not build.
    pub fn build(&self, workspace: &Workspace) -> Result<()> {
        if !self.needs.contains(&Filter) {
            return self.build_natives(workspace, self.needs);
        }
        // Why side by side: one of these waits for the network, one runs on one core for most of a minute, and cargo locks
        // another folder for each.
        thread::scope(|scope| {
            let others =
                [scope.spawn(|| modules(workspace, self.needs)), scope.spawn(|| tools::for_running(workspace))];
            let natives = self.build_natives(workspace, self.needs);
            let join = |other: thread::ScopedJoinHandle<'_, Result<()>>| {
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            others.into_iter().map(join).fold(natives, Result::and)
        })
    }

    /// Runs the program, which has been built, as has all that it needs.
    ///
    /// # Errors
    /// When the program fails.
    pub fn run_built(&self, workspace: &Workspace, arguments: &[String]) -> Result<()> {
        command::run(self.command(workspace).args(arguments))
    }

    /// The program, which has been built, before any arguments.
    pub fn command(&self, workspace: &Workspace) -> Command {
        let mut program = Command::new(workspace.built("debug", self.name));
        program.current_dir(&workspace.root);
        program
    }

    fn build_natives(&self, workspace: &Workspace, needs: &[Need]) -> Result<()> {
        let mut cargo = command::cargo("build", ["--package", self.package, "--bin", self.name]);
        if needs.contains(&Programs) {
            // Why without features: no Kubernetes is watched here, and what the sidecar needs for that takes as long to
            // compile as all the rest of it.
            cargo.args(["--package", "worker-sim", "--bin", "worker-sim", "--package", "host-sidecar"]);
            cargo.args(["--bin", "sluice-sidecar", "--no-default-features"]);
        }
        command::run(cargo.current_dir(&workspace.root))?;
        if needs.contains(&ReleasedSidecar) {
            artefacts::released_sidecar(workspace)?;
        }
        if needs.contains(&Vllm) { vllm::install(workspace) } else { Ok(()) }
    }
}

fn modules(workspace: &Workspace, needs: &[Need]) -> Result<()> {
    tools::for_build(workspace)?;
    artefacts::released_filter(workspace)?;
    if needs.contains(&FaultyFilter) {
        artefacts::faulty_filter(workspace)?;
    }
    if needs.contains(&OtherFilters) { artefacts::other_filters(workspace) } else { Ok(()) }
}

/// Measures estimates; a package of its own, since tokenizers take long to build, and optimised, since they take longer to
/// train.
pub fn estimate(workspace: &Workspace) -> Command {
    let mut cargo = command::cargo("run", ["--quiet", "--profile", "native", "--package", "lab-estimate", "--"]);
    cargo.current_dir(&workspace.root);
    cargo
}
