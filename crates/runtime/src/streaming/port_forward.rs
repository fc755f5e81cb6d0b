//! Port-forward: connections made inside a pod's network, carried over one connection of the client.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use futures_util::FutureExt;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use websocket::Side;

use super::Protocol;
use super::queue::{Queued, Room};
use super::remote::{Frame, write_frames};
use super::spdy;
use crate::engine::{Engine, Sandbox};
use crate::error::{Error, Result, doing};
use crate::sys;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pieces waiting for a pod's connection: the client waits when it is full.
const QUEUE: usize = 64;
/// Connections at a time over one of the client's.
const MAX_FORWARDS: usize = 1024;

pub(super) async fn serve<T>(
    engine: &Arc<Engine>,
    request: v1::PortForwardRequest,
    io: T,
    protocol: Protocol,
    query: &str,
) -> Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let sandbox = engine.sandbox(&request.pod_sandbox_id)?;
    if !sandbox.is_ready() {
        return Err(Error::Precondition(format!("sandbox {} is not running", request.pod_sandbox_id)));
    }
    match protocol {
        Protocol::Spdy => serve_spdy(sandbox, io).await,
        Protocol::TunneledSpdy => serve_tunnel(sandbox, io).await,
        Protocol::Channels { .. } => serve_channels(sandbox, io, ports(&request, query)).await,
    }
    .map_err(doing("forwarding ports"))
}

/// The ports of a WebSocket client: from the CRI request, else from the URL.
fn ports(request: &v1::PortForwardRequest, query: &str) -> Vec<u16> {
    if !request.port.is_empty() {
        return request.port.iter().filter_map(|p| u16::try_from(*p).ok()).collect();
    }
    query
        .split('&')
        .filter_map(|pair| pair.strip_prefix("ports=").or(pair.strip_prefix("port=")))
        .flat_map(|list| list.split(['%', ',']))
        .filter_map(|port| port.parse().ok())
        .collect()
}

/// Connects to a port on the pod's loopback.
async fn connect(sandbox: &Arc<Sandbox>, port: u16) -> io::Result<TcpStream> {
    let [v4, v6] = sockets(sandbox.pause()).await?;
    match dial(v4, IpAddr::V4(Ipv4Addr::LOCALHOST), port).await {
        Ok(stream) => Ok(stream),
        Err(error) => dial(v6, IpAddr::V6(Ipv6Addr::LOCALHOST), port).await.map_err(|_| error),
    }
}

/// Sockets in the network of a process, one for each family. A socket stays in the network that it was made in, so only that
/// takes a thread, which changes its own and ends; whom they connect to may be silent for as long as it likes.
async fn sockets(pid: i32) -> io::Result<[io::Result<TcpSocket>; 2]> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("port-forward".into()).spawn(move || {
        let make = || -> io::Result<[io::Result<TcpSocket>; 2]> {
            let namespace = std::fs::File::open(format!("/proc/{pid}/ns/net"))?;
            sys::setns(namespace.as_fd(), libc::CLONE_NEWNET)?;
            Ok([TcpSocket::new_v4(), TcpSocket::new_v6()])
        };
        // Nobody waits any more: they are closed again.
        let _ = sender.send(make());
    })?;
    receiver.await.map_err(io::Error::other)?
}

async fn dial(socket: io::Result<TcpSocket>, address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let connecting = socket?.connect(SocketAddr::new(address, port));
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap_or(Err(io::ErrorKind::TimedOut.into()))
}

fn refused(sandbox: &Sandbox, port: u16, error: &io::Error) -> String {
    format!("error forwarding port {port} to pod {}: failed to connect to localhost:{port}: {error}", sandbox.id())
}

async fn serve_spdy<T>(sandbox: Arc<Sandbox>, io: T) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut streams, writer, driver) = spdy::serve(io);
    let accept = async {
        // A connection is a pair of streams with the same request id: one for errors, one for data.
        let mut errors: HashMap<String, spdy::Stream> = HashMap::new();
        let mut forwards = JoinSet::new();
        while let Some(stream) = streams.recv().await {
            while forwards.try_join_next().is_some() {}
            if errors.len() >= MAX_FORWARDS || forwards.len() >= MAX_FORWARDS {
                return Err(io::Error::other("too many connections at a time"));
            }
            let id = stream.header("requestid").unwrap_or_default().to_string();
            match stream.header("streamtype") {
                Some("error") => drop(errors.insert(id, stream)),
                Some("data") => {
                    let error = errors.remove(&id).map(|s| s.id);
                    forwards.spawn(FutureExt::boxed(forward_spdy(sandbox.clone(), writer.clone(), stream, error)));
                }
                _ => writer.reset(stream.id).await?,
            }
        }
        io::Result::Ok(())
    };
    tokio::select! {
        result = driver => result,
        result = accept => result,
    }
}

async fn forward_spdy(sandbox: Arc<Sandbox>, writer: spdy::Writer, mut stream: spdy::Stream, error: Option<u32>) {
    let port = stream.header("port").and_then(|p| p.parse::<u16>().ok()).unwrap_or(0);
    let id = stream.id;
    let work = async {
        let connection = match connect(&sandbox, port).await {
            Ok(connection) => connection,
            Err(failure) => {
                if let Some(error) = error {
                    writer.data(error, refused(&sandbox, port, &failure).as_bytes()).await?;
                }
                return Ok(());
            }
        };
        let (mut read, mut write) = connection.into_split();
        let up = async {
            while let Some(bytes) = stream.data.recv().await {
                if write.write_all(&bytes).await.is_err() {
                    return;
                }
            }
            let _ = write.shutdown().await;
        };
        let down = async {
            let mut buffer = vec![0u8; 32 * 1024];
            loop {
                match read.read(&mut buffer).await {
                    Ok(n) if n > 0 => writer.data(id, &buffer[..n]).await?,
                    _ => return writer.finish(id).await,
                }
            }
        };
        // The pod's answer is what counts: when it is complete the connection is done.
        tokio::pin!(up, down);
        tokio::select! {
            result = &mut down => result,
            () = &mut up => down.await,
        }
    };
    let result: io::Result<()> = work.await;
    if let Some(error) = error {
        let _ = writer.finish(error).await;
    }
    if result.is_ok() {
        let _ = writer.finish(id).await;
    }
}

/// SPDY inside WebSocket messages: their payloads, one after the other, are the SPDY connection.
async fn serve_tunnel<T>(sandbox: Arc<Sandbox>, io: T) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    let (inner, outer) = tokio::io::duplex(64 * 1024);
    let (mut from_spdy, mut to_spdy) = tokio::io::split(outer);
    let (frames, frames_out) = mpsc::channel(QUEUE);
    let pongs = frames.clone();
    let incoming = async move {
        let mut reader = websocket::Reader::new(Side::Server, read);
        while let Some(message) = reader.next().await? {
            match message {
                websocket::Message::Data(piece) => to_spdy.write_all(&piece.data).await?,
                websocket::Message::Ping(data) => drop(pongs.send(Frame::Pong(data)).await),
            }
        }
        io::Result::Ok(())
    };
    let outgoing = async move {
        let mut buffer = vec![0u8; 32 * 1024];
        loop {
            match from_spdy.read(&mut buffer).await? {
                0 => return io::Result::Ok(()),
                n => frames.send(Frame::Data(buffer[..n].to_vec())).await.map_err(io::Error::other)?,
            }
        }
    };
    tokio::select! {
        result = serve_spdy(sandbox, inner) => result,
        result = incoming => result,
        result = outgoing => result,
        result = write_frames(write, frames_out) => result,
    }
}

/// The older form: channel 2n is the data of the n-th port, 2n + 1 its errors; each begins with the port's number.
async fn serve_channels<T>(sandbox: Arc<Sandbox>, io: T, ports: Vec<u16>) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (read, write) = tokio::io::split(io);
    let (frames, frames_out) = mpsc::channel(QUEUE);
    let mut inputs: Vec<mpsc::Sender<Queued>> = Vec::new();
    let mut forwards = JoinSet::new();
    for (index, port) in ports.into_iter().take(127).enumerate() {
        let (sender, receiver) = mpsc::channel(QUEUE);
        inputs.push(sender);
        forwards.spawn(FutureExt::boxed(forward_channel(
            sandbox.clone(),
            frames.clone(),
            receiver,
            port,
            (index * 2) as u8,
        )));
    }
    let incoming = async move {
        let mut channels = websocket::Channels::new(Side::Server, read);
        let room = Room::new();
        while let Some(received) = channels.next().await? {
            match received {
                websocket::Received::Ping(data) => drop(frames.send(Frame::Pong(data)).await),
                websocket::Received::Data { channel, data, .. } => {
                    if channel % 2 == 0
                        && let Some(input) = inputs.get(usize::from(channel / 2)).filter(|input| !input.is_closed())
                        && let Some(queued) = room.take(&data).await
                    {
                        let _ = input.send(queued).await;
                    }
                }
            }
        }
        io::Result::Ok(())
    };
    // When every port's connection has ended there is nothing left to say, and the client learns it by the end of its own.
    let work = async move {
        let ended = async { while forwards.join_next().await.is_some() {} };
        tokio::select! {
            result = incoming => result,
            () = ended => Ok(()),
        }
    };
    // What was said before is still written: that ends with the last sender.
    tokio::try_join!(work, write_frames(write, frames_out)).map(|_| ())
}

async fn forward_channel(
    sandbox: Arc<Sandbox>,
    frames: mpsc::Sender<Frame>,
    mut input: mpsc::Receiver<Queued>,
    port: u16,
    channel: u8,
) {
    let send = |channel: u8, bytes: &[u8]| {
        let message = [&[channel], bytes].concat();
        let frames = frames.clone();
        async move { frames.send(Frame::Data(message)).await.is_ok() }
    };
    send(channel, &port.to_le_bytes()).await;
    send(channel + 1, &port.to_le_bytes()).await;
    let connection = match connect(&sandbox, port).await {
        Ok(connection) => connection,
        Err(error) => {
            send(channel + 1, refused(&sandbox, port, &error).as_bytes()).await;
            return;
        }
    };
    let (mut read, mut write) = connection.into_split();
    let up = async {
        while let Some(bytes) = input.recv().await {
            if write.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0u8; 32 * 1024];
        while let Ok(n) = read.read(&mut buffer).await {
            if n == 0 || !send(channel, &buffer[..n]).await {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is full answers nobody, and everybody who asks waits: none of them on a thread.
    #[tokio::test(flavor = "current_thread")]
    async fn security_connections_that_wait_take_no_threads() {
        // The kernel takes as many as it is told to, and one more.
        let listener = TcpSocket::new_v4().unwrap();
        listener.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listener.listen(1).unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = std::process::id() as i32;
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let mut waiting = JoinSet::new();
        for _ in 0..50 {
            let Ok([v4, _]) = sockets(own).await else {
                eprintln!("skipped: the network of a process cannot be entered here");
                return;
            };
            waiting.spawn(async move { dial(v4, address, port).await });
        }
        let named = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let is_left = || {
            let mut threads = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(named);
            threads.any(|name| name.trim() == "port-forward")
        };
        // A thread has answered before it ends. One that waited for its connection would stay longer.
        let ended = async {
            while is_left() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("threads wait for connections");
        assert!(waiting.len() == 50);
    }
}
