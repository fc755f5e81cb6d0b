//! Open ports: as many as the table has, on every address of the gateway or on those of single Gateways.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use client::metrics::panics;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::StatusCode;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tls::{Connections, Detached, Limits, Place, Stream, Work};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::DataPlane;
use super::forward::{Arrival, text};
use super::headers::Forwarded;
use super::lane;
use super::pool::MAX_BUFFER;
use super::streams::{self, Replayed, client_hello};
use super::workers::{Turn, Worker, Workers, least_busy};
use crate::hostname::normalized;
use crate::table::{Action, Bind, Port, Protocol, StreamRoute, Table};

/// Connections of clients, on all ports together.
const PART_OF_DESCRIPTORS: usize = 4;
const MAX_CONNECTIONS: usize = 16_384;

/// The ports that are open, and those that cannot be.
pub struct Ports {
    plane: Arc<DataPlane>,
    addresses: Vec<IpAddr>,
    connections: Arc<Connections>,
    workers: Workers,
    open: BTreeMap<Bind, Open>,
}

struct Open {
    closing: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    /// The Gateway that has the address for itself.
    owner: Option<String>,
}

impl Ports {
    pub fn new(plane: Arc<DataPlane>, addresses: Vec<IpAddr>) -> Self {
        let connections = Connections::with_buffer(|| Limits::share(PART_OF_DESCRIPTORS, MAX_CONNECTIONS), MAX_BUFFER);
        Self { plane, addresses, connections, workers: Workers::default(), open: BTreeMap::new() }
    }

    /// Closes ports that a table has no more, or has for another Gateway: a connection that was made to the one is not the other's.
    pub fn close_gone<'a>(&'a mut self, table: &'a Table) -> BoxFuture<'a, ()> {
        Box::pin(self.close_gone_now(table))
    }

    async fn close_gone_now(&mut self, table: &Table) {
        let is_gone = |(bind, open): &(&Bind, &Open)| {
            !table.ports.contains_key(*bind) || open.owner.as_ref() != table.owner(bind)
        };
        let gone: Vec<Bind> = self.open.iter().filter(is_gone).map(|(bind, _)| *bind).collect();
        for bind in gone {
            if let Some(open) = self.open.remove(&bind) {
                tracing::info!(%bind, "port closed");
                open.close().await;
            }
        }
    }

    /// Opens and closes ports as the table has it; says which cannot be opened, and why.
    pub fn apply<'a>(&'a mut self, table: &'a Table) -> BoxFuture<'a, BTreeMap<Bind, String>> {
        Box::pin(self.apply_now(table))
    }

    async fn apply_now(&mut self, table: &Table) -> BTreeMap<Bind, String> {
        self.close_gone_now(table).await;
        let mut failed = BTreeMap::new();
        for bind in table.ports.keys() {
            if self.open.contains_key(bind) {
                continue;
            }
            match self.bind(*bind).await {
                Ok(mut open) => {
                    open.owner = table.owner(bind).cloned();
                    self.open.insert(*bind, open);
                }
                Err(error) => {
                    failed.insert(*bind, error.to_string());
                }
            }
        }
        failed
    }

    async fn bind(&mut self, bind: Bind) -> io::Result<Open> {
        let workers: Arc<[Worker]> = self.workers.started()?.into();
        let mut listeners = Vec::new();
        let addresses = bind.address.as_ref().map_or(self.addresses.as_slice(), std::slice::from_ref);
        for address in addresses {
            listeners.push(TcpListener::bind(SocketAddr::new(*address, bind.port)).await?);
        }
        let closing = self.plane.stop.child_token();
        let config = Arc::new(server_config(&self.plane, bind)?);
        // Both ends of a stream know what they speak: no protocol is negotiated for them.
        let mut stream_config = server_config(&self.plane, bind)?;
        stream_config.alpn_protocols.clear();
        let stream_config = Arc::new(stream_config);
        let tasks = listeners.into_iter().map(|listener| {
            let door = Door {
                plane: self.plane.clone(),
                connections: self.connections.clone(),
                tls: TlsAcceptor::from(config.clone()),
                stream_tls: TlsAcceptor::from(stream_config.clone()),
                workers: workers.clone(),
                bind,
                closing: closing.clone(),
            };
            tokio::spawn(FutureExt::boxed(async move {
                let closing = door.closing.clone();
                client::outlive_panics("gateway", "port", &closing, || door.clone().open(&listener)).await;
            }))
        });
        tracing::info!(%bind, ?addresses, "port opened");
        Ok(Open { tasks: tasks.collect(), closing, owner: None })
    }

    /// Stops accepting connections. The workers that are returned may still be serving some.
    pub fn close(mut self) -> BoxFuture<'static, Workers> {
        Box::pin(async move {
            let open = std::mem::take(&mut self.open);
            for open in open.values() {
                open.closing.cancel();
            }
            for open in open.into_values() {
                open.close().await;
            }
            self.workers
        })
    }
}

impl Open {
    /// Stops accepting connections; requests that have begun go on for a while.
    async fn close(self) {
        self.closing.cancel();
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "port");
            }
        }
    }
}

/// What a client of TLS is there for.
enum Arriving {
    Stream(StreamRoute),
    Requests,
    /// Nothing that is served.
    Nothing,
}

/// One address and port.
#[derive(Clone)]
struct Door {
    plane: Arc<DataPlane>,
    connections: Arc<Connections>,
    tls: TlsAcceptor,
    /// For connections that are not for requests of HTTP.
    stream_tls: TlsAcceptor,
    workers: Arc<[Worker]>,
    bind: Bind,
    closing: CancellationToken,
}

impl Door {
    async fn open(self, listener: &TcpListener) {
        let clients = TaskTracker::new();
        loop {
            let (stream, from) = tokio::select! {
                () = self.closing.cancelled() => break,
                accepted = self.connections.accept(listener) => accepted,
            };
            let Some(worker) = least_busy(&self.workers) else { continue };
            let stream = match stream.detach() {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::debug!(%from, %error, "connection not handed on");
                    continue;
                }
            };
            let (door, turn) = (self.clone(), worker.take());
            let serving = async move {
                let serve = door.serve(stream, from, turn);
                if let Some(Err(error)) = panics::catch_future("gateway", serve).await {
                    tracing::debug!(%from, %error, "connection ended");
                }
            };
            clients.spawn_on(serving, &worker.runtime);
        }
        clients.close();
        // Their owner from now on; they end by themselves within the time that `Place::serve` gives them.
        self.plane.tasks.spawn(FutureExt::boxed(async move { clients.wait().await }));
    }

    async fn serve(self, stream: Detached, from: SocketAddr, turn: Turn) -> Result<(), client::BoxError> {
        let stream = stream.attach()?;
        let place = stream.place();
        let forwarded = Forwarded::new(from.ip(), false, self.bind.port);
        let (turn, client) = (Arc::new(turn), from);
        let arrival = Arrival { client, bind: self.bind, turn, is_secure: false, server_name: None, forwarded };
        // Never more of the table than what this connection needs: it may outlive many of them.
        let Some((protocol, has_streams)) = self.port(|port| (port.protocol, port.has_streams())) else {
            return Ok(());
        };
        match (protocol, has_streams) {
            (Protocol::Http, _) => self.http(place, Box::new(stream), arrival).await,
            (Protocol::Tls, false) => self.https(place, Box::new(stream), arrival).await,
            (Protocol::Tls, true) => {
                let mut stream = stream;
                let (name, words) = place.handshake(client_hello(&mut stream)).await?;
                let name = name.as_deref().map(normalized);
                let stream = Replayed::new(words, stream);
                let found = self.port(|port| match name.as_deref().and_then(|name| port.stream(name)) {
                    Some(found) => Arriving::Stream(found.clone()),
                    None if port.is_answered(name.as_deref()) => Arriving::Requests,
                    None => Arriving::Nothing,
                });
                match found {
                    Some(Arriving::Stream(found)) if found.is_terminated => {
                        let stream = place.handshake(self.stream_tls.accept(stream)).await?;
                        self.pass(stream, place.occupy(), &found, arrival.turn.worker).await
                    }
                    Some(Arriving::Stream(found)) => {
                        self.pass(stream, place.occupy(), &found, arrival.turn.worker).await
                    }
                    Some(Arriving::Requests) => self.https(place, Box::new(stream), arrival).await,
                    // There is no certificate to show it, so it is closed without an answer.
                    Some(Arriving::Nothing) | None => Ok(()),
                }
            }
        }
    }

    /// What the table says about this port now; none if it is closed.
    fn port<T>(&self, read: impl FnOnce(&Port) -> T) -> Option<T> {
        self.plane.table.load().ports.get(&self.bind).map(|port| read(port))
    }

    async fn https(
        &self,
        place: Arc<Place>,
        stream: Box<dyn Stream>,
        mut arrival: Arrival,
    ) -> Result<(), client::BoxError> {
        let stream = place.handshake(self.tls.accept(stream)).await?;
        let session = stream.get_ref().1;
        arrival.is_secure = true;
        arrival.forwarded = Forwarded::new(arrival.client.ip(), true, self.bind.port);
        arrival.server_name = session.server_name().map(|name| normalized(name).into());
        match session.alpn_protocol() {
            Some(b"h2") => self.requests(place, Box::new(tls::Gathered::new(stream)), arrival).await,
            _ => self.http(place, Box::new(stream), arrival).await,
        }
    }

    /// Serves a connection that does not speak HTTP/2, as far as is known.
    async fn http(&self, place: Arc<Place>, stream: Box<dyn Stream>, arrival: Arrival) -> Result<(), client::BoxError> {
        match lane::serve(&self.plane, &place, stream, &arrival, &self.closing).await {
            // Boxed: most connections never need its room.
            Some(stream) => Box::pin(self.requests(place, Box::new(stream), arrival)).await,
            None => Ok(()),
        }
    }

    /// Serves any connection of HTTP.
    async fn requests(
        &self,
        place: Arc<Place>,
        stream: Box<dyn Stream>,
        arrival: Arrival,
    ) -> Result<(), client::BoxError> {
        // What a request takes a reference to is counted by one worker; references to the plane are counted by all.
        let connection = Arc::new((self.plane.clone(), arrival));
        let answer = move |request| {
            let connection = connection.clone();
            async move {
                let (plane, arrival) = &*connection;
                // Boxed: it is large, and would be copied each time something is put around it before it begins.
                let answer = Box::pin(plane.answer(arrival, request));
                let answered = panics::catch_future("gateway", answer).await;
                // Other exchanges of the connection go on.
                answered.unwrap_or_else(|| text(StatusCode::INTERNAL_SERVER_ERROR, "the gateway failed"))
            }
        };
        place.serve(stream, &self.closing, answer).await
    }

    /// Joins a connection with one to a backend. It keeps its place for as long as it lasts: one that gives the place up and stays would
    /// not be counted any more.
    async fn pass(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        _work: Work,
        found: &StreamRoute,
        worker: usize,
    ) -> Result<(), client::BoxError> {
        let route = &found.route;
        let Action::Forward(backends) = &route.action else { return Err("this route leads nowhere".into()) };
        let backend = super::forward::choose(backends).and_then(|chosen| chosen.backend.as_ref());
        // What came over TLS does not go on in the clear where TLS is asked for.
        let backend = backend.filter(|backend| !found.is_terminated || !backend.wants_tls);
        let endpoints = backend.map_or(&[][..], |backend| &backend.endpoints);
        let first = if endpoints.is_empty() { 0 } else { rand::random_range(0..endpoints.len()) };
        for attempt in 0..endpoints.len().min(3) {
            let endpoint = endpoints[(first + attempt) % endpoints.len()];
            if let Ok(mut backend) = self.plane.pool(worker).connect(endpoint).await {
                tokio::select! {
                    () = streams::copy(stream, &mut backend) => {}
                    () = self.plane.stop.cancelled() => {}
                }
                let _ = backend.shutdown().await;
                return Ok(());
            }
        }
        Err(format!("{}: no endpoint reached", route.name).into())
    }
}

/// How TLS is spoken on a port; which certificate is shown is looked up in the table at each handshake. Whoever comes back with a ticket
/// is shown none, so a ticket is good for one port of one Gateway's addresses: elsewhere the same host may be another's.
fn server_config(plane: &Arc<DataPlane>, bind: Bind) -> io::Result<ServerConfig> {
    let resolver = Certificates { plane: plane.clone(), bind };
    let mut config = tls::server_builder().with_no_client_auth().with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = rustls::crypto::ring::Ticketer::new().map_err(io::Error::other)?;
    Ok(config)
}

struct Certificates {
    plane: Arc<DataPlane>,
    bind: Bind,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates")
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let table = self.plane.table.load();
        let port = table.ports.get(&self.bind)?;
        let name = hello.server_name().map(normalized);
        port.certificate(name.as_deref()).cloned()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use client::metrics::Metrics;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpSocket, TcpStream};

    use super::*;
    use crate::hostname::Hosts;

    /// An address that nobody else is given while the socket lives, and where whoever names it may listen.
    pub(in crate::plane) fn kept_address() -> (TcpSocket, SocketAddr) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    /// Asks for what is not there.
    async fn ask(client: &mut TcpStream) {
        client.write_all(b"GET / HTTP/1.1\r\nhost: a.test\r\n\r\n").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"host and path\n") {
            assert!(client.read_buf(&mut answer).await.unwrap() > 0, "closed");
        }
        assert!(answer.starts_with(b"HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn a_connection_that_lasts_keeps_no_table() {
        let stop = CancellationToken::new();
        let plane = DataPlane::new(crate::Limits::default(), None, Metrics::new(), stop.clone()).unwrap();
        let (_place, free) = kept_address();
        let table = || {
            let port = Port { protocol: Protocol::Http, listeners: Hosts::default(), default_certificate: None };
            Arc::new(Table { ports: [(Bind::shared(free.port()), Arc::new(port))].into(), ..Table::default() })
        };
        let first = table();
        let mut ports = Ports::new(plane.clone(), vec![free.ip()]);
        plane.swap(first.clone());
        assert_eq!(ports.apply(&first).await, BTreeMap::new());
        let mut client = TcpStream::connect(free).await.unwrap();
        ask(&mut client).await;
        let before = Arc::downgrade(&first);
        drop(first);
        plane.swap(table());
        assert_eq!(before.strong_count(), 0, "the connection is still open, and its table is gone");
        ask(&mut client).await;
        stop.cancel();
        ports.close().await.end().await;
    }

    #[tokio::test]
    async fn security_an_address_that_another_gateway_gets_keeps_no_connection() {
        let stop = CancellationToken::new();
        let plane = DataPlane::new(crate::Limits::default(), None, Metrics::new(), stop.clone()).unwrap();
        let (_place, free) = kept_address();
        let table = |owner: &str| {
            let port = Port { protocol: Protocol::Http, listeners: Hosts::default(), default_certificate: None };
            let bind = Bind { address: Some(free.ip()), port: free.port() };
            let (ports, owners) = ([(bind, Arc::new(port))].into(), [(free.ip(), owner.to_owned())].into());
            Arc::new(Table { ports, owners, ..Table::default() })
        };
        let mut ports = Ports::new(plane.clone(), Vec::new());
        let mut clients = Vec::new();
        for (owner, is_kept) in [("first", true), ("first", true), ("second", false)] {
            let now = table(owner);
            ports.close_gone(&now).await;
            plane.swap(now.clone());
            assert_eq!(ports.apply(&now).await, BTreeMap::new());
            for client in &mut clients {
                match is_kept {
                    true => ask(client).await,
                    false => assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "closed"),
                }
            }
            let mut client = TcpStream::connect(free).await.unwrap();
            ask(&mut client).await;
            clients.push(client);
        }
        stop.cancel();
        ports.close().await.end().await;
    }

    #[tokio::test]
    async fn security_connections_that_pass_through_are_counted() {
        use crate::table::{Backend, BackendProtocol, Listener, Route, Weighted};
        let stop = CancellationToken::new();
        let plane = DataPlane::new(crate::Limits::default(), None, Metrics::new(), stop.clone()).unwrap();
        let (_place, free) = kept_address();
        let behind = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backend = Backend {
            name: "raw".into(),
            protocol: BackendProtocol::Http1,
            wants_tls: false,
            tls: None,
            endpoints: vec![behind.local_addr().unwrap()],
        };
        let weighted = Weighted { weight: 1, backend: Some(Arc::new(backend)), filters: Vec::new() };
        let route = Route {
            name: "raw".into(),
            filters: Vec::new(),
            action: Action::Forward(vec![weighted]),
            timeout: None,
            backend_timeout: None,
            metrics: Default::default(),
        };
        let stream = StreamRoute { route: Arc::new(route), is_terminated: false };
        let streams = [(crate::hostname::Pattern::Any, stream)].into_iter().collect();
        let listeners = [(crate::hostname::Pattern::Any, Arc::new(Listener { streams, ..Listener::default() }))];
        let listeners = listeners.into_iter().collect();
        let port = Port { protocol: Protocol::Tls, listeners, default_certificate: None };
        let table = Arc::new(Table { ports: [(Bind::shared(free.port()), Arc::new(port))].into(), ..Table::default() });
        let mut ports = Ports::new(plane.clone(), vec![free.ip()]);
        ports.connections = Connections::new(|| Limits { total: 1, per_address: 1 });
        plane.swap(table.clone());
        assert_eq!(ports.apply(&table).await, BTreeMap::new());
        let hello = || async {
            let name = "raw.test".try_into().unwrap();
            let mut tls = rustls::ClientConnection::new(Arc::new(tls::unverified_client()), name).unwrap();
            let mut words = Vec::new();
            tls.write_tls(&mut words).unwrap();
            let mut client = TcpStream::connect(free).await.unwrap();
            // Whoever is turned away may be so before this.
            let _closed = client.write_all(&words).await;
            client
        };
        let mut first = hello().await;
        let (mut its_backend, _) = behind.accept().await.unwrap();
        let mut second = hello().await;
        let mut byte = [0];
        tokio::select! {
            read = second.read(&mut byte) => assert!(matches!(read, Ok(0) | Err(_)), "turned away"),
            _ = behind.accept() => panic!("there is no place for it: the first still has the only one"),
        }
        its_backend.write_all(b"x").await.unwrap();
        assert_eq!(first.read(&mut byte).await.unwrap(), 1, "and goes on");
        stop.cancel();
        ports.close().await.end().await;
    }

    #[tokio::test]
    async fn security_a_ticket_is_good_for_one_port() {
        let stop = CancellationToken::new();
        let plane = DataPlane::new(crate::Limits::default(), None, Metrics::new(), stop.clone()).unwrap();
        let [one, other] = [8443, 8444].map(|port| server_config(&plane, Bind::shared(port)).unwrap().ticketer);
        let ticket = one.encrypt(b"session").unwrap();
        assert_eq!(one.decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert_eq!(other.decrypt(&ticket), None);
        stop.cancel();
    }
}
