//! What the first bytes of a body tell of how it is written.

/// The first two bytes of a body, as far as they have come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beginning {
    bytes: [u8; 2],
    known: usize,
}

impl Beginning {
    /// Takes the next bytes of the body.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        let room = self.bytes.iter_mut().skip(self.known);
        self.known = room.zip(bytes).map(|(place, byte)| *place = *byte).count().saturating_add(self.known);
    }

    /// A JSON object begins so, or one behind a mark of the order of bytes in UTF-8.
    pub(super) fn opens(self) -> bool {
        let [first, _] = self.bytes;
        self.known > 0 && opens(first) || self.known == 2 && self.bytes == [0xef, 0xbb]
    }

    /// A JSON object may begin so, in whatever way its text is written. Nothing may become anything.
    pub(super) fn may_be_json(self) -> bool {
        let [first, _] = self.bytes;
        self.known == 0 || opens(first) || self.in_other_unicode()
    }

    /// JSON may begin so in UTF-16 or UTF-32, or behind a mark of the order of bytes: workers tell such text by its first bytes,
    /// and read it.
    pub(super) fn in_other_unicode(self) -> bool {
        let wide = match self.bytes {
            [0xef, 0xbb] | [0xfe, 0xff] | [0xff, 0xfe] | [0, 0] => true,
            [0, byte] | [byte, 0] => opens(byte),
            _ => false,
        };
        wide && self.known == 2
    }
}

/// An object, or what may stand before it.
const fn opens(byte: u8) -> bool {
    matches!(byte, b'{' | b' ' | b'\t' | b'\r' | b'\n')
}
