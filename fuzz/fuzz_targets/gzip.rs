//! Compressed answers: pieces of any content, cut where the first byte says, make a gzip stream that can be read.
#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unreachable_pub, reason = "a module of the API server, which does not show it")]
#[path = "../../crates/apiserver/src/watch_cache/deflate.rs"]
mod deflate;

fuzz_target!(|data: &[u8]| {
    let Some((length, data)) = data.split_first() else { return };
    // Large pieces are where compressors run out of room: each is repeated, with a change in every copy.
    let (mut out, mut expected) = (Vec::new(), Vec::new());
    let mut gzip = deflate::Gzip::start(&mut out);
    for piece in data.chunks(usize::from(*length) + 1) {
        let piece: Vec<u8> = (0..=255u8).flat_map(|n| piece.iter().map(move |byte| byte.wrapping_mul(n | 1))).collect();
        gzip.add(&deflate::Piece::new(&piece), &mut out);
        gzip.add_comma(&mut out);
        expected.extend_from_slice(&piece);
        expected.push(b',');
    }
    gzip.finish(&mut out);
    let mut read = Vec::new();
    flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut read).expect("an answer can be read");
    assert!(read == expected);
});
