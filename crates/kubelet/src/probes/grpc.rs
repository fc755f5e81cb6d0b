//! `grpc.health.v1.Health/Check`, with its two tiny messages written by hand.

use bytes::Bytes;
use client::BoxError;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::check::{Outcome, bracketed, connect};
use crate::exchange::driven;

/// An answer is seven bytes.
const MAX_ANSWER: usize = 4096;

pub(super) async fn health(host: &str, port: u16, service: &str) -> Outcome {
    let stream = match connect(host, port).await {
        Ok(stream) => stream,
        Err(error) => {
            return Outcome::Failure(format!(
                "timeout: failed to connect service \"{}:{port}\": {error}",
                bracketed(host)
            ));
        }
    };
    let request = http::Request::post(format!("http://{}:{port}/grpc.health.v1.Health/Check", bracketed(host)))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "kube-probe/1.36")
        .body(Full::new(Bytes::from(frame(service))));
    let request = match request {
        Ok(request) => request,
        Err(error) => return Outcome::Error(error.to_string()),
    };
    let answer = async {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let talk = async {
            let response = sender.send_request(request).await?;
            let early = response.headers().get("grpc-status").cloned();
            // Whoever is asked may send without end, for as long as the probe may take.
            let collected = Limited::new(response.into_body(), MAX_ANSWER).collect().await?;
            let late = collected.trailers().and_then(|trailers| trailers.get("grpc-status").cloned());
            Ok::<_, BoxError>((early.or(late), collected.to_bytes()))
        };
        driven(talk, connection).await
    };
    match answer.await {
        Err(error) => Outcome::Failure(format!("error: health rpc failed: {error}")),
        Ok((status, body)) => {
            let code = status.as_ref().and_then(|status| status.to_str().ok()).unwrap_or("0");
            judge(code, &body)
        }
    }
}

/// A length-prefixed `HealthCheckRequest`: field 1 is the service, left out when empty.
fn frame(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push(length as u8);
        message.extend(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend((message.len() as u32).to_be_bytes());
    frame.extend(message);
    frame
}

fn judge(code: &str, body: &[u8]) -> Outcome {
    match code {
        // Field 1, value 1: SERVING.
        "0" if body.get(5..7) == Some(&[0x08, 0x01]) => Outcome::Success,
        "0" => Outcome::Failure("service unhealthy (responded with \"NOT_SERVING\")".into()),
        "12" => Outcome::Failure(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health)".into(),
        ),
        code => Outcome::Failure(format!("error: health rpc probe failed: rpc error: code = {code}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers and never ends: as much of it is read as an answer may have.
    #[tokio::test]
    async fn security_an_endless_answer_is_not_collected() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = sent.clone();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = hyper::service::service_fn(move |_: http::Request<hyper::body::Incoming>| {
                let counted = counted.clone();
                let pieces = futures_util::stream::repeat_with(move || {
                    counted.fetch_add(16 << 10, Ordering::Relaxed);
                    Ok::<_, std::convert::Infallible>(hyper::body::Frame::data(Bytes::from(vec![0; 16 << 10])))
                });
                async {
                    Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::StreamBody::new(pieces)))
                }
            });
            let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        let outcome = health("127.0.0.1", port, "").await;
        assert!(matches!(&outcome, Outcome::Failure(why) if why.contains("limit")), "{outcome:?}");
        assert!(sent.load(Ordering::Relaxed) < 64 << 20, "{sent:?}");
    }

    #[test]
    fn messages() {
        assert_eq!(frame(""), [0, 0, 0, 0, 0]);
        assert_eq!(frame("ab"), [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(judge("0", &[0, 0, 0, 0, 2, 8, 1]), Outcome::Success);
        assert_ne!(judge("0", &[0, 0, 0, 0, 2, 8, 2]), Outcome::Success);
        assert_ne!(judge("5", &[]), Outcome::Success);
    }
}
