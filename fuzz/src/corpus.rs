//! Committed corpora, each packed as one archive `fuzz/corpus/<target>.tar.gz`.
//!
//! An archive depends on nothing but the names and contents of its inputs: they are sorted by name, owners and times are
//! zero. So the same inputs always give the same file, and a changed file means changed inputs.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use tar::{Archive, Builder, EntryType, Header};

/// Inputs by name.
pub type Inputs = BTreeMap<String, Vec<u8>>;

/// Permissions that `tar` gives an unpacked input.
const MODE: u32 = 0o644;

/// Path of a target's archive in a checkout.
#[must_use]
pub fn archive(root: &Path, target: &str) -> PathBuf {
    root.join(format!("fuzz/corpus/{target}.tar.gz"))
}

/// Reads a target's archive.
///
/// # Errors
/// The file cannot be read or is no archive of plain files; the error names it.
pub fn read(root: &Path, target: &str) -> io::Result<Inputs> {
    let path = archive(root, target);
    let read = fs::read(&path).and_then(|bytes| unpacked(&bytes));
    read.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

/// Writes a target's archive.
///
/// # Errors
/// A name is too long for an archive, or the file cannot be written.
pub fn write(root: &Path, target: &str, inputs: &Inputs) -> io::Result<()> {
    fs::write(archive(root, target), packed(inputs)?)
}

/// Packs inputs; the same inputs give the same bytes.
///
/// ```
/// let inputs = [("empty-list".to_owned(), b"[]".to_vec())].into();
/// let archive = fuzz::corpus::packed(&inputs).unwrap();
/// assert_eq!(fuzz::corpus::unpacked(&archive).unwrap(), inputs);
/// ```
///
/// # Errors
/// A name is longer than the 100 bytes of a plain header.
pub fn packed(inputs: &Inputs) -> io::Result<Vec<u8>> {
    let zip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    let mut archive = Builder::new(zip);
    for (name, input) in inputs {
        let mut header = Header::new_ustar();
        header.set_path(name)?;
        header.set_entry_type(EntryType::Regular);
        header.set_size(input.len() as u64);
        header.set_mode(MODE);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_cksum();
        archive.append(&header, input.as_slice())?;
    }
    archive.into_inner()?.finish()
}

/// Unpacks an archive in memory.
///
/// # Errors
/// The bytes are no archive, or it holds something else than plain files beside each other.
pub fn unpacked(archive: &[u8]) -> io::Result<Inputs> {
    let mut inputs = Inputs::new();
    for entry in Archive::new(GzDecoder::new(archive)).entries()? {
        let mut entry = entry?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        // Why: an input's name becomes a file's name when the corpus is unpacked to disk.
        if entry.header().entry_type() != EntryType::Regular || name.contains('/') {
            return Err(io::Error::other(format!("{name:?} is not a plain file at the top of the archive")));
        }
        let mut input = Vec::new();
        entry.read_to_end(&mut input)?;
        inputs.insert(name, input);
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::{Inputs, packed, unpacked};

    fn inputs() -> Inputs {
        let inputs = [("b", &b"\0\xFF"[..]), ("a", b""), ("long", &[7; 5_000])];
        inputs.map(|(name, input)| (name.to_owned(), input.to_vec())).into()
    }

    #[test]
    fn unpacking_returns_the_packed_inputs() {
        assert_eq!(unpacked(&packed(&inputs()).unwrap()).unwrap(), inputs());
    }

    #[test]
    fn the_header_of_an_archive_holds_no_time_and_no_name() {
        let archive = packed(&inputs()).unwrap();
        // Magic number, method, flags, four bytes of time.
        assert_eq!(archive[..8], [0x1F, 0x8B, 8, 0, 0, 0, 0, 0]);
        assert_eq!(archive, packed(&inputs()).unwrap());
    }

    #[test]
    fn damaged_archives_and_names_with_folders_are_errors() {
        assert!(unpacked(b"no archive").is_err());
        let archive = packed(&inputs()).unwrap();
        assert!(unpacked(&archive[..archive.len() / 2]).is_err());
        let nested = [("../outside".to_owned(), Vec::new())].into();
        assert!(packed(&nested).and_then(|archive| unpacked(&archive)).is_err());
    }
}
