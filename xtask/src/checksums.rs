//! SHA-256 sums of what is shipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The file of sums, as `sha256sum --check` reads it.
const NAME: &str = "SHA256SUMS";

/// Of these bytes, in hexadecimal digits.
pub fn of(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Writes the sums of all files of a folder into that folder.
///
/// # Errors
/// When a file cannot be read or the sums cannot be written.
pub fn write(folder: &Path) -> Result<()> {
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name != NAME {
            let bytes = fs::read(entry.path()).with_context(|| format!("cannot read {}", entry.path().display()))?;
            sums.insert(name, of(&bytes));
        }
    }
    let lines: String = sums.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect();
    let file = folder.join(NAME);
    fs::write(&file, lines).with_context(|| format!("cannot write {}", file.display()))?;
    println!("    {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_every_file_but_themselves_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("b", "abc"), ("a", "")] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let expected = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n\
                        ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  b\n";
        for _ in 0..2 {
            write(folder.path()).unwrap();
            assert_eq!(fs::read_to_string(folder.path().join(NAME)).unwrap(), expected);
        }
    }
}
