//! Datagrams of one socket, many at a time: a system call for all that have come, and one for all their answers. Under load
//! that is most of what an answer costs.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

use nix::sys::socket::{ControlMessage, MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use tokio::io::Interest;
use tokio::net::UdpSocket;

/// As many as are taken at once.
const COUNT: usize = 32;
/// Questions are far smaller; a longer one is cut off and answered as unreadable.
const SIZE: usize = 2048;

/// What came together, and what is sent back.
pub(crate) struct Datagrams {
    buffers: Vec<[u8; SIZE]>,
    /// Length and sender, one for each buffer in use.
    received: Vec<(usize, SockaddrStorage)>,
    answers: Vec<Vec<u8>>,
    receivers: Vec<Option<SockaddrStorage>>,
}

impl Datagrams {
    pub(crate) fn new() -> Self {
        Self {
            buffers: vec![[0; SIZE]; COUNT],
            received: Vec::with_capacity(COUNT),
            answers: vec![Vec::new(); COUNT],
            receivers: Vec::with_capacity(COUNT),
        }
    }

    /// Takes what is there without waiting.
    pub(crate) fn receive(&mut self, socket: &UdpSocket) -> io::Result<()> {
        self.received.clear();
        socket.try_io(Interest::READABLE, || {
            let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(COUNT, None);
            let mut slices: Vec<_> = self.buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
            let flags = MsgFlags::MSG_DONTWAIT;
            let messages = recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None)?;
            self.received.extend(messages.filter_map(|message| Some((message.bytes, message.address?))));
            Ok(())
        })
    }

    /// Asks for the answer to each of them; what `answer` writes is sent if it says so.
    pub(crate) fn answer_each(&mut self, mut answer: impl FnMut(&[u8], &SockaddrStorage, &mut Vec<u8>) -> bool) {
        self.receivers.clear();
        for (buffer, (length, client)) in self.buffers.iter().zip(&self.received) {
            let bytes = &mut self.answers[self.receivers.len()];
            bytes.clear();
            if answer(&buffer[..*length], client, bytes) {
                self.receivers.push(Some(*client));
            }
        }
    }

    /// Sends all answers.
    pub(crate) async fn send(&self, socket: &UdpSocket) {
        let mut sent = 0;
        while sent < self.receivers.len() {
            match socket.try_io(Interest::WRITABLE, || self.send_from(sent, socket)) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // An error shows again when sending.
                    let _ = socket.writable().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "send");
                    sent += 1;
                }
            }
        }
    }

    fn send_from(&self, first: usize, socket: &UdpSocket) -> io::Result<usize> {
        let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(self.receivers.len() - first, None);
        let slices: Vec<_> = self.answers[first..].iter().map(|answer| [IoSlice::new(answer)]).collect();
        let nothing: [ControlMessage<'_>; 0] = [];
        let (receivers, flags) = (&self.receivers[first..], MsgFlags::MSG_DONTWAIT);
        let sent = sendmmsg(socket.as_raw_fd(), &mut headers, slices.iter(), receivers, nothing, flags)?;
        Ok(sent.count())
    }
}

/// For those who answer later.
pub(crate) fn address_of(client: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = client.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into()));
    v4.or_else(|| client.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_sender_gets_its_own_answer() {
        for loopback in ["127.0.0.1:0", "[::1]:0"] {
            let server = UdpSocket::bind(loopback).await.unwrap();
            let mut clients = Vec::new();
            // More than are taken at once.
            for i in 0..COUNT as u8 + 8 {
                let client = UdpSocket::bind(loopback).await.unwrap();
                client.connect(server.local_addr().unwrap()).await.unwrap();
                client.send(&[i]).await.unwrap();
                clients.push(client);
            }
            let mut datagrams = Datagrams::new();
            let mut seen = 0;
            while seen < clients.len() {
                server.readable().await.unwrap();
                match datagrams.receive(&server) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    received => received.unwrap(),
                }
                datagrams.answer_each(|packet, client, answer| {
                    seen += 1;
                    assert!(clients.iter().any(|known| known.local_addr().ok() == address_of(client)));
                    answer.extend([packet[0], 0]);
                    // Every fourth stays without an answer.
                    packet[0] % 4 != 0
                });
                datagrams.send(&server).await;
            }
            for (i, client) in clients.iter().enumerate() {
                let mut answer = [0; 8];
                if i % 4 != 0 {
                    assert_eq!(client.recv(&mut answer).await.unwrap(), 2);
                    assert_eq!(answer[0], i as u8);
                }
            }
        }
    }
}
