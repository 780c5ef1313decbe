//! The injective encoding of names and parts, and the cut of long keys.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// What is percent-encoded besides `%`, control characters and bytes that are not UTF-8.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reserved {
    Controls,
    Braces,
    Part,
}

/// Which bytes stay, by [`Reserved`]. A table, because most requests encode a key.
static PLAIN: [[bool; 256]; 3] = [
    Reserved::Controls.plain(),
    Reserved::Braces.plain(),
    Reserved::Part.plain(),
];

impl Reserved {
    const fn plain(self) -> [bool; 256] {
        let mut plain = [false; 256];
        let mut byte = b' ';
        while byte <= b'~' {
            plain[byte as usize] = match byte {
                b'%' => false,
                b'{' | b'}' => matches!(self, Self::Controls),
                b':' => !matches!(self, Self::Part),
                _ => true,
            };
            byte += 1;
        }
        plain
    }

    /// Returns `true` for an ASCII byte that stays.
    fn keeps(self, byte: u8) -> bool {
        PLAIN[self as usize][usize::from(byte)]
    }

    fn holds(self, c: char) -> bool {
        match u8::try_from(c) {
            Ok(byte) if byte.is_ascii() => !self.keeps(byte),
            _ => c.is_control(),
        }
    }

    /// What comes before the first character that is encoded, that character, and what follows it.
    fn split(self, text: &str) -> Option<(&str, &str, &str)> {
        let at = text.find(|c| self.holds(c))?;
        let (plain, rest) = text.split_at(at);
        let end = rest.chars().next().map_or(0, char::len_utf8);
        let (escaped, rest) = rest.split_at(end);
        Some((plain, escaped, rest))
    }
}

/// Returns the text if it has nothing to encode, as most names have.
#[inline(always)]
pub(super) fn unchanged(bytes: &[u8], reserved: Reserved) -> Option<&str> {
    let is_plain = bytes.iter().all(|&byte| reserved.keeps(byte));
    is_plain.then(|| str::from_utf8(bytes).ok()).flatten()
}

pub(super) fn encode(bytes: &[u8], reserved: Reserved, out: &mut String) {
    if let Some(text) = unchanged(bytes, reserved) {
        out.push_str(text);
        return;
    }
    for chunk in bytes.utf8_chunks() {
        let mut text = chunk.valid();
        while let Some((plain, escaped, rest)) = reserved.split(text) {
            out.push_str(plain);
            escape_bytes(escaped.as_bytes(), out);
            text = rest;
        }
        out.push_str(text);
        escape_bytes(chunk.invalid(), out);
    }
}

fn escape_bytes(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        write!(out, "%{byte:02X}").expect("BUG: writing to a string cannot fail");
    }
}

/// Whether all braces come in closed, non-empty, unnested pairs. Only then do a key and its
/// Redisson channel hash to one slot of a Redis Cluster.
pub(super) fn are_hash_tags(name: &[u8]) -> bool {
    let mut opened_at = None;
    for (at, byte) in name.iter().enumerate() {
        match (byte, opened_at) {
            (b'{', None) => opened_at = Some(at),
            (b'}', Some(open)) if at > open + 1 => opened_at = None,
            (b'{' | b'}', _) => return false,
            _ => {}
        }
    }
    opened_at.is_none()
}

/// Cuts an encoded key to its bound: a readable prefix, then the SHA-256 of the whole.
///
/// `%#` joins them: in encoded text `%` is always followed by two hex digits, so no shorter key
/// can spell a cut one.
pub(super) fn cut(text: &mut String, max_len: usize) {
    const MARK: &str = "%#";
    const HEX_LEN: usize = 64;
    let digest = Sha256::digest(text.as_bytes());
    let mut end = max_len - MARK.len() - HEX_LEN;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
    for byte in digest {
        write!(text, "{byte:02x}").expect("BUG: writing to a string cannot fail");
    }
}
