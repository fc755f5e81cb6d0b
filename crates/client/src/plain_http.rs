//! Health and metrics of a component over plain HTTP: a path in, a code and a text out.
//!
//! For ports that upstream serves without TLS (kube-proxy, CoreDNS); those that need permission are in [`crate::serving`].

use std::net::SocketAddr;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tls::{Accepted, Connections, Limits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Those that have been silent for longest make room for further clients.
const MAX_CONNECTIONS: usize = 64;
const REQUEST_LIMIT: usize = 8 * 1024;

/// What a path is answered with.
pub struct Answer {
    pub code: u16,
    pub body: String,
    /// A header beside the usual ones.
    pub header: Option<(&'static str, String)>,
}

impl From<(u16, String)> for Answer {
    fn from((code, body): (u16, String)) -> Self {
        Self { code, body, header: None }
    }
}

/// Says what a path is answered with. Of one type, so that serving is compiled once.
type Answering = Arc<dyn Fn(&str) -> Answer + Send + Sync>;

/// Answers every request by its path until dropped.
pub fn serve(
    listener: TcpListener,
    answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static,
) -> BoxFuture<'static, ()> {
    serve_answers(listener, move |path: &str| answer(path).into())
}

/// As [`serve`], for answers that have a header of their own.
pub fn serve_answers(
    listener: TcpListener,
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> BoxFuture<'static, ()> {
    Box::pin(serve_any(listener, Arc::new(answer)))
}

async fn serve_any(listener: TcpListener, answer: Answering) {
    let places = Connections::new(|| Limits { total: MAX_CONNECTIONS, per_address: MAX_CONNECTIONS });
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            (stream, _) = places.accept(&listener) => {
                let answer = answer.clone();
                connections.spawn(FutureExt::boxed(async move {
                    let place = stream.place();
                    // A client that goes away or dawdles has no one to tell.
                    let _ = place.handshake(respond(stream, &answer)).await;
                }));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// The next connection of a listener whose connections are counted by its caller.
pub async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    tls::accept(listener, || {}).await
}

async fn respond(mut stream: Accepted, answer: &Answering) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < REQUEST_LIMIT {
        match stream.read(&mut chunk).await? {
            0 => return Ok(()),
            length => request.extend_from_slice(&chunk[..length]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    let path = text.split(' ').nth(1).and_then(|path| path.split('?').next()).unwrap_or("/");
    let Answer { code, body, header } = answer(path);
    let reason = match code {
        200 => "OK",
        404 => "Not Found",
        _ => "Service Unavailable",
    };
    let kind = match path {
        _ if body.starts_with('{') => "application/json",
        "/metrics" | "/metrics/slis" => "text/plain; version=0.0.4; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    let more = header.map(|(name, value)| format!("{name}: {value}\r\n")).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nX-Content-Type-Options: nosniff\r\n{more}Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn paths_choose_the_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, |path| match path {
            "/metrics" => (200, "x 1\n".into()),
            "/health" => (503, "{}".into()),
            _ => (404, "404 page not found\n".into()),
        }));
        for (request, expected) in [
            ("GET /metrics?x HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
            ("GET /health HTTP/1.1\r\n\r\n", "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json"),
            ("GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
            ("\r\n\r\n", "HTTP/1.1 404 Not Found"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with(expected), "{request:?}: {answer}");
        }
        serving.abort();
    }
}
