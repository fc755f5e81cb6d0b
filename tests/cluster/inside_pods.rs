//! Servers and clients of the test's own in the networks of pods: what the images of the tests cannot do themselves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use cni::netns::Netns;

/// The network of the pod with this uid: that of a process in its cgroup, if it is none of the nodes' own.
pub(crate) fn netns_of(uid: &str, nodes: &[Netns]) -> Netns {
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let of_pod =
        processes.filter(|path| std::fs::read_to_string(path.join("cgroup")).is_ok_and(|text| text.contains(uid)));
    let mut networks = of_pod.filter_map(|path| Netns::open(path.join("ns/net")).ok());
    let is_of_pod = |netns: &Netns| nodes.iter().all(|node| !netns.is_same(node).unwrap());
    networks.find(is_of_pod).unwrap_or_else(|| panic!("no process of pod {uid}"))
}

/// Answers every datagram with a name.
pub(crate) fn serve_udp(netns: &Netns, port: u16, name: &'static str) {
    let socket = netns.enter(|| UdpSocket::bind(("0.0.0.0", port))).unwrap().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, client)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(name.as_bytes(), client);
        }
    });
}

/// Each time from another port, and again when a datagram or its answer gets lost.
pub(crate) fn ask_udp(from: &Netns, target: &str) -> Option<String> {
    let ask = || -> std::io::Result<String> {
        let socket = from.enter(|| UdpSocket::bind("0.0.0.0:0"))??;
        socket.connect(target)?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send(b"?")?;
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer)?;
        Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
    };
    (0..10).find_map(|_| ask().ok())
}

/// Answers every request with a page that says what it was, and has a link.
pub(crate) fn serve_mirror(netns: &Netns, port: u16) {
    let listener = netns.enter(|| TcpListener::bind(("0.0.0.0", port))).unwrap().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that goes away in the middle is none.
            let _ = mirror(stream.unwrap());
        }
    });
}

fn mirror(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let (mut line, mut length, mut is_chunked) = (String::new(), 0, false);
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let lower = line.trim().to_ascii_lowercase();
        match lower.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().unwrap_or(0),
            Some(("transfer-encoding", "chunked")) => is_chunked = true,
            _ if lower.is_empty() => break,
            _ => {}
        }
    }
    // One chunk, and the end.
    if is_chunked {
        line.clear();
        reader.read_line(&mut line)?;
        length = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if is_chunked {
        reader.read_line(&mut line)?;
        reader.read_line(&mut line)?;
        reader.read_line(&mut line)?;
    }
    let request = first.trim_end().trim_end_matches(" HTTP/1.1");
    let page = format!("{request}: {} <a href=\"/rewriteme\">", String::from_utf8_lossy(&body));
    let length = page.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    (&stream).write_all((head + &page).as_bytes())
}
