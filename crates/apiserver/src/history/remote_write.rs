//! Prometheus' remote write, version 1.0: each minute of values as a message of protobuf, compressed with snappy.
//!
//! A server that is away is caught up with when it is back, minute by minute, as far as an hour. What it refuses for good is not
//! sent again. What was sent is known as long as this process runs: the next one sends the last hour again.
//!
//! Who sends is part of every series ([`Identity`]): several clusters, and several servers of one, may write to the same place.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::History;
use super::ring::{Key, POINTS, STEP};
use crate::remote::{Remote, RemoteError};

const HEADERS: &[(&str, &str)] = &[
    ("content-type", "application/x-protobuf"),
    ("content-encoding", "snappy"),
    ("x-prometheus-remote-write-version", "0.1.0"),
];
const TIMEOUT: Duration = Duration::from_secs(30);
/// Minutes that are sent again after a failure. Each is tried once a minute.
const MAX_MINUTES: u64 = 60;

/// Whose figures they are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Identity {
    /// The uid of the namespace kube-system, by which clusters are told apart.
    pub(crate) cluster: String,
    /// The address or name of the server.
    pub(crate) instance: String,
}

/// What became of values.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Counts {
    pub(crate) fn get(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.dropped.load(Ordering::Relaxed))
    }
}

/// How far values were sent.
#[derive(Debug, PartialEq)]
struct Progress {
    /// The minute that was sent last.
    sent: u64,
    /// Up to this minute another process may have sent values already.
    of_others: u64,
}

impl Progress {
    fn begin(newest: u64, of_others: u64) -> Self {
        Self { sent: newest.saturating_sub(MAX_MINUTES), of_others }
    }
}

/// Sends every minute until `stop`, as soon as it is known who sends.
pub(crate) async fn run(
    history: &History,
    remote: &Remote,
    identity: impl Fn() -> Option<Identity> + Send,
    stop: CancellationToken,
) {
    let of_others = history.ring.lock().newest();
    let mut progress = None;
    let mut complained = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = history.recorded.notified() => {}
        }
        let Some(identity) = identity() else { continue };
        let newest = history.ring.lock().newest();
        let progress = progress.get_or_insert_with(|| Progress::begin(newest, of_others));
        let outcome = tokio::select! {
            () = stop.cancelled() => return,
            outcome = catch_up(history, remote, &identity, progress) => outcome,
        };
        match outcome {
            Err(error) if !std::mem::replace(&mut complained, true) => {
                tracing::warn!(%error, "the history of figures is not taken by remote write");
            }
            Err(_) => {}
            Ok(()) => complained = false,
        }
    }
}

/// Sends what came after the minute that was sent last, which follows.
async fn catch_up(
    history: &History,
    remote: &Remote,
    identity: &Identity,
    progress: &mut Progress,
) -> Result<(), RemoteError> {
    let newest = history.ring.lock().newest();
    if newest < progress.sent {
        // The clock was ahead, and the ring began anew.
        *progress = Progress { sent: newest.saturating_sub(1), of_others: 0 };
    }
    let oldest = newest.saturating_sub(MAX_MINUTES);
    if progress.sent < oldest {
        let minutes = (progress.sent + 1).max(newest.saturating_sub(POINTS as u64))..=oldest;
        let lost = minutes.map(|minute| values(history, minute).len() as u64).sum();
        history.remote.dropped.fetch_add(lost, Ordering::Relaxed);
        progress.sent = oldest;
    }
    let mut outcome = Ok(());
    while progress.sent < newest {
        let minute = progress.sent + 1;
        let values = values(history, minute);
        if !values.is_empty() {
            let written = remote.write(HEADERS, Bytes::from(message(&values, minute, identity)), TIMEOUT).await;
            let counter = match written {
                Ok(()) => Some(&history.remote.sent),
                Err(error) if !is_for_good(&error) => return Err(error),
                // Whoever has newer values refuses these; they were sent before.
                Err(_) if minute <= progress.of_others => None,
                Err(error) => {
                    outcome = Err(error);
                    Some(&history.remote.dropped)
                }
            };
            if let Some(counter) = counter {
                counter.fetch_add(values.len() as u64, Ordering::Relaxed);
            }
        }
        progress.sent = minute;
    }
    outcome
}

/// The specification: whoever refuses with 4xx is not asked again. Nor is who points elsewhere: credentials are for the one that
/// was named. Credentials that are refused may be about to be exchanged.
fn is_for_good(error: &RemoteError) -> bool {
    match error {
        RemoteError::Unreachable(_) | RemoteError::Late(_) => false,
        RemoteError::Refused(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => false,
        RemoteError::Refused(_) | RemoteError::Garbage(_) => !error.is_passing(),
    }
}

fn values(history: &History, minute: u64) -> Vec<(Key, f32)> {
    history.ring.lock().at(minute).map(|(key, value)| (key.clone(), value)).collect()
}

fn message(values: &[(Key, f32)], minute: u64, identity: &Identity) -> Vec<u8> {
    let timestamp = (minute * STEP * 1000) as i64;
    let timeseries = values.iter().map(|(key, value)| TimeSeries {
        labels: labels(key, identity),
        samples: vec![Sample { value: f64::from(*value), timestamp }],
    });
    snappy(&WriteRequest { timeseries: timeseries.collect() }.encode_to_vec())
}

/// In the order of their names; those without a value are left out.
fn labels(key: &Key, identity: &Identity) -> Vec<Label> {
    let name = format!("cox_history_{}", key.what.as_str());
    let labels = [
        ("__name__", name.as_str()),
        ("cluster", &identity.cluster),
        ("instance", &identity.instance),
        ("name", &key.name),
        ("namespace", &key.namespace),
        ("of", key.of.as_str()),
    ];
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    labels.map(|(name, value)| Label { name: name.to_owned(), value: value.to_owned() }).collect()
}

const _: () = assert!(STEP == 60, "a minute is a value");

#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

/// The shortest repetition that is worth a copy, and the longest and farthest that one element can say.
const SHORTEST: usize = 4;
const LONGEST: usize = 64;
const FARTHEST: usize = u16::MAX as usize;

/// Snappy's block format: the length, then literal bytes and copies of what came before.
fn snappy(input: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len() / 2 + 16);
    let mut length = input.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    // Where four bytes were seen last.
    let mut seen = vec![usize::MAX; 1 << 14];
    let (mut at, mut literal) = (0, 0);
    while let Some(four) = input.get(at..).and_then(|rest| rest.first_chunk::<SHORTEST>()) {
        let slot = (u32::from_le_bytes(*four).wrapping_mul(0x9e37_79b1) >> 18) as usize;
        let before = std::mem::replace(&mut seen[slot], at);
        if before == usize::MAX || at - before > FARTHEST || input[before..before + SHORTEST] != *four {
            at += 1;
            continue;
        }
        let same = input[at..].iter().zip(&input[before..]).take(LONGEST).take_while(|(new, old)| new == old).count();
        literals(&mut out, &input[literal..at]);
        out.push((same as u8 - 1) << 2 | 2);
        out.extend(((at - before) as u16).to_le_bytes());
        at += same;
        literal = at;
    }
    literals(&mut out, &input[literal..]);
    out
}

fn literals(out: &mut Vec<u8>, bytes: &[u8]) {
    for piece in bytes.chunks(1 << 16) {
        let last = piece.len() - 1;
        match last {
            0..60 => out.push((last as u8) << 2),
            60..256 => out.extend([60 << 2, last as u8]),
            _ => {
                out.push(61 << 2);
                out.extend((last as u16).to_le_bytes());
            }
        }
        out.extend(piece);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::super::ring::{Of, What};
    use super::*;

    /// What snappy's specification says of the elements that are written here.
    fn unpacked(bytes: &[u8]) -> Vec<u8> {
        let end = bytes.iter().position(|byte| *byte < 0x80).unwrap();
        let length = bytes[..=end].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        let (mut out, mut rest) = (Vec::new(), &bytes[end + 1..]);
        while let [tag, after @ ..] = rest {
            if tag & 3 == 2 {
                let from = out.len() - usize::from(u16::from_le_bytes([after[0], after[1]]));
                (0..usize::from(tag >> 2) + 1).for_each(|at| out.push(out[from + at]));
                rest = &after[2..];
                continue;
            }
            let (length, after) = match tag >> 2 {
                60 => (usize::from(after[0]) + 1, &after[1..]),
                61 => (usize::from(u16::from_le_bytes([after[0], after[1]])) + 1, &after[2..]),
                length => (usize::from(length) + 1, after),
            };
            out.extend(&after[..length]);
            rest = &after[length..];
        }
        assert_eq!(out.len(), length);
        out
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        let noise: Vec<u8> = (0..200_000_u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let mut mixed = noise[..70_000].to_vec();
        mixed.extend(&noise[..1000]);
        for input in [b"".to_vec(), b"abc".to_vec(), vec![7; 300], b"abcdabcdabcd".repeat(9000), noise, mixed] {
            assert_eq!(unpacked(&snappy(&input)), input);
        }
        assert!(snappy(&[7; 100_000]).len() < 6000);
    }

    fn key(name: &str) -> Key {
        Key { what: What::Cpu, of: Of::Pod, namespace: "d".into(), name: name.into() }
    }

    fn identity() -> Identity {
        Identity { cluster: "uid".to_owned(), instance: "10.0.0.1".to_owned() }
    }

    #[test]
    fn values_are_sent_with_their_labels_and_times() {
        let history = History::open(None);
        history.record(100, vec![(key("old"), 1.0)]);
        history.record(101, vec![(key("we\"b"), 0.5)]);
        let values = values(&history, 101);
        let body = message(&values, 101, &identity());
        let request = WriteRequest::decode(unpacked(&body).as_slice()).unwrap();
        assert_eq!(request.timeseries.len(), 1);
        let labels: Vec<_> =
            request.timeseries[0].labels.iter().map(|of| (of.name.as_str(), of.value.as_str())).collect();
        let expected = [
            ("__name__", "cox_history_cpu_cores"),
            ("cluster", "uid"),
            ("instance", "10.0.0.1"),
            ("name", "we\"b"),
            ("namespace", "d"),
            ("of", "pod"),
        ];
        assert_eq!(labels, expected);
        assert_eq!(request.timeseries[0].samples, [Sample { value: 0.5, timestamp: 6_060_000 }]);
    }

    /// Answers one request after the other with these codes, then with 200. The heads of what it was asked.
    async fn prometheus(codes: &'static [u16]) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/api/v1/write", listener.local_addr().unwrap());
        let (tell, told) = tokio::sync::mpsc::unbounded_channel();
        let mut codes = codes.iter().copied();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                let mut body = vec![0; length.parse().unwrap()];
                stream.read_exact(&mut body).await.unwrap();
                let code = codes.next().unwrap_or(200);
                let answer = format!(
                    "HTTP/1.1 {code} Something\r\nlocation: /elsewhere\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
                drop(tell.send(head));
            }
        });
        (url, told)
    }

    #[tokio::test]
    async fn what_fails_is_sent_again_from_where_it_failed() {
        let (url, mut asked) = prometheus(&[200, 503, 400, 429, 302]).await;
        let remote = Remote::from_url(&url, None).unwrap();
        let history = History::open(None);
        for minute in 100..=103 {
            history.record(minute, vec![(key("a"), 1.0), (key("b"), 2.0)]);
        }
        let mut progress = Progress { sent: 99, of_others: 0 };
        let mut outcomes = Vec::new();
        for _ in 0..4 {
            let outcome = catch_up(&history, &remote, &identity(), &mut progress).await;
            outcomes.push((progress.sent, outcome.map_err(|error| error.to_string()), history.remote.get()));
        }
        let refused = |code: &str| Err(format!("answered {code}"));
        let expected = [
            (100, refused("503 Service Unavailable"), (2, 0)),
            // One minute is refused for good, the next one for now.
            (101, refused("429 Too Many Requests"), (2, 2)),
            // Nobody follows elsewhere.
            (103, refused("302 Found"), (4, 4)),
            (103, Ok(()), (4, 4)),
        ];
        assert_eq!(outcomes, expected);
        let mut paths = Vec::new();
        while let Ok(head) = asked.try_recv() {
            paths.push(head.split(' ').nth(1).unwrap().to_owned());
        }
        assert_eq!(paths, vec!["/api/v1/write"; 6]);
    }

    #[tokio::test]
    async fn an_hour_is_made_up_for_and_no_more() {
        let (url, mut asked) = prometheus(&[]).await;
        let remote = Remote::from_url(&url, None).unwrap();
        let history = History::open(None);
        let mut progress = Progress { sent: 0, of_others: 0 };
        for minute in 1000..1000 + MAX_MINUTES + 7 {
            history.record(minute, vec![(key("a"), 1.0)]);
        }
        catch_up(&history, &remote, &identity(), &mut progress).await.unwrap();
        assert_eq!((progress.sent, history.remote.get()), (1066, (MAX_MINUTES, 7)));
        // A clock that went back does not keep the rest from being sent.
        *history.ring.lock() = Default::default();
        history.record(5, vec![(key("a"), 1.0)]);
        catch_up(&history, &remote, &identity(), &mut progress).await.unwrap();
        assert_eq!((progress.sent, history.remote.get().0), (5, MAX_MINUTES + 1));
        let mut count = 0;
        while asked.try_recv().is_ok() {
            count += 1;
        }
        assert_eq!(count, MAX_MINUTES + 1);
    }

    #[tokio::test]
    async fn values_wait_while_a_token_is_exchanged() {
        let (url, _asked) = prometheus(&[401, 403]).await;
        let remote = Remote::from_url(&url, None).unwrap();
        let history = History::open(None);
        history.record(100, vec![(key("a"), 1.0)]);
        let mut progress = Progress { sent: 99, of_others: 0 };
        for _ in 0..2 {
            catch_up(&history, &remote, &identity(), &mut progress).await.unwrap_err();
            assert_eq!((progress.sent, history.remote.get()), (99, (0, 0)));
        }
        catch_up(&history, &remote, &identity(), &mut progress).await.unwrap();
        assert_eq!((progress.sent, history.remote.get()), (100, (1, 0)));
    }

    #[tokio::test]
    async fn after_a_restart_the_last_hour_is_sent_again() {
        assert_eq!(Progress::begin(1000, 999), Progress { sent: 1000 - MAX_MINUTES, of_others: 999 });
        assert_eq!(Progress::begin(5, 0).sent, 0);
        // What is there already is refused, and what is new is taken or not.
        let (url, _asked) = prometheus(&[400, 200, 400]).await;
        let remote = Remote::from_url(&url, None).unwrap();
        let history = History::open(None);
        for minute in 98..=101 {
            history.record(minute, vec![(key("a"), 1.0)]);
        }
        let mut progress = Progress { sent: 97, of_others: 99 };
        let outcome = catch_up(&history, &remote, &identity(), &mut progress).await;
        assert_eq!(outcome.unwrap_err().to_string(), "answered 400 Bad Request");
        assert_eq!((progress.sent, history.remote.get()), (101, (2, 1)));
    }

    #[tokio::test]
    async fn security_credentials_are_those_of_the_file_and_never_of_the_url() {
        for (url, problem) in [
            ("https://me:secret@prometheus/api/v1/write", "credentials"),
            ("me:secret@prometheus/write", "credentials"),
            ("me:secret@prometheus", "credentials"),
            // A password with a slash looks like a port and a path.
            ("https://me:sec/secret@prometheus", "not a URL"),
        ] {
            let why = Remote::from_url(url, None).err().map(|error| format!("{error:#}")).unwrap();
            assert!(why.contains(problem) && !why.contains("sec"), "{why}");
        }
        let (url, mut asked) = prometheus(&[]).await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("remote-write.yaml");
        let text = format!(
            "clusters:\n- name: p\n  cluster: {{server: '{url}'}}\nusers:\n- name: u\n  user: {{token: secret}}\n"
        );
        std::fs::write(&file, text).unwrap();
        let remote = Remote::from_kubeconfig(&file).unwrap();
        remote.write(HEADERS, Bytes::from_static(b"x"), TIMEOUT).await.unwrap();
        let head = asked.recv().await.unwrap();
        let address = url.strip_prefix("http://").and_then(|rest| rest.split('/').next()).unwrap();
        assert!(head.contains("authorization: Bearer secret\r\n"), "{head}");
        assert!(head.contains(&format!("host: {address}\r\n")), "{head}");
    }
}
