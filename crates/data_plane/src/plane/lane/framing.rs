//! Where the body of an answer ends.
//!
//! Chunks are checked to the last byte and go on as they are, but for their extensions and trailers, which end here: the client sees the
//! same bytes that were checked, and two readings of them are not possible.

/// Of a chunk's size, with zeros before it.
const MAX_DIGITS: u8 = 16;
/// Extensions of chunks and trailers of one answer: nobody needs more.
const MAX_IGNORED: usize = 16 << 10;

/// How a body is told from what comes after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Length(u64),
    Chunked(Chunks),
    /// To the end of the connection; the client gets it in chunks.
    UntilClose,
}

/// Not the framing that was announced.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the framing of the answer is broken")]
pub(super) struct Malformed;

/// What became of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passed {
    /// The first so many are to be passed on.
    pub(super) length: usize,
    /// The body has ended.
    pub(super) is_over: bool,
    /// There were more bytes than belong to it.
    pub(super) has_excess: bool,
}

impl Framing {
    /// Looks at the next bytes of the body, and moves those that are passed on to the front.
    pub(super) fn pass(&mut self, bytes: &mut [u8]) -> Result<Passed, Malformed> {
        match self {
            Self::Length(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                *left -= length as u64;
                Ok(Passed { length, is_over: *left == 0, has_excess: length < bytes.len() })
            }
            Self::Chunked(chunks) => chunks.pass(bytes),
            Self::UntilClose => Ok(Passed { length: bytes.len(), is_over: false, has_excess: false }),
        }
    }
}

/// A reader of chunks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chunks {
    at: At,
    /// Of the present chunk.
    size: u64,
    digits: u8,
    /// Bytes of extensions and trailers so far.
    ignored: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Size,
    /// Some servers write all sizes at one width.
    Padding,
    Extension,
    SizeEnd,
    Data,
    DataCr,
    DataLf,
    /// Where a trailer may begin, or the end.
    Line,
    Trailer,
    TrailerEnd,
    LastLf,
    End,
}

impl Chunks {
    fn pass(&mut self, bytes: &mut [u8]) -> Result<Passed, Malformed> {
        let (mut read, mut written) = (0, 0);
        while read < bytes.len() && self.at != At::End {
            if self.at == At::Data {
                let length = usize::try_from(self.size).unwrap_or(usize::MAX).min(bytes.len() - read);
                // After an extension everything moves up; there hardly ever is one.
                if read != written {
                    bytes.copy_within(read..read + length, written);
                }
                (read, written) = (read + length, written + length);
                self.size -= length as u64;
                if self.size == 0 {
                    self.at = At::DataCr;
                }
                continue;
            }
            let byte = bytes[read];
            read += 1;
            if self.step(byte)? {
                bytes[written] = byte;
                written += 1;
            }
        }
        let is_over = self.at == At::End;
        Ok(Passed { length: written, is_over, has_excess: read < bytes.len() })
    }

    /// One byte that is not data: whether it is passed on.
    fn step(&mut self, byte: u8) -> Result<bool, Malformed> {
        let (next, is_passed) = match (self.at, byte) {
            (At::Size | At::Padding, b'\r') if self.digits > 0 => (At::SizeEnd, true),
            (At::Size | At::Padding, b' ' | b'\t') if self.digits > 0 => (At::Padding, false),
            (At::Size | At::Padding, b';') if self.digits > 0 => (At::Extension, false),
            (At::Size, byte) => {
                let digit = char::from(byte).to_digit(16).ok_or(Malformed)?;
                if self.digits == MAX_DIGITS {
                    return Err(Malformed);
                }
                (self.size, self.digits) = (self.size << 4 | u64::from(digit), self.digits + 1);
                (At::Size, true)
            }
            (At::Extension, b'\r') => (At::SizeEnd, true),
            (At::Extension, byte) if is_text(byte) => (At::Extension, false),
            (At::SizeEnd, b'\n') => {
                self.digits = 0;
                (if self.size == 0 { At::Line } else { At::Data }, true)
            }
            (At::DataCr, b'\r') => (At::DataLf, true),
            (At::DataLf, b'\n') => (At::Size, true),
            (At::Line, b'\r') => (At::LastLf, true),
            (At::Line | At::Trailer, byte) if is_text(byte) => (At::Trailer, false),
            (At::Trailer, b'\r') => (At::TrailerEnd, false),
            (At::TrailerEnd, b'\n') => (At::Line, false),
            (At::LastLf, b'\n') => (At::End, true),
            _ => return Err(Malformed),
        };
        if !is_passed && next != At::Padding {
            self.ignored += 1;
            if self.ignored > MAX_IGNORED {
                return Err(Malformed);
            }
        }
        self.at = next;
        Ok(is_passed)
    }
}

fn is_text(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of a body that arrives in two pieces: what is passed on, and what is left over.
    fn passed(body: &[u8], cut: usize) -> Result<(Vec<u8>, bool, bool), Malformed> {
        let mut framing = Framing::Chunked(Chunks::default());
        let (mut out, mut is_over, mut has_excess) = (Vec::new(), false, false);
        for piece in [&body[..cut], &body[cut..]] {
            let mut piece = piece.to_vec();
            let passed = framing.pass(&mut piece)?;
            out.extend_from_slice(&piece[..passed.length]);
            (is_over, has_excess) = (passed.is_over, passed.has_excess);
        }
        Ok((out, is_over, has_excess))
    }

    #[test]
    fn chunks_are_the_same_wherever_they_are_cut() {
        let plain: &[u8] = b"5\r\nhello\r\n00a\r\n0123456789\r\nB\r\n\r\n0\r\n\r\n\0x\n\r\r\n0\r\n\r\n";
        for (body, expected) in [
            (plain, plain),
            (b"0\r\n\r\n", b"0\r\n\r\n"),
            (b"5;a=b;c=\"d\"\r\nhello\r\n3 \t\r\nabc\r\n0;last\r\n\r\n", b"5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n"),
            (b"1\r\nx\r\n0\r\nExpires: never\r\nX: \xe9\r\n\r\n", b"1\r\nx\r\n0\r\n\r\n"),
        ] {
            for cut in 0..=body.len() {
                let found = passed(body, cut).unwrap();
                assert_eq!(found, (expected.to_vec(), true, false), "{cut}");
                // Whatever comes after the end is not passed on.
                let more = [body, b"HTTP/1.1 200 OK\r\n\r\n"].concat();
                assert_eq!(passed(&more, cut).unwrap(), (expected.to_vec(), true, true), "{cut}");
                // And what is not there yet is not the end.
                let less = &body[..body.len() - 1];
                assert!(!passed(less, cut.min(less.len())).unwrap().1);
            }
        }
    }

    #[test]
    fn padded_sizes_do_not_add_up() {
        let padded = [&b"1     \r\nx\r\n".repeat(MAX_IGNORED)[..], b"0     \r\n\r\n"].concat();
        let plain = [&b"1\r\nx\r\n".repeat(MAX_IGNORED)[..], b"0\r\n\r\n"].concat();
        assert_eq!(passed(&padded, padded.len() / 2).unwrap(), (plain, true, false));
    }

    #[test]
    fn security_chunks_that_could_be_read_in_two_ways_are_not_passed_on() {
        for body in [
            &b"\r\nhello\r\n0\r\n\r\n"[..],
            b"5\nhello\r\n0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello\r\n0\r\n\n",
            b"5\r\nhello\r\n0\n\r\n",
            b"+5\r\nhello\r\n0\r\n\r\n",
            b"-1\r\nhello\r\n0\r\n\r\n",
            b"0x5\r\nhello\r\n0\r\n\r\n",
            b" 5\r\nhello\r\n0\r\n\r\n",
            b"5 5\r\nhello\nGET",
            b"5 5\r\nhello\r\n0\r\n\r\n",
            b"5;a\nb\r\nhello\r\n0\r\n\r\n",
            b"5;a\rb\r\nhello\r\n0\r\n\r\n",
            b"5\r\rhello\r\n0\r\n\r\n",
            b"10000000000000005\r\nhello\r\n0\r\n\r\n",
            b"00000000000000005\r\nhello\r\n0\r\n\r\n",
            b"0\r\nX: a\nY: b\r\n\r\n",
            b"0\r\nX: a\rY: b\r\n\r\n",
            b"0\r\nX: \0\r\n\r\n",
        ] {
            for cut in 0..=body.len() {
                assert_eq!(passed(body, cut), Err(Malformed), "{}", body.escape_ascii());
            }
        }
        let long = [b"0\r\nX: ", &[b'x'; MAX_IGNORED][..], b"\r\n\r\n"].concat();
        assert_eq!(passed(&long, 7), Err(Malformed));
    }

    #[test]
    fn a_length_is_not_exceeded() {
        for (left, bytes, expected) in [
            (5, "abc", (3, false, false)),
            (3, "abc", (3, true, false)),
            (2, "abc", (2, true, true)),
            (0, "", (0, true, false)),
        ] {
            let passed = Framing::Length(left).pass(&mut bytes.as_bytes().to_vec()).unwrap();
            assert_eq!((passed.length, passed.is_over, passed.has_excess), expected);
        }
    }
}
