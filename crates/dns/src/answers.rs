//! Answers of the zone, kept as they went over the wire for as long as nothing in the cluster changes.
//!
//! Clients ask for the same few names again and again; reading, answering and writing a message costs more than all the
//! rest. The whole question is the key, flags and options included, so that what is sent is exactly what would be made.
//! Invariant: an answer is used only in the generation of the index that it was made in.

use std::collections::HashMap;

use crate::metrics::Exchange;

/// Beyond this everything is forgotten: what is asked often is soon back.
const SIZE: usize = 16 * 1024;
/// Questions have a name of at most 255 bytes; longer ones carry options that do not repeat.
const LONGEST_QUESTION: usize = 320;
const ID: usize = 2;

#[derive(Default)]
pub(crate) struct Answers {
    generation: u64,
    kept: HashMap<Box<[u8]>, Kept>,
}

/// An answer without its id, and how it is counted.
struct Kept {
    answer: Box<[u8]>,
    exchange: Exchange,
}

impl Answers {
    /// Writes the answer to a packet into `buffer`, if it is known.
    pub(crate) fn get(&mut self, generation: u64, packet: &[u8], buffer: &mut Vec<u8>) -> Option<Exchange> {
        if self.generation != generation {
            self.kept.clear();
            self.generation = generation;
            return None;
        }
        let (id, question) = packet.split_at_checked(ID)?;
        let kept = self.kept.get(question)?;
        buffer.clear();
        buffer.extend_from_slice(id);
        buffer.extend_from_slice(&kept.answer);
        Some(kept.exchange)
    }

    /// Keeps an answer that was made from the index of this generation.
    pub(crate) fn put(&mut self, generation: u64, packet: &[u8], answer: &[u8], exchange: Exchange) {
        let is_kept = self.generation == generation && packet.len() <= LONGEST_QUESTION;
        if let (true, Some(question), Some(answer)) = (is_kept, packet.get(ID..), answer.get(ID..)) {
            if self.kept.len() >= SIZE {
                self.kept.clear();
            }
            self.kept.insert(question.into(), Kept { answer: answer.into(), exchange });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::RecordType;

    #[test]
    fn an_answer_lasts_as_long_as_its_generation() {
        let exchange = Exchange { kind: RecordType::A, code: ResponseCode::NoError, is_own: true, is_logged: false };
        let mut answers = Answers::default();
        let mut buffer = Vec::new();
        answers.put(0, b"\x01\x02question", b"\x01\x02answer", exchange);
        assert_eq!(answers.get(0, b"\x07\x08question", &mut buffer), Some(exchange));
        assert_eq!(buffer, b"\x07\x08answer");
        assert_eq!(answers.get(0, b"\x07\x08other", &mut buffer), None);
        assert_eq!(answers.get(0, b"\x07", &mut buffer), None);
        // Made before a change: neither kept nor used after it.
        assert_eq!(answers.get(1, b"\x07\x08question", &mut buffer), None);
        answers.put(0, b"\x01\x02question", b"\x01\x02answer", exchange);
        assert_eq!(answers.get(1, b"\x07\x08question", &mut buffer), None);
    }
}
