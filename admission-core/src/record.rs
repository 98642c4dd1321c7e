//! Bytes of a shared record.
//!
//! A record is a list of sections: tag, length, bytes. A build keeps the sections it does not know and writes them back,
//! so an older module beside a newer one loses nothing of it. A change that an older module would misread changes the
//! prefix of the keys instead ([`crate::keys`]).

/// A value that lives in shared data.
pub trait Record: Default {
    /// To bytes.
    fn encode(&self) -> Vec<u8>;
    /// From bytes; `None` when they are not of this kind.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// Sections as they came, kept to be written back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections(Vec<u8>);

impl Sections {
    /// Hands each section to `take`, which returns whether it knew the tag, or `None` when the bytes are not its kind.
    /// Returns those that nobody knew.
    pub fn read(mut bytes: &[u8], mut take: impl FnMut(u8, Reader<'_>) -> Option<bool>) -> Option<Self> {
        let mut unknown = Self::default();
        while let Some((&tag, rest)) = bytes.split_first() {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let (section, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
            if !take(tag, Reader(section))? {
                unknown.0.push(tag);
                unknown.0.extend_from_slice(length);
                unknown.0.extend_from_slice(section);
            }
            bytes = rest;
        }
        Some(unknown)
    }
}

/// Takes fixed-width little-endian numbers off a section.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Of bytes that are no section.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// All that is left, as it is.
    #[must_use]
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Nothing is left.
    #[must_use]
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// So many bytes as they are; `None` past the end.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    /// One byte; `None` past the end.
    #[inline(always)]
    pub fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    /// Two bytes; `None` past the end.
    #[inline(always)]
    pub fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    /// Four bytes; `None` past the end.
    #[inline(always)]
    pub fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// Eight bytes; `None` past the end.
    #[inline(always)]
    pub fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }
}

/// Builds the bytes of a record.
pub struct Writer(Vec<u8>);

impl Default for Writer {
    /// With room for most records, so that few of them grow while they are written.
    fn default() -> Self {
        const ROOM: usize = 512;
        Self(Vec::with_capacity(ROOM))
    }
}

impl Writer {
    /// Appends a section; one that stays empty is left out.
    #[inline(always)]
    pub fn section(&mut self, tag: u8, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend_from_slice(&[tag, 0, 0, 0, 0]);
        let body = self.0.len();
        fill(self);
        let length = u32::try_from(self.0.len().saturating_sub(body)).unwrap_or(u32::MAX);
        if length == 0 {
            self.0.truncate(start);
        } else if let Some(place) = self.0.get_mut(start.saturating_add(1)..body) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// Bytes as they are.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Two bytes.
    #[inline(always)]
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Four bytes.
    #[inline(always)]
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Eight bytes.
    #[inline(always)]
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// The record, with the sections that were read but not known.
    #[must_use]
    pub fn finish(mut self, unknown: &Sections) -> Vec<u8> {
        self.0.extend_from_slice(&unknown.0);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_first(bytes: &[u8]) -> Option<(Vec<u64>, Sections)> {
        let mut known = Vec::new();
        let unknown = Sections::read(bytes, |tag, mut reader| {
            while tag == 1 && !reader.is_empty() {
                known.push(reader.u64()?);
            }
            Some(tag == 1)
        })?;
        Some((known, unknown))
    }

    #[test]
    fn unknown_sections_are_kept() {
        let mut writer = Writer::default();
        writer.section(1, |out| out.u64(11));
        writer.section(9, |out| out.u16(99));
        writer.section(2, |_| ());
        let bytes = writer.finish(&Sections::default());
        let (known, unknown) = read_first(&bytes).unwrap();
        assert_eq!(known, [11]);
        let mut again = Writer::default();
        again.section(1, |out| out.u64(11));
        assert_eq!(again.finish(&unknown), bytes);
    }

    #[test]
    fn cut_or_foreign_bytes_are_refused() {
        let mut writer = Writer::default();
        writer.section(1, |out| out.u64(11));
        let bytes = writer.finish(&Sections::default());
        for length in 1..bytes.len() {
            assert_eq!(read_first(&bytes[..length]), None, "cut to {length}");
        }
        assert_eq!(read_first(b"{\"a\":1}"), None);
        assert_eq!(read_first(&[]), Some((vec![], Sections::default())));
    }
}
