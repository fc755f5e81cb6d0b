//! Requests that are passed on: logs, exec, attach and port-forward to the kubelet, proxies to nodes, pods and services.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use api::cidr::is_global_unicast;
use api::percent::{encode_except, is_unreserved};
use bytes::Bytes;
use futures_util::future::ready;
use futures_util::{FutureExt, StreamExt};
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::Endpoint;
use registry::{Action, AnyObject};
use rustls::pki_types::ServerName;
use tls::Stream;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::connect_options::{ConnectOptions, ports};
use super::log_options;
use crate::admission::{Attributes, Verb};
use crate::body::{Body, BodyError};
use crate::remote::proxied_answer::{self, Links};
use crate::remote::{FOR_KUBELET, Place, passage, service};
use crate::state::{Operation, State};
use crate::verbs::websocket;

/// How long a connection to a kubelet or a pod may take.
const DIAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a request goes.
struct Destination {
    host: String,
    port: u16,
    scheme: Scheme,
    path_and_query: String,
    /// Chosen by whoever wrote an object, so it must not lead back to this host or its link.
    is_restricted: bool,
    /// A log is asked for by this server: how the client wants its answers is nothing to the kubelet, which may know only
    /// others.
    passes_headers: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Http,
    Https,
    Kubelet,
}

pub(crate) async fn connect(
    operation: &Operation,
    action: Action,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    // The pod or its node may have been written a moment ago.
    operation.state.caches.fresh().await?;
    if matches!(action, Action::Exec | Action::Attach | Action::PortForward)
        && operation.info.verb != registry::Verb::Create
    {
        // WebSockets begin with GET, but what they carry is not reading.
        let mut attributes = crate::authz::Attributes::from(&operation.info);
        attributes.verb = registry::Verb::Create;
        operation.state.authz.require_fresh(&operation.state.caches, &operation.user, &attributes).await?;
    }
    if action == Action::Log {
        log_options::check(&operation.info.name, &operation.info.query)?;
    } else {
        admit(operation).await?;
    }
    let destination = match action {
        // Links of a page are relative to a folder: its root must end like one.
        Action::Proxy if operation.info.rest.is_empty() && is_plain_read(operation) => {
            return Ok(to_folder(operation));
        }
        Action::Proxy => proxied(operation)?,
        _ => match kubelet_stream(operation, action)? {
            Some(destination) => destination,
            // Nothing has run yet, so the log is empty.
            None => return Ok(crate::body::response(StatusCode::OK, "text/plain", Bytes::new())),
        },
    };
    match (action, websocket::key(&operation.headers), upgrade) {
        (Action::Log, Some(key), Some(upgrade)) => log_socket(operation, destination, key, upgrade).await,
        (_, _, upgrade) => forward(operation, destination, upgrade).await,
    }
}

/// The log as messages of a WebSocket: the kubelet gives it as a body, whoever asks.
async fn log_socket(
    operation: &Operation,
    destination: Destination,
    key: &HeaderValue,
    upgrade: hyper::upgrade::OnUpgrade,
) -> Result<Response<Body>, Status> {
    let Some((content, protocol)) = websocket::Content::negotiate(&operation.headers) else {
        return Err(Status::bad_request("none of the offered WebSocket protocols can carry a log"));
    };
    let answer = forward(operation, destination, None).await?;
    if !answer.status().is_success() {
        return Ok(answer);
    }
    let chunks = answer.into_body().into_data_stream();
    let chunks = chunks.take_while(|chunk| ready(chunk.is_ok())).filter_map(|chunk| ready(chunk.ok()));
    let mut response = websocket::accept(key, content, upgrade, chunks, operation.state.stop.clone());
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
    }
    Ok(response)
}

fn is_plain_read(operation: &Operation) -> bool {
    matches!(operation.method, http::Method::GET | http::Method::HEAD)
        && !operation.headers.contains_key(header::UPGRADE)
}

/// The same path with a slash at its end.
fn to_folder(operation: &Operation) -> Response<Body> {
    let (path, query) = (&operation.info.path, &operation.info.raw_query);
    let location = if query.is_empty() { format!("{path}/") } else { format!("{path}/?{query}") };
    let mut response = Response::new(crate::body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// A question of the server itself to a node's kubelet.
pub(crate) async fn ask_kubelet(state: &State, node: &str, path: &str) -> Result<Bytes, Status> {
    if let Some(text) = ask_inside(state, node, path).await {
        return Ok(text);
    }
    let (host, port) = kubelet_address(state, node)?;
    let failed = |why: &dyn std::fmt::Display| {
        Status::service_unavailable(format!("error trying to reach the kubelet of {node}: {why}"))
    };
    let asked = tokio::time::timeout(DIAL_TIMEOUT, state.kubelet.ask(&host, port, path)).await;
    let response = asked.map_err(|_| failed(&"i/o timeout"))?.map_err(|problem| failed(&problem))?;
    if response.status().is_success() {
        return Ok(response.into_body());
    }
    Err(Status::service_unavailable(format!("the kubelet of {node} answered {}", response.status())))
}

/// What the kubelet in this process says, if it is that of the node.
async fn ask_inside(state: &State, node: &str, path: &str) -> Option<Bytes> {
    let local = state.config.local_kubelet.as_ref().filter(|local| local.node == node)?;
    let query = path.strip_prefix("/stats/summary?")?;
    let ask = local.summaries.lock().clone()?;
    ask(query).await
}

/// A stream is no write, but plug-ins may refuse it (`CONNECT`). They see its options as an object.
async fn admit(operation: &Operation) -> Result<(), Status> {
    let row = operation.resource.subresource(&operation.info.subresource);
    let (group, version, kind) = row.and_then(|row| row.kind).unwrap_or(("", "v1", "Options"));
    let mut object: AnyObject = Box::new(ConnectOptions::new(group, version, kind, &operation.info)?);
    let mut attributes = Attributes { object: Some(&mut object), ..operation.attributes(Verb::Connect, false) };
    operation.state.admission.admit(&operation.state.cluster, &mut attributes).await?;
    operation.state.admission.validate(&operation.state.cluster, &attributes).await
}

/// Where the kubelet of a pod serves a stream; `None` for the log of a pod that has no node yet.
fn kubelet_stream(operation: &Operation, action: Action) -> Result<Option<Destination>, Status> {
    let (namespace, name) = (&operation.info.namespace, &operation.info.name);
    let pod = operation.state.objects().get::<Pod>(namespace, name)?.ok_or_else(|| operation.not_found(name))?;
    let Pod { metadata, spec, .. } = Arc::unwrap_or_clone(pod);
    let spec = spec.unwrap_or_default();
    let query = &operation.info.query;
    let node_name = spec.node_name.unwrap_or_default();
    let containers: Vec<&str> = spec
        .containers
        .iter()
        .map(|container| container.name.as_str())
        .chain(spec.init_containers.iter().flatten().map(|container| container.name.as_str()))
        .chain(spec.ephemeral_containers.iter().flatten().map(|container| container.name.as_str()))
        .collect();
    let container = if action == Action::PortForward {
        String::new()
    } else {
        match query.get("container") {
            Some(asked) if containers.contains(&asked) => asked.to_owned(),
            Some(asked) => {
                return Err(Status::bad_request(format!("container {asked} is not valid for pod {name}")));
            }
            None if spec.containers.len() == 1 => spec.containers[0].name.clone(),
            None => {
                let annotations = metadata.annotations.unwrap_or_default();
                match annotations.get("kubectl.kubernetes.io/default-container") {
                    Some(default) if containers.contains(&default.as_str()) => default.clone(),
                    _ => {
                        let names: Vec<&str> =
                            spec.containers.iter().map(|container| container.name.as_str()).collect();
                        return Err(Status::bad_request(format!(
                            "a container name must be specified for pod {name}, choose one of: [{}]",
                            names.join(" ")
                        )));
                    }
                }
            }
        }
    };
    if node_name.is_empty() {
        if action == Action::Log {
            return Ok(None);
        }
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let (host, port) = kubelet_address(&operation.state, &node_name)?;
    let mut params: Vec<(&str, String)> = Vec::new();
    let path = match action {
        Action::Log => {
            for key in ["follow", "previous", "timestamps", "insecureSkipTLSVerifyBackend"] {
                if query.flag(key) {
                    params.push((key, "true".to_owned()));
                }
            }
            for key in ["sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"] {
                if let Some(value) = query.get(key) {
                    params.push((key, value.to_owned()));
                }
            }
            format!("/containerLogs/{namespace}/{name}/{container}")
        }
        Action::PortForward => {
            // The kubelet has its own word for it.
            params.extend(ports(query)?.into_iter().map(|port| ("port", port.to_string())));
            format!("/portForward/{namespace}/{name}")
        }
        _ => {
            for (ours, theirs) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
                if query.flag(ours) {
                    params.push((theirs, "1".to_owned()));
                }
            }
            params.extend(query.all("command").map(|part| ("command", part.to_owned())));
            let what = if action == Action::Exec { "exec" } else { "attach" };
            format!("/{what}/{namespace}/{name}/{container}")
        }
    };
    let query: Vec<String> =
        params.iter().map(|(key, value)| format!("{key}={}", encode_except(value, is_unreserved))).collect();
    let path_and_query = if query.is_empty() { path } else { format!("{path}?{}", query.join("&")) };
    let passes_headers = action != Action::Log;
    Ok(Some(Destination { host, port, scheme: Scheme::Kubelet, path_and_query, is_restricted: false, passes_headers }))
}

fn kubelet_address(state: &State, node_name: &str) -> Result<(String, u16), Status> {
    let node = state
        .objects()
        .entry::<Node>("", node_name)?
        .ok_or_else(|| Status::not_found(&api::GroupResource::new("", "nodes"), node_name))?;
    let place = node.read_part::<Place>()?;
    state.kubelet.address(&place).ok_or_else(|| {
        Status::internal(format!("no preferred addresses found; known addresses: {:?}", place.addresses()))
    })
}

/// Splits `[scheme:]name[:port]`.
fn split_name(text: &str) -> (Scheme, &str, &str) {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        ["https", name] => (Scheme::Https, name, ""),
        ["http", name] => (Scheme::Http, name, ""),
        [name, port] => (Scheme::Http, name, port),
        ["https", name, port] => (Scheme::Https, name, port),
        [_, name, port] => (Scheme::Http, name, port),
        _ => (Scheme::Http, text, ""),
    }
}

fn proxied(operation: &Operation) -> Result<Destination, Status> {
    let info = &operation.info;
    let (scheme, name, port) = split_name(&info.name);
    let rest = if info.rest.is_empty() { "/" } else { info.rest.as_str() };
    let query = &info.raw_query;
    let path_and_query = if query.is_empty() { rest.to_owned() } else { format!("{rest}?{query}") };
    let not_found = || operation.not_found(name);
    let number = |port: &str| port.parse::<u16>().ok();
    let (host, port, scheme) = match &*info.resource {
        "nodes" => {
            let (host, kubelet_port) = kubelet_address(&operation.state, name)?;
            let port = number(port).unwrap_or(kubelet_port);
            (host, port, if port == kubelet_port { Scheme::Kubelet } else { scheme })
        }
        "pods" => {
            let pod = operation.state.objects().get::<Pod>(&info.namespace, name)?.ok_or_else(not_found)?;
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone()).unwrap_or_default();
            if address.is_empty() {
                return Err(Status::bad_request("address not allowed"));
            }
            let ports = pod
                .spec
                .iter()
                .flat_map(|spec| &spec.containers)
                .flat_map(|container| container.ports.iter().flatten());
            let declared: Vec<_> = ports.collect();
            let port = if port.is_empty() {
                declared.first().map_or(80, |port| port.container_port as u16)
            } else if let Some(port) = number(port) {
                port
            } else {
                let named = declared.iter().find(|declared| declared.name.as_deref() == Some(port));
                named
                    .map(|port| port.container_port as u16)
                    .ok_or_else(|| Status::service_unavailable(format!("no port named {port:?}")))?
            };
            (address, port, scheme)
        }
        _ => {
            let (host, port) = service_endpoint(operation, name, port)?;
            (host, port, scheme)
        }
    };
    // A kubelet of this host may well be reached at its loopback address.
    let is_restricted = scheme != Scheme::Kubelet;
    Ok(Destination { host, port, scheme, path_and_query, is_restricted, passes_headers: true })
}

/// A ready endpoint of a service.
fn service_endpoint(operation: &Operation, name: &str, wanted: &str) -> Result<(String, u16), Status> {
    let namespace = &operation.info.namespace;
    let service =
        operation.state.objects().get::<Service>(namespace, name)?.ok_or_else(|| operation.not_found(name))?;
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let port = match wanted {
        "" if ports.len() == 1 => ports.first(),
        "" => ports.iter().find(|port| port.name.as_deref().unwrap_or_default().is_empty()),
        wanted => ports.iter().find(|port| port.name.as_deref() == Some(wanted) || wanted.parse() == Ok(port.port)),
    };
    let port_name = port.and_then(|port| port.name.clone()).unwrap_or_default();
    // Upstream's `isValidAddress`: an endpoint is proxied to if it is that of a pod here, whatever its author wrote.
    let is_of_pod = |endpoint: &Endpoint, address: &str| {
        let target = endpoint.target_ref.as_ref().filter(|target| target.namespace.as_ref() == Some(namespace));
        let name = target.and_then(|target| target.name.as_deref()).unwrap_or_default();
        let pod = operation.state.objects().get::<Pod>(namespace, name)?;
        let ips = pod.as_ref().and_then(|pod| pod.status.as_ref()?.pod_ips.as_deref()).unwrap_or_default();
        Ok(ips.iter().any(|ip| ip.ip == address))
    };
    service::ready_endpoint(&operation.state.services, namespace, name, &port_name, is_of_pod)?.ok_or_else(|| {
        Status::service_unavailable(format!("no endpoints available for service {}", api::field::quote(name)))
    })
}

async fn dial(operation: &Operation, destination: &Destination) -> Result<Box<dyn Stream>, Status> {
    let failed = |error: &dyn std::fmt::Display| {
        Status::internal(format!("error dialing backend: dial tcp {}:{}: {error}", destination.host, destination.port))
    };
    // Found once and then dialled: asked again, a name server could answer otherwise (CVE-2020-8562).
    let found = tokio::net::lookup_host((destination.host.as_str(), destination.port)).await;
    let addresses: Vec<SocketAddr> = found.map_err(|error| failed(&error))?.collect();
    if destination.is_restricted && !addresses.iter().all(|address| is_global_unicast(address.ip())) {
        return Err(Status::bad_request("address not allowed"));
    }
    let tcp = tokio::time::timeout(DIAL_TIMEOUT, TcpStream::connect(&*addresses))
        .await
        .map_err(|_| failed(&"i/o timeout"))?
        .map_err(|error| failed(&error))?;
    tcp.set_nodelay(true).map_err(|error| failed(&error))?;
    let connector = match destination.scheme {
        Scheme::Http => return Ok(Box::new(tcp)),
        Scheme::Kubelet => TlsConnector::clone(&operation.state.kubelet.tls.get()),
        Scheme::Https => operation.state.kubelet.unverified.clone(),
    };
    let name = ServerName::try_from(destination.host.clone()).map_err(|error| failed(&error))?;
    let tls = tokio::time::timeout(DIAL_TIMEOUT, connector.connect(name, tcp))
        .await
        .map_err(|_| failed(&"TLS handshake timeout"))?
        .map_err(|error| failed(&error))?;
    Ok(Box::new(tls))
}

async fn forward(
    operation: &Operation,
    destination: Destination,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    let upgrading = operation.headers.contains_key(header::UPGRADE) && upgrade.is_some();
    let io = dial(operation, &destination).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(Status::internal)?;
    let stop = operation.state.stop.clone();
    tokio::spawn(FutureExt::boxed(async move {
        // Ends with the connection or the server; errors surface on the request itself.
        tokio::select! {
            _ = connection.with_upgrades() => {}
            () = stop.cancelled() => {}
        }
    }));
    let uri: Uri = destination.path_and_query.parse().map_err(|_| Status::bad_request("invalid path"))?;
    let mut request = Request::builder()
        .method(operation.method.clone())
        .uri(uri)
        .body(Full::new(operation.body.clone()))
        .map_err(Status::internal)?;
    if destination.passes_headers {
        *request.headers_mut() = passage::headers(&operation.headers, upgrading);
    }
    let host =
        if destination.host.contains(':') { format!("[{}]", destination.host) } else { destination.host.clone() };
    let host = format!("{host}:{}", destination.port);
    request.headers_mut().insert(header::HOST, HeaderValue::from_str(&host).map_err(Status::internal)?);
    if destination.scheme == Scheme::Kubelet {
        request.headers_mut().insert(FOR_KUBELET, HeaderValue::from_static("true"));
    } else if let Ok(path) = HeaderValue::from_str(&operation.info.path) {
        request.headers_mut().insert("x-forwarded-uri", path);
    }
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| Status::service_unavailable(format!("error trying to reach service: {error}")))?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return passed_back(operation, &destination, &host, response).await;
    }
    let Some(client) = upgrade.filter(|_| upgrading) else {
        return Err(Status::internal("backend switched protocols without being asked"));
    };
    Ok(passage::tunnel(response, client, operation.state.stop.clone()))
}

/// The answer without what belongs to the connection to the backend, and with its links led through this server.
async fn passed_back(
    operation: &Operation,
    destination: &Destination,
    host: &str,
    mut response: Response<hyper::body::Incoming>,
) -> Result<Response<Body>, Status> {
    passage::came_back(&mut response);
    if destination.scheme == Scheme::Kubelet {
        // The client would go there with what it has for us (CVE-2018-1002102).
        if response.status().is_redirection() && response.headers().contains_key(header::LOCATION) {
            let text = "the backend attempted to redirect this request, which is not permitted";
            return Ok(crate::body::response(StatusCode::BAD_GATEWAY, "text/plain", Bytes::from(text)));
        }
        return Ok(response.map(|body| body.map_err(|error| Box::new(error) as BodyError).boxed_unsync()));
    }
    let requested = operation.headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let links = Links { prefix: proxy_path(operation), backend: host, requested };
    proxied_answer::pass(&links, response).await
}

/// The path of this server that stands for the root of what is behind it.
fn proxy_path(operation: &Operation) -> &str {
    operation.info.path.strip_suffix(&operation.info.rest).unwrap_or(&operation.info.path)
}
