//! Texts by kind, cut into blocks: files under lab/texts, and what is made up beside them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::made_up;

/// Least bytes of a block; it ends with the line.
const BLOCK: usize = 700;

/// Kinds that figures are promised for, in the order of tables. Chats are made of the others.
pub const GATED: [&str; 5] = ["english", "code", "json", "chinese", "chat"];

/// Kinds that figures are reported for.
pub const REPORTED: [&str; 14] = [
    "european", "russian", "arabic", "hindi", "japanese", "korean", "emoji", "logs", "base64", "rare", "control",
    "short", LONG, LONG_WHOLE,
];

/// Long chats, counted by samples as the filter does.
pub const LONG: &str = "long";

/// The same chats with every byte counted.
pub const LONG_WHOLE: &str = "long, whole";

/// Texts that weights are fitted to, and texts they are tested with: other files, never the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// To fit weights to.
    Fit,
    /// To test them with.
    Test,
}

/// A text of a kind.
pub struct Text {
    /// Which kind.
    pub kind: &'static str,
    /// In blocks that begin and end with lines.
    pub blocks: Vec<String>,
    whole: String,
}

impl Text {
    /// Cuts a text into blocks.
    pub fn new(kind: &'static str, whole: String) -> Self {
        let mut blocks = vec![String::new()];
        for line in whole.split_inclusive('\n') {
            match blocks.last_mut() {
                Some(block) if block.len() < BLOCK => block.push_str(line),
                _ => blocks.push(line.to_owned()),
            }
        }
        Self { kind, blocks, whole }
    }

    /// As it was before it was cut.
    pub fn whole(&self) -> &str {
        &self.whole
    }
}

/// All texts of a half, in an order that does not change.
///
/// # Errors
/// A file cannot be read.
pub fn read(half: Half) -> Result<Vec<Text>> {
    let mut texts = Vec::new();
    for kind in GATED.into_iter().chain(REPORTED) {
        for file in files(half, kind)? {
            let whole = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            texts.push(Text::new(kind, whole));
        }
    }
    texts.extend(made_up::texts(half));
    Ok(texts)
}

fn files(half: Half, kind: &str) -> Result<Vec<PathBuf>> {
    let half = match half {
        Half::Fit => "fit",
        Half::Test => "test",
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../texts").join(half).join(kind);
    if !folder.exists() {
        return Ok(Vec::new());
    }
    let listed = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = listed.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}
