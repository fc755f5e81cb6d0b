//! `kubectl proxy`: the API on a local port or socket, with the kubeconfig's credentials added on the way.
//!
//! Flow: connection -> [`filter::Filter`] (who may ask for what) and [`pages`] (what browsers may) -> static files under their prefix, or the server. A request
//! that wants another protocol gets a connection of its own, and bytes are copied both ways.

mod files;
mod filter;
mod pages;

use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use bytes::Bytes;
use client::{Body, Client};
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};
use filter::Filter;
use pages::Entrance;

const DEFAULT_PORT: &str = "8001";

pub(crate) const COMMAND: Command = Command {
    name: "proxy",
    usage: "[--port=PORT] [--www=static-dir] [--www-prefix=prefix] [--api-prefix=prefix]",
    about: "Run a proxy to the Kubernetes API server",
    examples: "  kubectl proxy --port=0\n  kubectl proxy --www=./site --www-prefix=/static/ --api-prefix=/api/\n  kubectl proxy --unix-socket=/tmp/api.sock",
    flags: &[&[
        Flag::string("accept-hosts", "Regular expressions for hosts to accept.")
            .default("^localhost$,^127\\.0\\.0\\.1$,^\\[::1\\]$"),
        Flag::string("accept-paths", "Regular expressions for paths to accept.").default("^.*"),
        Flag::string("address", "IP address to serve on.").default("127.0.0.1"),
        Flag::string("api-prefix", "Prefix to serve the API under.").default("/"),
        Flag::bool("append-server-path", "Put the path of the kubeconfig's server before every path."),
        Flag::bool("disable-filter", "Accept every request. Dangerous on a port that others can reach."),
        Flag::duration("keepalive", "0s", "Keep-alive period of connections; 0 turns it off."),
        Flag::int("port", DEFAULT_PORT, "Port to serve on; 0 picks a free one.").short('p'),
        Flag::string("reject-methods", "Regular expressions for HTTP methods to reject.").default("^$"),
        Flag::string("reject-paths", "Regular expressions for paths to reject, even accepted ones.")
            .default("^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach"),
        Flag::bool("ui", "Say where the cluster's page is.").hidden(),
        Flag::string("unix-socket", "Unix socket to serve on.").short('u'),
        Flag::string("www", "Directory of static files to serve as well.").short('w'),
        Flag::string("www-prefix", "Prefix to serve static files under.").short('P').default("/static/"),
    ]],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

/// What every connection needs.
struct Proxy {
    client: Client,
    filter: Option<Filter>,
    api_prefix: String,
    www: Option<(String, std::path::PathBuf)>,
    /// With `--ui`: only for the cluster's page.
    entrance: Option<Entrance>,
}

async fn run(cx: &Context) -> Result<()> {
    let socket = cx.flags.string("unix-socket");
    if !socket.is_empty() && cx.flags.string("port") != DEFAULT_PORT {
        return Err(Failure::message("cannot set --unix-socket and --port at the same time"));
    }
    let with_slash = |name: &str| {
        let prefix = cx.flags.string(name);
        if prefix.ends_with('/') { prefix } else { prefix + "/" }
    };
    let filter = if cx.flags.bool("disable-filter") {
        if socket.is_empty() {
            cx.eprintln("Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious");
        }
        None
    } else {
        Some(Filter::new(
            &cx.flags.string("accept-paths"),
            &cx.flags.string("reject-paths"),
            &cx.flags.string("accept-hosts"),
            &cx.flags.string("reject-methods"),
        )?)
    };
    let www = cx.flags.string("www");
    let proxy = Arc::new(Proxy {
        client: client(cx)?,
        filter,
        api_prefix: with_slash("api-prefix"),
        www: Some(www).filter(|w| !w.is_empty()).map(|w| (with_slash("www-prefix"), w.into())),
        entrance: cx.flags.bool("ui").then(Entrance::new),
    });
    if socket.is_empty() {
        let address = format!("{}:{}", cx.flags.string("address"), cx.flags.int("port"));
        let listener = tokio::net::TcpListener::bind(&address).await.map_err(|e| {
            Failure::message(format!("listen tcp {address}: bind: {}", crate::go_errors::go_error_text(&e)))
        })?;
        announce(cx, &proxy, &listener.local_addr()?.to_string())?;
        loop {
            let (stream, _) = listener.accept().await?;
            serve(proxy.clone(), stream);
        }
    }
    // A socket left behind is in the way; any other file is somebody's.
    if std::fs::symlink_metadata(&socket).is_ok_and(|m| m.file_type().is_socket()) {
        std::fs::remove_file(&socket)?;
    }
    // Only for this user; others can be let in with chmod.
    let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let bound = tokio::net::UnixListener::bind(&socket);
    nix::sys::stat::umask(mask);
    let listener = bound.map_err(|e| {
        Failure::message(format!("listen unix {socket}: bind: {}", crate::go_errors::go_error_text(&e)))
    })?;
    announce(cx, &proxy, &socket)?;
    loop {
        let (stream, _) = listener.accept().await?;
        serve(proxy.clone(), stream);
    }
}

fn announce(cx: &Context, proxy: &Proxy, address: &str) -> Result<()> {
    match &proxy.entrance {
        Some(entrance) => cx.println(format!("The cluster is at http://{address}{} until Ctrl-C", entrance.path()))?,
        None => cx.println(format!("Starting to serve on {address}"))?,
    }
    cx.flush()
}

/// Paths are passed on as they come: the path of the server's URL counts only with `--append-server-path`.
fn client(cx: &Context) -> Result<Client> {
    let server = cx.server()?;
    let (scheme, rest) = server.split_once("://").unwrap_or(("https", server.as_str()));
    let Some((host, path)) = rest.split_once('/').filter(|(_, path)| !path.is_empty()) else {
        return Ok(cx.client()?.clone());
    };
    if cx.flags.bool("append-server-path") {
        return Ok(cx.client()?.clone());
    }
    cx.eprintln(format!(
        "Your kube context contains a server path /{path}, use --append-server-path to automatically append the path to each request"
    ));
    let overrides = client::kubeconfig::Overrides { server: Some(format!("{scheme}://{host}")), ..cx.overrides() };
    Client::from_kubeconfig(cx.kubeconfig()?, &overrides).map_err(|e| Failure::message(e.to_string()))
}

/// Until the other side closes. The task ends with the process at the latest: nothing outlives a proxy.
fn serve(proxy: Arc<Proxy>, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    tokio::spawn(FutureExt::boxed(async move {
        let service = service_fn(move |request| {
            let proxy = proxy.clone();
            async move { Ok::<_, std::convert::Infallible>(answer(&proxy, request).await) }
        });
        let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // A client that goes away in the middle is not our failure.
        let _ = connection.with_upgrades().await;
    }));
}

async fn answer(proxy: &Proxy, mut request: Request<Incoming>) -> Response<Body> {
    if let Some(entrance) = &proxy.entrance {
        if let Some(refusal) = entrance.refuse(request.method(), request.uri(), request.headers()) {
            return refusal;
        }
        request.headers_mut().remove(header::COOKIE);
    }
    let path = request.uri().path().to_owned();
    let clean = clean(&path);
    let query = request.uri().query().map(|query| format!("?{query}")).unwrap_or_default();
    let elsewhere = (clean != path).then(|| format!("{clean}{query}"));
    if let Some((prefix, dir)) = &proxy.www
        && let Some(rest) = clean.strip_prefix(prefix.as_str())
        && prefix.len() >= proxy.api_prefix.len()
    {
        return match elsewhere {
            Some(place) => moved(&place),
            None => files::serve(dir, &path, rest),
        };
    }
    let Some(inner) = api_path(&proxy.api_prefix, &clean) else {
        return text(StatusCode::NOT_FOUND, "404 page not found\n");
    };
    if let Some(filter) = &proxy.filter
        && (!filter.accepts(request.method().as_str(), &inner, host(&request))
            || pages::is_foreign(request.method(), &inner, request.headers()))
    {
        return text(StatusCode::FORBIDDEN, "Forbidden\n");
    }
    if let Some(place) = elsewhere {
        return moved(&place);
    }
    let target = format!("{inner}{query}");
    let outcome = if request.headers().contains_key(header::UPGRADE) {
        upgrade(proxy, request, target).await
    } else {
        forward(proxy, request, target).await
    };
    outcome.unwrap_or_else(|e| text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{e}\n")))
}

/// Without empty parts, `.` and `..`, as Go's mux wants its paths.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

fn moved(location: &str) -> Response<Body> {
    let link = location.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
    let body = format!("<a href=\"{link}\">Moved Permanently</a>.\n\n");
    let mut response = plain(StatusCode::MOVED_PERMANENTLY, "text/html; charset=utf-8", Bytes::from(body));
    if let Ok(location) = location.parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// Prefixes below `/api` are part of the API's own paths; all others are ours and go.
fn api_path(prefix: &str, path: &str) -> Option<String> {
    let rest = path.strip_prefix(prefix)?;
    if prefix.starts_with("/api") { Some(path.to_owned()) } else { Some(format!("/{}", rest.trim_start_matches('/'))) }
}

fn host(request: &Request<Incoming>) -> &str {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or("");
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    }
}

/// The headers that concern only one connection stay behind.
fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let mut headers = headers.clone();
    for name in [
        header::CONNECTION,
        header::HOST,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::CONTENT_LENGTH,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
    headers
}

async fn forward(proxy: &Proxy, request: Request<Incoming>, target: String) -> Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(|e| Failure::message(e.to_string()))?.to_bytes();
    let mut onward =
        Request::builder().method(parts.method).uri(target).body(body).map_err(|e| Failure::message(e.to_string()))?;
    *onward.headers_mut() = passed_on(&parts.headers);
    let mut response = proxy.client.send(onward).await.map_err(|e| Failure::message(e.to_string()))?;
    let length = response.headers().get(header::CONTENT_LENGTH).cloned();
    *response.headers_mut() = passed_on(response.headers());
    if let Some(length) = length {
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
    }
    *response.version_mut() = http::Version::HTTP_11;
    Ok(response)
}

async fn upgrade(proxy: &Proxy, mut request: Request<Incoming>, target: String) -> Result<Response<Body>> {
    let mut onward = Request::builder()
        .method(request.method().clone())
        .uri(target)
        .body(Bytes::new())
        .map_err(|e| Failure::message(e.to_string()))?;
    *onward.headers_mut() = passed_on(request.headers());
    for name in [header::CONNECTION, header::UPGRADE] {
        if let Some(value) = request.headers().get(&name) {
            onward.headers_mut().insert(name, value.clone());
        }
    }
    let (response, mut server) = proxy.client.upgrade(onward).await.map_err(|e| Failure::message(e.to_string()))?;
    let ours = hyper::upgrade::on(&mut request);
    tokio::spawn(FutureExt::boxed(async move {
        if let Ok(client) = ours.await {
            let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut server).await;
        }
    }));
    Ok(response.map(|()| empty()))
}

fn empty() -> Body {
    Full::new(Bytes::new()).map_err(|never| match never {}).boxed_unsync()
}

fn text(status: StatusCode, text: &str) -> Response<Body> {
    plain(status, "text/plain; charset=utf-8", Bytes::from(text.to_owned()))
}

fn plain(status: StatusCode, content_type: &str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    if let Ok(value) = content_type.parse() {
        response.headers_mut().insert(header::CONTENT_TYPE, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_gos_mux_does() {
        for (path, expected) in [
            ("/", "/"),
            ("//custom/healthz", "/custom/healthz"),
            ("/api/", "/api/"),
            ("/api//v1/./pods/", "/api/v1/pods/"),
            ("/a/../../b", "/b"),
            ("//", "/"),
        ] {
            assert_eq!(clean(path), expected, "{path}");
        }
        assert_eq!(moved("/a?b=1").headers()[header::LOCATION], "/a?b=1");
    }

    #[test]
    fn prefixes_go_unless_they_are_the_apis() {
        for (prefix, path, expected) in [
            ("/", "/api/v1/pods", Some("/api/v1/pods")),
            ("/custom/", "/custom/api/v1/pods", Some("/api/v1/pods")),
            ("/custom/", "/api/v1/pods", None),
            ("/api/", "/api/v1/pods", Some("/api/v1/pods")),
            ("/api/", "/version", None),
        ] {
            assert_eq!(api_path(prefix, path).as_deref(), expected, "{prefix} {path}");
        }
    }
}
