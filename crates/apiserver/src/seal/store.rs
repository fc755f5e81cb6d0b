//! The store that seals: what is put goes down sealed, what is read comes up open.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use store::{
    KeyValue, Op, OpResult, Range, RangeResult, Result, Store, StoreError, Txn, TxnResult, Watch, WatchEvent,
    WatchStream,
};
use tokio_util::sync::CancellationToken;

use super::foreign::Foreign;
use super::providers::{Opened, open_plain};
use super::rules::{Rules, Seals};
use super::{SEALED, SealError};
use crate::protobuf::MAGIC;
use crate::watch_cache::{Caches, ROOT};

/// How often the file of the configuration is looked at.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// What could not be opened is tried again after so many looks, where key services are asked.
const RETRY_LOOKS: u32 = 10;

#[derive(Clone)]
pub(crate) struct Sealed {
    inner: Arc<dyn Store>,
    pub(crate) seals: Arc<Seals>,
    foreign: Arc<Foreign>,
    /// What stands in the store beneath where keys here have [`ROOT`]: sealed values are bound to their real keys.
    root: Arc<str>,
}

impl Sealed {
    pub(crate) fn new(inner: Arc<dyn Store>, seals: Seals, foreign: Foreign) -> Self {
        Self { inner, seals: Arc::new(seals), foreign: Arc::new(foreign), root: ROOT.into() }
    }

    /// For a store whose keys are really below another root.
    pub(crate) fn below(self, root: impl Into<Arc<str>>) -> Self {
        Self { root: root.into(), ..self }
    }

    fn place<'k>(&self, key: &'k str) -> Cow<'k, str> {
        match key.strip_prefix(ROOT) {
            Some(rest) if *self.root != *ROOT => Cow::Owned([&self.root, rest].concat()),
            _ => Cow::Borrowed(key),
        }
    }

    /// Whether what is stored under a key is not as it would be written now: an update of it that changes nothing is
    /// written all the same.
    pub(crate) async fn is_stale(&self, key: &str) -> Result<bool> {
        let Some(kv) = self.inner.get(key).await? else { return Ok(false) };
        // What cannot be opened has not been read, so nobody updates it.
        Ok(self.opened(key, &kv.value).await.is_ok_and(|opened| opened.stale))
    }

    async fn opened(&self, key: &str, stored: &Bytes) -> Result<Opened, SealError> {
        open_value(&self.seals.rules(), &self.foreign, key, &self.place(key), stored).await
    }

    /// Without its value if that cannot be opened, which makes it an unreadable object: why is logged here.
    async fn open(&self, mut kv: KeyValue) -> KeyValue {
        kv.value = match self.opened(&kv.key, &kv.value).await {
            Ok(opened) => opened.plain,
            Err(error) => {
                let how = if kv.value.starts_with(SEALED) { "sealed" } else { "plain" };
                tracing::error!(key = &*kv.key, how, %error, "a stored value cannot be opened");
                Bytes::new()
            }
        };
        kv
    }

    async fn open_all(&self, mut found: RangeResult, with_values: bool) -> RangeResult {
        if with_values {
            for kv in &mut found.kvs {
                *kv = self.open(kv.clone()).await;
            }
        }
        found
    }

    async fn open_event(&self, event: WatchEvent) -> WatchEvent {
        let open = async |kv: Option<KeyValue>| match kv {
            Some(kv) => Some(self.open(kv).await),
            None => None,
        };
        match event {
            WatchEvent::Put { kv, prev } => WatchEvent::Put { kv: self.open(kv).await, prev: open(prev).await },
            WatchEvent::Delete { key, revision, prev } => WatchEvent::Delete { key, revision, prev: open(prev).await },
            progress @ WatchEvent::Progress(_) => progress,
        }
    }

    fn seal(&self, ops: &mut [Op]) -> Result<()> {
        let rules = self.seals.rules();
        for op in ops {
            let Op::Put { key, value, .. } = op else { continue };
            match rules.seal(key, &self.place(key), value) {
                Ok(Some(sealed)) => *value = sealed,
                Ok(None) => {}
                Err(error) => return Err(StoreError::Unavailable(error.to_string())),
            }
        }
        Ok(())
    }
}

/// The object that is stored under `key`, which is at `place` in the store beneath, as this server would have written it.
pub(super) async fn open_value(
    rules: &Rules,
    foreign: &Foreign,
    key: &str,
    place: &str,
    stored: &Bytes,
) -> Result<Opened, SealError> {
    let mut opened = match rules.of(key) {
        Some(providers) => providers.open(place, stored).await?,
        None => open_plain(stored)?,
    };
    // Written by upstream; we write JSON.
    if opened.plain.starts_with(MAGIC) {
        let plain = foreign.read(key, &opened.plain).map_err(SealError::Foreign)?;
        opened = Opened { plain, stale: true };
    } else if let Some(plain) = foreign.read_definition(key, &opened.plain) {
        opened = Opened { plain: plain.map_err(SealError::Foreign)?, stale: true };
    }
    Ok(opened)
}

impl Store for Sealed {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult>> {
        Box::pin(async move {
            let with_values = !range.keys_only;
            Ok(self.open_all(self.inner.range(range).await?, with_values).await)
        })
    }

    fn txn(&self, mut txn: Txn) -> BoxFuture<'_, Result<TxnResult>> {
        Box::pin(async move {
            self.seal(&mut txn.success)?;
            self.seal(&mut txn.failure)?;
            let mut done = self.inner.txn(txn).await?;
            for result in &mut done.results {
                if let OpResult::Get(found) = result {
                    let taken = RangeResult { kvs: std::mem::take(&mut found.kvs), ..found.clone() };
                    *found = self.open_all(taken, true).await;
                }
            }
            Ok(done)
        })
    }

    fn watch(&self, watch: Watch) -> BoxFuture<'_, Result<WatchStream>> {
        Box::pin(async move {
            let sealed = self.clone();
            let events = self.inner.watch(watch).await?.then(move |event| {
                let sealed = sealed.clone();
                async move { Ok(sealed.open_event(event?).await) }
            });
            Ok(events.boxed())
        })
    }

    // A snapshot is sealed as the store is.
    store::forward!(
        inner: request_progress, compact, current_revision, grant_lease, keep_alive, revoke_lease, snapshot, size
    );
}

/// Follows the file of the configuration, and tries again what could not be opened when that may have changed.
pub(crate) async fn run(sealed: Option<Sealed>, caches: Arc<Caches>, stop: CancellationToken) {
    let Some(sealed) = sealed.filter(|sealed| sealed.seals.is_followed()) else { return };
    let mut looks = 0;
    while !stop.is_cancelled() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RELOAD_INTERVAL) => looks += 1,
        }
        let retry = looks % RETRY_LOOKS == 0 && sealed.seals.has_services();
        if (sealed.seals.reload().await || retry)
            && let Err(error) = caches.reread().await
        {
            tracing::warn!(%error, "reading again what could not be opened");
        }
    }
}
