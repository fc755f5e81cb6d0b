//! Inputs that somebody damaged: a corpus of good ones, changed a little, always in the same way.
//!
//! What a fuzzer does for hours, for a moment in every test run: parsers of what others send must not panic, hang or grow.

/// Every input as it is, cut short at each of its first bytes, and `count` changed ones.
pub fn inputs(corpus: &[&[u8]], count: usize) -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = corpus.iter().map(|input| input.to_vec()).collect();
    for input in corpus {
        inputs.extend((0..input.len().min(64)).map(|end| input[..end].to_vec()));
    }
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..count {
        let mut input = corpus[random.below(corpus.len())].to_vec();
        for _ in 0..=random.below(6) {
            change(&mut input, corpus, &mut random);
        }
        inputs.push(input);
    }
    inputs
}

/// As [`inputs`], of texts.
pub fn texts(corpus: &[&str], count: usize) -> Vec<String> {
    let corpus: Vec<&[u8]> = corpus.iter().map(|text| text.as_bytes()).collect();
    inputs(&corpus, count).iter().map(|input| String::from_utf8_lossy(input).into_owned()).collect()
}

/// Longer inputs say nothing that shorter ones do not.
const LONGEST: usize = 1 << 14;

fn change(input: &mut Vec<u8>, corpus: &[&[u8]], random: &mut Random) {
    const EXTREMES: &[u8] = &[0, 1, 0x7f, 0x80, 0xff, b'"', b'{', b'/', b'%', b'=', b',', b'\\'];
    let at = random.below(input.len() + 1);
    let length = random.below(9).min(input.len() - at);
    match random.below(7) {
        0 if at < input.len() => input[at] ^= 1 << random.below(8),
        1 if at < input.len() => input[at] = EXTREMES[random.below(EXTREMES.len())],
        2 => input.insert(at, EXTREMES[random.below(EXTREMES.len())]),
        3 => drop(input.drain(at..at + length)),
        4 => {
            let copied = input[at..at + length].to_vec();
            let to = random.below(input.len() + 1);
            input.splice(to..to, copied);
        }
        // Lengths and counts that are too large.
        5 => input[at..at + length].fill(0xff),
        _ => {
            let other = corpus[random.below(corpus.len())];
            let from = random.below(other.len() + 1);
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
    input.truncate(LONGEST);
}

/// xorshift64*: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }
}
