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

/// 200 to 399 is healthy; redirects to the same host are followed, others count as healthy.
pub(super) async fn probe(mut request: HttpRequest) -> Outcome {
    for _ in 0..MAX_REDIRECTS {
        let (status, location, _) = match run_http(&request).await {
            Ok(answer) => answer,
            Err(error) => return Outcome::Failure(error.to_string()),
        };
        if !(200..400).contains(&status) {
            return Outcome::Failure(format!("HTTP probe failed with statuscode: {status}"));
        }
        let next = location.filter(|_| status >= 300).and_then(|to| same_host_path(&to, &request));
        let Some(path) = next else { return Outcome::Success };
        request.path = path;
    }
    Outcome::Failure(format!("Get \"{}\": stopped after 10 redirects", request.url()))
}

fn same_host_path(location: &str, request: &HttpRequest) -> Option<String> {
    if location.starts_with('/') {
        return Some(location.to_string());
    }
    let uri: http::Uri = location.parse().ok()?;
    (uri.host() == Some(&request.host)).then(|| uri.path_and_query().map_or("/".to_string(), ToString::to_string))
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
                vec!["HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n"],
                Outcome::Success,
            ),
        ] {
            let port = server(answers).await;
            let get = HTTPGetAction { port: IntOrString::Int(port.into()), ..Default::default() };
            let request = http_get(&get, "127.0.0.1", |_| Ok(port)).unwrap();
            assert_eq!(probe(request).await, expected);
        }
    }
}
