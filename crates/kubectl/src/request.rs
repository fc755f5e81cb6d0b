//! One request and its answer: query, headers, `-v` traces, server warnings, and errors in kubectl's words.

use std::time::Instant;

use api::scan;
use api::sort::CompactSort as _;
use bytes::Bytes;
use client::Body;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt, Collected};
use serde_json::Value;

use crate::context::Context;
use crate::escape::{path_escape, query_escape};
use crate::failure::{BROKEN_ANSWER, Failure, Result};
use crate::printers::table::{RowParts, printed_rows};

/// A request under construction; `path` is below the server's address.
pub(crate) struct Request {
    method: Method,
    path: String,
    query: Vec<(String, String)>,
    accept: &'static str,
    content_type: Option<String>,
    body: Bytes,
    /// A stream that goes on as long as it likes.
    long_running: bool,
    /// What of a Table's rows is read.
    keep: Option<RowParts>,
}

pub(crate) struct Answer {
    pub(crate) body: Bytes,
    keep: Option<RowParts>,
}

impl Answer {
    pub(crate) fn value(&self) -> Result<Value> {
        let printed = self.keep.and_then(|keep| printed_rows(&self.body, keep));
        let body = printed.as_deref().unwrap_or(&self.body);
        serde_json::from_slice(body).map_err(|e| Failure::message(format!("couldn't decode the answer: {e}")))
    }

    /// The token for the next page of a list, empty after the last one. It is found without decoding the page.
    pub(crate) fn continue_token(&self) -> String {
        let token = scan::find(&self.body, &["metadata", "continue"]);
        token.map(|range| scan::text(&self.body[range]).into_owned()).unwrap_or_default()
    }
}

pub(crate) const TABLE: &str =
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

/// Bytes of an answer that is a failure.
const MAX_FAILURE: usize = 4 << 20;

/// A name that somebody gave, as one segment of a path; refused in client-go's words if it cannot be one.
pub(crate) fn name_segment(name: &str) -> Result<String> {
    if name.is_empty() {
        return Err(Failure::message("resource name may not be empty"));
    }
    segment("resource name", name)
}

/// As [`name_segment`], for a namespace.
pub(crate) fn namespace_segment(namespace: &str) -> Result<String> {
    segment("namespace", namespace)
}

fn segment(what: &str, text: &str) -> Result<String> {
    let mistakes = api::validation::path_segment_name(text);
    if mistakes.is_empty() {
        return Ok(path_escape(text));
    }
    Err(Failure::message(format!("invalid {what} {}: [{}]", api::field::quote(text), mistakes.join(" "))))
}

impl Request {
    pub(crate) fn new(method: Method, path: impl Into<String>) -> Request {
        Request {
            method,
            path: path.into(),
            query: Vec::new(),
            // What is behind a proxied path may know other forms only.
            accept: "application/json, */*",
            content_type: None,
            body: Bytes::new(),
            long_running: false,
            keep: None,
        }
    }
    pub(crate) fn get(path: impl Into<String>) -> Request {
        Request::new(Method::GET, path)
    }
    pub(crate) fn post(path: impl Into<String>, body: &Value) -> Request {
        Request::new(Method::POST, path).json(body)
    }
    pub(crate) fn put(path: impl Into<String>, body: &Value) -> Request {
        Request::new(Method::PUT, path).json(body)
    }
    pub(crate) fn delete(path: impl Into<String>, options: &Value) -> Request {
        Request::new(Method::DELETE, path).json(options)
    }
    pub(crate) fn patch(path: impl Into<String>, content_type: &str, body: impl Into<Bytes>) -> Request {
        let mut request = Request::new(Method::PATCH, path);
        request.content_type = Some(content_type.to_owned());
        request.body = body.into();
        request
    }
    pub(crate) fn json(mut self, body: &Value) -> Request {
        self.content_type = Some("application/json".to_owned());
        self.body = serde_json::to_vec(body).unwrap_or_default().into();
        self
    }
    /// A body that is JSON already, or is meant to be.
    pub(crate) fn bytes(mut self, body: impl Into<Bytes>) -> Request {
        self.content_type = Some("application/json".to_owned());
        self.body = body.into();
        self
    }
    pub(crate) fn query(mut self, key: &str, value: impl Into<String>) -> Request {
        self.query.push((key.to_owned(), value.into()));
        self
    }
    pub(crate) fn query_if(self, condition: bool, key: &str, value: impl Into<String>) -> Request {
        if condition { self.query(key, value) } else { self }
    }
    pub(crate) fn accept(mut self, accept: &'static str) -> Request {
        self.accept = accept;
        self
    }
    /// Of a Table's answer, only what is printed of its rows is read.
    pub(crate) fn rows(mut self, keep: RowParts) -> Request {
        self.keep = Some(keep);
        self
    }
    pub(crate) fn streaming(mut self) -> Request {
        self.long_running = true;
        self
    }

    pub(crate) fn path_and_query(&self) -> String {
        if self.query.is_empty() {
            return self.path.clone();
        }
        let mut pairs = self.query.clone();
        pairs.compact_sort_by(|a, b| a.0.cmp(&b.0));
        let joined: Vec<String> =
            pairs.iter().map(|(k, v)| format!("{}={}", query_escape(k), query_escape(v))).collect();
        let separator = if self.path.contains('?') { '&' } else { '?' };
        format!("{}{separator}{}", self.path, joined.join("&"))
    }

    pub(crate) async fn value(self, cx: &Context) -> Result<Value> {
        self.send(cx).await?.value()
    }

    /// The whole answer; anything but 2xx is the server's Status.
    pub(crate) async fn send(self, cx: &Context) -> Result<Answer> {
        let timeout = cx.request_timeout()?;
        let (method, path, keep) = (self.method.clone(), self.path_and_query(), self.keep);
        let work = async {
            let (status, body) = self.open(cx).await?;
            let body = collect(status, body).await?;
            trace_body(cx, "Response Body", &body);
            Ok::<_, Failure>((status, body))
        };
        let (status, body) = match timeout {
            Some(limit) => match tokio::time::timeout(limit, work).await {
                Ok(done) => done?,
                Err(_) => {
                    let host = cx.server()?;
                    return Err(Failure::Connect {
                        cause: "net/http: request canceled while waiting for connection (Client.Timeout exceeded while awaiting headers)"
                            .to_owned(),
                        host,
                        refused: false,
                        config: String::new(),
                    });
                }
            },
            None => work.await?,
        };
        if !status.is_success() {
            return Err(status_failure(&method, &path, status, &body));
        }
        Ok(Answer { body, keep })
    }

    /// The answer's body as it comes, for logs and watches.
    pub(crate) async fn stream(self, cx: &Context) -> Result<Body> {
        let (method, path) = (self.method.clone(), self.path_and_query());
        let (status, body) = self.streaming().open(cx).await?;
        if !status.is_success() {
            let body = collect(status, body).await?;
            return Err(status_failure(&method, &path, status, &body));
        }
        Ok(body)
    }

    async fn open(self, cx: &Context) -> Result<(StatusCode, Body)> {
        let mut path = self.path_and_query();
        if let Some(timeout) = cx.request_timeout()?.filter(|_| !self.long_running) {
            let separator = if path.contains('?') { '&' } else { '?' };
            path.push_str(&format!("{separator}timeout={}", query_escape(&api::duration::format(timeout))));
        }
        let client = cx.client()?;
        let mut request = http::Request::builder()
            .method(self.method.clone())
            .uri(&path)
            .header(http::header::ACCEPT, self.accept)
            .body(self.body.clone())
            .map_err(|e| Failure::message(e.to_string()))?;
        if let Some(content_type) = &self.content_type
            && let Ok(value) = content_type.parse()
        {
            request.headers_mut().insert(http::header::CONTENT_TYPE, value);
        }
        for extra in cx.flags.list("as-user-extra") {
            if let Some((key, value)) = extra.split_once('=')
                && let (Ok(name), Ok(value)) =
                    (format!("impersonate-extra-{key}").parse::<http::HeaderName>(), value.parse::<http::HeaderValue>())
            {
                request.headers_mut().append(name, value);
            }
        }
        let url =
            if cx.verbosity() >= 6 { format!("{}{path}", cx.server()?.trim_end_matches('/')) } else { String::new() };
        trace_request(cx, &self.method, &url, request.headers(), &self.body);
        if self.method != Method::GET {
            cx.command_span.attach(request.headers_mut());
        }
        let started = Instant::now();
        let response = client.send(request).await.map_err(|e| connect_failure(cx, e))?;
        trace_response(cx, &self.method, &url, response.status(), response.headers(), started);
        for value in response.headers().get_all(http::header::WARNING) {
            if let Some(text) = value.to_str().ok().and_then(warning_text) {
                cx.warn(&text);
            }
        }
        cx.command_span.lap_for(&self.method, &self.path);
        let (parts, body) = response.into_parts();
        Ok((parts.status, body))
    }
}

/// What was asked for is as long as it is; a failure has little to say.
async fn collect(status: StatusCode, body: Body) -> Result<Bytes> {
    let collected = match status.is_success() {
        true => body.collect().await.map(Collected::to_bytes),
        false => client::read_at_most(body, MAX_FAILURE).await,
    };
    match collected {
        Ok(body) => Ok(body),
        Err(e) => Err(Failure::message(format!("{BROKEN_ANSWER} Please retry. Original error: {e}"))),
    }
}

/// `299 - "text"`; other codes and agents are not for people.
fn warning_text(header: &str) -> Option<String> {
    let rest = header.strip_prefix("299 ")?;
    let start = rest.find('"')?;
    let mut text = String::new();
    let mut chars = rest[start + 1..].chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.extend(chars.next()),
            '"' => break,
            c => text.push(c),
        }
    }
    Some(text)
}

pub(crate) fn status_failure(method: &Method, path: &str, status: StatusCode, body: &Bytes) -> Failure {
    if let Ok(value) = serde_json::from_slice::<Value>(body)
        && value["kind"] == "Status"
    {
        return Failure::Status(Box::new(value));
    }
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    let (reason, message) = match status.as_u16() {
        401 => ("Unauthorized", "the server has asked for the client to provide credentials".to_owned()),
        403 => ("Forbidden", if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }),
        404 => ("NotFound", "the server could not find the requested resource".to_owned()),
        405 => ("MethodNotAllowed", "the server does not allow this method on the requested resource".to_owned()),
        406 => ("NotAcceptable", if text.is_empty() { "unknown".to_owned() } else { text.to_owned() }),
        409 => ("Conflict", "the server reported a conflict".to_owned()),
        415 => ("UnsupportedMediaType", text.to_owned()),
        429 => (
            "TooManyRequests",
            "the server has received too many requests and has asked us to try again later".to_owned(),
        ),
        500 => {
            ("InternalError", format!("an error on the server (\"{text}\") has prevented the request from succeeding"))
        }
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request".to_owned()),
        504 => (
            "Timeout",
            "the server was unable to return a response in the time allotted, but may still be processing the request"
                .to_owned(),
        ),
        _ => (
            "",
            format!(
                "the server responded with the status code {} but did not return more information",
                status.as_u16()
            ),
        ),
    };
    let _ = (method, path);
    Failure::Status(Box::new(serde_json::json!({
        "kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": status.as_u16(),
    })))
}

pub(crate) fn connect_failure(cx: &Context, error: client::Error) -> Failure {
    let server = cx.server().unwrap_or_default();
    let host = server.split("://").nth(1).unwrap_or(&server).split('/').next().unwrap_or("").to_owned();
    match error {
        client::Error::Api(status) => Failure::Status(Box::new(serde_json::to_value(&*status).unwrap_or(Value::Null))),
        client::Error::Transport { source, .. } => {
            let cause = source.to_string();
            let refused = cause.to_lowercase().contains("connection refused");
            let config = if refused { advice(cx) } else { String::new() };
            Failure::Connect { host, cause, refused, config }
        }
        client::Error::Timeout { .. } => Failure::Connect {
            host,
            cause: "net/http: TLS handshake timeout".to_owned(),
            refused: false,
            config: String::new(),
        },
        other => Failure::message(other.to_string()),
    }
}

/// What people need next when nothing listens: which file and context chose the server, and what to run.
fn advice(cx: &Context) -> String {
    let paths = client::kubeconfig::Kubeconfig::paths(cx.kubeconfig_path().as_deref());
    let read: Vec<String> = paths.iter().filter(|p| p.exists()).map(|p| p.display().to_string()).collect();
    let context = match cx.flags.string("context") {
        c if !c.is_empty() => c,
        _ => cx.kubeconfig().map(|k| k.current_context.clone()).unwrap_or_default(),
    };
    if read.is_empty() {
        return "\n(no kubeconfig was found; `cox up` starts a cluster and writes one, or pass --kubeconfig; after `sudo cox \
                up` it is root's: use sudo here, too)"
            .to_owned();
    }
    format!(
        "\n(kubeconfig {}, context {}; `kubectl config get-contexts` lists the others, `cox status` shows a local cluster)",
        read.join(", "),
        if context.is_empty() { "none" } else { &context }
    )
}

fn trace_request(cx: &Context, method: &Method, url: &str, headers: &HeaderMap, body: &Bytes) {
    let verbosity = cx.verbosity();
    if verbosity < 7 {
        return;
    }
    trace_body(cx, "Request Body", body);
    let agent = crate::user_agent();
    let mut lines = header_lines(headers);
    lines.push(("User-Agent".to_owned(), agent));
    lines.compact_sort();
    let what = if verbosity >= 9 {
        let shown: Vec<String> = lines.iter().map(|(name, value)| format!("-H \"{name}: {value}\"")).collect();
        pair("curlCommand", &format!("curl -v -X{method}  {} '{url}'\n", shown.join(" ")))
    } else {
        let headers = pair("headers", &in_lines(&lines));
        format!("{} {} {headers}", pair("verb", method.as_str()), pair("url", url))
    };
    cx.trace(7, "round_trippers.go:527", &format!("\"Request\" {what}"));
}

/// The parts of a line depend on the level as upstream's do: at 7 and 8 the request has been named already.
fn trace_response(cx: &Context, method: &Method, url: &str, status: StatusCode, headers: &HeaderMap, started: Instant) {
    let verbosity = cx.verbosity();
    if verbosity < 6 {
        return;
    }
    let mut parts = Vec::new();
    if matches!(verbosity, 6 | 9..) {
        parts.push(pair("verb", method.as_str()));
        parts.push(pair("url", url));
    }
    let reason = status.canonical_reason().unwrap_or("");
    parts.push(pair("status", &format!("{} {reason}", status.as_u16())));
    if verbosity >= 8 {
        let mut lines = header_lines(headers);
        lines.compact_sort();
        parts.push(pair("headers", &in_lines(&lines)));
    }
    parts.push(format!("milliseconds={}", started.elapsed().as_millis()));
    cx.trace(6, "round_trippers.go:632", &format!("\"Response\" {}", parts.join(" ")));
}

fn trace_body(cx: &Context, what: &str, body: &Bytes) {
    if cx.verbosity() >= 8 {
        let text = shortened(cx, &String::from_utf8_lossy(body));
        cx.trace(8, "helper.go:113", &format!("\"{what}\" {}", pair("body", &text)));
    }
}

fn header_lines(headers: &HeaderMap) -> Vec<(String, String)> {
    headers.iter().map(|(name, value)| (canonical(name.as_str()), redact(name.as_str(), value))).collect()
}

fn in_lines(headers: &[(String, String)]) -> String {
    headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
}

/// A key and its value as upstream's log has them: quoted, or in lines of their own when there are several.
fn pair(key: &str, value: &str) -> String {
    if !value.contains('\n') {
        return format!("{key}={value:?}");
    }
    let lines: String = value.lines().map(|line| format!("\t{line}\n")).collect();
    format!("{key}=<\n{lines} >")
}

fn shortened(cx: &Context, text: &str) -> String {
    let limit = match cx.verbosity() {
        10.. => return text.to_owned(),
        9 => 10240,
        _ => 1024,
    };
    if text.len() <= limit {
        return text.to_owned();
    }
    let cut = (0..=limit).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
    format!("{} [truncated {} chars]", &text[..cut], text.len() - cut)
}

fn canonical(name: &str) -> String {
    name.split('-')
        .map(|part| {
            let mut chars = part.chars();
            chars.next().map(|c| c.to_uppercase().collect::<String>() + chars.as_str()).unwrap_or_default()
        })
        .collect::<Vec<_>>()
        .join("-")
}

fn redact(name: &str, value: &http::HeaderValue) -> String {
    let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
    if !name.eq_ignore_ascii_case("authorization") || value.is_empty() {
        return value;
    }
    let (kind, rest) = value.split_once(' ').unwrap_or((&value, ""));
    match ["bearer", "basic", "negotiate"].contains(&kind.to_lowercase().as_str()) {
        true if rest.is_empty() => kind.to_owned(),
        true => format!("{kind} <masked>"),
        false => "<masked>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_one_segment_of_a_path_or_refused() {
        assert_eq!(name_segment("web-0").ok().as_deref(), Some("web-0"));
        assert_eq!(name_segment("system:a b?").ok().as_deref(), Some("system:a%20b%3F"));
        for (name, expected) in [
            ("../secrets", "invalid resource name \"../secrets\": [may not contain '/']"),
            ("..", "invalid resource name \"..\": [may not be '..']"),
            ("a/b%2f", "invalid resource name \"a/b%2f\": [may not contain '/' may not contain '%']"),
            ("", "resource name may not be empty"),
        ] {
            assert_eq!(name_segment(name).err().map(|failure| failure.inner()), Some(expected.to_owned()));
        }
        let refused = namespace_segment("a/pods/b").err().map(|failure| failure.inner());
        assert_eq!(refused.as_deref(), Some("invalid namespace \"a/pods/b\": [may not contain '/']"));
    }

    #[test]
    fn queries_escape_and_sort() {
        let r = Request::get("/api/v1/pods").query("labelSelector", "a=b,c in (d)").query("fieldSelector", "x=y");
        assert_eq!(r.path_and_query(), "/api/v1/pods?fieldSelector=x%3Dy&labelSelector=a%3Db%2Cc+in+%28d%29");
    }

    #[tokio::test]
    async fn a_failure_without_end_is_cut_off() {
        let body = |length: usize| {
            http_body_util::Full::new(Bytes::from(vec![b' '; length])).map_err(|never| match never {}).boxed_unsync()
        };
        for (status, length, is_read) in [
            (StatusCode::OK, MAX_FAILURE + 1, true),
            (StatusCode::BAD_GATEWAY, MAX_FAILURE, true),
            (StatusCode::BAD_GATEWAY, MAX_FAILURE + 1, false),
        ] {
            assert_eq!(collect(status, body(length)).await.is_ok(), is_read, "{status} {length}");
        }
    }

    #[test]
    fn warnings_unquote() {
        assert_eq!(warning_text("299 - \"use \\\"b\\\" instead\"").as_deref(), Some("use \"b\" instead"));
        assert_eq!(warning_text("199 - \"x\""), None);
    }
}
