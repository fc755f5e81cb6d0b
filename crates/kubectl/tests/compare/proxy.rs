//! The proxy as an attacker meets it: a page that a browser has open, or another user of the machine.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::alone::{Alone, KUBECTL};

struct Proxy {
    _process: tokio::process::Child,
    address: String,
    /// What comes after the address.
    path: String,
}

impl Proxy {
    async fn start(alone: &Alone, args: &[&str]) -> Proxy {
        let mut process =
            alone.command(KUBECTL).args(["proxy", "--port=0"]).args(args).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let place = line.trim_start_matches("Starting to serve on ").trim_start_matches("The cluster is at http://");
        let place = place.split(' ').next().unwrap();
        let (address, path) = place.split_once('/').unwrap_or((place, ""));
        Proxy { _process: process, address: address.to_owned(), path: format!("/{path}") }
    }

    /// The head of the answer; a connection that is upgraded stays open, and nobody reads on.
    async fn ask(&self, line: &str, headers: &[String]) -> String {
        let mut stream = tokio::net::TcpStream::connect(&self.address).await.unwrap();
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let request = format!("{line} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    async fn status(&self, line: &str, headers: &[&str]) -> u16 {
        let headers: Vec<String> = headers.iter().map(|header| (*header).to_owned()).collect();
        self.ask(line, &headers).await.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

const WEBSOCKET: [&str; 4] = [
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_the_proxy_lends_nothing_to_foreign_pages() {
    let alone = Alone::start().await;
    let proxy = Proxy::start(&alone, &[]).await;
    let own = format!("Origin: http://{}", proxy.address);
    let foreign = "Origin: http://evil.example";
    let watch = "GET /api/v1/namespaces?watch=true";
    let page = "GET /api/v1/namespaces/default/pods/missing/proxy/";
    let websocket = |origin| [&WEBSOCKET[..], &[origin]].concat();
    for (line, headers, expected) in [
        ("GET /api/v1/namespaces/default", vec![foreign], 200),
        ("DELETE /api/v1/namespaces/missing", vec![foreign, "Content-Length: 0"], 403),
        ("DELETE /api/v1/namespaces/missing", vec!["Sec-Fetch-Site: cross-site", "Content-Length: 0"], 403),
        ("DELETE /api/v1/namespaces/missing", vec!["Sec-Fetch-Site: same-site", "Content-Length: 0"], 403),
        ("DELETE /api/v1/namespaces/missing", vec![&own, "Content-Length: 0"], 404),
        ("DELETE /api/v1/namespaces/missing", vec!["Content-Length: 0"], 404),
        // A pod's answer would be a page like the proxy's own.
        (page, vec!["Sec-Fetch-Site: cross-site"], 403),
        (page, vec!["Sec-Fetch-Site: none"], 404),
        (watch, websocket(foreign), 403),
        (watch, websocket(&own), 101),
        ("GET /api/v1/namespaces/default/pods/web-1/%65xec?command=id", WEBSOCKET.to_vec(), 403),
        ("GET //api/v1/namespaces/default/pods/web-1/exec?command=id", WEBSOCKET.to_vec(), 403),
    ] {
        assert_eq!(proxy.status(line, &headers).await, expected, "{line} {headers:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_the_cluster_s_page_is_for_who_started_it() {
    let alone = Alone::start().await;
    let proxy = Proxy::start(&alone, &["--ui"]).await;
    for line in ["GET /cox/ui/", "GET /api/v1/pods", "GET /version", "GET /cox/ui/?secret=0"] {
        assert_eq!(proxy.status(line, &[]).await, 403, "{line}");
    }
    let first = format!("GET {}", proxy.path);
    let entered = proxy.ask(&first, &[]).await;
    assert!(entered.starts_with("HTTP/1.1 303 "), "{entered}");
    let cookie = entered.lines().find_map(|line| line.strip_prefix("set-cookie: ")).unwrap();
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
    let cookie = format!("Cookie: {}", cookie.split(';').next().unwrap());
    assert_eq!(proxy.status(&first, &[]).await, 403, "once");
    let websocket = |origin| [&WEBSOCKET[..], &[cookie.as_str(), origin]].concat();
    let own = format!("Origin: http://{}", proxy.address);
    for (line, headers, expected) in [
        ("GET /cox/ui/", vec![cookie.as_str()], 200),
        ("GET /version", vec![&cookie], 200),
        ("GET /api/v1/pods?watch=true&timeoutSeconds=1", websocket(&own), 101),
        ("GET /api/v1/pods?watch=true&timeoutSeconds=1", websocket("Origin: http://127.0.0.1:1"), 403),
        ("GET /api/v1/secrets", vec![&cookie], 403),
        ("GET /api/v1/namespaces/default/pods/web-1/exec?command=id", websocket(&own), 403),
        ("DELETE /api/v1/nodes", vec![&cookie, "Content-Length: 0"], 403),
    ] {
        assert_eq!(proxy.status(line, &headers).await, expected, "{line} {headers:?}");
    }
}
