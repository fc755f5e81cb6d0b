//! Heads with some bytes changed, for tests.

/// What is put in and makes a difference.
const PIECES: [&[u8]; 16] = [
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b",",
    b"\0",
    b"\x80",
    b"0",
    b"+",
    b"Content-Length: 3\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Connection: close\r\n",
    b"Host: b.test\r\n",
];

/// The same ones in each run.
pub(super) fn damaged(head: &[u8], count: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut seed = 1_u64;
    let mut random = move |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    (0..count).map(move |_| {
        let mut bytes = head.to_vec();
        for _ in 0..=random(3) {
            let (at, piece) = (random(bytes.len()), PIECES[random(PIECES.len())]);
            let end = at + random(2);
            bytes.splice(at..end, piece.iter().copied().filter(|_| random(4) > 0));
        }
        bytes
    })
}
