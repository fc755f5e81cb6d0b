//! Watches as a load generator follows them: every line counts, nothing is decoded.

use anyhow::{bail, ensure};

use super::{Event, Request, Requests};

/// The first resource version in an answer: that of the object.
pub(crate) fn resource_version(answer: &[u8]) -> &str {
    const KEY: &[u8] = b"\"resourceVersion\":\"";
    let digits = memchr::memmem::find(answer, KEY).map_or(&[][..], |at| &answer[at + KEY.len()..]);
    let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&digits[..length]).unwrap_or_default()
}

/// The watches on the streams of one connection.
pub(crate) struct Watches {
    /// All of it but the version to begin after, which comes last.
    path: String,
    /// By number of the stream: clients count 1, 3, 5.
    streams: Vec<Option<Follower>>,
}

/// What came of something that arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A watch is open.
    Opened,
    /// So many events.
    Events(usize),
}

/// One watcher. A server may end the watch of a client that it finds slow; the client goes on where it was.
struct Follower {
    /// The version in the last whole event, and in the one that is arriving.
    version: String,
    arriving: String,
}

impl Watches {
    /// Of a collection.
    pub(crate) fn of(collection: &str) -> Self {
        Self { path: format!("{collection}?watch=true&resourceVersion="), streams: Vec::new() }
    }

    /// Opens one more watch, of what comes after a version.
    pub(crate) fn open(&mut self, from: &str, requests: &mut Requests) -> anyhow::Result<()> {
        self.follow(Follower { version: from.to_owned(), arriving: String::new() }, requests)
    }

    fn follow(&mut self, follower: Follower, requests: &mut Requests) -> anyhow::Result<()> {
        let path = format!("{}{}", self.path, follower.version);
        let slot = slot(requests.send(&Request::get(&path))?);
        self.streams.resize_with(self.streams.len().max(slot + 1), || None);
        self.streams[slot] = Some(follower);
        Ok(())
    }

    /// Takes what arrived on the connection.
    pub(crate) fn on(&mut self, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<Came> {
        match event {
            Event::Head { code, .. } => {
                ensure!(code == 200, "watch: {code}");
                return Ok(Came::Opened);
            }
            Event::Data { stream, data } => {
                let Some(Some(follower)) = self.streams.get_mut(slot(stream)) else {
                    bail!("data that nobody asked for")
                };
                return follower.take(data).map(Came::Events);
            }
            Event::End { stream } | Event::Reset { stream } => {
                if let Some(follower) = self.streams.get_mut(slot(stream)).and_then(Option::take) {
                    self.follow(follower, requests)?;
                }
            }
        }
        Ok(Came::Events(0))
    }
}

fn slot(stream: u32) -> usize {
    stream as usize / 2
}

impl Follower {
    /// One event a line, wherever frames begin and end. Returns how many ended here.
    fn take(&mut self, data: &[u8]) -> anyhow::Result<usize> {
        let (mut start, mut count) = (0, 0);
        for end in memchr::memchr_iter(b'\n', data) {
            self.look(&data[start..end])?;
            self.version.clone_from(&self.arriving);
            count += 1;
            start = end + 1;
        }
        self.look(&data[start..])?;
        Ok(count)
    }

    fn look(&mut self, part: &[u8]) -> anyhow::Result<()> {
        ensure!(!part.starts_with(br#"{"type":"ERROR""#), "watch: {}", String::from_utf8_lossy(part));
        let version = resource_version(part);
        if !version.is_empty() {
            self.arriving.clear();
            self.arriving.push_str(version);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_events_wherever_they_are_cut() {
        let line = |version: u32| {
            format!("{{\"type\":\"ADDED\",\"object\":{{\"metadata\":{{\"resourceVersion\":\"{version}\"}}}}}}\n")
        };
        let text = line(7) + &line(8) + &line(9);
        for cut in 0..=text.len() {
            let mut follower = Follower { version: "6".to_owned(), arriving: String::new() };
            let (first, second) = text.as_bytes().split_at(cut);
            assert_eq!(follower.take(first).expect("events") + follower.take(second).expect("events"), 3, "{cut}");
        }
        let mut follower = Follower { version: "6".to_owned(), arriving: String::new() };
        follower.take(&text.as_bytes()[..line(7).len() + 5]).expect("events");
        assert_eq!(follower.version, "7");
    }

    #[test]
    fn an_error_is_no_event() {
        let mut follower = Follower { version: "6".to_owned(), arriving: String::new() };
        let error = follower.take(b"{\"type\":\"ERROR\",\"object\":{\"code\":410}}\n").expect_err("refused");
        assert!(error.to_string().contains("410"), "{error}");
        assert_eq!(follower.version, "6");
    }
}
