//! Tables of a database in SQLite's file format, with the write-ahead log beside it.
//!
//! Ours rather than a crate: those that are well kept bind the C library. Needed are the rows of one table in the order of
//! their ids; there are no indexes, no writing and no SQL here.
//! A database may be read while others write: the log is looked at before and after, and if it went on, reading begins anew.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::PagedFile;
use crate::{Result, StoreError};

const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER: usize = 100;
const COUNTER: usize = 24;
/// Versions of the format that can be read: with a rollback journal, and with a write-ahead log.
const READ_VERSIONS: std::ops::RangeInclusive<u8> = 1..=2;
const UTF_8: u32 = 1;
const LEAF: u8 = 0x0d;
const INTERIOR: u8 = 0x05;
/// Trees of SQLite have a few levels; with pages of 512 bytes and 2^32 of them still fewer than this.
const MAX_DEPTH: usize = 32;
/// The largest row: SQLite's own limit is above what any object can have.
const MAX_ROW: u64 = 256 << 20;
const WAL_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const WAL_MAGIC: u32 = 0x377f_0682;

/// One value of a row.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Integer(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
}

impl Value {
    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            _ => None,
        }
    }
}

pub(super) struct Database {
    file: PagedFile,
    page_size: usize,
    /// Of each page, what rows and cells may use.
    usable: usize,
    pages: u64,
    /// Counts changes where there is no log.
    counter: Option<u32>,
    log: Option<Log>,
}

/// What the write-ahead log has beyond the database.
struct Log {
    file: PagedFile,
    /// Where the latest committed version of a page is.
    frames: HashMap<u32, u64>,
    mark: Mark,
}

/// How far a log went: the same afterwards means that nothing was committed meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Mark {
    /// Pages of the database after the last commit; 0 without one.
    pages: u32,
    commits: u64,
    salt: [u32; 2],
}

/// A table, by the words of its definition.
pub(super) struct Table {
    root: u32,
    pub(super) columns: Vec<String>,
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A number of one to nine bytes, and how many it took.
fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0u64;
    for (index, byte) in bytes.iter().take(9).enumerate() {
        if index == 8 {
            return Some(((number << 8) | u64::from(*byte), 9));
        }
        number = (number << 7) | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, index + 1));
        }
    }
    None
}

impl Database {
    pub(super) fn open(path: &Path) -> Result<Database> {
        let journal = beside(path, "-journal");
        if journal.metadata().is_ok_and(|found| found.len() > 0) {
            return Err(StoreError::Invalid(format!(
                "{} is left of a change that was broken off: start and stop the server once, or open the database with \
                 sqlite3, which undoes it",
                journal.display()
            )));
        }
        let file = PagedFile::open(path)?;
        let header = file.read(0, HEADER)?;
        if !header.starts_with(MAGIC) {
            return Err(file.damaged(0, "it is no database of SQLite"));
        }
        if !READ_VERSIONS.contains(&header[19]) {
            return Err(file.damaged(19, format!("it has the unknown format {}", header[19])));
        }
        let page_size = match u16_at(&header, 16) {
            Some(1) => 65536,
            Some(size) if size >= 512 && size.is_power_of_two() => size,
            _ => return Err(file.damaged(16, "it has no page size")),
        };
        if u32_at(&header, 56) != Some(UTF_8) {
            return Err(file.damaged(56, "its texts are not in UTF-8"));
        }
        let usable = page_size - usize::from(header[20]);
        if usable < 480 {
            return Err(file.damaged(20, "its pages have no room"));
        }
        let log = Log::open(&beside(path, "-wal"), page_size)?;
        let pages = match &log {
            Some(log) if log.mark.pages > 0 => log.mark.pages.into(),
            _ => file.len / page_size as u64,
        };
        let counter = u32_at(&header, COUNTER);
        Ok(Database { file, page_size, usable, pages, counter, log })
    }

    /// Whether something was committed since it was opened.
    pub(super) fn has_changed(&self) -> Result<bool> {
        let now = Log::open(&beside(&self.file.path, "-wal"), self.page_size)?;
        let counter = u32_at(&self.file.read(0, HEADER)?, COUNTER);
        Ok(counter != self.counter || now.map(|log| log.mark) != self.log.as_ref().map(|log| log.mark))
    }

    fn page(&self, number: u32) -> Result<Vec<u8>> {
        if number == 0 || u64::from(number) > self.pages {
            return Err(self.file.damaged(0, format!("it refers to page {number}, and has {}", self.pages)));
        }
        match self.log.as_ref().and_then(|log| Some((log, log.frames.get(&number)?))) {
            Some((log, offset)) => log.file.read(*offset, self.page_size),
            None => self.file.read(u64::from(number - 1) * self.page_size as u64, self.page_size),
        }
    }

    fn damaged_page(&self, number: u32, reason: &str) -> StoreError {
        let offset = u64::from(number.saturating_sub(1)) * self.page_size as u64;
        self.file.damaged(offset, format!("page {number}: {reason}"))
    }

    /// The table of this name, if there is one.
    pub(super) fn table(&self, name: &str) -> Result<Option<Table>> {
        let mut found = None;
        self.rows(&Table { root: 1, columns: Vec::new() }, &mut |_, row| {
            if let [Value::Text(kind), Value::Text(named), _, Value::Integer(root), Value::Text(definition)] = row
                && kind == "table"
                && named == name
            {
                let root = u32::try_from(*root).unwrap_or_default();
                found = Some(Table { root, columns: columns(definition) });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Hands over every row with its id, in the order of ids.
    pub(super) fn rows(&self, table: &Table, take: &mut dyn FnMut(i64, &[Value]) -> Result<()>) -> Result<()> {
        let mut seen = 0;
        self.walk(table.root, 0, &mut seen, take)
    }

    fn walk(
        &self,
        number: u32,
        depth: usize,
        seen: &mut u64,
        take: &mut dyn FnMut(i64, &[Value]) -> Result<()>,
    ) -> Result<()> {
        *seen += 1;
        // Neither a tree nor anything of its size goes in circles.
        if depth > MAX_DEPTH || *seen > self.pages {
            return Err(self.damaged_page(number, "its tree has no end"));
        }
        let page = self.page(number)?;
        let damaged = || self.damaged_page(number, "its cells are not where they should be");
        let start = if number == 1 { HEADER } else { 0 };
        let kind = *page.get(start).ok_or_else(damaged)?;
        let count = u16_at(&page, start + 3).ok_or_else(damaged)?;
        let pointers = start + if kind == INTERIOR { 12 } else { 8 };
        for index in 0..count {
            let at = u16_at(&page, pointers + 2 * index).ok_or_else(damaged)?;
            let cell = page.get(at..self.usable).ok_or_else(damaged)?;
            match kind {
                INTERIOR => self.walk(u32_at(cell, 0).ok_or_else(damaged)?, depth + 1, seen, take)?,
                LEAF => {
                    let (size, first) = varint(cell).ok_or_else(damaged)?;
                    let (id, second) = varint(&cell[first..]).ok_or_else(damaged)?;
                    let payload = self.payload(number, &cell[first + second..], size)?;
                    let row = record(&payload).ok_or_else(|| self.damaged_page(number, "a row that is none"))?;
                    take(id as i64, &row)?;
                }
                _ => return Err(self.damaged_page(number, "it belongs to no table")),
            }
        }
        match kind {
            INTERIOR => self.walk(u32_at(&page, start + 8).ok_or_else(damaged)?, depth + 1, seen, take),
            _ => Ok(()),
        }
    }

    /// A row that begins in a cell, with what goes on in pages of its own.
    fn payload(&self, number: u32, cell: &[u8], size: u64) -> Result<Vec<u8>> {
        if size > MAX_ROW {
            return Err(self.damaged_page(number, "a row without end"));
        }
        let (size, usable) = (size as usize, self.usable);
        let (most, least) = (usable - 35, (usable - 12) * 32 / 255 - 23);
        let here = if size <= most {
            size
        } else {
            let fitting = least + (size - least) % (usable - 4);
            if fitting <= most { fitting } else { least }
        };
        let damaged = || self.damaged_page(number, "a row that goes beyond its page");
        let mut payload = cell.get(..here).ok_or_else(damaged)?.to_vec();
        let mut next = if here < size { u32_at(cell, here).ok_or_else(damaged)? } else { 0 };
        while payload.len() < size {
            let page = self.page(next)?;
            next = u32_at(&page, 0).ok_or_else(damaged)?;
            let rest = (size - payload.len()).min(usable - 4);
            payload.extend(page.get(4..4 + rest).ok_or_else(damaged)?);
        }
        Ok(payload)
    }
}

/// The values of a row.
fn record(payload: &[u8]) -> Option<Vec<Value>> {
    let (header, mut at) = varint(payload)?;
    let header = usize::try_from(header).ok()?;
    let mut body = payload.get(header..)?;
    let mut values = Vec::new();
    while at < header {
        let (kind, used) = varint(payload.get(at..header)?)?;
        at += used;
        let length = match kind {
            0 | 8 | 9 => 0,
            1..=4 => kind as usize,
            5 => 6,
            6 | 7 => 8,
            12.. => usize::try_from((kind - 12) / 2).ok()?,
            _ => return None,
        };
        let (bytes, rest) = body.split_at_checked(length)?;
        body = rest;
        values.push(match kind {
            0 => Value::Null,
            1..=6 => {
                let negative = bytes.first().is_some_and(|first| first & 0x80 != 0);
                let start = if negative { -1i64 } else { 0 };
                Value::Integer(bytes.iter().fold(start, |number, byte| (number << 8) | i64::from(*byte)))
            }
            7 => Value::Real(f64::from_be_bytes(bytes.try_into().ok()?)),
            8 => Value::Integer(0),
            9 => Value::Integer(1),
            kind if kind % 2 == 0 => Value::Blob(bytes.to_vec()),
            _ => Value::Text(String::from_utf8(bytes.to_vec()).ok()?),
        });
    }
    Some(values)
}

/// The names of the columns in a definition, which stand first in each of its parts.
fn columns(definition: &str) -> Vec<String> {
    let body = definition.split_once('(').and_then(|(_, rest)| rest.rsplit_once(')')).map_or("", |(body, _)| body);
    let name =
        |part: &str| part.split_whitespace().next().map(|word| word.trim_matches(['"', '`', '[', ']']).to_owned());
    body.split(',').filter_map(name).collect()
}

impl Log {
    /// `None` where there is none, or nothing is in it.
    fn open(path: &Path, page_size: usize) -> Result<Option<Log>> {
        let file = match PagedFile::open(path) {
            Ok(file) if file.len < WAL_HEADER as u64 => return Ok(None),
            Ok(file) => file,
            Err(_) if !path.exists() => return Ok(None),
            Err(error) => return Err(error),
        };
        let header = file.read(0, WAL_HEADER)?;
        let word = |at: usize| u32_at(&header, at).unwrap_or_default();
        if word(0) & !1 != WAL_MAGIC {
            return Err(file.damaged(0, "it is no write-ahead log of SQLite"));
        }
        let is_big_endian = word(0) & 1 == 1;
        let salt = [word(16), word(20)];
        let mut sum = checksum(&header[..24], [0, 0], is_big_endian);
        // One that was begun and not written, or left of an earlier use.
        if sum != [word(24), word(28)] || word(8) as usize != page_size {
            return Ok(None);
        }
        let (mut frames, mut pending) = (HashMap::new(), Vec::new());
        let mut mark = Mark { salt, ..Mark::default() };
        let mut at = WAL_HEADER as u64;
        let size = (FRAME_HEADER + page_size) as u64;
        while at + size <= file.len {
            let frame = file.read(at, size as usize)?;
            let word = |at: usize| u32_at(&frame, at).unwrap_or_default();
            sum = checksum(&frame[..8], sum, is_big_endian);
            sum = checksum(&frame[FRAME_HEADER..], sum, is_big_endian);
            if [word(8), word(12)] != salt || [word(16), word(20)] != sum {
                break;
            }
            pending.push((word(0), at + FRAME_HEADER as u64));
            if word(4) > 0 {
                frames.extend(pending.drain(..));
                (mark.pages, mark.commits) = (word(4), mark.commits + 1);
            }
            at += size;
        }
        Ok(Some(Log { file, frames, mark }))
    }
}

/// SQLite's sum over pairs of words.
fn checksum(bytes: &[u8], start: [u32; 2], is_big_endian: bool) -> [u32; 2] {
    let [mut one, mut two] = start;
    let (words, _) = bytes.as_chunks::<4>();
    let word = |bytes: &[u8; 4]| if is_big_endian { u32::from_be_bytes(*bytes) } else { u32::from_le_bytes(*bytes) };
    for pair in words.chunks_exact(2) {
        one = one.wrapping_add(word(&pair[0])).wrapping_add(two);
        two = two.wrapping_add(word(&pair[1])).wrapping_add(one);
    }
    [one, two]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_any_length() {
        for (bytes, expected) in [
            (&[0x00][..], Some((0, 1))),
            (&[0x7f], Some((127, 1))),
            (&[0x81, 0x00], Some((128, 2))),
            (&[0xff; 9], Some((u64::MAX, 9))),
            (&[0x80], None),
            (&[], None),
        ] {
            assert_eq!(varint(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn columns_are_found_in_a_definition() {
        let definition = "CREATE TABLE kine\n(\n id INTEGER PRIMARY KEY AUTOINCREMENT,\n name TEXT, \"value\" BLOB)";
        assert_eq!(columns(definition), ["id", "name", "value"]);
        assert!(columns("CREATE TABLE x").is_empty());
    }

    #[test]
    fn rows_are_read_value_by_value() {
        // null, -2 in one byte, 300 in two, 1 without any, a text and a blob.
        let payload = [7, 0, 1, 2, 9, 15, 16, 0xfe, 1, 44, b'a', 1, 2];
        let expected = vec![
            Value::Null,
            Value::Integer(-2),
            Value::Integer(300),
            Value::Integer(1),
            Value::Text("a".into()),
            Value::Blob(vec![1, 2]),
        ];
        assert_eq!(record(&payload), Some(expected));
        for length in 0..payload.len() {
            assert_eq!(record(&payload[..length]).filter(|row| row.len() == 6), None, "cut at {length}");
        }
        assert_eq!(record(&[2, 10]), None, "a kind that there is not");
    }
}
