//! exec, attach and port-forward: the runtime gives a URL, and the connection is handed through to it.

use bytes::Bytes;
use client::Body;
use cri::v1;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use tokio::net::TcpStream;

use super::{Server, flag, query, text};
use crate::state;

/// `<namespace>/<pod>[/<uid>]/<container>`.
fn target<'a>(parts: &[&'a str]) -> Option<(&'a str, &'a str, Option<&'a str>, &'a str)> {
    match parts {
        [namespace, pod, container] => Some((namespace, pod, None, container)),
        [namespace, pod, uid, container] => Some((namespace, pod, Some(uid), container)),
        _ => None,
    }
}

/// Who means one pod does not mean another that has got its name since.
fn is_meant(pod: &Pod, uid: Option<&str>) -> bool {
    uid.is_none_or(|uid| state::uid(pod) == uid)
}

async fn container_id(server: &Server, parts: &[&str]) -> Result<String, Response<Body>> {
    let Some((namespace, name, uid, container)) = target(parts) else {
        return Err(text(StatusCode::NOT_FOUND, "404 page not found\n"));
    };
    let Some(pod) = server.pod(namespace, name).filter(|pod| is_meant(pod, uid)) else { return Err(no_pod()) };
    let state = server
        .kubelet
        .runtime
        .pod_state(state::uid(&pod))
        .await
        .map_err(|error| text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    match state.container(container).filter(|record| record.is_running()) {
        Some(record) => Ok(record.id.clone()),
        None => Err(text(StatusCode::NOT_FOUND, format!("container not found (\"{container}\")"))),
    }
}

fn no_pod() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "pod does not exist")
}

pub(super) async fn exec(server: &Server, parts: &[&str], request: Request<Incoming>) -> Response<Body> {
    let id = match container_id(server, parts).await {
        Ok(id) => id,
        Err(response) => return response,
    };
    let params = request.uri().query().unwrap_or_default();
    let (tty, stdin, stdout, mut stderr) = streams(params);
    // A terminal has one output.
    stderr &= !tty;
    let asked =
        v1::ExecRequest { container_id: id, cmd: query(params, "command").collect(), tty, stdin, stdout, stderr };
    match server.kubelet.runtime.exec_url(asked).await {
        Ok(url) => hand_through(&url, request).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) async fn attach(server: &Server, parts: &[&str], request: Request<Incoming>) -> Response<Body> {
    let id = match container_id(server, parts).await {
        Ok(id) => id,
        Err(response) => return response,
    };
    let params = request.uri().query().unwrap_or_default();
    let (_, stdin, stdout, mut stderr) = streams(params);
    let tty = match target(parts).and_then(|(namespace, name, _, container)| {
        let pod = server.pod(namespace, name)?;
        state::all_containers(&pod).into_iter().find(|known| known.name == container)
    }) {
        Some(container) => container.tty == Some(true),
        None => false,
    };
    stderr &= !tty;
    let asked = v1::AttachRequest { container_id: id, stdin, tty, stdout, stderr };
    match server.kubelet.runtime.attach_url(asked).await {
        Ok(url) => hand_through(&url, request).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) async fn port_forward(server: &Server, parts: &[&str], request: Request<Incoming>) -> Response<Body> {
    let (namespace, name, uid) = match parts {
        [namespace, name] => (*namespace, *name, None),
        [namespace, name, uid] => (*namespace, *name, Some(*uid)),
        _ => return text(StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    let Some(pod) = server.pod(namespace, name).filter(|pod| is_meant(pod, uid)) else { return no_pod() };
    let sandbox = match server.kubelet.runtime.pod_state(state::uid(&pod)).await {
        Ok(state) => state.sandboxes.into_iter().find(|sandbox| sandbox.ready),
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let Some(sandbox) = sandbox else { return text(StatusCode::NOT_FOUND, "pod has no running sandbox") };
    let params = request.uri().query().unwrap_or_default();
    // Upstream's name and, from API servers that are a little older, the client's.
    let lists: Vec<String> = query(params, "port").chain(query(params, "ports")).collect();
    let read =
        lists.iter().flat_map(|list| list.split(',')).map(str::parse).collect::<Result<_, std::num::ParseIntError>>();
    let port = match read {
        Ok(port) => port,
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("unable to parse {params:?} as ports: {error}")),
    };
    match server.kubelet.runtime.port_forward_url(v1::PortForwardRequest { pod_sandbox_id: sandbox.id, port }).await {
        Ok(url) => hand_through(&url, request).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// `POST /run`: one command, its output as the answer.
pub(super) async fn run_once(server: &Server, parts: &[&str], params: &str) -> Response<Body> {
    let id = match container_id(server, parts).await {
        Ok(id) => id,
        Err(response) => return response,
    };
    let command: Vec<String> =
        query(params, "cmd").flat_map(|cmd| cmd.split(' ').map(String::from).collect::<Vec<_>>()).collect();
    match server.kubelet.runtime.exec_sync(&id, command, std::time::Duration::from_secs(60)).await {
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            text(StatusCode::OK, String::from_utf8_lossy(&output))
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// tty, stdin, stdout, stderr, by the names API clients and kubelet clients use.
fn streams(params: &str) -> (bool, bool, bool, bool) {
    let either = |a: &str, b: &str| flag(params, a) || flag(params, b);
    (flag(params, "tty"), either("input", "stdin"), either("output", "stdout"), either("error", "stderr"))
}

/// Repeats the upgrade request to the runtime, and joins the two connections once it agrees.
async fn hand_through(url: &str, mut request: Request<Incoming>) -> Response<Body> {
    let failed = |error: &dyn std::fmt::Display| {
        text(StatusCode::BAD_GATEWAY, format!("error dialing the runtime's stream: {error}"))
    };
    let uri: http::Uri = match url.parse() {
        Ok(uri) => uri,
        Err(error) => return failed(&error),
    };
    let (host, port) = (uri.host().unwrap_or("127.0.0.1").to_string(), uri.port_u16().unwrap_or(80));
    let stream = match TcpStream::connect((host.trim_matches(['[', ']']), port)).await {
        Ok(stream) => stream,
        Err(error) => return failed(&error),
    };
    let (mut sender, connection) = match hyper::client::conn::http1::handshake(TokioIo::new(stream)).await {
        Ok(pair) => pair,
        Err(error) => return failed(&error),
    };
    // Ends with the stream it carries.
    tokio::spawn(FutureExt::boxed(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "stream to the runtime ended");
        }
    }));
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut onward = Request::builder().method(request.method().clone()).uri(path);
    if let Some(headers) = onward.headers_mut() {
        copy_headers(request.headers(), headers);
        if let Ok(value) = format!("{host}:{port}").parse() {
            headers.insert("host", value);
        }
    }
    let onward = match onward.body(Empty::<Bytes>::new()) {
        Ok(onward) => onward,
        Err(error) => return failed(&error),
    };
    let mut answer = match sender.send_request(onward).await {
        Ok(answer) => answer,
        Err(error) => return failed(&error),
    };
    let mut response = Response::builder().status(answer.status());
    if let Some(headers) = response.headers_mut() {
        copy_headers(answer.headers(), headers);
    }
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let body = answer.into_body().map_err(|error| Box::new(error) as client::BoxError).boxed_unsync();
        return response.body(body).unwrap_or_else(|error| failed(&error));
    }
    let (theirs, ours) = (hyper::upgrade::on(&mut answer), hyper::upgrade::on(&mut request));
    tokio::spawn(FutureExt::boxed(async move {
        let (theirs, ours) = match tokio::try_join!(theirs, ours) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "stream not upgraded");
                return;
            }
        };
        let (mut theirs, mut ours) = (TokioIo::new(theirs), TokioIo::new(ours));
        if let Err(error) = tokio::io::copy_bidirectional(&mut theirs, &mut ours).await {
            tracing::debug!(%error, "stream ended");
        }
    }));
    response.body(super::boxed(Bytes::new())).unwrap_or_else(|error| failed(&error))
}

/// All but what belongs to one connection only; the upgrade itself is repeated on purpose.
fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if !matches!(name.as_str(), "host" | "content-length" | "transfer-encoding" | "authorization") {
            to.append(name.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_pod_that_took_a_name_over_is_not_the_one_that_was_meant() {
        let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"uid": "new"}})).unwrap();
        for (uid, fine) in [(None, true), (Some("new"), true), (Some("old"), false), (Some(""), false)] {
            assert_eq!(is_meant(&pod, uid), fine, "{uid:?}");
        }
    }

    #[test]
    fn targets() {
        for (path, expected) in [
            ("ns/pod/c", Some(("ns", "pod", None, "c"))),
            ("ns/pod/uid/c", Some(("ns", "pod", Some("uid"), "c"))),
            ("ns/pod", None),
        ] {
            assert_eq!(target(&path.split('/').collect::<Vec<_>>()), expected);
        }
        assert_eq!(streams("input=1&output=1&tty=1"), (true, true, true, false));
        assert_eq!(streams("stdout=true&stderr=true"), (false, false, true, true));
    }
}
