//! Answers that no kernel gives, given to what reads them. A target in `fuzz/` runs this for hours, the test here for a
//! moment with answers that somebody damaged.

use crate::message::attributes;

/// What follows the head of an answer: it is read as all that it could be, or as nothing.
pub fn answer(data: &[u8]) {
    assert!(attributes(data).count() <= data.len() / 4);
    let _ = crate::link::parse(data);
    let _ = crate::route::parse(data);
    let _ = crate::address::parse(data);
    let _ = crate::neighbour::parse(data);
    let _ = crate::neighbour::parse_proxy(data);
    let _ = crate::Flow::parse(data);
    let _ = crate::generic::parse(data);
    let _ = crate::wireguard::parse(data, &mut crate::wireguard::Device::default());
}

#[cfg(test)]
mod tests {
    /// An attribute as the kernel writes it.
    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = (value.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn security_damaged_answers_do_no_harm() {
        let four = 7u32.to_ne_bytes();
        let nested = attribute(1, &[attribute(1, &four), attribute(2, &[0; 16])].concat());
        let values: [&[u8]; 4] = [&four, b"eth0\0", &[0xfe; 16], &nested];
        // Every kind with every value, behind headers of all lengths.
        let all = |header: usize| {
            let attributes = (0..64).flat_map(|kind| values.iter().map(move |value| attribute(kind, value)));
            [vec![0; header], attributes.flatten().collect()].concat()
        };
        let corpus: Vec<Vec<u8>> = [0, 4, 8, 12, 16].map(all).into_iter().collect();
        let corpus: Vec<&[u8]> = corpus.iter().map(|answer| &answer[..]).collect();
        for answer in testkit::mutate::inputs(&corpus, 5_000) {
            super::answer(&answer);
        }
    }
}
