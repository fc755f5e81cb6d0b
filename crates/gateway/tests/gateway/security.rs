//! Attacks on the port.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{address, ask, backend_with, echo, full, raw, until_code, with_config, with_gateway};

/// Requests that servers read in different ways never reach a backend as two.
#[test]
fn security_no_request_is_smuggled() {
    with_gateway(|world| async move {
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let backend = backend_with(Arc::new(move |request| {
            let counted = counted.clone();
            Box::pin(async move {
                counted.fetch_add(1, Ordering::SeqCst);
                let is_smuggled = request.uri().path() == "/smuggled";
                let _ = request.into_body().collect().await;
                Response::builder().status(if is_smuggled { 299 } else { 200 }).body(full("ok")).unwrap()
            })
        }))
        .await;
        world.service("web", None, &[backend]).await;
        world.ingress("web.test", "web", None).await;
        until_code(80, "web.test", "/", 200).await;
        let inner = "GET /smuggled HTTP/1.1\r\nHost: web.test\r\n\r\n";
        let length = inner.len();
        for (what, head) in [
            ("length, then chunked", "Content-Length: LEN\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            ("chunked, then length", "Transfer-Encoding: chunked\r\nContent-Length: LEN\r\n\r\n0\r\n\r\n"),
            ("two lengths", "Content-Length: 0\r\nContent-Length: LEN\r\n\r\n"),
            ("no number", "Content-Length: +LEN\r\n\r\n"),
            ("another encoding", "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
            ("a space before the colon", "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
            ("a folded header", "X: y\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            ("two hosts", "Host: other.test\r\n\r\n"),
        ] {
            let before = count.load(Ordering::SeqCst);
            let head = head.replace("LEN", &length.to_string());
            let answer = raw(80, &format!("POST / HTTP/1.1\r\nHost: web.test\r\n{head}{inner}")).await;
            assert!(!answer.contains(" 299 "), "{what}: {answer}");
            assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{what}: {answer}");
            assert!(count.load(Ordering::SeqCst) <= before + 1, "{what}");
        }
    });
}

#[test]
fn security_clients_do_not_say_where_they_come_from() {
    with_gateway(|world| async move {
        let backend = echo("one").await;
        world.service("web", None, &[backend]).await;
        world.ingress("web.test", "web", None).await;
        until_code(80, "web.test", "/", 200).await;
        let claims = "X-Forwarded-For: 203.0.113.9\r\nX_Forwarded_For: 203.0.113.9\r\nX-Real-IP: 203.0.113.9\r\n\
                      Forwarded: for=203.0.113.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: admin.test\r\n";
        let (code, seen) = ask(80, "web.test", "/", claims).await.unwrap();
        assert_eq!(code, 200);
        assert!(!seen.to_string().contains("203.0.113.9") && !seen.to_string().contains("admin.test"), "{seen}");
        assert_eq!(seen["headers"]["x-forwarded-proto"], "http");
        for target in ["/a/../b", "/%2e%2e/b", "/a%00"] {
            assert_eq!(ask(80, "web.test", target, "").await.unwrap().0, 400, "{target}");
        }
        let many: String = (0..90).map(|i| format!("X-{i}: {}\r\n", "v".repeat(512))).collect();
        assert_eq!(ask(80, "web.test", "/", &many).await.unwrap().0, 431);
    });
}

#[test]
fn security_slow_and_large_bodies_are_given_up() {
    let change = |config: &mut gateway::Config| {
        config.limits.max_body = Some(1000);
        config.limits.body_silence = Duration::from_secs(3);
    };
    with_config(change, |world| async move {
        let backend = echo("one").await;
        world.service("web", None, &[backend]).await;
        world.ingress("web.test", "web", None).await;
        until_code(80, "web.test", "/", 200).await;
        let post = |rest: &str| format!("POST / HTTP/1.1\r\nHost: web.test\r\n{rest}");
        let large = raw(80, &post("Content-Length: 1001\r\n\r\n")).await;
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
        let chunk = format!("Transfer-Encoding: chunked\r\n\r\n400\r\n{}\r\n", "x".repeat(0x400));
        let large = raw(80, &post(&chunk)).await;
        assert!(large.starts_with("HTTP/1.1 413"), "{large}");
        let slow = raw(80, &post("Content-Length: 10\r\n\r\nabc")).await;
        assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
        // Whoever sends in time is served.
        let mut stream = TcpStream::connect(address(80)).await.unwrap();
        stream.write_all(post("Connection: close\r\nContent-Length: 4\r\n\r\nab").as_bytes()).await.unwrap();
        stream.write_all(b"cd").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("\"length\":4"), "{answer}");
    });
}
