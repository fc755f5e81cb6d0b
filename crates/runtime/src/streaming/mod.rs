//! The streaming server: where Exec, Attach and PortForward really happen.
//!
//! Flow: the CRI call returns a URL with a token that works once -> the kubelet proxies its client's connection to it ->
//! the connection is upgraded to WebSocket or SPDY/3.1 -> `command` or `port_forward` moves the bytes.

mod command;
mod fd;
mod port_forward;
mod queue;
mod remote;
mod spdy;
mod spdy_dictionary;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use spdy::fuzz_frames as fuzz_spdy;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cri::v1;
use futures_util::FutureExt;
use http::header::{CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tls::{Connections, Limits};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::engine::Engine;
use crate::error::{Error, Result, doing};
use crate::record;

/// Unused tokens are worth nothing after this.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// More open tokens than this are refused: nobody asks for so many streams at once.
const MAX_TOKENS: usize = 1000;
/// Connections: one for each of the kubelet's streams.
const PART_OF_DESCRIPTORS: usize = 16;
const MAX_CONNECTIONS: usize = 2048;

pub(crate) struct Server {
    address: SocketAddr,
    tokens: Mutex<HashMap<String, (Instant, Task)>>,
    engine: Weak<Engine>,
}

/// What a token stands for.
#[derive(Clone)]
enum Task {
    Exec(v1::ExecRequest),
    Attach(v1::AttachRequest),
    PortForward(v1::PortForwardRequest),
}

/// How the client speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Protocol {
    Spdy,
    /// Channels in the first byte of each message.
    Channels {
        version: u8,
    },
    /// SPDY carried in messages: how newer clients forward ports.
    TunneledSpdy,
}

impl Server {
    /// Listens on a free port of loopback, until the engine stops.
    pub(crate) async fn start(engine: &Arc<Engine>) -> Result<Arc<Self>> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.map_err(doing("listening for streams"))?;
        let server = Arc::new(Self {
            address: listener.local_addr().map_err(doing("listening for streams"))?,
            tokens: Mutex::default(),
            engine: Arc::downgrade(engine),
        });
        let accepting = server.clone();
        let (stop, connections) = (engine.stop.clone(), engine.tasks.clone());
        // All of them come from one address, loopback.
        let places = Connections::new(|| {
            let Limits { total, .. } = Limits::share(PART_OF_DESCRIPTORS, MAX_CONNECTIONS);
            Limits { total, per_address: total }
        });
        engine.tasks.spawn(FutureExt::boxed(async move {
            loop {
                let (stream, _) = tokio::select! {
                    () = stop.cancelled() => return,
                    accepted = places.accept(&listener) => accepted,
                };
                let (server, stop) = (accepting.clone(), stop.clone());
                connections.spawn(FutureExt::boxed(async move {
                    let place = stream.place();
                    let answer = |request| server.clone().handle(request, stop.clone());
                    if let Err(error) = place.serve_boxed(stream, &stop, answer).await {
                        tracing::debug!(%error, "stream connection failed");
                    }
                }));
            }
        }));
        Ok(server)
    }

    pub(crate) fn exec_url(&self, request: v1::ExecRequest) -> Result<String> {
        check_streams(request.tty, [request.stdin, request.stdout, request.stderr])?;
        self.url("exec", Task::Exec(request))
    }

    pub(crate) fn attach_url(&self, request: v1::AttachRequest) -> Result<String> {
        check_streams(request.tty, [request.stdin, request.stdout, request.stderr])?;
        self.url("attach", Task::Attach(request))
    }

    pub(crate) fn port_forward_url(&self, request: v1::PortForwardRequest) -> Result<String> {
        self.url("portforward", Task::PortForward(request))
    }

    fn url(&self, kind: &str, task: Task) -> Result<String> {
        let token = record::new_id().map_err(doing("making a token"))?;
        let mut tokens = self.tokens.lock();
        tokens.retain(|_, (made, _)| made.elapsed() < TOKEN_LIFETIME);
        if tokens.len() >= MAX_TOKENS {
            return Err(Error::Precondition("too many streams are waiting to be opened".into()));
        }
        tokens.insert(token.clone(), (Instant::now(), task));
        Ok(format!("http://{}/{kind}/{token}", self.address))
    }

    async fn handle(self: Arc<Self>, mut request: Request<Incoming>, stop: CancellationToken) -> Response<Full<Bytes>> {
        let refuse = |status: StatusCode, text: &str| {
            let mut response = Response::new(Full::from(text.to_string()));
            *response.status_mut() = status;
            response
        };
        let token = request.uri().path().rsplit('/').next().unwrap_or_default().to_string();
        let task = self.tokens.lock().remove(&token).filter(|(made, _)| made.elapsed() < TOKEN_LIFETIME);
        let (Some((_, task)), Some(engine)) = (task, self.engine.upgrade()) else {
            return refuse(StatusCode::NOT_FOUND, "no such stream, or it was opened already\n");
        };
        let forwards = matches!(task, Task::PortForward(_));
        let (protocol, headers) = match negotiate(request.headers(), forwards) {
            Ok(negotiated) => negotiated,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let query = request.uri().query().unwrap_or_default().to_string();
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(FutureExt::boxed(async move {
            let io = match upgrade.await {
                Ok(upgraded) => TokioIo::new(upgraded),
                Err(error) => {
                    tracing::debug!(%error, "upgrade failed");
                    return;
                }
            };
            let work = async {
                match task {
                    Task::Exec(exec) => command::exec(&engine, exec, io, protocol).await,
                    Task::Attach(attach) => command::attach(&engine, attach, io, protocol).await,
                    Task::PortForward(forward) => port_forward::serve(&engine, forward, io, protocol, &query).await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                result = work => if let Err(error) = result {
                    tracing::debug!(%error, "stream ended");
                },
            }
        }));
        let mut response = Response::new(Full::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        *response.headers_mut() = headers;
        response
    }
}

fn check_streams(tty: bool, [stdin, stdout, stderr]: [bool; 3]) -> Result<()> {
    if tty && stderr {
        return Err(Error::Invalid("tty and stderr cannot both be true".into()));
    }
    if !(stdin || stdout || stderr) {
        return Err(Error::Invalid("one of stdin, stdout, or stderr must be set".into()));
    }
    Ok(())
}

/// Why a connection does not become a stream.
#[derive(Debug, thiserror::Error)]
enum NoUpgrade {
    #[error("unable to upgrade: none of the protocols {0:?} is known\n")]
    Protocols(Vec<String>),
    #[error("unable to upgrade: neither WebSocket nor SPDY/3.1 was asked for\n")]
    NotAsked,
    #[error("no WebSocket key\n")]
    NoKey,
    #[error(transparent)]
    Header(#[from] http::header::InvalidHeaderValue),
}

/// Picks what both sides can do: the protocol and the headers of the 101 answer.
fn negotiate(headers: &HeaderMap, forwards: bool) -> std::result::Result<(Protocol, HeaderMap), NoUpgrade> {
    let all = |name: &str| -> Vec<String> {
        headers
            .get_all(name)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .flat_map(|v| v.split(','))
            .map(|v| v.trim().to_string())
            .collect()
    };
    let mut answer = HeaderMap::new();
    answer.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    let upgrade = all("upgrade").join(",").to_lowercase();
    let value = |text: &str| HeaderValue::from_str(text);
    if upgrade == "spdy/3.1" {
        answer.insert(UPGRADE, HeaderValue::from_static("SPDY/3.1"));
        let offered = all("x-stream-protocol-version");
        let known: &[&str] = match forwards {
            true => &["portforward.k8s.io"],
            false => &["v4.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io"],
        };
        match known.iter().find(|k| offered.iter().any(|o| o == *k)) {
            Some(chosen) => drop(answer.insert("x-stream-protocol-version", value(chosen)?)),
            None if offered.is_empty() && forwards => {}
            None => return Err(NoUpgrade::Protocols(offered)),
        }
        return Ok((Protocol::Spdy, answer));
    }
    if upgrade != "websocket" {
        return Err(NoUpgrade::NotAsked);
    }
    let key = headers.get("sec-websocket-key").and_then(|k| k.to_str().ok()).ok_or(NoUpgrade::NoKey)?;
    answer.insert(UPGRADE, HeaderValue::from_static("websocket"));
    answer.insert(SEC_WEBSOCKET_ACCEPT, value(&websocket::handshake::accept_key(key.as_bytes()))?);
    let offered = all("sec-websocket-protocol");
    let known: &[(&str, Protocol)] = match forwards {
        true => &[
            ("SPDY/3.1+portforward.k8s.io", Protocol::TunneledSpdy),
            ("v4.channel.k8s.io", Protocol::Channels { version: 4 }),
        ],
        false => &[
            ("v5.channel.k8s.io", Protocol::Channels { version: 5 }),
            ("v4.channel.k8s.io", Protocol::Channels { version: 4 }),
            ("v3.channel.k8s.io", Protocol::Channels { version: 3 }),
            ("v2.channel.k8s.io", Protocol::Channels { version: 2 }),
            ("channel.k8s.io", Protocol::Channels { version: 1 }),
        ],
    };
    match known.iter().find(|(name, _)| offered.iter().any(|o| o == name)) {
        Some((name, protocol)) => {
            answer.insert(SEC_WEBSOCKET_PROTOCOL, value(name)?);
            Ok((*protocol, answer))
        }
        None if offered.is_empty() => Ok((Protocol::Channels { version: 1 }, answer)),
        None => Err(NoUpgrade::Protocols(offered)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_are_negotiated() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(*name, HeaderValue::from_static(value));
            }
            map
        };
        let ws = ("upgrade", "websocket");
        let key = ("sec-websocket-key", "x");
        for (given, forwards, expected) in [
            (
                vec![ws, key, ("sec-websocket-protocol", "v4.channel.k8s.io, v5.channel.k8s.io")],
                false,
                Some(Protocol::Channels { version: 5 }),
            ),
            (
                vec![ws, key, ("sec-websocket-protocol", "SPDY/3.1+portforward.k8s.io")],
                true,
                Some(Protocol::TunneledSpdy),
            ),
            (vec![ws, key, ("sec-websocket-protocol", "nope")], false, None),
            (
                vec![
                    ("upgrade", "SPDY/3.1"),
                    ("x-stream-protocol-version", "v4.channel.k8s.io"),
                    ("x-stream-protocol-version", "v3.channel.k8s.io"),
                ],
                false,
                Some(Protocol::Spdy),
            ),
            (
                vec![("upgrade", "SPDY/3.1"), ("x-stream-protocol-version", "portforward.k8s.io")],
                true,
                Some(Protocol::Spdy),
            ),
            (vec![("upgrade", "h2c")], false, None),
        ] {
            let result = negotiate(&headers(&given), forwards).ok().map(|(protocol, _)| protocol);
            assert_eq!(result, expected, "{given:?}");
        }
    }
}
