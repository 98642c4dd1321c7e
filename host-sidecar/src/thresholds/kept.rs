//! Thresholds that were set at run time, as they are kept over a restart.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Override;

/// Thresholds by pool, as the file holds them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    pools: BTreeMap<String, Override>,
}

/// Error of a file of thresholds that cannot be read or written.
#[derive(Debug)]
pub struct NotKept {
    path: PathBuf,
    error: io::Error,
}

impl Kept {
    /// Reads a file; a file that does not exist yet holds nothing.
    ///
    /// # Errors
    /// It cannot be read, or is not what [`Self::with`] has written.
    pub fn read(path: &Path) -> Result<Self, NotKept> {
        let failed = |error| NotKept { path: path.to_owned(), error };
        match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Every pool with what was set.
    pub fn pools(&self) -> impl Iterator<Item = (&str, &Override)> {
        self.pools.iter().map(|(pool, over)| (pool.as_str(), over))
    }

    /// Writes these with those of other pools, in one step: a reader of the file finds the former or the latter.
    ///
    /// # Errors
    /// The file cannot be written; it is left as it was.
    pub fn with(&self, path: &Path, set: Vec<(String, Override)>) -> Result<Self, NotKept> {
        let failed = |error| NotKept { path: path.to_owned(), error };
        let mut next = self.clone();
        next.pools.extend(set);
        let bytes = serde_json::to_vec_pretty(&next).map_err(|error| failed(error.into()))?;
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        let write = || {
            let mut file = std::fs::File::create(&beside)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&beside, path)
        };
        write().map_err(failed)?;
        Ok(next)
    }
}

impl fmt::Display for NotKept {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.path.display(), self.error)
    }
}

impl std::error::Error for NotKept {}
