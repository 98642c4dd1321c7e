//! The tracked files.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A tracked file of text.
pub struct File {
    /// Path from the root of the repository, with forward slashes.
    pub path: String,
    /// Text of the file; empty for one that is not UTF-8, such as an archive.
    pub text: String,
}

impl File {
    /// Lines with their numbers, from 1 on.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    pub fn is(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, found)| found == extension)
    }

    /// Returns whether a tool wrote the file, or it is a text of others that is kept as a sample.
    pub fn is_foreign(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        matches!(name, "Cargo.lock" | "package-lock.json") || (self.path.contains("/texts/") && !self.is("md"))
    }
}

pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs git in the repository.
pub fn git(arguments: &[&str]) -> Output {
    Command::new("git").args(arguments).current_dir(root()).output().expect("git is needed to list the files")
}

/// All tracked files that exist in the working tree.
pub fn tracked() -> Vec<File> {
    let listed = git(&["ls-files", "-z"]);
    assert!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let paths = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let paths = paths.split('\0').filter(|path| !path.is_empty());
    let files = paths.filter_map(|path| {
        let bytes = fs::read(root().join(path)).ok()?;
        Some(File { path: path.to_owned(), text: String::from_utf8(bytes).unwrap_or_default() })
    });
    let files: Vec<_> = files.collect();
    assert!(files.len() > 100, "only {} tracked files", files.len());
    files
}

/// A file for tests of the rules.
#[cfg(test)]
pub fn file(path: &str, text: &str) -> File {
    File { path: path.to_owned(), text: text.to_owned() }
}
