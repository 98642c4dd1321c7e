//! A configuration file that may change while the sidecar runs.

use std::path::{Path, PathBuf};

use super::Config;

/// A file and what was last read from it.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    seen: Option<Vec<u8>>,
    /// New content of the last look, which the next look confirms or replaces.
    unconfirmed: Option<Vec<u8>>,
}

impl ConfigFile {
    /// Nothing read yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: None, unconfirmed: None }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Every mistake in it, a line each, or why it cannot be read.
    pub fn load(&mut self) -> Result<Config, String> {
        let content = std::fs::read(&self.path);
        let loaded = content.as_ref().map_err(|error| format!("cannot read {}: {error}", self.path.display()));
        let loaded = loaded.and_then(|content| self.parse(content));
        self.seen = content.ok();
        loaded
    }

    /// Reads the file if its content has changed and two calls in a row have found the same. Contents are compared, since a
    /// time of change says nothing where a whole directory is exchanged, as a `ConfigMap` is. A file that has gone is no
    /// change: it may be on its way back.
    ///
    /// # Errors
    /// As [`Self::load`], once for each content.
    pub fn load_if_changed(&mut self) -> Option<Result<Config, String>> {
        let content = std::fs::read(&self.path).ok()?;
        if self.seen.as_ref() == Some(&content) {
            self.unconfirmed = None;
            return None;
        }
        // Why: most editors and `cp` empty a file before they write it, and the first lines of a configuration may well be a
        // valid one with half of the workers.
        if self.unconfirmed.as_ref() != Some(&content) {
            self.unconfirmed = Some(content);
            return None;
        }
        let loaded = self.parse(&content);
        self.seen = self.unconfirmed.take();
        Some(loaded)
    }

    /// Takes the content for new, changed or not.
    pub fn forget(&mut self) {
        self.seen = None;
    }

    fn parse(&self, content: &[u8]) -> Result<Config, String> {
        let text = std::str::from_utf8(content).map_err(|error| format!("{}: {error}", self.path.display()))?;
        Config::parse(text).map_err(|errors| {
            let lines: Vec<_> = errors.iter().map(|error| format!("{}: {error}", self.path.display())).collect();
            lines.join("\n")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "{proxies: [{url: 'http://p:1', token: t}], pools: [{name: a, workers: ['w:1']}]}";

    #[test]
    fn only_another_content_is_news_and_a_bad_one_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sidecar.yaml");
        std::fs::write(&path, GOOD).unwrap();
        let mut file = ConfigFile::new(&path);
        file.load().unwrap();
        assert!(file.load_if_changed().is_none());
        std::fs::write(&path, "{proxies: []}").unwrap();
        assert!(file.load_if_changed().is_none(), "it may not be written to its end");
        let problem = file.load_if_changed().unwrap().unwrap_err();
        assert!(problem.contains("sidecar.yaml: proxies: must not be empty"), "{problem}");
        assert!(problem.contains("sidecar.yaml: pools: missing"), "{problem}");
        assert!(file.load_if_changed().is_none(), "the same mistakes again");
        std::fs::remove_file(&path).unwrap();
        assert!(file.load_if_changed().is_none());
        std::fs::write(&path, GOOD).unwrap();
        assert!(file.load_if_changed().is_none());
        file.load_if_changed().unwrap().unwrap();
    }

    #[test]
    fn a_file_that_is_being_written_is_read_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sidecar.yaml");
        std::fs::write(&path, GOOD).unwrap();
        let mut file = ConfigFile::new(&path);
        file.load().unwrap();
        let whole = GOOD.replace("w:1", "w:2");
        for end in [0, whole.len() / 2, whole.len()] {
            std::fs::write(&path, &whole[..end]).unwrap();
            assert!(file.load_if_changed().is_none(), "at {end} bytes");
        }
        file.load_if_changed().unwrap().unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(file.load_if_changed().is_none());
        std::fs::write(&path, &whole).unwrap();
        assert!(file.load_if_changed().is_none(), "nothing has changed in the end");
        assert!(file.load_if_changed().is_none());
    }

    #[test]
    fn what_is_no_text_or_not_there_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sidecar.yaml");
        assert!(ConfigFile::new(&path).load().unwrap_err().contains("cannot read"));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(ConfigFile::new(&path).load().unwrap_err().contains("sidecar.yaml: invalid utf-8"));
    }
}
