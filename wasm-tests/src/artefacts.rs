//! Where `cargo xtask test` leaves what the tests need.

use std::path::{Path, PathBuf};

/// The filter as it is released.
#[must_use]
pub fn filter() -> PathBuf {
    existing("wasm/sluice.wasm")
}

/// The filter built with the feature `test-faults`.
#[must_use]
pub fn faulty_filter() -> PathBuf {
    existing("wasm/sluice-test-faults.wasm")
}

/// A part of another commit, as `cargo xtask neighbours` leaves it.
#[must_use]
pub fn neighbour(name: &str) -> PathBuf {
    existing(&format!("neighbour/{name}"))
}

/// The Envoy program.
#[must_use]
pub fn envoy() -> PathBuf {
    existing("tools/envoy")
}

/// Python with the packages of `cargo xtask tools`.
#[must_use]
pub fn python() -> PathBuf {
    // Not resolved: a virtual environment is known by the path of its Python.
    existing("tools/venv/bin").join("python")
}

fn existing(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(name);
    match path.canonicalize() {
        Ok(path) => path,
        Err(error) => panic!("{} is missing ({error}): run `cargo xtask test`, which makes it", path.display()),
    }
}
