//! The text of JSON, read from left to right. Nothing here is compiled for each type, but for what is said to be.

use std::borrow::Cow;
use std::fmt::Display;

use serde::de::{DeserializeOwned, Error as _};

use super::{Fields, Read};

/// Made with its place in the text.
pub type Error = serde_json::Error;

type Result<T> = std::result::Result<T, Error>;

/// So deep may values lie in each other, as with serde: a hostile text does not exhaust the stack.
const MAX_DEPTH: u8 = 127;

/// What is read takes at most so many bytes, and so many more for each byte of its text: `{}` is a structure of kilobytes.
const ROOM: usize = 64 << 20;
const ROOM_PER_BYTE: usize = 64;

const CONTROL_CHARACTER: &str = "control character (\\u0000-\\u001F) found while parsing a string";

/// A text, and how far it has been read.
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: u8,
    /// How much more may be read, in bytes of memory.
    room: usize,
    is_to_keep: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let room = text.len().saturating_mul(ROOM_PER_BYTE).saturating_add(ROOM);
        Self { text, at: 0, depth: 0, room, is_to_keep: false }
    }

    /// What is read is kept for long, perhaps thousands of times: lists are to have no room to spare.
    pub fn to_keep(&mut self) {
        self.is_to_keep = true;
    }

    #[inline]
    pub(super) fn is_to_keep(&self) -> bool {
        self.is_to_keep
    }

    /// What comes next takes at most so many bytes of memory. Returns how many it may take, which may be fewer.
    pub fn bound(&mut self, most: usize) -> usize {
        self.room = self.room.min(most);
        self.room
    }

    /// How many more bytes of memory may be taken; none after something was too large.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Takes memory for what comes next, where a text may have that many times.
    #[inline]
    pub(super) fn take(&mut self, size: usize) -> Result<()> {
        match self.room.checked_sub(size) {
            Some(room) => {
                self.room = room;
                Ok(())
            }
            None => {
                self.room = 0;
                Err(self.error("the object would be too large in memory"))
            }
        }
    }

    /// How the next value begins.
    #[inline]
    pub(super) fn next(&mut self) -> Option<u8> {
        loop {
            match self.text.as_bytes().get(self.at) {
                Some(b' ' | b'\n' | b'\t' | b'\r') => self.at += 1,
                next => return next.copied(),
            }
        }
    }

    /// Nothing comes any more.
    pub(super) fn end(&mut self) -> Result<()> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(self.error("trailing characters")),
        }
    }

    /// Passes over `null`, if that is what comes.
    #[inline]
    pub fn is_null(&mut self) -> Result<bool> {
        if self.next() != Some(b'n') {
            return Ok(false);
        }
        self.word("null").map(|()| true)
    }

    fn word(&mut self, word: &str) -> Result<()> {
        if !self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(self.error("expected ident"));
        }
        self.at += word.len();
        Ok(())
    }

    pub(super) fn bool(&mut self) -> Result<bool> {
        match self.next() {
            Some(b't') => self.word("true").map(|()| true),
            Some(b'f') => self.word("false").map(|()| false),
            _ => Err(self.unexpected("a boolean")),
        }
    }

    /// A whole number.
    pub(super) fn whole(&mut self, expected: &str) -> Result<i64> {
        if !matches!(self.next(), Some(b'-' | b'0'..=b'9')) {
            return Err(self.unexpected(expected));
        }
        let start = self.at;
        self.skip_number()?;
        let number = &self.text[start..self.at];
        let is_whole = !number.contains(['.', 'e', 'E']);
        number.parse().ok().filter(|_| is_whole).ok_or_else(|| {
            let (what, kind) = if is_whole { ("value", "integer") } else { ("type", "floating point") };
            self.error(format!("invalid {what}: {kind} `{number}`, expected {expected}"))
        })
    }

    pub(super) fn string(&mut self, expected: &str) -> Result<Cow<'a, str>> {
        if self.next() != Some(b'"') {
            return Err(self.unexpected(expected));
        }
        let text = self.text;
        let start = self.at + 1;
        self.at = plain_end(text, start);
        if text.as_bytes().get(self.at) == Some(&b'"') {
            self.at += 1;
            return Ok(Cow::Borrowed(&text[start..self.at - 1]));
        }
        let mut whole = text[start..self.at].to_owned();
        self.escaped(&mut whole)?;
        Ok(Cow::Owned(whole))
    }

    /// The rest of a string from its first escape on.
    #[cold]
    fn escaped(&mut self, whole: &mut String) -> Result<()> {
        loop {
            let byte = self.text.as_bytes().get(self.at).copied();
            self.at += 1;
            match byte {
                Some(b'"') => return Ok(()),
                Some(b'\\') => whole.push(self.escape()?),
                None => return Err(self.error("EOF while parsing a string")),
                Some(_) => return Err(self.error(CONTROL_CHARACTER)),
            }
            let end = plain_end(self.text, self.at);
            whole.push_str(&self.text[self.at..end]);
            self.at = end;
        }
    }

    /// What an escape stands for, whose backslash was read.
    fn escape(&mut self) -> Result<char> {
        let byte = self.text.as_bytes().get(self.at).copied();
        self.at += 1;
        Ok(match byte {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            None => return Err(self.error("EOF while parsing a string")),
            Some(_) => return Err(self.error("invalid escape")),
        })
    }

    fn unicode(&mut self) -> Result<char> {
        let first = self.hex()?;
        let mut units = [first, 0];
        let mut length = 1;
        if (0xd800..0xdc00).contains(&first) {
            if !self.text.as_bytes()[self.at..].starts_with(b"\\u") {
                return Err(self.error("unexpected end of hex escape"));
            }
            self.at += 2;
            units[1] = self.hex()?;
            length = 2;
        }
        match char::decode_utf16(units[..length].iter().copied()).next() {
            Some(Ok(char)) => Ok(char),
            _ => Err(self.error("lone leading surrogate in hex escape")),
        }
    }

    fn hex(&mut self) -> Result<u16> {
        let digits = self.text.get(self.at..self.at + 4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.error("invalid escape"))?;
        self.at += 4;
        Ok(unit)
    }

    /// The members of an object, each read by `fields`.
    pub fn object(&mut self, fields: &mut dyn Fields) -> Result<()> {
        let name = fields.name();
        self.members(name, &mut |key, from| fields.read_field(&key, from))
    }

    /// The members of an object; each must be read.
    pub(super) fn members(
        &mut self,
        expected: &str,
        read: &mut dyn FnMut(Cow<'a, str>, &mut Self) -> Result<()>,
    ) -> Result<()> {
        self.enter(b'{', expected)?;
        let mut has_more = self.next() != Some(b'}');
        while has_more {
            self.begins_key()?;
            let key = self.string("a key")?;
            self.colon()?;
            read(key, self)?;
            has_more = self.separated(b'}')?;
        }
        self.leave();
        Ok(())
    }

    fn begins_key(&mut self) -> Result<()> {
        match self.next() {
            Some(b'"') => Ok(()),
            Some(_) => Err(self.error("key must be a string")),
            None => Err(self.error("EOF while parsing an object")),
        }
    }

    fn colon(&mut self) -> Result<()> {
        match self.next() {
            Some(b':') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(self.error("expected `:`")),
            None => Err(self.error("EOF while parsing an object")),
        }
    }

    /// The items of a list; each must be read.
    pub fn items(&mut self, read: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.enter(b'[', "a sequence")?;
        let mut has_more = self.next() != Some(b']');
        while has_more {
            read(self)?;
            has_more = self.separated(b']')?;
        }
        self.leave();
        Ok(())
    }

    fn enter(&mut self, open: u8, expected: &str) -> Result<()> {
        if self.next() != Some(open) {
            return Err(self.unexpected(expected));
        }
        if self.depth == MAX_DEPTH {
            return Err(self.error("recursion limit exceeded"));
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    /// After a member or an item: whether another one follows.
    fn separated(&mut self, close: u8) -> Result<bool> {
        match self.next() {
            Some(b',') => self.after_comma(close).map(|()| true),
            Some(next) if next == close => Ok(false),
            next => Err(self.not_separated(next, close)),
        }
    }

    fn after_comma(&mut self, close: u8) -> Result<()> {
        self.at += 1;
        match self.next() {
            Some(next) if next == close => Err(self.error("trailing comma")),
            Some(_) => Ok(()),
            None => Err(self.error("EOF while parsing a value")),
        }
    }

    #[cold]
    fn not_separated(&self, next: Option<u8>, close: u8) -> Error {
        self.error(match (next, close) {
            (Some(_), b'}') => "expected `,` or `}`",
            (Some(_), _) => "expected `,` or `]`",
            (None, b'}') => "EOF while parsing an object",
            (None, _) => "EOF while parsing a list",
        })
    }

    #[cold]
    fn no_value(&self, next: Option<u8>) -> Error {
        self.error(if next.is_some() { "expected value" } else { "EOF while parsing a value" })
    }

    /// Passes over a value, however deep it is: this takes no stack.
    pub fn skip(&mut self) -> Result<()> {
        self.pass().map(drop)
    }

    /// The same; says how deep the value is.
    fn pass(&mut self) -> Result<usize> {
        let mut open = Vec::new();
        let mut deepest = 0;
        loop {
            match self.next() {
                Some(b'"') => self.skip_string()?,
                Some(b't') => self.word("true")?,
                Some(b'f') => self.word("false")?,
                Some(b'n') => self.word("null")?,
                Some(b'-' | b'0'..=b'9') => self.skip_number()?,
                Some(bracket @ (b'{' | b'[')) => {
                    self.at += 1;
                    let close = bracket + 2;
                    open.push(close);
                    deepest = deepest.max(open.len());
                    if self.next() != Some(close) {
                        self.skip_key(close)?;
                        continue;
                    }
                }
                next => return Err(self.no_value(next)),
            }
            // The value may be the last one of what it is in, and that the last one of what that is in.
            loop {
                let Some(close) = open.last().copied() else { return Ok(deepest) };
                match self.next() {
                    Some(b',') => {
                        self.after_comma(close)?;
                        self.skip_key(close)?;
                        break;
                    }
                    Some(next) if next == close => {
                        self.at += 1;
                        open.pop();
                    }
                    next => return Err(self.not_separated(next, close)),
                }
            }
        }
    }

    /// The name of the next member, in an object.
    fn skip_key(&mut self, close: u8) -> Result<()> {
        if close == b']' {
            return Ok(());
        }
        self.begins_key()?;
        self.skip_string()?;
        self.colon()
    }

    /// What its escapes stand for does not matter.
    fn skip_string(&mut self) -> Result<()> {
        let text = self.text.as_bytes();
        self.at += 1;
        loop {
            self.at = plain_end(self.text, self.at);
            let byte = text.get(self.at).copied();
            self.at += 1;
            match (byte, text.get(self.at)) {
                (Some(b'"'), _) => return Ok(()),
                (Some(b'\\'), Some(b'u')) => {
                    self.at += 1;
                    self.hex()?;
                }
                (Some(b'\\'), Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't')) => self.at += 1,
                (Some(b'\\'), Some(_)) => return Err(self.error("invalid escape")),
                (Some(b'\\') | None, _) => return Err(self.error("EOF while parsing a string")),
                (Some(_), _) => return Err(self.error(CONTROL_CHARACTER)),
            }
        }
    }

    fn skip_number(&mut self) -> Result<()> {
        let bytes = self.text.as_bytes();
        let digits = |from: usize| from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let start = self.at + usize::from(bytes[self.at] == b'-');
        let mut at = digits(start);
        let mut is_sound = at > start && (bytes[start] != b'0' || at == start + 1);
        if bytes.get(at) == Some(&b'.') {
            let end = digits(at + 1);
            is_sound &= end > at + 1;
            at = end;
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            let start = at + 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            at = digits(start);
            is_sound &= at > start;
        }
        self.at = at;
        if is_sound { Ok(()) } else { Err(self.error("invalid number")) }
    }

    /// The text of the next value.
    pub fn raw(&mut self) -> Result<&'a str> {
        self.next();
        let start = self.at;
        self.skip()?;
        Ok(&self.text[start..self.at])
    }

    /// A value that serde reads.
    pub fn by_serde<T: DeserializeOwned>(&mut self) -> Result<T> {
        self.next();
        let start = self.at;
        let depth = self.pass()?;
        if usize::from(self.depth) + depth > usize::from(MAX_DEPTH) {
            return Err(self.error("recursion limit exceeded"));
        }
        // Its place would be that in the part of the text that it was given.
        serde_json::from_str(&self.text[start..self.at]).map_err(|error| self.error(without_place(&error)))
    }

    /// A field that may be given as `null`, which says nothing.
    pub fn field<T: Read + Default>(&mut self, to: &mut T) -> Result<()> {
        *to = if self.is_null()? { T::default() } else { T::read(self)? };
        Ok(())
    }

    /// A field that can have one value only.
    pub(super) fn constant(&mut self, only: &'static str) -> Result<()> {
        let given = self.string("a string")?;
        if given == only {
            return Ok(());
        }
        Err(self.error(format!("invalid value: string {given:?}, expected {only}")))
    }

    /// The next value is of the wrong type.
    #[cold]
    pub(super) fn unexpected(&mut self, expected: &str) -> Error {
        let found = match self.next() {
            Some(b'"') => match self.string(expected) {
                Ok(text) => format!("string {text:?}"),
                Err(error) => return error,
            },
            Some(b'{') => "map".to_owned(),
            Some(b'[') => "sequence".to_owned(),
            Some(b'n') => "null".to_owned(),
            Some(b't' | b'f' | b'-' | b'0'..=b'9') => match self.raw() {
                Ok(word @ ("true" | "false")) => format!("boolean `{word}`"),
                Ok(number) if number.contains(['.', 'e', 'E']) => format!("floating point `{number}`"),
                Ok(number) => format!("integer `{number}`"),
                Err(error) => return error,
            },
            next => return self.no_value(next),
        };
        self.error(format!("invalid type: {found}, expected {expected}"))
    }

    /// What is wrong, and where.
    #[cold]
    pub(super) fn error(&self, what: impl Display) -> Error {
        let before = &self.text.as_bytes()[..self.at.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let column = before.iter().rev().take_while(|byte| **byte != b'\n').count();
        Error::custom(format!("{what} at line {line} column {column}"))
    }
}

/// What is wrong, without the place.
#[cold]
pub(crate) fn without_place(error: &Error) -> String {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&place).map_or(message.clone(), str::to_owned)
}

/// Where a string has its end, an escape or what it must not have.
#[inline]
fn plain_end(text: &str, from: usize) -> usize {
    let is_plain = |byte: u8| byte != b'"' && byte != b'\\' && byte > 0x1f;
    let bytes = &text.as_bytes()[from..];
    let words = bytes.chunks_exact(8).take_while(|chunk| chunk.iter().fold(true, |all, byte| all & is_plain(*byte)));
    let passed = 8 * words.count();
    from + passed + bytes[passed..].iter().take_while(|byte| is_plain(**byte)).count()
}
