//! Exchanges with clients and endpoints that say what they like.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::metrics::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::hostname::Pattern;
use crate::plane::pool::MAX_BUFFER;
use crate::plane::ports::tests::kept_address;
use crate::plane::{DataPlane, Limits, Ports};
use crate::table::{
    Action, Backend, BackendProtocol, Bind, Listener, PathMatch, Port, Protocol, Rank, Route, Rule, Rules, Table,
    Weighted,
};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// A gateway that leads everything to one endpoint.
struct World {
    at: SocketAddr,
    ports: Ports,
    stop: CancellationToken,
    _place: TcpSocket,
}

impl World {
    async fn new(endpoint: SocketAddr, limits: Limits) -> Self {
        let stop = CancellationToken::new();
        let plane = DataPlane::new(limits, None, Metrics::new(), stop.clone()).unwrap();
        let (_place, at) = kept_address();
        let backend = Backend {
            name: "web".into(),
            protocol: BackendProtocol::Http1,
            wants_tls: false,
            tls: None,
            endpoints: vec![endpoint],
        };
        let route = Route {
            name: "web".into(),
            filters: Vec::new(),
            action: Action::Forward(vec![Weighted {
                weight: 1,
                backend: Some(Arc::new(backend)),
                filters: Vec::new(),
            }]),
            timeout: None,
            backend_timeout: None,
            metrics: Arc::default(),
        };
        let (path, rank, route) = (PathMatch::Prefix("/".into()), Rank::default(), Arc::new(route));
        let rules = Rules::new([Rule { path, method: None, headers: Vec::new(), query: Vec::new(), rank, route }]);
        let hosts = [(Pattern::Any, rules)].into_iter().collect();
        let listeners = [(Pattern::Any, Arc::new(Listener { hosts, ..Listener::default() }))].into_iter().collect();
        let port = Port { protocol: Protocol::Http, listeners, default_certificate: None };
        let (ports, endpoints) = ([(Bind::shared(at.port()), Arc::new(port))].into(), [endpoint].into());
        let table = Arc::new(Table { ports, endpoints, ..Table::default() });
        plane.swap(table.clone());
        let mut ports = Ports::new(plane, vec![at.ip()]);
        assert!(ports.apply(&table).await.is_empty());
        Self { at, ports, stop, _place }
    }

    async fn client(&self) -> Client {
        Client { stream: TcpStream::connect(self.at).await.unwrap(), unread: Vec::new() }
    }

    async fn end(self) {
        self.stop.cancel();
        self.ports.close().await.end().await;
    }
}

struct Client {
    stream: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    async fn say(&mut self, words: impl AsRef<[u8]>) {
        self.stream.write_all(words.as_ref()).await.unwrap();
    }

    /// Reads on; false at the end.
    async fn read(&mut self) -> bool {
        let read = tokio::time::timeout(LONG, self.stream.read_buf(&mut self.unread)).await.expect("something comes");
        matches!(read, Ok(1..))
    }

    async fn until(&mut self, end: &str) -> String {
        loop {
            if let Some(at) = self.unread.windows(end.len()).position(|window| window == end.as_bytes()) {
                let said: Vec<u8> = self.unread.drain(..at + end.len()).collect();
                return String::from_utf8(said).unwrap();
            }
            assert!(self.read().await, "the end after {:?}", String::from_utf8_lossy(&self.unread));
        }
    }

    /// The head of an answer, without its date.
    async fn head(&mut self) -> String {
        let head = self.until("\r\n\r\n").await;
        head.split_inclusive("\r\n").filter(|line| !line.to_lowercase().starts_with("date:")).collect()
    }

    /// What is left until the end.
    async fn rest(mut self) -> String {
        while self.read().await {}
        String::from_utf8(self.unread).unwrap()
    }

    async fn get(&mut self, path: &str) {
        self.say(format!("GET {path} HTTP/1.1\r\nHost: a.test\r\nX-Case: kept\r\n\r\n")).await;
    }
}

/// What an endpoint does with a request, by its head: what it says, and whether it closes then.
type Script = fn(&str) -> (&'static str, bool);

/// An endpoint that follows a script. Heads and bodies that it has read come back, and how many connections it had is counted.
async fn endpoint(script: Script) -> (SocketAddr, mpsc::UnboundedReceiver<String>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let (seen, sees) = mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(follow(stream, script, seen.clone()));
        }
    });
    (at, sees, connections)
}

async fn follow(mut stream: TcpStream, script: Script, seen: mpsc::UnboundedSender<String>) {
    let mut read = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = read.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                let _unasked = seen.send(END.into());
                return;
            }
        };
        let head = String::from_utf8(read.drain(..end).collect()).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
        let is_early = head.contains("/early");
        while read.len() < length && !is_early {
            assert!(stream.read_buf(&mut read).await.unwrap() > 0);
        }
        let body: Vec<u8> = if is_early { Vec::new() } else { read.drain(..length).collect() };
        let (answer, closes) = script(&head);
        let _unasked = seen.send(format!("{head}{}", String::from_utf8_lossy(&body)));
        stream.write_all(answer.as_bytes()).await.unwrap();
        if closes {
            return;
        }
    }
}

/// The next request that an endpoint saw.
async fn next(seen: &mut mpsc::UnboundedReceiver<String>) -> String {
    loop {
        let seen = tokio::time::timeout(LONG, seen.recv()).await.unwrap().unwrap();
        if seen != END {
            return seen;
        }
    }
}

/// What an endpoint sees when a connection ends without a request.
const END: &str = "end";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

#[tokio::test]
async fn a_connection_goes_on_after_each_kind_of_answer() {
    let (at, mut seen, connections) = endpoint(|head| match head.split(' ').nth(1).unwrap() {
        "/chunked" => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nok\r\n0\r\nX: y\r\n\r\n", false),
        "/none" => ("HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", false),
        "/same" => ("HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", false),
        "/head" => ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", false),
        "/hints" => ("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
        "/hop" => ("HTTP/1.1 200 OK\r\nConnection: X-Hop, close\r\nX-Hop: 1\r\nKeep-Alive: 9\r\nContent-Length: 0\r\n\r\n", true),
        "/closing" => ("HTTP/1.1 200 OK\r\n\r\nuntil the end", true),
        "/old" => ("HTTP/1.0 200 OK\r\n\r\n", true),
        _ => (OK, false),
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    let mut client = world.client().await;
    let length = |length: &str| format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for (method, path, head, body, opened) in [
        ("GET", "/", length("2"), "ok", 1),
        ("GET", "/chunked", chunked.clone(), "2\r\nok\r\n0\r\n\r\n", 1),
        ("GET", "/none", "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n".to_owned(), "", 1),
        ("GET", "/same", "HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n".to_owned(), "", 1),
        ("HEAD", "/head", length("9"), "", 1),
        ("GET", "/hints", length("0"), "", 1),
        ("GET", "/hop", length("0"), "", 1),
        ("GET", "/closing", chunked.clone(), "d\r\nuntil the end\r\n0\r\n\r\n", 2),
        ("GET", "/old", chunked.clone(), "0\r\n\r\n", 3),
        ("POST", "/", length("2"), "ok", 4),
    ] {
        let (content, sent) = if method == "POST" { ("Content-Length: 4\r\n", "sent") } else { ("", "") };
        client.say(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\nX-Case: kept\r\n{content}\r\n{sent}")).await;
        assert_eq!(client.head().await, head, "{path}");
        assert_eq!(if body.is_empty() { String::new() } else { client.until(body).await }, body, "{path}");
        let seen = next(&mut seen).await;
        assert!(seen.starts_with(&format!("{method} {path} HTTP/1.1\r\nhost: a.test\r\nX-Case: kept\r\n")), "{seen}");
        assert!(seen.contains("x-forwarded-host: a.test\r\n") && seen.ends_with(&format!("\r\n\r\n{sent}")), "{seen}");
        assert_eq!(connections.load(Ordering::SeqCst), opened, "{path}");
    }
    client.say("GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").await;
    let rest = client.rest().await;
    assert!(rest.contains("connection: close\r\n") && rest.ends_with("\r\n\r\nok"), "{rest}");
    world.end().await;
}

#[tokio::test]
async fn requests_that_come_together_are_answered_in_order() {
    let (at, mut seen, connections) = endpoint(|head| match head.split(' ').nth(1).unwrap() {
        "/1" => ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none", false),
        "/2" => ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo", false),
        _ => ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nthree", false),
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    // The last one is not for the lane, and the connection goes on elsewhere with it.
    let words = "GET /1 HTTP/1.1\r\nHost: a.test\r\nX-Case: 1\r\n\r\n\
                 POST /2 HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nX-Case: 2\r\n\r\nGET \
                 POST /3 HTTP/1.1\r\nHost: a.test\r\nCookie: a=1\r\nCookie: b=2\r\nX-Case: 3\r\n\
                 Connection: close\r\n\r\n";
    for cut in 0..words.len() {
        let mut client = world.client().await;
        client.say(&words[..cut]).await;
        tokio::task::yield_now().await;
        client.say(&words[cut..]).await;
        let answers = client.rest().await;
        let bodies: Vec<&str> =
            answers.split("\r\n\r\n").skip(1).map(|part| part.split("HTTP").next().unwrap()).collect();
        assert_eq!(bodies, ["one", "two", "three"], "{cut}: {answers}");
        for (path, line) in [("/1", "X-Case: 1"), ("/2", "X-Case: 2"), ("/3", "x-case: 3")] {
            let head = next(&mut seen).await;
            assert!(head.contains(&format!(" {path} HTTP/1.1\r\n")) && head.contains(line), "{cut}: {head}");
        }
    }
    assert!(connections.load(Ordering::SeqCst) <= 4 * crate::plane::workers::count(), "connections are used again");
    world.end().await;
}

#[tokio::test]
async fn an_answer_that_comes_early_is_told_whole() {
    let (at, mut seen, connections) = endpoint(|head| match head.contains("/early") {
        true => ("HTTP/1.1 413 Content Too Large\r\nContent-Length: 8\r\n\r\ntoo much", false),
        false => (OK, false),
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    let mut client = world.client().await;
    client.say("POST /early HTTP/1.1\r\nHost: a.test\r\nContent-Length: 100000000\r\n\r\nbegin").await;
    let head = client.head().await;
    assert_eq!(head, "HTTP/1.1 413 Content Too Large\r\ncontent-length: 8\r\nconnection: close\r\n\r\n");
    // What is still on its way does not cut off the answer, and does not become a request.
    client.say("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").await;
    assert_eq!(client.rest().await, "too much");
    assert!(seen.recv().await.unwrap().starts_with("POST /early"));
    let mut other = world.client().await;
    other.get("/").await;
    assert!(other.head().await.starts_with("HTTP/1.1 200"));
    assert_eq!(connections.load(Ordering::SeqCst), 2, "the rest of a body is no request");
    world.end().await;
}

#[tokio::test]
async fn security_what_an_endpoint_adds_to_an_answer_answers_nobody() {
    let (at, _seen, connections) = endpoint(|head| match head.split(' ').nth(1).unwrap() {
        "/length" => {
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", false)
        }
        "/chunked" => (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\nforged",
            false,
        ),
        "/none" => ("HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", false),
        "/head" => ("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", false),
        _ => (OK, false),
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    let mut client = world.client().await;
    for (count, method, path, end) in [
        (1, "GET", "/length", "\r\n\r\nok"),
        (2, "GET", "/chunked", "0\r\n\r\n"),
        (3, "GET", "/none", ""),
        (4, "HEAD", "/head", ""),
    ] {
        client.say(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\n\r\n")).await;
        client.until(if end.is_empty() { "\r\n\r\n" } else { end }).await;
        client.get("/").await;
        assert!(client.until("\r\n\r\nok").await.starts_with("HTTP/1.1 200"), "{path}");
        assert!(client.unread.is_empty(), "{path}");
        assert_eq!(connections.load(Ordering::SeqCst), count + 1, "{path}: the connection is not used again");
    }
    world.end().await;
}

#[tokio::test]
async fn security_what_an_endpoint_says_unasked_answers_nobody() {
    let (at, mut seen) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), Vec::new());
    let world = World::new(at.local_addr().unwrap(), Limits::default()).await;
    let mut client = world.client().await;
    for unasked in [&b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"[..], b""] {
        client.get("/").await;
        let (mut stream, _) = at.accept().await.unwrap();
        while !seen.ends_with(b"\r\n\r\n") {
            assert!(stream.read_buf(&mut seen).await.unwrap() > 0);
        }
        seen.clear();
        stream.write_all(OK.as_bytes()).await.unwrap();
        client.until("\r\n\r\nok").await;
        // More, or the end.
        stream.write_all(unasked).await.unwrap();
        stream.shutdown().await.unwrap();
    }
    client.get("/").await;
    let (mut stream, _) = at.accept().await.unwrap();
    stream.write_all(OK.as_bytes()).await.unwrap();
    assert!(client.until("\r\n\r\nok").await.starts_with("HTTP/1.1 200"));
    world.end().await;
}

#[tokio::test]
async fn security_an_answer_that_breaks_off_has_no_end() {
    let (at, _seen, _) = endpoint(|head| match head.split(' ').nth(1).unwrap() {
        "/length" => ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegin", true),
        "/chunked" => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegin\r\n", true),
        "/broken" => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\nbegin\r\n0\r\n\r\n", false),
        "/nothing" => ("", true),
        "/part" => ("HTTP/1.1 200 OK\r\nContent-", true),
        "/both" => ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false),
        "/split" => ("HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 0\r\n\r\n", false),
        "/switch" => ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", false),
        _ => ("SSH-2.0-OpenSSH\r\n", false),
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    for (path, length) in [("/length", 5), ("/chunked", 10), ("/broken", 0)] {
        let mut client = world.client().await;
        client.get(path).await;
        let rest = client.rest().await;
        let body = rest.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
        assert!(body <= length && !rest.contains("\r\n0\r\n"), "{path}: {rest}");
    }
    let mut client = world.client().await;
    for path in ["/nothing", "/part", "/both", "/split", "/switch", "/ssh"] {
        client.get(path).await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain"), "{path}: {head}");
        client.until("\n").await;
    }
    world.end().await;
}

#[tokio::test]
async fn security_an_answer_with_two_ends_is_refused_on_either_path() {
    let (at, _seen, _) = endpoint(|head| match head.split(' ').nth(1).unwrap() {
        "/both" => {
            ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false)
        }
        "/twice" => (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            false,
        ),
        "/gzip" => ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", false),
        _ => (OK, false),
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    // Two lines of cookies are not for the lane.
    for cookies in ["", "Cookie: a=1\r\nCookie: b=2\r\n"] {
        for (method, path) in [("GET", "/both"), ("HEAD", "/both"), ("GET", "/twice"), ("GET", "/gzip"), ("GET", "/")] {
            let code = if path == "/" { 200 } else { 502 };
            let mut client = world.client().await;
            client.say(format!("{method} {path} HTTP/1.1\r\nHost: a.test\r\n{cookies}\r\n")).await;
            let head = client.head().await;
            assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{method} {path} {cookies}: {head}");
        }
    }
    world.end().await;
}

#[tokio::test]
async fn the_longest_head_of_an_answer_is_passed_on_and_a_longer_one_is_refused() {
    // As long as the request says, without a body; one byte for each line more, and a date, are added to it.
    let (at, _seen, _) = endpoint(|head| {
        let length: usize = head.split(' ').nth(1).unwrap()[1..].parse().unwrap();
        let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding:chunked\r\nX:";
        let answer: &'static str = format!("{start}{}\r\n\r\n", "x".repeat(length - start.len() - 4)).leak();
        (answer, true)
    })
    .await;
    let world = World::new(at, Limits::default()).await;
    for (length, code) in [(60_000, 200), (MAX_BUFFER - 20, 200), (MAX_BUFFER, 200), (MAX_BUFFER + 1, 502)] {
        let mut client = world.client().await;
        client.get(&format!("/{length}")).await;
        let head = client.head().await;
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")), "{length}: {}", &head[..head.len().min(100)]);
    }
    world.end().await;
}

#[tokio::test]
async fn security_a_reset_is_not_the_end_of_an_answer() {
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(at.local_addr().unwrap(), Limits::default()).await;
    let Client { stream, mut unread } = world.client().await;
    let (mut from, mut to) = stream.into_split();
    let sending = tokio::spawn(async move {
        let head = "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1000000000000\r\n\r\n";
        let mut sent = to.write_all(head.as_bytes()).await;
        while sent.is_ok() {
            sent = to.write_all(&[b'x'; 64 << 10]).await;
        }
    });
    let (mut stream, _) = at.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegin").await.unwrap();
    while !unread.ends_with(b"begin\r\n") {
        assert!(from.read_buf(&mut unread).await.unwrap() > 0);
    }
    // With something unread, this is a reset, which meets what is being sent.
    stream.peek(&mut [0]).await.unwrap();
    drop(stream);
    while matches!(from.read_buf(&mut unread).await, Ok(1..)) {}
    assert!(unread.ends_with(b"begin\r\n"), "{}", unread.escape_ascii());
    sending.await.unwrap();
    world.end().await;
}

#[tokio::test]
async fn security_whoever_is_too_slow_is_given_up() {
    let short = Duration::from_millis(200);
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(at.local_addr().unwrap(), Limits { answer: short, ..Limits::default() }).await;
    let mut client = world.client().await;
    for _ in 0..2 {
        client.get("/").await;
        assert!(client.until("in time\n").await.starts_with("HTTP/1.1 504 Gateway Timeout\r\n"));
    }
    world.end().await;
    let world = World::new(at.local_addr().unwrap(), Limits { body_silence: short, ..Limits::default() }).await;
    let mut client = world.client().await;
    client.say("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 9\r\n\r\nabc").await;
    let rest = client.rest().await;
    assert!(rest.starts_with("HTTP/1.1 408 Request Timeout\r\n") && rest.contains("connection: close\r\n"), "{rest}");
    world.end().await;
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_exchange() {
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(at.local_addr().unwrap(), Limits::default()).await;
    let mut client = world.client().await;
    client.get("/").await;
    let (mut stream, _) = at.accept().await.unwrap();
    drop(client);
    let mut seen = Vec::new();
    tokio::time::timeout(LONG, stream.read_to_end(&mut seen)).await.unwrap().unwrap();
    assert!(seen.starts_with(b"GET / HTTP/1.1\r\n"));
    world.end().await;
}

#[tokio::test]
async fn what_has_begun_is_finished_when_the_port_closes() {
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(at.local_addr().unwrap(), Limits::default()).await;
    let (mut client, idle) = (world.client().await, world.client().await);
    client.get("/").await;
    let (mut stream, _) = at.accept().await.unwrap();
    world.stop.cancel();
    assert_eq!(idle.rest().await, "");
    stream.write_all(OK.as_bytes()).await.unwrap();
    // It ends with the answer, whether or not that was on its way already.
    let rest = client.rest().await;
    assert!(rest.starts_with("HTTP/1.1 200 OK\r\n") && rest.ends_with("\r\n\r\nok"), "{rest}");
    world.end().await;
}

#[tokio::test]
async fn large_bodies_pass_both_ways_at_once() {
    const LENGTH: usize = 3 << 20;
    let at = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let world = World::new(at.local_addr().unwrap(), Limits::default()).await;
    let echo = async {
        let (mut stream, _) = at.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let (from, mut to) = stream.split();
        to.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes()).await.unwrap();
        tokio::io::copy(&mut from.take(LENGTH as u64), &mut to).await.unwrap();
    };
    let body: Vec<u8> = (0..LENGTH).map(|at| (at % 251) as u8).collect();
    let client = world.client().await;
    let (mut from, mut to) = client.stream.into_split();
    let send = async {
        to.write_all(format!("PUT / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {LENGTH}\r\n\r\n").as_bytes())
            .await
            .unwrap();
        to.write_all(&body).await.unwrap();
    };
    let receive = async {
        // Whether the connection ends then depends on which of the bodies is the faster one.
        let mut answer = Vec::new();
        while !answer.ends_with(&body[LENGTH - 251..]) || answer.len() < LENGTH {
            assert!(from.read_buf(&mut answer).await.unwrap() > 0);
        }
        answer
    };
    let (_, (), answer) = tokio::join!(echo, send, receive);
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(&body));
    world.end().await;
}
