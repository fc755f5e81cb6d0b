//! The store on a real etcd cluster, 3.4 to 3.6.
//!
//! [`messages`] is the protocol, [`connection`] gets a request to a member that can answer it ([`health`] says which can),
//! [`watch`] follows changes across reconnects, [`members`] tells and changes who the members are. This file translates between the
//! trait and etcd's requests.

mod connection;
mod health;
mod members;
mod messages;
mod watch;

pub use members::{Member, Members, Status};
/// A key as etcd keeps it, on the wire and on its disk.
pub(crate) use messages::KeyValue as StoredKeyValue;

use crate::range::KeyRange;
use crate::{
    Compare, KeyValue, LeaseId, Op, OpResult, Range, RangeResult, Result, Revision, SnapshotStream, Store, StoreError,
    Txn, TxnResult, Watch, WatchStream,
};
use bytes::Bytes;
use connection::{Connection, Failure, Opened, Repeat, STATUS};
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use messages as pb;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tonic::Code;

/// A member whose disk stands still sends no piece of a snapshot, and keeps its connection.
const SNAPSHOT_PIECE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct Options {
    /// `http://host:port` or `https://host:port`; one member is enough, more survive its loss.
    pub endpoints: Vec<String>,
    pub tls: Option<Tls>,
    /// User and password, where etcd's authentication is on.
    pub credentials: Option<(String, String)>,
    /// How long a request may take, including attempts on other members.
    pub timeout: Duration,
    /// Keep to the members that the cluster has, whoever they were at first.
    pub follows_members: bool,
}

impl Options {
    pub fn new(endpoints: impl IntoIterator<Item = impl Into<String>>) -> Options {
        let endpoints = endpoints.into_iter().map(Into::into).collect();
        Options { endpoints, tls: None, credentials: None, timeout: Duration::from_secs(5), follows_members: false }
    }
}

/// PEM files.
#[derive(Clone, Debug)]
pub struct Tls {
    pub ca: PathBuf,
    /// Client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

pub struct EtcdStore {
    connection: Arc<Connection>,
    progress: Arc<Progress>,
    /// The tasks that follow members; they end with this.
    _following: JoinSet<()>,
}

/// Requests for progress, shared by all watches.
#[derive(Default)]
struct Progress {
    asked: tokio::sync::watch::Sender<u64>,
    reliable: AtomicBool,
}

impl Progress {
    /// Before 3.4.25 and 3.5.8 etcd's answer to a request for progress could overtake events that it claims to
    /// cover. There only etcd's own timer reports progress.
    fn is_reliable(&self) -> bool {
        self.reliable.load(Ordering::Relaxed)
    }
}

impl EtcdStore {
    /// Connects and makes sure that the cluster answers. Boxed: what an `async fn` does is compiled again by every crate that
    /// waits for it.
    pub fn connect(options: Options) -> BoxFuture<'static, Result<EtcdStore>> {
        Self::connect_now(options).boxed()
    }

    async fn connect_now(options: Options) -> Result<EtcdStore> {
        let connection = Arc::new(Connection::new(&options)?);
        let progress = Arc::new(Progress::default());
        let mut following = JoinSet::new();
        if options.follows_members {
            following.spawn(members::follow(connection.clone()).boxed());
        }
        following.spawn(members::follow_leader(connection.clone()).boxed());
        following.spawn(health::watch_over(connection.clone()).boxed());
        let store = EtcdStore { connection, progress, _following: following };
        store.current_revision().await?;
        // What is opened from here on begins there.
        store.connection.turn_to_leader().await;
        let status = store.connection.call(STATUS, pb::Empty {}, Repeat::Freely).await;
        // Status needs rights that a user of the key space may lack.
        let version = status.map(|status: pb::StatusResponse| status.version).unwrap_or_default();
        store.progress.reliable.store(has_reliable_progress(&version), Ordering::Relaxed);
        Ok(store)
    }

    /// The endpoint that requests go to now.
    pub fn endpoint(&self) -> String {
        self.connection.endpoint()
    }

    /// Whether [`Store::request_progress`] has an effect: not with releases whose answers are wrong.
    pub fn answers_progress_requests(&self) -> bool {
        self.progress.is_reliable()
    }

    async fn read(&self, range: Range) -> Result<RangeResult> {
        let Some(request) = range_request(&range) else {
            let revision = self.current_revision().await?;
            return Ok(RangeResult { kvs: Vec::new(), count: 0, more: false, revision });
        };
        let answer = self.connection.call("/etcdserverpb.KV/Range", request, Repeat::Freely).await;
        match answer {
            Ok(response) => {
                let response: pb::RangeResponse = response;
                let revision = reached(response.header.as_ref())?;
                range_result(response, revision)
            }
            Err(failure) => Err(self.explain(failure, range.revision.unwrap_or_default()).await),
        }
    }

    /// Adds the numbers to errors about revisions, which etcd gives without them.
    async fn explain(&self, failure: Failure, asked: Revision) -> StoreError {
        let Failure::Refused(status, _) = &failure else { return failure.into() };
        if status.code() != Code::OutOfRange {
            return failure.into();
        }
        if status.message().contains("compacted") {
            let oldest = watch::oldest_kept(self.connection.clone(), asked.max(Revision(1))).await;
            return StoreError::Compacted { asked, oldest: oldest.unwrap_or(asked.next()) };
        }
        match self.current_revision().await {
            Ok(current) => StoreError::FutureRevision { asked, current },
            Err(error) => error,
        }
    }

    async fn apply(&self, txn: Txn) -> Result<TxnResult> {
        txn.validate()?;
        let changes = |ops: &[Op]| ops.iter().any(|op| !matches!(op, Op::Get(_)));
        let is_change = changes(&txn.success) || changes(&txn.failure);
        let repeat = match is_change && !happens_once(&txn) {
            true => Repeat::IfUnsent,
            false => Repeat::Freely,
        };
        let leases = txn.success.iter().chain(&txn.failure).filter_map(|op| match op {
            Op::Put { lease, .. } => *lease,
            _ => None,
        });
        let lease = leases.last();
        let asked = txn.success.iter().chain(&txn.failure).filter_map(|op| match op {
            Op::Get(range) => range.revision,
            _ => None,
        });
        let asked = asked.max().unwrap_or_default();
        let (request, mut was_lost) = (txn_request(&txn)?, false);
        let answer = self.connection.call_noting("/etcdserverpb.KV/Txn", request, repeat, &mut was_lost).await;
        let response: pb::TxnResponse = match answer {
            Ok(response) => response,
            Err(Failure::Refused(status, endpoint)) if is_change && was_lost => {
                // Of this attempt only: another one may have been carried out.
                let what = "the answer to a write was lost, and it is refused since";
                return Err(StoreError::Unavailable(format!("{endpoint}: {what}: {}", status.message())));
            }
            Err(failure) => {
                return Err(match (lease_not_found(&failure), lease) {
                    (true, Some(lease)) => StoreError::LeaseNotFound(lease),
                    _ => self.explain(failure, asked).await,
                });
            }
        };
        if is_change && was_lost && !response.succeeded {
            // Refused because somebody else was faster, or because the first attempt was carried out after all.
            let what = "the answer to a write was lost, and the key is at another revision since";
            return Err(StoreError::Unavailable(format!("{}: {what}", self.connection.names())));
        }
        let revision = reached(response.header.as_ref())?;
        let results = response.responses.into_iter().map(|op| match op.response {
            Some(pb::Response::Range(found)) => Ok(OpResult::Get(range_result(found, revision)?)),
            Some(pb::Response::DeleteRange(done)) => Ok(OpResult::Delete { deleted: done.deleted as u64 }),
            Some(pb::Response::Put(_)) | None => Ok(OpResult::Put),
        });
        let results = results.collect::<Result<_>>()?;
        Ok(TxnResult { succeeded: response.succeeded, revision, results })
    }
}

impl Store for EtcdStore {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult>> {
        self.read(range).boxed()
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnResult>> {
        self.apply(txn).boxed()
    }

    fn watch(&self, watch: Watch) -> BoxFuture<'_, Result<WatchStream>> {
        async move {
            let stream = watch::open(self.connection.clone(), self.progress.clone(), watch).await?;
            Ok(stream.boxed())
        }
        .boxed()
    }

    fn request_progress(&self) -> BoxFuture<'_, Result<()>> {
        async move {
            self.progress.asked.send_modify(|count| *count += 1);
            Ok(())
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<()>> {
        async move {
            let request = pb::CompactionRequest { revision: number(revision) };
            let answer = self.connection.call("/etcdserverpb.KV/Compact", request, Repeat::Freely).await;
            match answer {
                Ok(pb::Done {}) => Ok(()),
                Err(failure) => Err(self.explain(failure, revision).await),
            }
        }
        .boxed()
    }

    fn current_revision(&self) -> BoxFuture<'_, Result<Revision>> {
        async move {
            let request = pb::RangeRequest { key: Bytes::from_static(b"\0"), count_only: true, ..Default::default() };
            let response: pb::RangeResponse =
                self.connection.call("/etcdserverpb.KV/Range", request, Repeat::Freely).await?;
            reached(response.header.as_ref())
        }
        .boxed()
    }

    fn grant_lease(&self, ttl: Duration) -> BoxFuture<'_, Result<LeaseId>> {
        async move {
            // etcd counts whole seconds; a lease must not end before its time.
            let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
            if seconds == 0 {
                return Err(StoreError::Invalid("a lease's time to live is at least a millisecond".into()));
            }
            let request = pb::LeaseGrantRequest { ttl: seconds as i64, id: 0 };
            // A lease granted twice is harmless: the one that nobody knows expires.
            let granted: pb::LeaseGrantResponse =
                self.connection.call("/etcdserverpb.Lease/LeaseGrant", request, Repeat::Freely).await?;
            LeaseId::new(granted.id)
                .ok_or_else(|| StoreError::Unavailable("etcd granted a lease without a name".into()))
        }
        .boxed()
    }

    fn keep_alive(&self, lease: LeaseId) -> BoxFuture<'_, Result<Duration>> {
        async move {
            let request = futures_util::stream::iter([pb::LeaseRequest { id: lease.get() }]);
            let path = "/etcdserverpb.Lease/LeaseKeepAlive";
            let opened = self.connection.stream::<_, pb::LeaseKeepAliveResponse>(path, request).await?;
            let Opened { stream: mut answers, at, lost } = opened;
            let answer = tokio::select! {
                biased;
                answer = answers.message() => answer,
                () = lost.cancelled() => Ok(None),
            };
            match answer {
                Ok(Some(answer)) if answer.ttl > 0 => Ok(Duration::from_secs(answer.ttl as u64)),
                Ok(Some(_)) => Err(StoreError::LeaseNotFound(lease)),
                Ok(None) => Err(StoreError::Unavailable(format!("etcd at {} hung up", self.connection.names()))),
                Err(status) => {
                    let failure = self.connection.judge_stream(at, status);
                    Err(if lease_not_found(&failure) { StoreError::LeaseNotFound(lease) } else { failure.into() })
                }
            }
        }
        .boxed()
    }

    fn revoke_lease(&self, lease: LeaseId) -> BoxFuture<'_, Result<()>> {
        async move {
            let request = pb::LeaseRequest { id: lease.get() };
            match self.connection.call("/etcdserverpb.Lease/LeaseRevoke", request, Repeat::IfUnsent).await {
                Ok(pb::Done {}) => Ok(()),
                Err(failure) if lease_not_found(&failure) => Err(StoreError::LeaseNotFound(lease)),
                Err(failure) => Err(failure.into()),
            }
        }
        .boxed()
    }

    fn snapshot(&self) -> BoxFuture<'_, Result<SnapshotStream>> {
        async move {
            let request = futures_util::stream::iter([pb::Empty {}]);
            let path = "/etcdserverpb.Maintenance/Snapshot";
            let pieces = self.connection.stream::<_, pb::SnapshotResponse>(path, request).await?.stream;
            let names: Arc<str> = self.connection.names().into();
            let pieces = futures_util::stream::try_unfold(pieces, move |mut pieces| {
                let names = names.clone();
                async move {
                    match tokio::time::timeout(SNAPSHOT_PIECE_TIMEOUT, pieces.message()).await {
                        Ok(Ok(piece)) => Ok(piece.map(|piece| (piece.blob, pieces))),
                        Ok(Err(status)) => Err(StoreError::Unavailable(format!("{names}: {}", status.message()))),
                        Err(_) => Err(StoreError::Unavailable(format!("{names}: the snapshot does not go on"))),
                    }
                }
            });
            Ok(pieces.boxed())
        }
        .boxed()
    }

    fn size(&self) -> BoxFuture<'_, Result<Option<u64>>> {
        async move {
            let status: pb::StatusResponse = self.connection.call(STATUS, pb::Empty {}, Repeat::Freely).await?;
            Ok(u64::try_from(status.db_size).ok())
        }
        .boxed()
    }
}

/// Whether a transaction is carried out at most once, however often it is sent: it changes a key that it expects at a
/// revision, which no key has twice. An absent key is different: it may be created, deleted, and absent again.
fn happens_once(txn: &Txn) -> bool {
    let changes = |op: &Op, wanted: &str| match op {
        Op::Put { key, .. } | Op::Delete(KeyRange::Key(key)) => **key == *wanted,
        Op::Delete(KeyRange::Prefix(_)) | Op::Get(_) => false,
    };
    let is_used_up = |compare: &Compare| match compare {
        Compare::ModRevision { key, revision } => {
            *revision != Revision::ZERO && txn.success.iter().any(|op| changes(op, key))
        }
        Compare::Exists { .. } | Compare::Absent { .. } => false,
    };
    txn.failure.iter().all(|op| matches!(op, Op::Get(_))) && txn.compares.iter().any(is_used_up)
}

fn lease_not_found(failure: &Failure) -> bool {
    matches!(failure, Failure::Refused(status, _) if status.message().contains("requested lease not found"))
}

/// `None`: the range is empty by its own words.
fn range_request(range: &Range) -> Option<pb::RangeRequest> {
    let (key, range_end) = match &range.keys {
        KeyRange::Key(key) => {
            if range.start_after.as_ref().is_some_and(|after| key <= after) {
                return None;
            }
            (Bytes::copy_from_slice(key.as_bytes()), Bytes::new())
        }
        KeyRange::Prefix(prefix) => {
            let key = match &range.start_after {
                Some(after) if **after >= **prefix => {
                    if !after.starts_with(&**prefix) {
                        return None;
                    }
                    Bytes::from([after.as_bytes(), b"\0"].concat())
                }
                _ => start_of(prefix),
            };
            (key, end_of(prefix))
        }
    };
    Some(pb::RangeRequest {
        key,
        range_end,
        limit: range.limit as i64,
        revision: number(range.revision.unwrap_or_default()),
        keys_only: range.keys_only,
        count_only: range.count_only,
    })
}

fn txn_request(txn: &Txn) -> Result<pb::TxnRequest> {
    let bytes = |key: &str| Bytes::copy_from_slice(key.as_bytes());
    let compare = txn.compares.iter().map(|compare| {
        let (result, expected) = match compare {
            Compare::ModRevision { revision, .. } => (0, *revision),
            Compare::Exists { .. } => (3, Revision::ZERO),
            Compare::Absent { .. } => (0, Revision::ZERO),
        };
        pb::Compare { result, target: 2, key: bytes(compare.key()), mod_revision: Some(number(expected)) }
    });
    let op = |op: &Op| {
        let request = match op {
            Op::Put { key, value, lease } => pb::Request::Put(pb::PutRequest {
                key: bytes(key),
                value: value.clone(),
                lease: lease.map_or(0, LeaseId::get),
            }),
            Op::Delete(KeyRange::Key(key)) => {
                pb::Request::DeleteRange(pb::DeleteRangeRequest { key: bytes(key), range_end: Bytes::new() })
            }
            Op::Delete(KeyRange::Prefix(prefix)) => {
                pb::Request::DeleteRange(pb::DeleteRangeRequest { key: start_of(prefix), range_end: end_of(prefix) })
            }
            Op::Get(range) => pb::Request::Range(
                range_request(range).ok_or_else(|| StoreError::Invalid("a get in a transaction is empty".into()))?,
            ),
        };
        Ok(pb::RequestOp { request: Some(request) })
    };
    Ok(pb::TxnRequest {
        compare: compare.collect(),
        success: txn.success.iter().map(op).collect::<Result<_>>()?,
        failure: txn.failure.iter().map(op).collect::<Result<_>>()?,
    })
}

fn range_result(response: pb::RangeResponse, revision: Revision) -> Result<RangeResult> {
    let kvs = response.kvs.into_iter().map(key_value).collect::<Result<_>>()?;
    Ok(RangeResult { kvs, count: response.count as u64, more: response.more, revision })
}

fn key_value(kv: pb::KeyValue) -> Result<KeyValue> {
    let key = std::str::from_utf8(&kv.key)
        .map_err(|_| StoreError::Invalid(format!("etcd holds a key that is not UTF-8: {:?}", kv.key)))?;
    Ok(KeyValue {
        key: key.into(),
        value: kv.value,
        create_revision: Revision(kv.create_revision as u64),
        mod_revision: Revision(kv.mod_revision as u64),
        version: kv.version as u64,
        lease: LeaseId::new(kv.lease),
    })
}

fn revision(header: Option<&pb::Header>) -> Revision {
    Revision(header.map_or(0, |header| header.revision as u64))
}

/// The revision of an answer that is worth nothing without one: an etcd that holds nothing is at revision 1. Zero would be taken
/// for a store that has gone back.
fn reached(header: Option<&pb::Header>) -> Result<Revision> {
    match revision(header) {
        Revision::ZERO => Err(StoreError::Unavailable("etcd answered without its revision".into())),
        revision => Ok(revision),
    }
}

fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

/// The first key of a prefix, in etcd's terms: no key is empty.
fn start_of(prefix: &str) -> Bytes {
    if prefix.is_empty() { Bytes::from_static(b"\0") } else { Bytes::copy_from_slice(prefix.as_bytes()) }
}

/// The first key after all keys of a prefix; a zero byte means that there is none.
fn end_of(prefix: &str) -> Bytes {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end.into();
        }
    }
    Bytes::from_static(b"\0")
}

fn has_reliable_progress(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    match (next(), next(), next()) {
        (3, 4, patch) => patch >= 25,
        (3, 5, patch) => patch >= 8,
        version => version >= (3, 6, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_end_before_the_next_key() {
        for (prefix, end) in [("a", &b"b"[..]), ("/registry/", b"/registry0"), ("", b"\0"), ("é", b"\xc3\xaa")] {
            assert_eq!(end_of(prefix), end, "{prefix:?}");
        }
    }

    #[test]
    fn only_what_uses_up_a_revision_is_sent_again() {
        let at = |revision| Compare::mod_revision("k", Revision(revision));
        let put = || Txn::new().when(at(7)).then(Op::put("k", "v"));
        for (name, txn, expected) in [
            ("an update", put().otherwise(Op::get("k")), true),
            ("a delete", Txn::new().when(at(7)).then(Op::delete("k")), true),
            ("with another key", put().then(Op::put("other", "v")), true),
            ("a create", Txn::new().when(at(0)).then(Op::put("k", "v")), false),
            ("a create, in other words", Txn::new().when(Compare::absent("k")).then(Op::put("k", "v")), false),
            ("whatever is there", Txn::new().when(Compare::exists("k")).then(Op::put("k", "v")), false),
            ("without a condition", Txn::new().then(Op::put("k", "v")), false),
            ("of another key", Txn::new().when(at(7)).then(Op::put("other", "v")), false),
            ("with a change otherwise", put().otherwise(Op::put("other", "v")), false),
        ] {
            assert_eq!(happens_once(&txn), expected, "{name}");
        }
    }

    #[test]
    fn an_answer_without_its_revision_is_none() {
        let header = |revision| pb::Header { revision, ..pb::Header::default() };
        for header in [None, Some(header(0))] {
            assert!(matches!(reached(header.as_ref()), Err(StoreError::Unavailable(_))), "{header:?}");
        }
        assert_eq!(reached(Some(&header(7))).unwrap(), Revision(7));
    }

    #[test]
    fn old_releases_report_progress_too_early() {
        for (version, expected) in
            [("3.4.23", false), ("3.4.25", true), ("3.5.7", false), ("3.5.13", true), ("3.6.0", true), ("", false)]
        {
            assert_eq!(has_reliable_progress(version), expected, "{version}");
        }
    }
}
