//! How the server is, over HTTP: `/health` while it runs, `/ready` once its index is full, `/metrics`.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A client that takes longer is not waited for.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_CONNECTIONS: usize = 64;

/// Answers by path until dropped; none is unknown.
pub(crate) async fn serve(
    listener: TcpListener,
    answer: impl Fn(&str) -> Option<(bool, String)> + Clone + Send + 'static,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    connections.spawn(async move {
                        // A client that goes away or dawdles has no one to tell.
                        let _ = tokio::time::timeout(PATIENCE, respond(stream, answer)).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn respond(mut stream: TcpStream, answer: impl Fn(&str) -> Option<(bool, String)>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < 8 * 1024 {
        match stream.read(&mut chunk).await? {
            0 => break,
            length => request.extend_from_slice(&chunk[..length]),
        }
    }
    let text = String::from_utf8_lossy(&request);
    let path = text.split(' ').nth(1).and_then(|path| path.split('?').next()).unwrap_or_default();
    let (status, body) = match answer(path) {
        Some((true, body)) => ("200 OK", body),
        Some((false, body)) => ("503 Service Unavailable", body),
        None => ("404 Not Found", "404 page not found\n".to_owned()),
    };
    let kind =
        if path == "/metrics" { "text/plain; version=0.0.4; charset=utf-8" } else { "text/plain; charset=utf-8" };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
