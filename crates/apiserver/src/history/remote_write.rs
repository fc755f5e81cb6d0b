//! Prometheus' remote write, version 1.0: the values of the last minutes as a message of protobuf, compressed with snappy.
//!
//! A server that is away is caught up with when it is back, as far as an hour. What it refuses for good is not sent again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::History;
use super::ring::{Key, STEP};
use crate::remote::{Remote, RemoteError};

const HEADERS: &[(&str, &str)] = &[
    ("content-type", "application/x-protobuf"),
    ("content-encoding", "snappy"),
    ("x-prometheus-remote-write-version", "0.1.0"),
];
const TIMEOUT: Duration = Duration::from_secs(30);
/// Minutes that are sent again after a failure, and values of one message.
const MAX_MINUTES: u64 = 60;
const MAX_VALUES: usize = 10_000;

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

/// Sends every minute until `stop`.
pub(crate) async fn run(history: &History, remote: Remote, stop: CancellationToken) {
    let mut sent = history.ring.lock().newest();
    let mut complained = false;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = history.recorded.notified() => {}
        }
        let (newest, series) = pending(history, sent);
        let mut outcome = Ok(());
        for message in messages(&series) {
            let (values, body) = message;
            outcome = remote.write(HEADERS, Bytes::from(body), TIMEOUT).await;
            match &outcome {
                Ok(()) => {
                    history.remote.sent.fetch_add(values, Ordering::Relaxed);
                }
                // The specification: whoever refuses with 4xx is not asked again.
                Err(RemoteError::Refused(code)) if code.is_client_error() && code.as_u16() != 429 => {
                    history.remote.dropped.fetch_add(values, Ordering::Relaxed);
                }
                Err(_) => break,
            }
        }
        match &outcome {
            Err(error) if !std::mem::replace(&mut complained, true) => {
                tracing::warn!(%error, "the history of figures is not taken by remote write");
            }
            Err(_) => {}
            Ok(()) => complained = false,
        }
        let is_over = !matches!(&outcome, Err(error) if error.is_passing() || matches!(error, RemoteError::Late(_)));
        if is_over {
            sent = newest;
        }
    }
}

type Series = Vec<(Key, Vec<(u64, f32)>)>;

/// What came after the minute `sent`.
fn pending(history: &History, sent: u64) -> (u64, Series) {
    let ring = history.ring.lock();
    let newest = ring.newest();
    let minutes = newest.saturating_sub(sent).min(MAX_MINUTES);
    if minutes == 0 {
        return (newest, Vec::new());
    }
    let recent = ring.recent(minutes as usize, |_| true).filter(|(_, points)| !points.is_empty());
    (newest, recent.map(|(key, points)| (key.clone(), points)).collect())
}

/// Messages, each with the number of its values.
fn messages(series: &Series) -> Vec<(u64, Vec<u8>)> {
    let mut messages = Vec::new();
    let mut rest = series.as_slice();
    while !rest.is_empty() {
        let mut values = 0;
        let fits = |(_, points): &&(Key, Vec<(u64, f32)>)| {
            values += points.len();
            values <= MAX_VALUES
        };
        let many = rest.iter().take_while(fits).count().max(1);
        let (now, later) = rest.split_at(many);
        let count = now.iter().map(|(_, points)| points.len() as u64).sum();
        messages.push((count, snappy(&WriteRequest { timeseries: now.iter().map(one).collect() }.encode_to_vec())));
        rest = later;
    }
    messages
}

/// Labels in the order of their names; those without a value are left out.
fn one((key, points): &(Key, Vec<(u64, f32)>)) -> TimeSeries {
    let name = format!("cox_history_{}", key.what.as_str());
    let labels =
        [("__name__", name.as_str()), ("name", &key.name), ("namespace", &key.namespace), ("of", key.of.as_str())];
    let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
    TimeSeries {
        labels: labels.map(|(name, value)| Label { name: name.to_owned(), value: value.to_owned() }).collect(),
        samples: points
            .iter()
            .map(|(seconds, value)| Sample { value: f64::from(*value), timestamp: (*seconds * 1000) as i64 })
            .collect(),
    }
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

    #[test]
    fn only_what_is_new_is_sent_with_its_labels_and_times() {
        let history = History::open(None);
        let key = |name: &str| Key { what: What::Cpu, of: Of::Pod, namespace: "d".into(), name: name.into() };
        history.record(100, vec![(key("old"), 1.0)]);
        history.record(101, vec![(key("we\"b"), 0.5)]);
        let (newest, series) = pending(&history, 100);
        assert_eq!((newest, series.len()), (101, 1));
        assert!(pending(&history, 101).1.is_empty());
        let (values, body) = messages(&series).remove(0);
        assert_eq!(values, 1);
        let request = WriteRequest::decode(unpacked(&body).as_slice()).unwrap();
        let labels: Vec<_> =
            request.timeseries[0].labels.iter().map(|of| (of.name.as_str(), of.value.as_str())).collect();
        let expected = [("__name__", "cox_history_cpu_cores"), ("name", "we\"b"), ("namespace", "d"), ("of", "pod")];
        assert_eq!(labels, expected);
        assert_eq!(request.timeseries[0].samples, [Sample { value: 0.5, timestamp: 6_060_000 }]);
    }

    #[test]
    fn messages_are_bounded() {
        let points: Vec<(u64, f32)> = (0..60).map(|minute| (minute * STEP, 1.0)).collect();
        let key = |number: usize| Key {
            what: What::Cpu,
            of: Of::Pod,
            namespace: "d".into(),
            name: format!("{number}").into(),
        };
        let series: Series = (0..1000).map(|number| (key(number), points.clone())).collect();
        let made = messages(&series);
        assert_eq!(made.iter().map(|(values, _)| values).sum::<u64>(), 60_000);
        assert!(made.iter().all(|(values, _)| *values <= MAX_VALUES as u64));
    }
}
