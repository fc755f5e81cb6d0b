//! Many silent connections, and few places.

use std::io;

use http::Response;
use http_body::Body as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use super::serve::{Answer, FIRST_REQUEST_TIMEOUT, IDLE_TIMEOUT, Work};
use super::*;

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn places(total: usize, per_address: usize) -> Arc<Connections> {
    Connections::new(|| Limits { total, per_address })
}

#[tokio::test(start_paused = true)]
async fn security_clients_that_take_nothing_make_room() {
    let connections = places(1, 1);
    let place = Arc::new(connections.enter(LOCAL).unwrap());
    let body = http_body_util::Full::new(bytes::Bytes::from_static(b"ok"));
    let mut answer = Answer { body, work: Work::begin(&place) };
    assert!(connections.enter(LOCAL).is_none(), "it is being answered");
    let taken = std::future::poll_fn(|context| Pin::new(&mut answer).poll_frame(context)).await;
    assert!(taken.is_some_and(|frame| frame.is_ok()));
    tokio::time::advance(STALL_TIMEOUT / 2).await;
    assert!(connections.enter(LOCAL).is_none(), "it may still come for the rest");
    tokio::time::advance(STALL_TIMEOUT).await;
    assert!(connections.enter(LOCAL).is_some());
    drop(answer);
    assert_eq!(place.this.offered.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_port_of_both_families_tells_them_apart() {
    let listener = TcpListener::bind("[::]:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for own in [LOCAL, IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let (stream, (_, from)) = tokio::join!(TcpStream::connect((own, port)), accept(&listener, || {}));
        assert_eq!(from, stream.unwrap().local_addr().unwrap());
    }
}

#[tokio::test]
async fn a_connection_keeps_its_place_in_another_runtime() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connections = places(1, 1);
    let client = TcpStream::connect(listener.local_addr().unwrap());
    let (client, (accepted, _)) = tokio::join!(client, connections.accept(&listener));
    let detached = accepted.detach().unwrap();
    let elsewhere = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { detached.attach().unwrap().write_all(b"hello").await.unwrap() });
    });
    let mut text = String::new();
    client.unwrap().read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "hello");
    elsewhere.join().unwrap();
    assert!(connections.places.lock().taken.is_empty());
}

#[tokio::test]
async fn security_strangers_make_room_first_and_work_never() {
    let connections = places(8, 4);
    let other = IpAddr::from([10, 0, 0, 1]);
    let working: Vec<Arc<Place>> = (0..2).map(|_| Arc::new(connections.enter(LOCAL).unwrap())).collect();
    let work: Vec<Work> = working.iter().map(Work::begin).collect();
    let known = Arc::new(connections.enter(LOCAL).unwrap());
    drop(Work::begin(&known));
    let stranger = connections.enter(LOCAL).unwrap();
    let has_to_leave = |place: &Place| !connections.places.lock().taken.contains_key(&place.id);
    // The address is full: the stranger leaves, then the one that is idle, then nobody comes in any more.
    let busy = Arc::new(connections.enter(LOCAL).unwrap());
    let more = Work::begin(&busy);
    assert!(has_to_leave(&stranger) && !has_to_leave(&known));
    let busy_too = Arc::new(connections.enter(LOCAL).unwrap());
    let _even_more = Work::begin(&busy_too);
    assert!(has_to_leave(&known));
    assert!(connections.enter(LOCAL).is_none());
    // Others do.
    let _others: Vec<Place> = (0..4).map(|_| connections.enter(other).unwrap()).collect();
    // The port is full, but not with work only.
    assert!(connections.enter(IpAddr::from([10, 0, 0, 2])).is_some());
    // Whatever has left has no place.
    drop((more, busy, work, working, stranger, known));
    assert_eq!(connections.places.lock().by_address[&LOCAL], 1);
}

#[test]
fn security_networks_of_version_6_count_as_one_address() {
    let same = |a: &str, b: &str| household(a.parse().unwrap()) == household(b.parse().unwrap());
    assert!(same("2001:db8::1", "2001:db8::ffff:1"));
    assert!(!same("2001:db8::1", "2001:db8:0:1::1"));
    assert!(same("::ffff:10.0.0.1", "10.0.0.1"));
    assert!(!same("::1", "::2"));
}

/// A server with few places that greets.
async fn server(total: usize) -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = places(total, total);
    let accepting = async move {
        loop {
            let (stream, _) = connections.accept(&listener).await;
            tokio::spawn(async move {
                let answer = |_| async { Response::new(http_body_util::Full::from("hello")) };
                let _ = stream.place().serve_boxed(stream, &CancellationToken::new(), answer).await;
            });
        }
    };
    (address, tokio::spawn(accepting))
}

async fn get(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn security_a_client_is_served_among_silent_connections() {
    let (address, server) = server(50).await;
    let mut silent = Vec::new();
    for i in 0..300 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        if i % 2 == 0 {
            stream.write_all(b"GET / HTTP/1.1\r\nhost:").await.unwrap();
        }
        silent.push(stream);
    }
    assert!(get(address).await.ends_with("hello"));
    // The first of them had to make room.
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), silent[0].read_to_end(&mut rest)).await;
    assert!(ended.is_ok());
    server.abort();
}

#[tokio::test(start_paused = true)]
async fn security_silent_connections_end_and_work_goes_on() {
    let connections = places(4, 4);
    let place = || Arc::new(connections.enter(LOCAL).unwrap());
    let begin = Instant::now();
    let (silent, working) = (place(), place());
    let work = Work::begin(&working);
    silent.idle().await;
    assert!(begin.elapsed() >= FIRST_REQUEST_TIMEOUT && begin.elapsed() < 2 * FIRST_REQUEST_TIMEOUT);
    assert!(tokio::time::timeout(Duration::from_secs(86_400), working.idle()).await.is_err());
    drop(work);
    let idle_since = Instant::now();
    working.idle().await;
    assert!(idle_since.elapsed() >= IDLE_TIMEOUT && idle_since.elapsed() < 3 * IDLE_TIMEOUT);
    let upgraded = place();
    Work::begin(&upgraded).for_good();
    assert!(tokio::time::timeout(Duration::from_secs(86_400), upgraded.idle()).await.is_err());
    let never = std::future::pending::<io::Result<()>>();
    assert!(place().handshake(never).await.is_err());
}

/// Frames of HTTP/2, by kind, flags, stream and content.
fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), content].concat()
}

/// Shorter than any time after which a silent connection ends.
const SOON: Duration = Duration::from_secs(25);

/// Sends frames until the server ends the connection; false if it takes them all.
async fn is_cut_off(frames: impl Iterator<Item = Vec<u8>>) -> bool {
    let (address, server) = server(4).await;
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut from, mut to) = stream.into_split();
    let ended = tokio::spawn(async move {
        let mut rest = Vec::new();
        let _ = from.read_to_end(&mut rest).await;
    });
    to.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    to.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    let mut cut = false;
    for frame in frames {
        if to.write_all(&frame).await.is_err() || ended.is_finished() {
            cut = true;
            break;
        }
    }
    // It may have taken in all before it looked.
    let cut = cut || tokio::time::timeout(SOON, ended).await.is_ok();
    server.abort();
    cut
}

#[tokio::test]
async fn security_floods_of_http2_frames_end_their_connection() {
    // GET / over http, from the static table.
    let headers = [0x82, 0x86, 0x84];
    let continued = std::iter::once(frame(1, 0, 1, &headers))
        .chain((0..100_000).map(|_| frame(9, 0, 1, &[0x40, 1, b'a', 1, b'b'])));
    assert!(is_cut_off(continued).await);
    let reset = (0..50_000u32).map(|i| {
        let stream = 2 * i + 1;
        [frame(1, 5, stream, &headers), frame(3, 0, stream, &8u32.to_be_bytes())].concat()
    });
    assert!(is_cut_off(std::iter::once(reset.flatten().collect())).await);
}
