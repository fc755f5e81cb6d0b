//! How large the parts of an image may be: they come from strangers and are read by the process that runs the node.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// Manifests, configurations and tokens are small; more is refused.
pub(crate) const MAX_DOCUMENT: u64 = 8 << 20;
/// More layers than overlayfs mounts on top of each other.
pub(crate) const MAX_LAYERS: usize = 500;

/// What one layer may be.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Files, directories and links.
    pub(crate) entries: u64,
    /// What an entry says of itself: its headers, long names and extended attributes.
    pub(crate) headers: u64,
    /// The names of all directories, which are kept to the end.
    pub(crate) directories: usize,
    /// All of the tarball, and the content of its files, holes among it.
    pub(crate) bytes: u64,
}

impl Bounds {
    /// Far above any image that is meant to run: attributes are up to 64 KiB each, the largest images have some hundred
    /// thousand files.
    pub(crate) const LAYER: Self = Self { entries: 4 << 20, headers: 1 << 20, directories: 256 << 20, bytes: 1 << 40 };
}

pub(crate) fn too_large(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the layer is refused: {what}"))
}

/// What may still be read; shared with the reader, which the archive owns.
#[derive(Clone)]
pub(crate) struct Allowance {
    bounds: Bounds,
    bytes: Rc<Cell<u64>>,
    headers: Rc<Cell<Option<u64>>>,
}

impl Allowance {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, bytes: Rc::new(Cell::new(bounds.bytes)), headers: Rc::default() }
    }

    /// Runs what reads the headers of one entry, and nothing of its content.
    pub(crate) fn headers<T>(&self, read: impl FnOnce() -> T) -> T {
        self.headers.set(Some(self.bounds.headers));
        let read = read();
        self.headers.set(None);
        read
    }
}

/// A tarball that ends with an error where it becomes too large.
pub(crate) struct Bounded<R> {
    pub(crate) reader: R,
    pub(crate) allowance: Allowance,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        let length = read as u64;
        let left = self.allowance.bytes.get().checked_sub(length).ok_or_else(|| too_large("it unpacks to too much"))?;
        self.allowance.bytes.set(left);
        if let Some(headers) = self.allowance.headers.get() {
            let left = headers.checked_sub(length).ok_or_else(|| too_large("the headers of an entry are too long"))?;
            self.allowance.headers.set(Some(left));
        }
        Ok(read)
    }
}
