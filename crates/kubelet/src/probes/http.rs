//! HTTP requests to pods, of probes and hooks.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{HTTPGetAction, HTTPHeader};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::check::{MAX_OUTPUT, Outcome, bracketed, connect};
use super::error::ProbeError;
use crate::exchange::{Request, exchange};

const MAX_REDIRECTS: usize = 10;

#[derive(Clone, Debug)]
pub(crate) struct HttpRequest {
    is_tls: bool,
    host: String,
    port: u16,
    path: String,
    headers: Vec<HTTPHeader>,
}

impl HttpRequest {
    pub(crate) fn url(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}:{}{}", bracketed(&self.host), self.port, self.path)
    }
}

/// Works out where an `httpGet` goes.
pub(crate) fn http_get(
    get: &HTTPGetAction,
    pod_ip: &str,
    port: impl Fn(&IntOrString) -> Result<u16, ProbeError>,
) -> Result<HttpRequest, ProbeError> {
    let path = get.path.clone().unwrap_or_default();
    Ok(HttpRequest {
        is_tls: get.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https")),
        host: get.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| pod_ip.to_string()),
        port: port(&get.port)?,
        path: if path.starts_with('/') { path } else { format!("/{path}") },
        headers: get.http_headers.clone().unwrap_or_default(),
    })
}

/// What came back: status, `Location`, and the start of the body.
type Answer = (u16, Option<String>, String);

pub(crate) async fn run_http(request: &HttpRequest) -> Result<Answer, ProbeError> {
    let got = get(request).await;
    got.map_err(|error| ProbeError::Get { url: request.url(), source: Box::new(error) })
}

async fn get(request: &HttpRequest) -> Result<Answer, ProbeError> {
    let stream = connect(&request.host, request.port).await?;
    let mut builder = http::Request::get(&request.path);
    for header in &request.headers {
        builder = builder.header(&header.name, &header.value);
    }
    let host = format!("{}:{}", bracketed(&request.host), request.port);
    for (name, value) in
        [("Host", host.as_str()), ("User-Agent", "kube-probe/1.36"), ("Accept", "*/*"), ("Connection", "close")]
    {
        if !request.headers.iter().any(|header| header.name.eq_ignore_ascii_case(name)) {
            builder = builder.header(name, value);
        }
    }
    let message: Request = builder.body(Default::default())?;
    let answer = exchange(stream, &request.host, request.is_tls.then(trust_anyone), message, MAX_OUTPUT).await?;
    let location = answer.head.headers.get("location").and_then(|value| value.to_str().ok()).map(String::from);
    // Too long or cut off: the status line has said what matters.
    let body = answer.body.unwrap_or_default();
    Ok((answer.head.status.as_u16(), location, String::from_utf8_lossy(&body).into_owned()))
}

/// 200 to 299 is healthy. Redirects to the same host are followed; where they lead elsewhere, the answer so far counts as
/// healthy, with a warning.
pub(super) async fn probe(mut request: HttpRequest) -> Outcome {
    for _ in 0..MAX_REDIRECTS {
        let (status, location, body) = match run_http(&request).await {
            Ok(answer) => answer,
            Err(error) => return Outcome::Failure(error.to_string()),
        };
        let redirect = match status {
            200..=299 => return Outcome::Success,
            301 | 302 | 303 | 307 | 308 => location.as_deref(),
            300..=399 => None,
            _ => return Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
        };
        match redirect.and_then(|location| redirected(&request, location)) {
            Some(next) => request = next,
            None => return Outcome::Warning(format!("Probe terminated redirects, Response body: {body}")),
        }
    }
    Outcome::Failure(format!("Get \"{}\": stopped after 10 redirects", request.url()))
}

/// Where a redirect leads, unless to another host.
fn redirected(request: &HttpRequest, location: &str) -> Option<HttpRequest> {
    let mut next = request.clone();
    // Without a fragment, which is never sent.
    let location = location.split('#').next().unwrap_or_default();
    let rest = match location.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some((scheme, _)) if !scheme.contains(['/', '?']) => return None,
        _ => match location.strip_prefix("//") {
            Some(rest) => (request.is_tls, rest),
            None => {
                next.path = resolved(&request.path, location);
                return Some(next);
            }
        },
    };
    let (is_tls, rest) = rest;
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let authority: http::uri::Authority = authority.parse().ok()?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    if !host.eq_ignore_ascii_case(&request.host) {
        return None;
    }
    next.is_tls = is_tls;
    next.port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    next.path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    // It named the host of the first request.
    next.headers.retain(|header| !header.name.eq_ignore_ascii_case("host"));
    Some(next)
}

/// A path and query that are relative to those of the request.
fn resolved(base: &str, reference: &str) -> String {
    if reference.starts_with('/') {
        return reference.to_owned();
    }
    let path = base.split('?').next().unwrap_or_default();
    if reference.starts_with('?') {
        return format!("{path}{reference}");
    }
    let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
    format!("{directory}{reference}")
}

/// Probes ask whether a server answers, not who it is.
fn trust_anyone() -> Arc<rustls::ClientConfig> {
    static CONFIG: std::sync::OnceLock<Arc<rustls::ClientConfig>> = std::sync::OnceLock::new();
    CONFIG.get_or_init(|| Arc::new(tls::unverified_client())).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Answers each connection with the next of the given responses.
    async fn server(answers: Vec<&'static str>) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = [0; 4096];
                let _ = stream.read(&mut buffer).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        port
    }

    #[tokio::test]
    async fn statuses() {
        let bad = |code| Outcome::Failure(format!("HTTP probe failed with statuscode: {code}"));
        for (answers, expected) in [
            (vec!["HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"], Outcome::Success),
            (vec!["HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"], bad(404)),
            (
                vec![
                    "HTTP/1.1 302 Found\r\nLocation: /next\r\nContent-Length: 0\r\n\r\n",
                    "HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
                ],
                bad(500),
            ),
            (
                vec!["HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 4\r\n\r\naway"],
                Outcome::Warning("Probe terminated redirects, Response body: away".into()),
            ),
        ] {
            let port = server(answers).await;
            let get = HTTPGetAction { port: IntOrString::Int(port.into()), ..Default::default() };
            let request = http_get(&get, "127.0.0.1", |_| Ok(port)).unwrap();
            assert_eq!(probe(request).await, expected);
        }
    }

    #[test]
    fn redirects_stay_on_the_host() {
        let get = HTTPGetAction { path: Some("/a/b?c".into()), port: IntOrString::Int(8080), ..Default::default() };
        let from = |host: &str| http_get(&get, host, |_| Ok(8080)).unwrap();
        for (host, location, expected) in [
            ("10.0.0.1", "/next", Some("http://10.0.0.1:8080/next")),
            ("10.0.0.1", "next?x=1", Some("http://10.0.0.1:8080/a/next?x=1")),
            ("10.0.0.1", "?x", Some("http://10.0.0.1:8080/a/b?x")),
            ("10.0.0.1", "/to?u=http://else.example/", Some("http://10.0.0.1:8080/to?u=http://else.example/")),
            ("10.0.0.1", "https://10.0.0.1/next#part", Some("https://10.0.0.1:443/next")),
            ("10.0.0.1", "http://10.0.0.1:81", Some("http://10.0.0.1:81/")),
            ("10.0.0.1", "//10.0.0.1/x", Some("http://10.0.0.1:80/x")),
            ("fd00::1", "http://[fd00::1]:81/x", Some("http://[fd00::1]:81/x")),
            ("10.0.0.1", "http://10.0.0.2:8080/", None),
            ("10.0.0.1", "//elsewhere.example/", None),
            ("10.0.0.1", "http://10.0.0.1@elsewhere.example/", None),
            ("10.0.0.1", "ftp://10.0.0.1/", None),
        ] {
            let next = redirected(&from(host), location).map(|request| request.url());
            assert_eq!(next.as_deref(), expected, "{location}");
        }
    }
}
