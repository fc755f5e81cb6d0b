//! The log of components: one line per event, whatever is told in it.
//!
//! Errors repeat what registries, webhooks and containers said. With a line break in it, that would look like an event of ours.

use std::io::{self, Write};

/// Writes each event as one line; an event is what is written at once.
pub struct OneLine<W>(pub W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = match event.strip_suffix(b"\n") {
            Some(text) => (text, &b"\n"[..]),
            None => (event, &b""[..]),
        };
        if !text.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
            self.0.write_all(event)?;
            return Ok(event.len());
        }
        let mut line = Vec::with_capacity(event.len() + 16);
        for byte in text {
            match byte {
                b'\n' => line.extend_from_slice(b"\\n"),
                b'\r' => line.extend_from_slice(b"\\r"),
                byte => line.push(*byte),
            }
        }
        line.extend_from_slice(end);
        self.0.write_all(&line)?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_an_event_is_one_line_of_the_log() {
        for (event, expected) in [
            ("WARN not pulled error=no\n", "WARN not pulled error=no\n"),
            (
                "WARN error=no\n2026-11-19 INFO all is well\r\nx\n",
                "WARN error=no\\n2026-11-19 INFO all is well\\r\\nx\n",
            ),
            ("no end\n\n", "no end\\n\n"),
            ("part", "part"),
            ("\n", "\n"),
            ("", ""),
        ] {
            let mut log = Vec::new();
            OneLine(&mut log).write_all(event.as_bytes()).unwrap();
            assert_eq!(String::from_utf8(log).unwrap(), expected);
        }
    }
}
