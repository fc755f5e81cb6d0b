//! Exec, attach and port-forward as clients see them, byte by byte.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;

use crate::node::{Node, World};

/// Opens a URL of the streaming server with an upgrade; returns the connection after the 101.
fn upgrade(url: &str, headers: &[(&str, &str)]) -> TcpStream {
    let (host, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let mut request = format!("POST /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{request}\r\n").as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0u8];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    stream
}

struct WebSocket(TcpStream);

impl WebSocket {
    fn open(url: &str, protocol: &str) -> Self {
        let key = "dGhlIHNhbXBsZSBub25jZQ==";
        Self(upgrade(
            url,
            &[
                ("Upgrade", "websocket"),
                ("Sec-WebSocket-Version", "13"),
                ("Sec-WebSocket-Key", key),
                ("Sec-WebSocket-Protocol", protocol),
            ],
        ))
    }

    fn send(&mut self, payload: &[u8]) {
        assert!(payload.len() < 126);
        let mut frame = vec![0x82, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        frame.extend(payload);
        self.0.write_all(&frame).unwrap();
    }

    /// (channel, bytes); none when the server closes.
    fn receive(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0u8; 2];
        self.0.read_exact(&mut head).ok()?;
        let length = match head[1] {
            126 => {
                let mut size = [0u8; 2];
                self.0.read_exact(&mut size).unwrap();
                usize::from(u16::from_be_bytes(size))
            }
            short => usize::from(short),
        };
        let mut payload = vec![0u8; length];
        self.0.read_exact(&mut payload).unwrap();
        (head[0] & 0x0f == 2).then(|| (payload[0], payload[1..].to_vec()))
    }

    /// All until the end: (stdout, stderr, status).
    fn finish(mut self) -> (String, String, serde_json::Value) {
        let mut channels = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
        while let Some((channel, bytes)) = self.receive() {
            channels[usize::from(channel)].extend(bytes);
        }
        let [_, stdout, stderr, status] = channels;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(stdout), text(stderr), serde_json::from_slice(&status).unwrap())
    }
}

async fn exec_url(node: &Node, id: &str, command: &[&str], stdin: bool, tty: bool) -> String {
    let request = v1::ExecRequest {
        container_id: id.into(),
        cmd: command.iter().map(ToString::to_string).collect(),
        tty,
        stdin,
        stdout: true,
        stderr: !tty,
    };
    node.cri.runtime.clone().exec(request).await.unwrap().into_inner().url
}

pub(crate) async fn exec_over_websocket(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let (sandbox, id) = node.run("ws", "busybox", &["sleep", "1000"]).await;
    let url = exec_url(&node, &id, &["cat"], true, false).await;
    let mut socket = WebSocket::open(&url, "v5.channel.k8s.io");
    socket.send(b"\0hello");
    socket.send(&[255, 0]);
    let (stdout, _, status) = socket.finish();
    assert_eq!((stdout.as_str(), &status["status"]), ("hello", &"Success".into()));
    let url = exec_url(&node, &id, &["sh", "-c", "echo out; echo err >&2; exit 3"], false, false).await;
    let (stdout, stderr, status) = WebSocket::open(&url, "v4.channel.k8s.io").finish();
    assert_eq!((stdout.as_str(), stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(status["reason"], "NonZeroExitCode");
    assert_eq!(status["details"]["causes"][0]["message"], "3");
    let url = exec_url(&node, &id, &["sh", "-c", "read x; tty; stty size"], true, true).await;
    let mut socket = WebSocket::open(&url, "v5.channel.k8s.io");
    socket.send(b"\x04{\"Width\":123,\"Height\":45}");
    socket.send(b"\0go\n");
    let (stdout, _, status) = socket.finish();
    assert!(stdout.contains("/dev/pts/") && stdout.contains("45 123"), "{stdout}");
    assert_eq!(status["status"], "Success");
    let url = exec_url(&node, &id, &["nope"], false, false).await;
    let (_, _, status) = WebSocket::open(&url, "v4.channel.k8s.io").finish();
    assert!(status["message"].as_str().unwrap().contains("executable file not found in $PATH"), "{status}");
    // A client that leaves takes its command along.
    let url = exec_url(&node, &id, &["sleep", "4321"], true, false).await;
    drop(WebSocket::open(&url, "v4.channel.k8s.io"));
    for attempt in 0.. {
        if node.sh(&id, "ps | grep -c '[s]leep 4321' || true").await == "0\n" {
            break;
        }
        assert!(attempt < 500, "the command goes on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    node.remove_sandbox(&sandbox).await;
}

pub(crate) async fn security_what_a_command_leaves_behind_does_not_hold_its_session(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let (sandbox, id) = node.run("left", "busybox", &["sleep", "1000"]).await;
    // Its child has the same output, and never stops.
    let url = exec_url(&node, &id, &["sh", "-c", "yes & echo begun >&2; exit 4"], false, false).await;
    let (_, stderr, status) = WebSocket::open(&url, "v4.channel.k8s.io").finish();
    assert_eq!((stderr.as_str(), &status["details"]["causes"][0]["message"]), ("begun\n", &"4".into()));
    // Nor is the child of a probe's command waited for (CVE-2026-53495).
    let answer = node.try_exec(&id, &["sh", "-c", "sleep 1000 & echo begun; exit 4"], 60).await.unwrap();
    assert_eq!((answer.exit_code, &answer.stdout[..]), (4, &b"begun\n"[..]));
    node.remove_sandbox(&sandbox).await;
}

/// The little of SPDY that a client needs.
struct Spdy {
    stream: TcpStream,
    begun: bool,
}

impl Spdy {
    fn open(url: &str, protocol: &str) -> Self {
        let headers = [("Upgrade", "SPDY/3.1"), ("X-Stream-Protocol-Version", protocol)];
        Self { stream: upgrade(url, &headers), begun: false }
    }

    fn syn(&mut self, id: u32, headers: &[(&str, &str)]) {
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(key, value)| [key, value]) {
            plain.extend((text.len() as u32).to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut body = [id.to_be_bytes(), [0; 4]].concat();
        body.extend([0, 0]);
        if !self.begun {
            body.extend([0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
            self.begun = true;
        }
        body.push(0);
        body.extend((plain.len() as u16).to_le_bytes());
        body.extend((!(plain.len() as u16)).to_le_bytes());
        body.extend(plain);
        let mut frame = vec![0x80, 3, 0, 1, 0];
        frame.extend(&(body.len() as u32).to_be_bytes()[1..]);
        frame.extend(body);
        self.stream.write_all(&frame).unwrap();
    }

    fn data(&mut self, id: u32, fin: bool, bytes: &[u8]) {
        let mut frame = id.to_be_bytes().to_vec();
        frame.push(u8::from(fin));
        frame.extend(&(bytes.len() as u32).to_be_bytes()[1..]);
        frame.extend(bytes);
        self.stream.write_all(&frame).unwrap();
    }

    /// Data of each stream until all of `ids` are closed.
    fn finish(&mut self, ids: &[u32]) -> std::collections::HashMap<u32, Vec<u8>> {
        let mut data: std::collections::HashMap<u32, Vec<u8>> = Default::default();
        let mut open = ids.to_vec();
        while !open.is_empty() {
            let mut head = [0u8; 8];
            self.stream.read_exact(&mut head).unwrap();
            let mut body = vec![0u8; u32::from_be_bytes([0, head[5], head[6], head[7]]) as usize];
            self.stream.read_exact(&mut body).unwrap();
            if head[0] & 0x80 == 0 {
                let id = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
                data.entry(id).or_default().extend(body);
                if head[4] & 1 != 0 {
                    open.retain(|o| *o != id);
                }
            }
        }
        data
    }
}

pub(crate) async fn exec_over_spdy(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let (sandbox, id) = node.run("spdy", "busybox", &["sleep", "1000"]).await;
    let url = exec_url(&node, &id, &["sh", "-c", "cat; echo done >&2; exit 5"], true, false).await;
    let mut client = Spdy::open(&url, "v4.channel.k8s.io");
    for (id, kind) in [(1, "error"), (3, "stdin"), (5, "stdout"), (7, "stderr")] {
        client.syn(id, &[("streamtype", kind)]);
    }
    client.data(3, false, b"some ");
    client.data(3, true, b"input");
    let data = client.finish(&[1, 5, 7]);
    assert_eq!(data[&5], b"some input");
    assert_eq!(data[&7], b"done\n");
    let status: serde_json::Value = serde_json::from_slice(&data[&1]).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "5");
    node.remove_sandbox(&sandbox).await;
}

pub(crate) async fn attach_follows_a_container(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let pod = node.pod_config("attached");
    let sandbox = node.sandbox(&pod).await;
    let mut config =
        node.container_config("attached", "busybox", &["sh", "-c", "while read x; do echo got $x; done; echo bye"]);
    (config.stdin, config.stdin_once) = (true, true);
    let id = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&id).await.unwrap();
    let request = v1::AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: true, tty: false };
    let url = node.cri.runtime.clone().attach(request).await.unwrap().into_inner().url;
    let mut socket = WebSocket::open(&url, "v5.channel.k8s.io");
    socket.send(b"\0one\n");
    assert_eq!(socket.receive(), Some((1, b"got one\n".to_vec())));
    socket.send(&[255, 0]);
    let (stdout, _, status) = socket.finish();
    assert_eq!((stdout.as_str(), &status["status"]), ("bye\n", &"Success".into()));
    assert_eq!(node.exited(&id).await.exit_code, 0);
    let log: Vec<String> = node.log("attached").into_iter().map(|l| l.2).collect();
    assert_eq!(log, ["got one", "bye"]);
    node.remove_sandbox(&sandbox).await;
}

/// Without `stdinOnce` the container goes on, and a client whose input has ended is let go, as containerd does.
pub(crate) async fn attach_ends_with_its_input_where_stdin_stays_open(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let pod = node.pod_config("open");
    let sandbox = node.sandbox(&pod).await;
    let mut config = node.container_config("open", "busybox", &["sh", "-c", "while read x; do echo got $x; done"]);
    (config.stdin, config.stdin_once) = (true, false);
    let id = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&id).await.unwrap();
    for word in ["one", "two"] {
        let request =
            v1::AttachRequest { container_id: id.clone(), stdin: true, stdout: true, stderr: true, tty: false };
        let url = node.cri.runtime.clone().attach(request).await.unwrap().into_inner().url;
        let mut socket = WebSocket::open(&url, "v5.channel.k8s.io");
        socket.send(format!("\0{word}\n").as_bytes());
        assert_eq!(socket.receive(), Some((1, format!("got {word}\n").into_bytes())));
        socket.send(&[255, 0]);
        let (_, _, status) = socket.finish();
        assert_eq!(status["status"], "Success", "{word}");
    }
    node.remove_sandbox(&sandbox).await;
}

pub(crate) async fn ports_are_forwarded(world: Arc<World>) {
    let node = world.node().await;
    node.pull("nginx").await;
    let (sandbox, id) = node.run("forward", "nginx", &[]).await;
    // Until nginx listens.
    node.sh(&id, "until wget -q -O /dev/null http://127.0.0.1; do sleep 0.05; done").await;
    let url = || async {
        let request = v1::PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![80] };
        node.cri.runtime.clone().port_forward(request).await.unwrap().into_inner().url
    };
    let mut client = Spdy::open(&url().await, "portforward.k8s.io");
    client.syn(1, &[("streamtype", "error"), ("port", "80"), ("requestid", "0")]);
    client.syn(3, &[("streamtype", "data"), ("port", "80"), ("requestid", "0")]);
    client.data(1, true, b"");
    client.data(3, false, b"GET / HTTP/1.0\r\n\r\n");
    let data = client.finish(&[1, 3]);
    assert!(String::from_utf8_lossy(&data[&3]).contains("Welcome to nginx!"));
    client.syn(5, &[("streamtype", "error"), ("port", "81"), ("requestid", "1")]);
    client.syn(7, &[("streamtype", "data"), ("port", "81"), ("requestid", "1")]);
    let data = client.finish(&[5]);
    assert!(String::from_utf8_lossy(&data[&5]).contains("Connection refused"));
    let mut socket = WebSocket::open(&url().await, "v4.channel.k8s.io");
    assert_eq!(socket.receive(), Some((0, vec![80, 0])));
    assert_eq!(socket.receive(), Some((1, vec![80, 0])));
    socket.send(b"\0GET / HTTP/1.0\r\n\r\n");
    let mut page = Vec::new();
    while !String::from_utf8_lossy(&page).contains("Welcome to nginx!") {
        page.extend(socket.receive().unwrap().1);
    }
    node.remove_sandbox(&sandbox).await;
}
