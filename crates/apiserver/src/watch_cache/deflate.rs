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

/// What a flush ends with: an empty stored block.
const FLUSHED: [u8; 4] = [0, 0, 0xff, 0xff];
/// As much as a stored block can hold.
const STORED: usize = 0xffff;

/// Compresses in one call: a compressor that runs out of room and is called again first hands out what it had ready, and
/// leaves it open whether the flush has begun. Whatever is not finished then, or gained nothing, is stored as it is.
fn compress(bytes: &[u8]) -> Box<[u8]> {
    let worst = stored_size(bytes.len());
    let compressed = COMPRESSOR.with_borrow_mut(|compressor| {
        compressor.reset();
        // Bytes that do not compress take some more before the compressor decides to store them, and the flush comes on top.
        let mut out = Vec::with_capacity(worst + bytes.len() / 8 + 128);
        let status = compressor.compress_vec(bytes, &mut out, FlushCompress::Sync);
        let finished = matches!(status, Ok(Status::Ok))
            && compressor.total_in() == bytes.len() as u64
            && out.len() < out.capacity()
            && out.ends_with(&FLUSHED);
        (finished && out.len() <= worst).then(|| out.into_boxed_slice())
    });
    compressed.unwrap_or_else(|| store(bytes))
}

/// Stored blocks, each with five bytes before it.
fn store(bytes: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(stored_size(bytes.len()));
    for block in bytes.chunks(STORED) {
        let length = block.len() as u16;
        out.push(0);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.into_boxed_slice()
}

fn stored_size(length: usize) -> usize {
    length + length.div_ceil(STORED) * 5
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

    fn noise(length: usize, seed: u64) -> impl Iterator<Item = u8> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..length).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
    }

    fn check(parts: &[&[u8]], what: &str) {
        let mut out = Vec::new();
        let mut gzip = Gzip::start(&mut out);
        let mut expected = Vec::new();
        for part in parts {
            let piece = Piece::new(part);
            assert!(piece.size() <= stored_size(part.len()), "{what}: {} bytes became {}", part.len(), piece.size());
            gzip.add(&piece, &mut out);
            gzip.add_comma(&mut out);
            expected.extend_from_slice(part);
            expected.push(b',');
        }
        gzip.finish(&mut out);
        let mut read = Vec::new();
        flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut read).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(read == expected, "{what}");
    }

    #[test]
    fn pieces_make_a_gzip_stream() {
        let noise: Vec<u8> = noise(200_000, 0).collect();
        check(&[b"[", b"{\"a\":1}", &noise, b""], "pieces");
    }

    /// Every size class of blocks and of the compressor's buffers, and one byte around them, from constant bytes to noise.
    #[test]
    fn every_size_and_entropy_is_read_again() {
        let around = [1usize << 10, 1 << 12, 31 * 1024, 1 << 15, STORED, 2 * STORED, 85_000, 200_000, 400_000];
        let mut sizes: Vec<usize> = around.iter().flat_map(|size| size - 2..size + 3).collect();
        sizes.extend(0..20);
        sizes.extend(noise(24, 7).zip(noise(24, 8)).map(|(high, low)| usize::from(high) * 1024 + usize::from(low)));
        for (seed, size) in sizes.into_iter().enumerate() {
            for mask in [0x00, 0x01, 0x0f, 0x3f, 0x7f, 0xff] {
                let bytes: Vec<u8> = noise(size, seed as u64).map(|byte| byte & mask).collect();
                check(&[&bytes], &format!("{size} bytes of entropy {mask:#x}"));
            }
            // What Secrets look like: noise in base64 between words.
            let text: Vec<u8> = noise(size, seed as u64).map(|byte| 0x30 + (byte & 0x3f)).collect();
            check(&[b"{\"data\":{\"k\":\"", &text, b"\"}}", &text], &format!("{size} bytes of base64"));
        }
    }
}
