//! Runs tests that were compiled to wasm32-unknown-unknown in Node: wasm-bindgen's own runner, as a program of this workspace.
//!
//! Why not `cargo install wasm-bindgen-cli`: the runner has to be of the very version that the tests are linked with, which
//! `Cargo.lock` says here, and its own lock file names packages that a registry need not have any more.

fn main() -> anyhow::Result<()> {
    wasm_bindgen_cli::wasm_bindgen_test_runner::run_cli_with_args(std::env::args_os())
}
