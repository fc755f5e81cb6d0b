//! Where manifests are: a directory, a file, or a URL.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::manifest::{self, ManifestError, Origin};
use crate::exchange::{ExchangeError, Request, exchange};
use crate::state;

/// Upstream's limits of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
const MAX_LENGTH: usize = 10 << 20;

/// Static pods by uid.
pub(super) type Pods = HashMap<String, Arc<Pod>>;

pub(crate) enum Source {
    Path(Files),
    Url(Url),
}

/// A directory of files, or one file.
pub(crate) struct Files {
    path: PathBuf,
    /// A look that did not end in time.
    looking: Option<JoinHandle<Result<Found, SourceError>>>,
}

pub(crate) struct Url {
    url: String,
    headers: Vec<(String, String)>,
    every: Duration,
    asked: Option<Instant>,
}

/// Why a source could not be read: its pods go on as they are.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    #[error(transparent)]
    List(std::io::Error),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error("{0:?} is no URL")]
    NotUrl(String),
    #[error("{0:?} names no host")]
    NoHost(String),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Connect(std::io::Error),
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("{0}")]
    Body(client::BoxError),
    #[error("{0}")]
    Refused(http::StatusCode),
    #[error(transparent)]
    NotText(#[from] std::string::FromUtf8Error),
    #[error("no answer in time")]
    Timeout,
    #[error("zero-length data received")]
    Empty,
}

/// What a look found, and what it could not read.
#[derive(Default)]
pub(super) struct Found {
    pub(super) pods: Pods,
    pub(super) errors: Vec<String>,
}

impl Source {
    pub(crate) fn path(path: PathBuf) -> Self {
        Source::Path(Files { path, looking: None })
    }

    pub(crate) fn url(url: String, headers: Vec<(String, String)>, every: Duration) -> Self {
        Source::Url(Url { url, headers, every, asked: None })
    }

    pub(super) fn name(&self) -> String {
        match self {
            Source::Path(files) => files.path.display().to_string(),
            Source::Url(source) => source.url.clone(),
        }
    }

    /// All pods of the source; none when it is not time to look. A source that cannot be read is an error, not an empty one.
    pub(super) async fn read(&mut self, node: &str) -> Result<Option<Found>, SourceError> {
        match self {
            Source::Path(files) => files.read(node, TIMEOUT).await.map(Some),
            Source::Url(source) => {
                if source.asked.is_some_and(|at| at.elapsed() < source.every) {
                    return Ok(None);
                }
                source.asked = Some(Instant::now());
                let asked = tokio::time::timeout(TIMEOUT, fetch(&source.url, &source.headers));
                let text = asked.await.map_err(|_| SourceError::Timeout)??;
                if text.is_empty() {
                    return Err(SourceError::Empty);
                }
                let pods = manifest::pods(&text, Origin::Url(&source.url), node)?;
                Ok(Some(Found { pods: by_uid(pods), errors: Vec::new() }))
            }
        }
    }
}

impl Files {
    /// They may be on a server that is silent: then the same look is waited for the next time.
    async fn read(&mut self, node: &str, limit: Duration) -> Result<Found, SourceError> {
        let (path, node) = (self.path.clone(), node.to_owned());
        let look = || tokio::task::spawn_blocking(move || read_path(&path, &node));
        let looking = self.looking.get_or_insert_with(look);
        let ended = tokio::time::timeout(limit, looking).await.map_err(|_| SourceError::Timeout)?;
        self.looking = None;
        ended.unwrap_or_else(|error| Err(SourceError::List(std::io::Error::other(error))))
    }
}

fn by_uid(pods: impl IntoIterator<Item = Pod>) -> Pods {
    pods.into_iter().map(|pod| (state::uid(&pod).to_string(), Arc::new(pod))).collect()
}

/// A path that does not exist has no pods; a file that is no pod is told and skipped.
fn read_path(path: &Path, node: &str) -> Result<Found, SourceError> {
    let described = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let files = match std::fs::read_dir(path) {
        Ok(entries) => {
            let entries = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
            entries.map_err(SourceError::List)?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Found::default()),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => vec![path.to_path_buf()],
        Err(error) => return Err(SourceError::List(error)),
    };
    let mut found = Found::default();
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().first() == Some(&b'.'));
    for file in files.into_iter().filter(|file| !is_hidden(file) && file.is_file()) {
        let text = match std::fs::read_to_string(&file) {
            Ok(text) => text,
            // Removed since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                found.errors.push(described(&file, &error));
                continue;
            }
            Err(source) => return Err(SourceError::File { path: file, source }),
        };
        match manifest::pod(&text, Origin::File(&file.to_string_lossy()), node) {
            Ok(pod) => found.pods.extend(by_uid([pod])),
            Err(error) => found.errors.push(described(&file, &error)),
        }
    }
    Ok(found)
}

/// The body of a 200.
async fn fetch(url: &str, headers: &[(String, String)]) -> Result<String, SourceError> {
    let uri: http::Uri = url.parse().map_err(|_| SourceError::NotUrl(url.to_owned()))?;
    let authority = uri.authority().ok_or_else(|| SourceError::NoHost(url.to_owned()))?;
    let is_tls = uri.scheme_str() == Some("https");
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let mut request = http::Request::get(uri.path_and_query().map_or("/", |path| path.as_str()))
        .header("Host", authority.as_str())
        .header("User-Agent", "kubelet/v1.36");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request: Request = request.body(Default::default())?;
    let host = authority.host().trim_matches(['[', ']']);
    let stream = tokio::net::TcpStream::connect((host, port)).await.map_err(SourceError::Connect)?;
    let trusting = || Arc::new(tls::client_builder().with_root_certificates(tls::system_roots()).with_no_client_auth());
    let answer = exchange(stream, host, is_tls.then(trusting), request, MAX_LENGTH).await?;
    let body = answer.body.map_err(SourceError::Body)?;
    match answer.head.status {
        http::StatusCode::OK => Ok(String::from_utf8(body.to_vec())?),
        status => Err(SourceError::Refused(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "kind: Pod\nmetadata: {name: web}\nspec: {containers: []}\n";

    #[tokio::test]
    async fn a_source_that_fails_is_not_empty() {
        let dir = tempfile::tempdir().unwrap();
        let names = |found: &Found| found.pods.values().map(|pod| state::name(pod).to_string()).collect::<Vec<_>>();
        let mut missing = Source::path(dir.path().join("missing"));
        assert!(missing.read("n").await.unwrap().unwrap().pods.is_empty());
        std::fs::write(dir.path().join("web.yaml"), POD).unwrap();
        std::fs::write(dir.path().join("broken.yaml"), "kind: Pod").unwrap();
        std::fs::write(dir.path().join(".hidden"), POD).unwrap();
        let found = Source::path(dir.path().into()).read("n").await.unwrap().unwrap();
        assert_eq!((names(&found), found.errors.len()), (vec!["web-n".to_string()], 1));
        let found = Source::path(dir.path().join("web.yaml")).read("n").await.unwrap().unwrap();
        assert_eq!(names(&found), ["web-n"]);
        // Bound, and nobody listens.
        let nobody = tokio::net::TcpSocket::new_v4().unwrap();
        nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = format!("http://{}/", nobody.local_addr().unwrap());
        let mut url = Source::url(address, Vec::new(), Duration::from_secs(3600));
        assert!(url.read("n").await.is_err());
        assert!(url.read("n").await.unwrap().is_none(), "it is not time to ask again");
    }

    #[tokio::test]
    async fn manifests_on_a_silent_server_hold_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let Some(silent) = testkit::silent::Silent::mount(dir.path()) else {
            eprintln!("skipped: there is no FUSE here");
            return;
        };
        let mut files = Files { path: dir.path().into(), looking: None };
        for _ in 0..2 {
            let refused = files.read("n", Duration::from_millis(50)).await;
            assert!(matches!(refused, Err(SourceError::Timeout)), "nobody answers, and others have their turn");
        }
        drop(silent);
        // What it comes to depends on when the mount is gone.
        let _ = files.read("n", Duration::from_secs(60)).await;
        assert!(files.looking.is_none(), "the same look is waited for");
        std::fs::write(dir.path().join("web.yaml"), POD).unwrap();
        assert_eq!(files.read("n", Duration::from_secs(60)).await.unwrap().pods.len(), 1);
    }

    #[tokio::test]
    async fn addresses_are_asked_with_their_headers() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/pods?a=b", server.local_addr().unwrap());
        let answering = tokio::spawn(async move {
            let (mut stream, _) = server.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                asked.push(stream.read_u8().await.unwrap());
            }
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{POD}", POD.len());
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(asked).unwrap()
        });
        let mut source = Source::url(url, vec![("X-Token".into(), "t".into())], Duration::from_secs(3600));
        let found = source.read("n").await.unwrap().unwrap();
        assert_eq!(found.pods.len(), 1);
        let asked = answering.await.unwrap();
        assert!(asked.starts_with("GET /pods?a=b HTTP/1.1\r\n") && asked.contains("x-token: t"), "{asked}");
    }
}
