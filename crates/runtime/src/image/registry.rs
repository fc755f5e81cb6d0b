//! A small client of the registry protocol (OCI distribution): GET with tokens, redirects and time limits.

use std::sync::Arc;
use std::time::Duration;

use api::image::is_loopback;
use api::percent::{encode_except, is_unreserved};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::FutureExt;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, RANGE, USER_AGENT, WWW_AUTHENTICATE};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;

use super::mirrors::Endpoint;
use super::{Credentials, PullError};
use crate::bounds::MAX_DOCUMENT;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Silence for this long means the server is gone; slow but steady downloads go on.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_REDIRECTS: usize = 10;

/// One repository on one server, with the token it gave us.
pub(crate) struct Registry {
    endpoint: Endpoint,
    credentials: Option<Credentials>,
    authorization: tokio::sync::Mutex<Option<String>>,
    tls: Arc<rustls::ClientConfig>,
}

impl Registry {
    pub(crate) fn new(endpoint: Endpoint, credentials: Option<Credentials>) -> Result<Self, PullError> {
        let credentials = credentials
            .or_else(|| endpoint.auth.clone().map(|(username, password)| Credentials::Basic { username, password }));
        let tls = Arc::new(tls_config(&endpoint)?);
        Ok(Self { endpoint, credentials, authorization: tokio::sync::Mutex::new(None), tls })
    }

    pub(crate) fn url(&self) -> &str {
        &self.endpoint.url
    }

    /// A whole small document of this repository: (body, content type).
    pub(crate) async fn document(&self, path: &str, accept: &str) -> Result<(Bytes, String), PullError> {
        let response = self.get(path, accept, 0).await?;
        let kind = response
            .headers()
            .get(http::header::CONTENT_TYPE)
            .and_then(|v| v.to_str().ok())
            .unwrap_or_default()
            .to_string();
        Ok((collect(response).await?, kind))
    }

    /// A blob of this repository, from byte `offset` on if the server can do that (then the status is 206).
    pub(crate) async fn blob(&self, digest: &str, offset: u64) -> Result<Response<Incoming>, PullError> {
        self.get(&format!("blobs/{digest}"), "*/*", offset).await
    }

    async fn get(&self, path: &str, accept: &str, offset: u64) -> Result<Response<Incoming>, PullError> {
        let url = format!("{}/v2/{}/{path}", self.endpoint.url, self.endpoint.repository);
        let authorization = self.authorization.lock().await.clone();
        let (response, is_first) = self.follow(&url, accept, authorization.as_deref(), offset).await?;
        // Credentials are the answer to a challenge of the registry itself, never of whom it sends us to.
        if response.status() != StatusCode::UNAUTHORIZED || !is_first {
            return check(response, &url, is_first).await;
        }
        let challenge =
            response.headers().get(WWW_AUTHENTICATE).and_then(|v| v.to_str().ok()).unwrap_or_default().to_string();
        let authorization = self.authorize(&challenge).await?;
        *self.authorization.lock().await = Some(authorization.clone());
        let (response, is_first) = self.follow(&url, accept, Some(&authorization), offset).await?;
        check(response, &url, is_first).await
    }

    /// Answers a 401: basic credentials, or a token from the place that the challenge names.
    async fn authorize(&self, challenge: &str) -> Result<String, PullError> {
        let refused = || PullError::Unauthorized(self.endpoint.url.clone());
        let (scheme, rest) = challenge.split_once(' ').unwrap_or((challenge, ""));
        let basic = || match &self.credentials {
            Some(Credentials::Basic { username, password }) => {
                Some(format!("Basic {}", STANDARD.encode(format!("{username}:{password}"))))
            }
            _ => None,
        };
        if let Some(Credentials::Token(token)) = &self.credentials {
            return Ok(format!("Bearer {token}"));
        }
        if scheme.eq_ignore_ascii_case("basic") {
            return basic().ok_or_else(refused);
        }
        let place = TokenPlace::of(&self.endpoint, rest, self.credentials.is_some())?;
        let response = match &self.credentials {
            Some(Credentials::Identity(token)) => self.exchange_identity(&place, token).await?,
            _ => self.follow(&place.url(), "application/json", basic().as_deref(), 0).await?.0,
        };
        if response.status() != StatusCode::OK {
            return Err(refused());
        }
        // Some servers send both names; the first one counts.
        let value: serde_json::Value = serde_json::from_slice(&collect(response).await?).map_err(|_| refused())?;
        let token = value.get("token").or_else(|| value.get("access_token")).and_then(|t| t.as_str());
        Ok(format!("Bearer {}", token.ok_or_else(refused)?))
    }

    /// OAuth 2: an identity token is sent in a body, never in a URL or to another place than the challenge names.
    async fn exchange_identity(&self, place: &TokenPlace, token: &str) -> Result<Response<Incoming>, PullError> {
        let uri: Uri = place.realm.parse().map_err(|_| PullError::Server(format!("{}: not a URL", place.realm)))?;
        let form = format!("grant_type=refresh_token&client_id=cox&refresh_token={}&{}", escape(token), place.asked());
        let request = request(Method::POST, &uri, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Full::from(form))
            .map_err(|e| PullError::Server(e.to_string()))?;
        self.send(&uri, request).await
    }

    /// The answer at the end of all redirects, and whether it is from the server that was asked first.
    async fn follow(
        &self,
        url: &str,
        accept: &str,
        authorization: Option<&str>,
        offset: u64,
    ) -> Result<(Response<Incoming>, bool), PullError> {
        let mut uri: Uri = url.parse().map_err(|_| PullError::Server(format!("{url}: not a URL")))?;
        let first = (uri.scheme().cloned(), uri.authority().cloned());
        for _ in 0..MAX_REDIRECTS {
            let mut request = request(Method::GET, &uri, accept);
            // Credentials stay with the server they are for, and as encrypted as they were.
            let is_first = uri.scheme() == first.0.as_ref() && uri.authority() == first.1.as_ref();
            if let (Some(authorization), true) = (authorization, is_first) {
                request = request.header(AUTHORIZATION, authorization);
            }
            if offset > 0 {
                request = request.header(RANGE, format!("bytes={offset}-"));
            }
            let request = request.body(Full::default()).map_err(|e| PullError::Server(e.to_string()))?;
            let response = self.send(&uri, request).await?;
            if !response.status().is_redirection() {
                return Ok((response, is_first));
            }
            let location = response.headers().get(LOCATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
            uri = resolve(&uri, location).ok_or_else(|| PullError::Server(format!("{url}: bad redirect")))?;
        }
        Err(PullError::Server(format!("{url}: too many redirects")))
    }

    async fn send(&self, uri: &Uri, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, PullError> {
        let unreachable = |error: &dyn std::fmt::Display| PullError::Unreachable(format!("Get \"{uri}\": {error}"));
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        let tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if tls { 443 } else { 80 });
        let work = async {
            let stream = TcpStream::connect((host, port)).await.map_err(|e| unreachable(&e))?;
            let stream: Box<dyn tls::Stream> = if tls {
                let name = ServerName::try_from(host.to_string()).map_err(|e| unreachable(&e))?;
                let connector = tokio_rustls::TlsConnector::from(self.tls.clone());
                Box::new(connector.connect(name, stream).await.map_err(|e| unreachable(&e))?)
            } else {
                Box::new(stream)
            };
            exchange(TokioIo::new(stream), request).await.map_err(|e| unreachable(&e))
        };
        tokio::time::timeout(CONNECT_TIMEOUT, work).await.map_err(|_| unreachable(&"no answer in time"))?
    }
}

fn request(method: Method, uri: &Uri, accept: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(uri.path_and_query().map_or("/", |p| p.as_str()))
        .header(HOST, uri.authority().map_or("", |a| a.as_str()))
        .header(USER_AGENT, "cox")
        .header(ACCEPT, accept)
}

async fn exchange<T>(io: T, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
    // Lives exactly as long as the response body is read or dropped.
    tokio::spawn(FutureExt::boxed(connection));
    sender.send_request(request).await
}

/// The next piece of a body; an error when the server falls silent.
pub(crate) async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, PullError> {
    loop {
        let frame = tokio::time::timeout(IDLE_TIMEOUT, body.frame())
            .await
            .map_err(|_| PullError::Unreachable("the server stopped sending".into()))?;
        match frame {
            None => return Ok(None),
            Some(Err(error)) => return Err(PullError::Unreachable(error.to_string())),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn collect(response: Response<Incoming>) -> Result<Bytes, PullError> {
    let mut body = response.into_body();
    let mut all = Vec::new();
    while let Some(chunk) = next_chunk(&mut body).await? {
        all.extend_from_slice(&chunk);
        if all.len() as u64 > MAX_DOCUMENT {
            return Err(PullError::Server("the answer is too large".into()));
        }
    }
    Ok(all.into())
}

/// What went wrong is told in the words of the registry. It may lead anywhere that this node reaches, and of what is said there whoever
/// named the image hears nothing.
async fn check(response: Response<Incoming>, url: &str, is_first: bool) -> Result<Response<Incoming>, PullError> {
    match response.status() {
        status if status.is_success() => Ok(response),
        StatusCode::NOT_FOUND => Err(PullError::NotFound(url.to_string())),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PullError::Unauthorized(url.to_string())),
        status if !is_first => Err(PullError::Server(format!("{url}: unexpected status {status} after a redirect"))),
        status => {
            let body = collect(response).await.unwrap_or_default();
            let text = String::from_utf8_lossy(&body[..body.len().min(512)]).into_owned();
            Err(PullError::Server(format!("{url}: unexpected status {status}: {text}")))
        }
    }
}

/// Where the parameters of a challenge say that a token is given out, and for what.
struct TokenPlace {
    realm: String,
    scope: String,
    service: Option<String>,
}

impl TokenPlace {
    fn of(endpoint: &Endpoint, challenge: &str, has_credentials: bool) -> Result<Self, PullError> {
        let parameters = parse_challenge(challenge);
        let get = |key: &str| parameters.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone());
        let realm = get("realm").ok_or_else(|| PullError::Unauthorized(endpoint.url.clone()))?;
        if has_credentials && !may_see_credentials(&realm, endpoint) {
            return Err(PullError::Server(format!("{}: credentials are not sent to {realm}", endpoint.url)));
        }
        let scope = get("scope").unwrap_or_else(|| format!("repository:{}:pull", endpoint.repository));
        Ok(Self { realm, scope, service: get("service") })
    }

    fn asked(&self) -> String {
        let service = self.service.as_ref().map(|service| format!("&service={}", escape(service)));
        format!("scope={}{}", escape(&self.scope), service.unwrap_or_default())
    }

    fn url(&self) -> String {
        format!("{}{}{}", self.realm, if self.realm.contains('?') { '&' } else { '?' }, self.asked())
    }
}

/// Whether a pull secret may go to the place that gives out tokens: over TLS, or where the network is ours, or where
/// the registry itself is configured to be reached without TLS.
fn may_see_credentials(realm: &str, endpoint: &Endpoint) -> bool {
    let Ok(uri) = realm.parse::<Uri>() else { return false };
    match uri.scheme_str() {
        Some("https") => true,
        Some("http") => is_loopback(uri.host().unwrap_or_default()) || endpoint.url.starts_with("http://"),
        _ => false,
    }
}

fn resolve(base: &Uri, location: &str) -> Option<Uri> {
    if location.starts_with('/') {
        let authority = base.authority()?;
        return format!("{}://{authority}{location}", base.scheme_str()?).parse().ok();
    }
    location.parse().ok().filter(|uri: &Uri| uri.scheme().is_some() && uri.authority().is_some())
}

/// `realm="https://x",service="y"` as pairs.
fn parse_challenge(text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    let mut rest = text;
    while let Some((key, after)) = rest.split_once('=') {
        let key = key.trim_matches([' ', ',']).to_lowercase();
        let after = after.trim_start();
        let (value, tail) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        pairs.push((key, value.to_string()));
        rest = tail;
    }
    pairs
}

fn escape(text: &str) -> String {
    encode_except(text, is_unreserved)
}

/// The node's certificate authorities, plus the one configured for this server.
fn tls_config(endpoint: &Endpoint) -> Result<rustls::ClientConfig, PullError> {
    if endpoint.skip_verify {
        return Ok(tls::unverified_client());
    }
    let mut roots = rustls::RootCertStore::empty();
    if endpoint.url.starts_with("https") {
        roots = tls::system_roots();
        if let Some(path) = &endpoint.ca_file {
            let configured = tls::load_certificates(path);
            roots.add_parsable_certificates(configured.map_err(|error| PullError::Server(format!("{error:#}")))?);
        }
    }
    Ok(tls::client_builder().with_root_certificates(roots).with_no_client_auth())
}

/// A challenge of any registry: a pull secret goes nowhere in plain text but to this machine.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_challenge(text: &str) {
    let pairs = parse_challenge(text);
    assert!(pairs.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>() <= 3 * text.len(), "{text}");
    let endpoint = Endpoint {
        url: "https://registry.example".into(),
        skip_verify: false,
        ca_file: None,
        auth: None,
        repository: "a/b".into(),
    };
    let _ = TokenPlace::of(&endpoint, text, false);
    let Ok(place) = TokenPlace::of(&endpoint, text, true) else { return };
    // Read here as `follow` and `exchange_identity` read it.
    for uri in [place.url(), place.realm].iter().filter_map(|url| url.parse::<Uri>().ok()) {
        let host = uri.host().unwrap_or_default();
        let is_own = host == "localhost" || host == "[::1]" || host.starts_with("127.");
        assert!(uri.scheme_str() == Some("https") || is_own, "{text}: {uri}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_parsed() {
        let pairs = parse_challenge("realm=\"https://a/token\",service=\"r, x\",scope=\"repository:a/b:pull\"");
        let expected = [("realm", "https://a/token"), ("service", "r, x"), ("scope", "repository:a/b:pull")];
        assert_eq!(pairs, expected.map(|(k, v)| (k.to_string(), v.to_string())));
    }

    fn endpoint(url: String) -> Endpoint {
        Endpoint { url, skip_verify: false, ca_file: None, auth: None, repository: "a/b".into() }
    }

    #[test]
    fn security_pull_secrets_go_to_encrypted_or_own_places_only() {
        for (realm, registry, expected) in [
            ("https://auth.example/token", "https://registry.example", true),
            ("http://auth.example/token", "https://registry.example", false),
            ("http://127.0.0.1:5000/token", "https://registry.example", true),
            ("http://[::1]/token", "https://registry.example", true),
            ("http://127.0.0.1.example/token", "https://registry.example", false),
            ("http://auth.example/token", "http://registry.example", true),
            ("ftp://auth.example/token", "http://registry.example", false),
            ("/token", "https://registry.example", false),
        ] {
            assert_eq!(may_see_credentials(realm, &endpoint(registry.into())), expected, "{realm} of {registry}");
        }
    }

    /// Answers every request with what `answer` makes of it, and keeps the requests.
    async fn server(
        answer: impl Fn(&str) -> String + Send + 'static,
    ) -> (String, Arc<parking_lot::Mutex<Vec<String>>>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests: Arc<parking_lot::Mutex<Vec<String>>> = Arc::default();
        let seen = requests.clone();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (mut request, mut buffer) = (String::new(), [0; 4096]);
                while !request.contains("\r\n\r\n") {
                    let read = stream.read(&mut buffer).await.unwrap();
                    request.push_str(&String::from_utf8_lossy(&buffer[..read]));
                }
                stream.write_all(answer(&request).as_bytes()).await.unwrap();
                seen.lock().push(request);
            }
        });
        (url, requests)
    }

    #[tokio::test]
    async fn security_a_redirected_host_gets_no_pull_secret() {
        let challenge = |realm: &str| {
            format!(
                "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer realm=\"{realm}\"\r\ncontent-length: 0\r\n\r\n"
            )
        };
        let (thief, stolen) = server(move |request| {
            let host = request.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
            challenge(&format!("http://{host}/token"))
        })
        .await;
        let (registry, _) = server(move |_| {
            format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {thief}/x\r\ncontent-length: 0\r\n\r\n")
        })
        .await;
        let secret = Credentials::Basic { username: "u".into(), password: "p".into() };
        let registry = Registry::new(endpoint(registry), Some(secret)).unwrap();
        let refused = registry.blob("sha256:0", 0).await.unwrap_err();
        assert!(matches!(refused, PullError::Unauthorized(_)), "{refused}");
        let stolen = stolen.lock();
        assert!(!stolen.is_empty());
        assert!(stolen.iter().all(|request| !request.to_lowercase().contains("authorization")), "{stolen:?}");
    }

    #[tokio::test]
    async fn security_what_is_said_where_a_registry_leads_is_not_told() {
        let failing = |_: &str| "HTTP/1.1 500 Oops\r\ncontent-length: 7\r\n\r\nsecrets".to_owned();
        let (inside, _) = server(failing).await;
        let location = inside.clone();
        let (leading, _) = server(move |_| {
            format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: {location}/x\r\ncontent-length: 0\r\n\r\n")
        })
        .await;
        for (registry, is_told) in [(inside, true), (leading, false)] {
            let registry = Registry::new(endpoint(registry), None).unwrap();
            let failed = registry.document("manifests/x", "*/*").await.unwrap_err().to_string();
            assert!(failed.contains("unexpected status 500") && failed.contains("secrets") == is_told, "{failed}");
        }
    }

    #[tokio::test]
    async fn an_identity_token_is_exchanged() {
        let (registry, requests) = server(|request| {
            let (status, body) = match request.lines().next().unwrap_or_default() {
                "POST /token HTTP/1.1" => ("200 OK", "{\"access_token\": \"for-this\"}"),
                _ if request.contains("authorization: Bearer for-this\r\n") => ("200 OK", "{}"),
                _ => ("401 Unauthorized", ""),
            };
            let host = request.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
            let challenge = format!("Bearer realm=\"http://{host}/token\",service=\"s t\"");
            let length = body.len();
            format!("HTTP/1.1 {status}\r\nwww-authenticate: {challenge}\r\ncontent-length: {length}\r\n\r\n{body}")
        })
        .await;
        let registry = Registry::new(endpoint(registry), Some(Credentials::Identity("a/b".into()))).unwrap();
        assert_eq!(registry.document("manifests/x", "*/*").await.unwrap().0, "{}");
        let form =
            "grant_type=refresh_token&client_id=cox&refresh_token=a%2Fb&scope=repository%3Aa%2Fb%3Apull&service=s%20t";
        assert_eq!(requests.lock()[1].rsplit("\r\n\r\n").next(), Some(form));
    }

    #[test]
    fn redirects_are_resolved() {
        let base: Uri = "https://a.b/v2/x".parse().unwrap();
        for (location, expected) in
            [("/y?z", Some("https://a.b/y?z")), ("http://c/d", Some("http://c/d")), ("rel", None)]
        {
            assert_eq!(resolve(&base, location).map(|u| u.to_string()).as_deref(), expected, "{location}");
        }
    }
}
