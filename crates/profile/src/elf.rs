//! As much of an ELF file as a profile needs: where code lies, the tables of unwinding, names and the build id.
//!
//! Files of any size are read in pieces, and nothing that a file says of itself is believed unchecked.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// More than any table of ours.
const MAX_SECTION: u64 = 1 << 28;
const MAX_SECTIONS: u64 = 1 << 12;
const SYMBOL: usize = 24;
const LONGEST_NAME: usize = 512;

const PT_LOAD: u32 = 1;
const SHT_SYMTAB: u32 = 2;
const SHT_NOTE: u32 = 7;
const SHT_DYNSYM: u32 = 11;
const STT_FUNC: u8 = 2;
const NT_GNU_BUILD_ID: u32 = 3;

pub(crate) struct Elf {
    file: File,
    segments: Vec<Segment>,
    sections: Vec<Section>,
}

/// A part of the file that is loaded.
struct Segment {
    offset: u64,
    address: u64,
    size: u64,
}

struct Section {
    name: String,
    kind: u32,
    address: u64,
    offset: u64,
    size: u64,
    link: u32,
}

/// Bytes that lie at an address when the file is loaded at zero.
pub(crate) struct Table {
    pub(crate) address: u64,
    pub(crate) bytes: Vec<u8>,
}

/// A function: where it begins and ends in the file's own addresses.
pub(crate) struct Symbol {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) name: String,
}

impl Elf {
    /// Nothing for what is not ELF of 64 bits, little-endian.
    pub(crate) fn open(path: &str) -> Option<Self> {
        let file = File::open(path).ok()?;
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).ok()?;
        if !head.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let (programs, headers) = (u64_at(&head, 32)?, u64_at(&head, 40)?);
        let (program_count, header_count) = (u16_at(&head, 56)?, u16_at(&head, 60)?);
        let names_at = usize::from(u16_at(&head, 62)?);
        let mut segments = Vec::new();
        for index in 0..u64::from(program_count) {
            let mut row = [0; 56];
            file.read_exact_at(&mut row, programs.checked_add(index * 56)?).ok()?;
            if u32_at(&row, 0)? == PT_LOAD {
                let (offset, address, size) = (u64_at(&row, 8)?, u64_at(&row, 16)?, u64_at(&row, 32)?);
                segments.push(Segment { offset, address, size });
            }
        }
        let mut sections = Vec::new();
        let mut named = Vec::new();
        for index in 0..u64::from(header_count).min(MAX_SECTIONS) {
            let mut row = [0; 64];
            file.read_exact_at(&mut row, headers.checked_add(index * 64)?).ok()?;
            named.push(u32_at(&row, 0)?);
            sections.push(Section {
                name: String::new(),
                kind: u32_at(&row, 4)?,
                address: u64_at(&row, 16)?,
                offset: u64_at(&row, 24)?,
                size: u64_at(&row, 32)?,
                link: u32_at(&row, 40)?,
            });
        }
        let names = sections.get(names_at).and_then(|section| read(&file, section.offset, section.size));
        let names = names.unwrap_or_default();
        for (section, at) in sections.iter_mut().zip(named) {
            section.name = text_at(&names, at as usize);
        }
        Some(Self { file, segments, sections })
    }

    /// The address that a place in the file has when it is loaded at zero.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        let holds = |segment: &&Segment| offset >= segment.offset && offset - segment.offset < segment.size;
        let segment = self.segments.iter().find(holds)?;
        segment.address.checked_add(offset - segment.offset)
    }

    pub(crate) fn table(&self, name: &str) -> Option<Table> {
        let section = self.sections.iter().find(|section| section.name == name)?;
        let bytes = read(&self.file, section.offset, section.size)?;
        Some(Table { address: section.address, bytes })
    }

    /// In hexadecimal; empty if there is none.
    pub(crate) fn build_id(&self) -> String {
        let notes = self.sections.iter().filter(|section| section.kind == SHT_NOTE && section.size < 1 << 12);
        let mut ids = notes.filter_map(|section| build_id(&read(&self.file, section.offset, section.size)?));
        ids.next_back().map(|id| id.iter().map(|byte| format!("{byte:02x}")).collect()).unwrap_or_default()
    }

    /// The functions that hold `addresses`, which are sorted.
    pub(crate) fn symbols(&self, addresses: &[u64]) -> Vec<Symbol> {
        let mut found = Vec::new();
        for kind in [SHT_SYMTAB, SHT_DYNSYM] {
            for section in self.sections.iter().filter(|section| section.kind == kind) {
                self.symbols_of(section, addresses, &mut found);
            }
            if !found.is_empty() {
                break;
            }
        }
        found
    }

    fn symbols_of(&self, section: &Section, addresses: &[u64], found: &mut Vec<Symbol>) -> Option<()> {
        let names = self.sections.get(section.link as usize)?;
        let (mut at, end) = (section.offset, section.offset.checked_add(section.size)?);
        let mut piece = vec![0; SYMBOL * 4096];
        while at < end {
            let length = usize::try_from(end - at).ok()?.min(piece.len()) / SYMBOL * SYMBOL;
            if length == 0 {
                break;
            }
            self.file.read_exact_at(&mut piece[..length], at).ok()?;
            for row in piece[..length].chunks_exact(SYMBOL) {
                let (name, start, size) = (u32_at(row, 0)?, u64_at(row, 8)?, u64_at(row, 16)?);
                let Some(end) = start.checked_add(size).filter(|_| row[4] & 0xf == STT_FUNC && size > 0) else {
                    continue;
                };
                let first = addresses.partition_point(|address| *address < start);
                if addresses.get(first).is_some_and(|address| *address < end)
                    && let Some(name) = self.name(names, name)
                {
                    found.push(Symbol { start, end, name });
                }
            }
            at += length as u64;
        }
        Some(())
    }

    fn name(&self, names: &Section, at: u32) -> Option<String> {
        let left = names.size.checked_sub(u64::from(at))?;
        let mut text = vec![0; LONGEST_NAME.min(usize::try_from(left).ok()?)];
        self.file.read_exact_at(&mut text, names.offset.checked_add(u64::from(at))?).ok()?;
        Some(text_at(&text, 0)).filter(|name| !name.is_empty())
    }
}

fn read(file: &File, offset: u64, size: u64) -> Option<Vec<u8>> {
    // Bounded before room is made for it.
    let length = file.metadata().ok()?.len();
    if size > MAX_SECTION || offset.checked_add(size)? > length {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn build_id(note: &[u8]) -> Option<Vec<u8>> {
    let (name, size, kind) = (u32_at(note, 0)? as usize, u32_at(note, 4)? as usize, u32_at(note, 8)?);
    let at = 12_usize.checked_add(name.checked_next_multiple_of(4)?)?;
    note.get(at..at.checked_add(size)?).filter(|_| kind == NT_GNU_BUILD_ID).map(<[u8]>::to_vec)
}

fn text_at(bytes: &[u8], at: usize) -> String {
    let rest = bytes.get(at..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    String::from_utf8_lossy(&rest[..end]).into_owned()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
