//! TLS, HTTP/2, gRPC, WebSocket and streams that do not end.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::harness::{address, backend_with, echo, full, local, parsed, until, until_code, with_gateway};

/// A TLS connection that trusts anyone; who it was shows in the certificate.
async fn tls_connect(port: u16, host: &str, alpn: &[&[u8]]) -> Option<TlsStream<TcpStream>> {
    let mut config = tls::unverified_client();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let stream = TcpStream::connect(address(port)).await.ok()?;
    let name = rustls_pki_types::ServerName::try_from(host.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.ok()
}

fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// One exchange on a connection that stays open, by the end of the echo's JSON.
async fn exchange(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin), host: &str) -> (u16, serde_json::Value) {
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let mut chunk = [0; 4096];
    while !answer.ends_with(b"}") {
        let length = stream.read(&mut chunk).await.unwrap();
        assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&chunk[..length]);
    }
    parsed(&String::from_utf8_lossy(&answer))
}

#[test]
fn a_certificate_changes_under_an_open_connection() {
    with_gateway(|world| async move {
        let backend = echo("one").await;
        world.service("web", None, &[backend]).await;
        let first = world.certificate("cert", "web.test").await;
        world.ingress("web.test", "web", Some("cert")).await;
        // Secrets and endpoints are watched apart.
        until_code(80, "web.test", "/", 200).await;
        let mut open = until("TLS", || tls_connect(443, "web.test", &[b"http/1.1"])).await;
        assert_eq!(shown(&open), first);
        let (code, seen) = exchange(&mut open, "web.test").await;
        assert_eq!((code, &seen["headers"]["x-forwarded-proto"]), (200, &json!("https")));
        let second = world.certificate("cert", "web.test").await;
        until("the new certificate", || async {
            let stream = tls_connect(443, "web.test", &[b"http/1.1"]).await?;
            (shown(&stream) == second).then_some(())
        })
        .await;
        // Routes change, too; the connection of before goes on, and sees it.
        world.ingress("two.test", "web-two", None).await;
        until_code(80, "two.test", "/", 503).await;
        assert_eq!(exchange(&mut open, "web.test").await.0, 200);
        assert!(tls_connect(443, "unknown.test", &[b"http/1.1"]).await.is_none(), "no certificate for it");
    });
}

/// Three requests in one write, of which the last is in chunks, and all that is answered.
async fn answered_together(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) -> String {
    let words = "GET /1 HTTP/1.1\r\nHost: web.test\r\n\r\n\
                 POST /2 HTTP/1.1\r\nHost: web.test\r\nContent-Length: 4\r\n\r\nbody\
                 PUT /3 HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n6\r\nchunks\r\n0\r\n\r\n";
    stream.write_all(words.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    answers
}

#[test]
fn requests_that_come_together_are_answered_in_order() {
    with_gateway(|world| async move {
        let backend = echo("one").await;
        world.service("web", None, &[backend]).await;
        world.certificate("cert", "web.test").await;
        world.ingress("web.test", "web", Some("cert")).await;
        until_code(80, "web.test", "/", 200).await;
        let over_tls = until("TLS", || tls_connect(443, "web.test", &[b"http/1.1"])).await;
        let plain = TcpStream::connect(address(80)).await.unwrap();
        for answers in [answered_together(over_tls).await, answered_together(plain).await] {
            let seen: Vec<serde_json::Value> =
                answers.split("HTTP/1.1 200 OK").skip(1).map(|answer| parsed(answer).1).collect();
            let seen: Vec<_> = seen.iter().map(|seen| (&seen["target"], &seen["body"])).collect();
            let expected =
                [("/1", ""), ("/2", "body"), ("/3", "chunks")].map(|(target, body)| (json!(target), json!(body)));
            assert_eq!(seen, expected.each_ref().map(|(target, body)| (target, body)), "{answers}");
        }
    });
}

#[test]
fn grpc_passes_with_its_trailers() {
    with_gateway(|world| async move {
        let backend = backend_with(Arc::new(|request: Request<hyper::body::Incoming>| {
            Box::pin(async move {
                let (authority, te) = (request.uri().authority().cloned(), request.headers().get("te").cloned());
                let is_h2 = request.version() == http::Version::HTTP_2;
                let sent = request.into_body().collect().await.unwrap().to_bytes();
                let mut trailers = HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                let said = format!("{authority:?} {te:?} {is_h2} {}", sent.len());
                let frames = [Ok::<_, Infallible>(Frame::data(Bytes::from(said))), Ok(Frame::trailers(trailers))];
                let body = BodyExt::boxed_unsync(StreamBody::new(stream::iter(frames)));
                Response::builder().header("content-type", "application/grpc").body(body).unwrap()
            })
        }))
        .await;
        world.service("grpc", Some("kubernetes.io/h2c"), &[backend]).await;
        world.certificate("cert", "grpc.test").await;
        world.ingress("grpc.test", "grpc", Some("cert")).await;
        until_code(80, "grpc.test", "/", 200).await;
        let over_tls = until("TLS", || tls_connect(443, "grpc.test", &[b"h2"])).await;
        let plain = TcpStream::connect(address(80)).await.unwrap();
        let (one, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(over_tls)).await.unwrap();
        tokio::spawn(connection);
        let (two, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(plain)).await.unwrap();
        tokio::spawn(connection);
        for mut sender in [one, two] {
            let request = Request::post("http://grpc.test/pkg.Svc/Do").header("te", "trailers");
            let request =
                request.header("content-type", "application/grpc").body(Full::new(Bytes::from("12345"))).unwrap();
            let answer = sender.send_request(request).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            let body = answer.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
            let said = String::from_utf8(body.to_bytes().to_vec()).unwrap();
            assert_eq!(said, "Some(grpc.test) Some(\"trailers\") true 5");
        }
    });
}

#[test]
fn events_stream_and_large_bodies_pass_both_ways() {
    with_gateway(|world| async move {
        let (sender, receiver) = tokio::sync::mpsc::channel::<Bytes>(1);
        let receiver = Arc::new(tokio::sync::Mutex::new(Some(receiver)));
        let events = backend_with(Arc::new(move |_| {
            let receiver = receiver.clone();
            Box::pin(async move {
                let Some(receiver) = receiver.lock().await.take() else { return Response::new(full("probe")) };
                let frames = stream::unfold(receiver, |mut receiver| async move {
                    let piece = receiver.recv().await?;
                    Some((Ok::<_, Infallible>(Frame::data(piece)), receiver))
                });
                Response::new(BodyExt::boxed_unsync(StreamBody::new(frames)))
            })
        }))
        .await;
        let backend = echo("one").await;
        world.service("events", None, &[events]).await;
        world.service("web", None, &[backend]).await;
        world.ingress("events.test", "events", None).await;
        world.ingress("web.test", "web", None).await;
        until_code(80, "web.test", "/", 200).await;
        let mut stream = TcpStream::connect(address(80)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: events.test\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut seen = Vec::new();
        for word in ["data: one\n\n", "data: two\n\n"] {
            sender.send(Bytes::from(word)).await.unwrap();
            // It comes while the answer goes on.
            let mut chunk = [0; 1024];
            while !String::from_utf8_lossy(&seen).contains(word.trim_end()) {
                let length = stream.read(&mut chunk).await.unwrap();
                assert!(length > 0);
                seen.extend_from_slice(&chunk[..length]);
            }
        }
        drop(sender);
        stream.read_to_end(&mut seen).await.unwrap();
        assert!(seen.ends_with(b"0\r\n\r\n"), "the end is told");
        // A body of eight mebibytes in pieces.
        let stream = TcpStream::connect(address(80)).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let pieces = stream::iter(0..128).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 64 << 10]))));
        let request = Request::post("/up").header(header::HOST, "web.test").body(StreamBody::new(pieces)).unwrap();
        let answer = sender.send_request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes();
        let answer: serde_json::Value = serde_json::from_slice(&answer).unwrap();
        assert_eq!((&answer["length"], &answer["method"]), (&json!(8 << 20), &json!("POST")));
    });
}

#[test]
fn a_websocket_is_joined_with_its_backend() {
    with_gateway(|world| async move {
        let backend = backend_with(Arc::new(|mut request: Request<hyper::body::Incoming>| {
            Box::pin(async move {
                if request.headers().get(header::UPGRADE).is_none() {
                    return Response::new(full("no upgrade"));
                }
                let upgrade = hyper::upgrade::on(&mut request);
                tokio::spawn(async move {
                    let mut stream = TokioIo::new(upgrade.await.unwrap());
                    let mut word = [0; 5];
                    while stream.read_exact(&mut word).await.is_ok() {
                        word.reverse();
                        stream.write_all(&word).await.unwrap();
                    }
                });
                let response = Response::builder().status(101).header("connection", "upgrade");
                response.header("upgrade", "websocket").body(full("")).unwrap()
            })
        }))
        .await;
        world.service("ws", None, &[backend]).await;
        world.ingress("ws.test", "ws", None).await;
        until_code(80, "ws.test", "/", 200).await;
        let mut stream = TcpStream::connect(address(80)).await.unwrap();
        let head = "GET /chat HTTP/1.1\r\nHost: ws.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).await.unwrap();
            seen.push(byte[0]);
        }
        assert!(seen.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&seen));
        for (said, heard) in [(b"hello", b"olleh"), (b"again", b"niaga")] {
            stream.write_all(said).await.unwrap();
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, heard);
        }
    });
}

#[test]
fn tls_is_passed_through_untouched_or_ends_here() {
    with_gateway(|world| async move {
        let made = rcgen::generate_simple_self_signed(vec!["raw.test".to_owned()]).unwrap();
        let certificate = made.cert.der().to_vec();
        let key = rustls_pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let config =
            tls::server_builder().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind((local(2), 0)).await.unwrap();
        let backend = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    if let Ok(mut stream) = acceptor.accept(stream).await {
                        let _ = stream.write_all(b"secret").await;
                        let _ = stream.shutdown().await;
                    }
                });
            }
        });
        let listener = tokio::net::TcpListener::bind((local(2), 0)).await.unwrap();
        let plain = listener.local_addr().unwrap();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut word = [0; 5];
                if stream.read_exact(&mut word).await.is_ok() {
                    word.reverse();
                    let _ = stream.write_all(&word).await;
                }
            }
        });
        world.service("raw", None, &[backend]).await;
        world.service("plain", None, &[plain]).await;
        let ours = world.certificate("cert", "ends.test").await;
        let api = "gateway.networking.k8s.io/v1";
        let listeners = json!([
            {"name": "raw", "port": 443, "protocol": "TLS", "hostname": "raw.test", "tls": {"mode": "Passthrough"}},
            {"name": "ends", "port": 443, "protocol": "TLS", "hostname": "ends.test",
                "tls": {"mode": "Terminate", "certificateRefs": [{"name": "cert"}]}},
        ]);
        world
            .create(json!({"apiVersion": api, "kind": "Gateway", "metadata": {"name": "gw"},
            "spec": {"gatewayClassName": "cox", "listeners": listeners}}))
            .await;
        for (host, service) in [("raw.test", "raw"), ("ends.test", "plain")] {
            world
                .create(json!({"apiVersion": api, "kind": "TLSRoute", "metadata": {"name": service},
                "spec": {"parentRefs": [{"name": "gw"}], "hostnames": [host],
                    "rules": [{"backendRefs": [{"name": service, "port": 80}]}]}}))
                .await;
        }
        let mut stream = until("the backend's own TLS", || tls_connect(443, "raw.test", &[])).await;
        assert_eq!(shown(&stream), certificate);
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        assert_eq!(said, b"secret");
        until("what was inside of TLS", || async {
            let mut stream = tls_connect(443, "ends.test", &[b"protocol of their own"]).await?;
            assert_eq!(shown(&stream), ours);
            stream.write_all(b"hello").await.ok()?;
            let mut word = [0; 5];
            stream.read_exact(&mut word).await.ok()?;
            (&word == b"olleh").then_some(())
        })
        .await;
    });
}
