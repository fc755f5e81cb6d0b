//! Buckets of a database in bbolt's file format: pages of sorted keys, and buckets within buckets.

use super::PagedFile;
use crate::{Result, StoreError};

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const PAGE_HEADER: usize = 16;
const META: usize = 64;
const ELEMENT: usize = 16;
const BRANCH: u16 = 1;
const LEAF: u16 = 2;
/// A value of a leaf that is a bucket.
const IS_BUCKET: u32 = 1;
/// Where a second description may be, if the first is damaged.
const PAGE_SIZES: [usize; 7] = [1024, 2048, 4096, 8192, 16384, 32768, 65536];
const MAX_DEPTH: usize = 32;
/// The largest page with all that hangs on it; a value of etcd has some megabytes.
const MAX_PAGE: usize = 256 << 20;

pub(super) struct Database {
    file: PagedFile,
    page_size: usize,
    root: u64,
    pages: u64,
}

/// A bucket: the page at its root, or all of it where it is small.
pub(super) enum Bucket {
    Page(u64),
    Inline(Vec<u8>),
}

struct Meta {
    page_size: usize,
    root: u64,
    pages: u64,
    transaction: u64,
}

/// What a visitor gets: whether it is a bucket, key and value.
type Visit<'v> = dyn FnMut(bool, &[u8], &[u8]) -> Result<()> + 'v;

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl Meta {
    /// `None` unless it is one, undamaged.
    fn parse(page: &[u8]) -> Option<Meta> {
        let meta = page.get(PAGE_HEADER..PAGE_HEADER + META)?;
        let is_sound =
            u32_at(meta, 0)? == MAGIC && u32_at(meta, 4)? == VERSION && u64_at(meta, 56)? == fnv(&meta[..56]);
        let page_size = u32_at(meta, 8)? as usize;
        (is_sound && PAGE_SIZES.contains(&page_size)).then_some(())?;
        Some(Meta { page_size, root: u64_at(meta, 16)?, pages: u64_at(meta, 40)?, transaction: u64_at(meta, 48)? })
    }
}

/// The 64-bit sum of Fowler, Noll and Vo, variant 1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Whether a file begins as these do, damaged or not.
pub(super) fn begins(file: &PagedFile) -> Result<bool> {
    let end = PAGE_HEADER + size_of::<u32>();
    Ok(file.len >= end as u64 && u32_at(&file.read(0, end)?, PAGE_HEADER) == Some(MAGIC))
}

impl Database {
    pub(super) fn open(file: PagedFile) -> Result<Database> {
        let at = |offset: usize| file.read(offset as u64, PAGE_HEADER + META).ok().and_then(|page| Meta::parse(&page));
        let metas = [0].into_iter().chain(PAGE_SIZES).filter_map(|offset| {
            let meta = at(offset)?;
            (offset == 0 || offset == meta.page_size).then_some(meta)
        });
        match metas.max_by_key(|meta| meta.transaction) {
            Some(meta) => {
                // A tree is walked for as many pages as there are, whatever the file says that it has.
                let pages = meta.pages.min(file.len / meta.page_size as u64);
                Ok(Database { page_size: meta.page_size, root: meta.root, pages, file })
            }
            None => Err(file.damaged(0, "it is no database of etcd")),
        }
    }

    pub(super) fn damaged(&self, offset: u64, reason: &str) -> StoreError {
        self.file.damaged(offset, reason)
    }

    /// The bucket of this name at the top.
    pub(super) fn bucket(&self, name: &[u8]) -> Result<Option<Bucket>> {
        let mut found = None;
        self.each(&Bucket::Page(self.root), &mut |is_bucket, key, value| {
            if is_bucket && key == name {
                let root = u64_at(value, 0).ok_or_else(|| self.damaged(0, "a bucket without a root"))?;
                found = Some(match root {
                    0 => Bucket::Inline(value.get(16..).unwrap_or_default().to_vec()),
                    root => Bucket::Page(root),
                });
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Hands over everything in a bucket, in the order of its keys.
    pub(super) fn each(&self, bucket: &Bucket, visit: &mut Visit<'_>) -> Result<()> {
        let mut seen = 0;
        match bucket {
            Bucket::Page(root) => self.walk(*root, 0, &mut seen, visit),
            Bucket::Inline(page) => self.elements(page, 0, 0, &mut seen, visit),
        }
    }

    fn walk(&self, number: u64, depth: usize, seen: &mut u64, visit: &mut Visit<'_>) -> Result<()> {
        *seen += 1;
        let offset = number.saturating_mul(self.page_size as u64);
        if depth > MAX_DEPTH || *seen > self.pages || number >= self.pages {
            return Err(self.damaged(offset, "its tree has no end"));
        }
        let header = self.file.read(offset, PAGE_HEADER)?;
        let overflow = u32_at(&header, 12).unwrap_or_default() as usize;
        let size = overflow.checked_add(1).and_then(|pages| pages.checked_mul(self.page_size));
        let size = size.filter(|size| *size <= MAX_PAGE).ok_or_else(|| self.damaged(offset, "a page without end"))?;
        self.elements(&self.file.read(offset, size)?, offset, depth, seen, visit)
    }

    fn elements(&self, page: &[u8], offset: u64, depth: usize, seen: &mut u64, visit: &mut Visit<'_>) -> Result<()> {
        let damaged = || self.damaged(offset, "its elements are not where they should be");
        let (kind, count) = u16_at(page, 8).zip(u16_at(page, 10)).ok_or_else(damaged)?;
        for index in 0..usize::from(count) {
            let at = PAGE_HEADER + index * ELEMENT;
            let element = page.get(at..at + ELEMENT).ok_or_else(damaged)?;
            let word = |at: usize| u32_at(element, at).unwrap_or_default() as usize;
            match kind {
                BRANCH => self.walk(u64_at(element, 8).ok_or_else(damaged)?, depth + 1, seen, visit)?,
                LEAF => {
                    let (key, value) = (at + word(4), word(8));
                    let end = key.checked_add(value).ok_or_else(damaged)?;
                    let name = page.get(key..end).ok_or_else(damaged)?;
                    let content = end.checked_add(word(12)).and_then(|last| page.get(end..last)).ok_or_else(damaged)?;
                    visit(word(0) as u32 & IS_BUCKET != 0, name, content)?;
                }
                _ => return Err(self.damaged(offset, "a page that belongs to no tree")),
            }
        }
        Ok(())
    }
}
