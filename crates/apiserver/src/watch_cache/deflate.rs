//! Gzip streams put together from pieces that lie ready.
//!
//! A deflate stream may be cut at any byte boundary where the compressor was flushed, so pieces that were compressed each
//! by itself make a stream one after the other. Their checksums make that of the whole: nothing is looked at again.

use std::cell::RefCell;

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

/// Bytes in blocks that end at a byte boundary and refer to nothing before them.
pub(crate) struct Piece {
    blocks: Box<[u8]>,
    checksum: u32,
    length: usize,
    /// What the bytes do to a checksum before them.
    shift: u32,
}

impl Piece {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let (checksum, length) = (crc32fast::hash(bytes), bytes.len());
        Self { blocks: compress(bytes), checksum, length, shift: checksum::shift(length) }
    }

    /// How much it takes in a stream.
    pub(super) fn size(&self) -> usize {
        self.blocks.len()
    }
}

fn compress(bytes: &[u8]) -> Box<[u8]> {
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
        out.into_boxed_slice()
    })
}

/// Puts a gzip stream together.
pub(crate) struct Gzip {
    checksum: u32,
    length: u32,
}

impl Gzip {
    pub(crate) fn start(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&HEADER);
        Self { checksum: 0, length: 0 }
    }

    pub(crate) fn add(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        out.extend_from_slice(&piece.blocks);
        self.count(piece.checksum, piece.length, piece.shift);
    }

    pub(crate) fn add_comma(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(&COMMA);
        self.count(checksum::COMMA, 1, checksum::BYTE);
    }

    pub(crate) fn finish(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&END);
        out.extend_from_slice(&self.checksum.to_le_bytes());
        out.extend_from_slice(&self.length.to_le_bytes());
    }

    fn count(&mut self, checksum: u32, length: usize, shift: u32) {
        self.checksum = checksum::multiply(shift, self.checksum) ^ checksum;
        // The format keeps the length modulo 2^32.
        self.length = self.length.wrapping_add(length as u32);
    }
}

/// CRC-32 as arithmetic of polynomials over two elements: text behind other text multiplies the checksum of what is before
/// it by a power of x. The highest bit stands for the lowest power.
mod checksum {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    const ONE: u32 = 1 << 31;
    /// A byte further: x to the eighth.
    pub(super) const BYTE: u32 = ONE >> 8;
    /// Of a comma.
    pub(super) const COMMA: u32 = 0xe0da_836e;

    pub(super) fn multiply(a: u32, mut b: u32) -> u32 {
        let mut product = 0;
        for power in (0..32).rev() {
            // Without branches: the bits of a checksum cannot be foretold.
            product ^= b & ((a >> power) & 1).wrapping_neg();
            b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
        }
        product
    }

    /// x to the power of the bits in so many bytes.
    pub(super) fn shift(mut bytes: usize) -> u32 {
        let (mut result, mut power) = (ONE, BYTE);
        while bytes > 0 {
            if bytes & 1 == 1 {
                result = multiply(result, power);
            }
            power = multiply(power, power);
            bytes >>= 1;
        }
        result
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn of_a_whole_from_its_parts() {
            assert_eq!(COMMA, crc32fast::hash(b","));
            let text: Vec<u8> = (0..1000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            for at in [0, 1, 2, 255, 256, 999, 1000] {
                let (first, second) = text.split_at(at);
                let whole = multiply(shift(second.len()), crc32fast::hash(first)) ^ crc32fast::hash(second);
                assert_eq!(whole, crc32fast::hash(&text), "{at}");
            }
        }
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
            gzip.add(&Piece::new(part), &mut out);
            gzip.add_comma(&mut out);
            expected.extend_from_slice(part);
            expected.push(b',');
        }
        gzip.finish(&mut out);
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut read).unwrap();
        assert!(read == expected);
    }
}
