//! Compressed pieces of lists, made once per object and put together per list.
//!
//! A deflate stream may be cut at any byte boundary where the compressor was flushed. Each object is compressed alone and
//! flushed, so a list is the concatenation of pieces that lie ready; only the checksum at the end is computed anew.

use std::cell::RefCell;

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress, Status};

/// A gzip header without name or time.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
/// An empty last block.
const END: [u8; 2] = [3, 0];
/// A stored block of one comma.
const COMMA: [u8; 6] = [0, 1, 0, 0xfe, 0xff, b','];

thread_local! {
    /// A compressor is a third of a megabyte: worth keeping.
    static COMPRESSOR: RefCell<Compress> = RefCell::new(Compress::new(Compression::fast(), false));
}

/// Compresses `bytes` into blocks that end at a byte boundary and refer to nothing before them.
pub(super) fn piece(bytes: &[u8]) -> Bytes {
    COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        let mut out = Vec::with_capacity(bytes.len() / 3 + 64);
        loop {
            let read = compressor.total_in() as usize;
            let status = compressor.compress_vec(&bytes[read..], &mut out, FlushCompress::Sync);
            let all_read = compressor.total_in() as usize == bytes.len();
            // Room left over means that everything, flush included, is out.
            if all_read && out.len() < out.capacity() || !matches!(status, Ok(Status::Ok | Status::BufError)) {
                break;
            }
            out.reserve(bytes.len() / 4 + 64);
        }
        out.shrink_to_fit();
        Bytes::from(out)
    })
}

/// Puts a gzip stream together.
pub(crate) struct Gzip {
    checksum: crc32fast::Hasher,
    length: u32,
}

impl Gzip {
    pub(crate) fn start(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&HEADER);
        Self { checksum: crc32fast::Hasher::new(), length: 0 }
    }

    /// Adds bytes that are compressed now.
    pub(crate) fn add(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(&piece(bytes));
        self.count(bytes);
    }

    /// Adds a piece that was compressed before; `bytes` is what it stands for, in parts.
    pub(super) fn add_piece(&mut self, piece: &[u8], bytes: &[&[u8]], out: &mut Vec<u8>) {
        out.extend_from_slice(piece);
        bytes.iter().for_each(|part| self.count(part));
    }

    pub(crate) fn add_comma(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&COMMA);
        self.count(b",");
    }

    pub(crate) fn finish(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&END);
        out.extend_from_slice(&self.checksum.finalize().to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
    }

    fn count(&mut self, bytes: &[u8]) {
        self.checksum.update(bytes);
        // The format keeps the length modulo 2^32.
        self.length = self.length.wrapping_add(bytes.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn pieces_make_a_gzip_stream() {
        let noise: Vec<u8> = (0..200_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let parts: [&[u8]; 4] = [b"[", b"{\"a\":1}", &noise, b""];
        let mut out = Vec::new();
        let mut gzip = Gzip::start(&mut out);
        let mut expected = Vec::new();
        for part in parts {
            let (first, second) = part.split_at(part.len() / 2);
            gzip.add_piece(&piece(part), &[first, second], &mut out);
            gzip.add_comma(&mut out);
            expected.extend_from_slice(part);
            expected.push(b',');
        }
        gzip.add(b"]", &mut out);
        expected.push(b']');
        gzip.finish(&mut out);
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut read).unwrap();
        assert!(read == expected);
    }
}
