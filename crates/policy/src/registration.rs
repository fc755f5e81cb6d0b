//! Pods announce themselves: the CNI plug-in `policy` names a pod and its addresses before anything runs in it, and waits
//! until the rules for them are in the kernel.
//!
//! One line of JSON each way over a Unix socket. Without an answer the pod does not start; the kubelet tries again.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// More than a call ever has; whoever sends more is not the plug-in.
const LINE_LIMIT: u64 = 64 * 1024;
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls that wait to be taken; the plug-ins behind them wait as long.
const CALLS: usize = 64;

/// What the plug-in says.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Which of the pod's sandboxes it is about. A plug-in from before an upgrade does not say.
    #[serde(default)]
    pub(crate) sandbox: String,
    /// None when the sandbox gives them back.
    pub(crate) addresses: Vec<IpAddr>,
    /// Those that it gives back, where the plug-in knows them.
    #[serde(default)]
    pub(crate) released: Vec<IpAddr>,
}

pub(crate) struct Call {
    pub(crate) announcement: Announcement,
    /// Sent once the rules are in place.
    pub(crate) done: oneshot::Sender<()>,
}

/// Listens where the plug-in calls. Only root may: the directory is the cluster's own.
pub(crate) fn listen(path: &Path) -> Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| path.display().to_string());
        }
        _ => {}
    }
    UnixListener::bind(path).with_context(|| path.display().to_string())
}

pub(crate) fn channel() -> (mpsc::Sender<Call>, mpsc::Receiver<Call>) {
    mpsc::channel(CALLS)
}

/// Passes calls on until nobody takes them any more.
pub(crate) async fn serve(listener: UnixListener, calls: mpsc::Sender<Call>) {
    let mut conversations = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(conversations.spawn(FutureExt::boxed(converse(stream, calls.clone())))),
                Err(error) => {
                    tracing::warn!(%error, "cannot hear of new pods");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            },
            Some(_) = conversations.join_next() => {}
            () = calls.closed() => return,
        }
    }
}

async fn converse(mut stream: UnixStream, calls: mpsc::Sender<Call>) {
    let (reader, mut writer) = stream.split();
    let mut line = String::new();
    let mut reader = BufReader::new(reader.take(LINE_LIMIT));
    let read = tokio::time::timeout(READ_TIMEOUT, reader.read_line(&mut line)).await;
    if !matches!(read, Ok(Ok(_))) {
        return;
    }
    let announcement = match serde_json::from_str(&line) {
        Ok(announcement) => announcement,
        Err(error) => return tracing::warn!(%error, "cannot read what a plug-in announces"),
    };
    let (done, finished) = oneshot::channel();
    if calls.send(Call { announcement, done }).await.is_ok() && finished.await.is_ok() {
        // A plug-in that is gone has given up, and will be called again.
        let _gone = writer.write_all(b"{}\n").await;
    }
}
