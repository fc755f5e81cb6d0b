//! Carrying a request to the API server: over HTTPS, or by a function call inside one process.

mod auth;
mod exec;
mod https;
mod limit;
mod measure;
mod proxy;
mod service_account;
mod tls;
mod traced;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};

pub use https::{Endpoint, Upgraded};
pub use limit::Limit;
pub(crate) use traced::Traced;

use crate::answer::{read_failure, read_out};
use crate::kubeconfig::{Kubeconfig, Overrides};
use crate::metrics::{Metrics, rest_client};
use crate::{Body, Error, Handler};
use auth::Auth;
use measure::Measure;
use service_account::TokenSource;

/// How often a request that the server asked to repeat (429, `Retry-After`) is repeated.
const MAX_RETRIES: u32 = 10;
/// Deadline of calls with one answer. Watches and upgrades end by the server's timeout or a dead connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection to one API server as one user. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    transport: Arc<Transport>,
    headers: Arc<Vec<(HeaderName, HeaderValue)>>,
    namespace: Arc<str>,
    measure: Option<Measure>,
    limit: Option<Arc<Limit>>,
    traced: Option<Arc<Traced>>,
}

enum Transport {
    InProcess { handler: Handler, user: api::UserInfo },
    Https(Box<https::Https>),
}

impl Client {
    /// Calls `handler` directly as `user`: no sockets, no TLS, the same checks as for anyone else.
    pub fn in_process(handler: Handler, user: api::UserInfo) -> Self {
        Self::new(Transport::InProcess { handler, user }, Vec::new(), "default")
    }

    /// As a component's flags say: `--kubeconfig`, and `--master` over the address in it.
    pub fn from_flags(kubeconfig: Option<&Path>, master: Option<String>) -> Result<Self, Error> {
        let overrides = Overrides { server: master, ..Overrides::default() };
        Self::from_kubeconfig(&Kubeconfig::load(kubeconfig)?, &overrides)
    }

    /// HTTPS (HTTP/2 where offered) to the cluster of a kubeconfig's context.
    pub fn from_kubeconfig(config: &Kubeconfig, overrides: &Overrides) -> Result<Self, Error> {
        let resolved = config.resolve(overrides)?;
        let mut headers = Vec::new();
        let impersonation =
            [("impersonate-user", &resolved.impersonate_user), ("impersonate-uid", &resolved.impersonate_uid)];
        for (name, value) in impersonation {
            if let Some(value) = value {
                headers.push((HeaderName::from_static(name), header_value(value)?));
            }
        }
        for group in &resolved.impersonate_groups {
            headers.push((HeaderName::from_static("impersonate-group"), header_value(group)?));
        }
        let namespace = resolved.namespace.clone();
        Ok(Self::new(Transport::Https(Box::new(https::Https::new(resolved)?)), headers, &namespace))
    }

    /// From the service account that a pod is given.
    pub fn in_cluster() -> Result<Self, Error> {
        Self::from_kubeconfig(&Kubeconfig::in_cluster()?, &Overrides::default())
    }

    fn new(transport: Transport, mut headers: Vec<(HeaderName, HeaderValue)>, namespace: &str) -> Self {
        let agent = concat!("cox/", env!("CARGO_PKG_VERSION"), " (linux)");
        headers.push((header::USER_AGENT, HeaderValue::from_static(agent)));
        Self {
            transport: Arc::new(transport),
            headers: Arc::new(headers),
            namespace: namespace.into(),
            measure: None,
            limit: None,
            traced: None,
        }
    }

    /// The same connection under another program name; the server takes the field manager from it.
    pub fn with_user_agent(&self, agent: &str) -> Result<Self, Error> {
        let mut headers: Vec<_> = self.headers.iter().filter(|(name, _)| name != header::USER_AGENT).cloned().collect();
        headers.push((header::USER_AGENT, header_value(agent)?));
        Ok(Self { headers: Arc::new(headers), ..self.clone() })
    }

    /// The same server as another user. Only the in-process door can switch; over HTTPS the credentials decide
    /// and the client stays who it is.
    pub fn with_user(&self, user: api::UserInfo) -> Self {
        match &*self.transport {
            Transport::InProcess { handler, .. } => {
                let transport = Transport::InProcess { handler: handler.clone(), user };
                Self { transport: Arc::new(transport), ..self.clone() }
            }
            Transport::Https(_) => self.clone(),
        }
    }

    /// The same server as a service account. In-process the identity is simply attached; over HTTPS a token is asked for
    /// with this client's rights, and the account is made if it does not exist.
    pub fn as_service_account(&self, namespace: &str, name: &str) -> Self {
        match &*self.transport {
            Transport::InProcess { .. } => self.with_user(api::UserInfo::service_account(namespace, name, "")),
            Transport::Https(https) => {
                let source = TokenSource::new(self.clone(), namespace, name);
                let https = https.with_auth(Auth::ServiceAccount(Box::new(source)));
                Self { transport: Arc::new(Transport::Https(Box::new(https))), ..self.clone() }
            }
        }
    }

    /// The same connection, its requests counted in `metrics`.
    pub fn with_metrics(&self, metrics: &Metrics) -> Self {
        let host = self.server().and_then(|server| server.split_once("://").map(|(_, host)| host.to_owned()));
        Self {
            measure: Some(Measure::new(metrics, &host.unwrap_or_else(|| rest_client::IN_PROCESS.into()))),
            ..self.clone()
        }
    }

    /// The same connection at no more than `qps` requests per second, with bursts; a rate of zero limits nothing. Clones share
    /// the limit.
    pub fn with_rate_limit(&self, qps: f64, burst: u32) -> Self {
        Self { limit: Limit::new(qps, burst).map(Arc::new), ..self.clone() }
    }

    /// The same connection; `traced` records what follows from its watches.
    pub(crate) fn traced_by(&self, traced: Traced) -> Self {
        Self { traced: Some(Arc::new(traced)), ..self.clone() }
    }

    /// Where what follows from its watches is recorded.
    pub fn recorder(&self) -> Option<&Arc<trace::Recorder>> {
        self.traced.as_ref().map(|traced| &traced.recorder)
    }

    pub(crate) fn trace(&self) -> Option<&Arc<Traced>> {
        self.traced.as_ref()
    }

    /// The namespace of the kubeconfig's context, else `default`.
    pub fn default_namespace(&self) -> &str {
        &self.namespace
    }

    /// The server's base URL; `None` in-process.
    pub fn server(&self) -> Option<String> {
        match &*self.transport {
            Transport::InProcess { .. } => None,
            Transport::Https(https) => Some(https.server()),
        }
    }

    /// Where the server is and what it takes to be let in; an error in-process.
    pub async fn endpoint(&self) -> Result<Endpoint, Error> {
        match &*self.transport {
            Transport::InProcess { .. } => Err(Error::config("the server is in this process")),
            Transport::Https(https) => https.endpoint().await,
        }
    }

    /// Sends a request whose URI is a path with query. Any status is an answer; see `send_checked`.
    /// Boxed: what an `async fn` does is compiled again by every crate that waits for it.
    pub fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(self.send_now(request))
    }

    async fn send_now(&self, mut request: Request<Bytes>) -> Result<Response<Body>, Error> {
        for (name, value) in self.headers.iter() {
            // Repeated for `Impersonate-Group`; whatever the caller set wins.
            if name == "impersonate-group" || !request.headers().contains_key(name) {
                request.headers_mut().append(name.clone(), value.clone());
            }
        }
        if let Some(causes) = trace::current().header().and_then(|text| HeaderValue::from_str(&text).ok()) {
            request.headers_mut().insert(trace::CAUSE_HEADER, causes);
        }
        if let Some(context) = trace::trace_context().and_then(|at| HeaderValue::from_str(&at.to_string()).ok()) {
            request.headers_mut().insert(trace::TRACEPARENT, context);
        }
        let mut retries = 0;
        loop {
            if let Some(limit) = &self.limit {
                limit.turn().await;
            }
            let response = match &self.measure {
                Some(measure) => measure.around(request.method().clone(), self.send_once(request.clone())).await?,
                None => self.send_once(request.clone()).await?,
            };
            match retry_after(&response) {
                Some(delay) if retries < MAX_RETRIES => {
                    retries += 1;
                    read_out(response).await;
                    tokio::time::sleep(delay).await;
                }
                _ => return Ok(response),
            }
        }
    }

    async fn send_once(&self, mut request: Request<Bytes>) -> Result<Response<Body>, Error> {
        match &*self.transport {
            Transport::InProcess { handler, user } => {
                request.extensions_mut().insert(user.clone());
                Ok(handler(request).await)
            }
            Transport::Https(https) => https.send(request).await,
        }
    }

    /// Like `send`; an answer that is not 2xx becomes `Error::Api`.
    pub fn send_checked(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Body>, Error>> {
        Box::pin(self.send_checked_now(request))
    }

    async fn send_checked_now(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let (method, uri) = (request.method().clone(), request.uri().to_string());
        let response = match tokio::time::timeout(CALL_TIMEOUT, self.send_now(request)).await {
            Ok(response) => response?,
            Err(_) => return Err(Error::Timeout { method, uri, seconds: CALL_TIMEOUT.as_secs() }),
        };
        if response.status().is_success() { Ok(response) } else { Err(failure(response, method, uri).await) }
    }

    /// Switches protocols (exec, attach, port-forward) on an HTTP/1.1 connection of its own.
    /// The caller sets `Upgrade`, `Connection` and whatever its protocol needs.
    pub async fn upgrade(&self, mut request: Request<Bytes>) -> Result<(Response<()>, Upgraded), Error> {
        for (name, value) in self.headers.iter() {
            request.headers_mut().append(name.clone(), value.clone());
        }
        match &*self.transport {
            Transport::InProcess { .. } => {
                Err(Error::Upgrade("an in-process client has no connection to upgrade".into()))
            }
            Transport::Https(https) => https.upgrade(request).await,
        }
    }
}

/// The failure that a non-2xx answer stands for, also when its body is not a `Status` (proxies, load balancers).
pub(crate) async fn failure(response: Response<Body>, method: http::Method, uri: String) -> Error {
    let code = response.status();
    match read_failure(response.into_body()).await {
        Err(source) => Error::Transport { method, uri, source },
        Ok(body) => match serde_json::from_slice::<api::Status>(&body) {
            Ok(status) if status.is_failure() => Error::from(status),
            _ => Error::from(api::Status::from_code(code.as_u16(), String::from_utf8_lossy(&body).trim())),
        },
    }
}

fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let code = response.status();
    if code != StatusCode::TOO_MANY_REQUESTS && !code.is_server_error() {
        return None;
    }
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

fn header_value(text: &str) -> Result<HeaderValue, Error> {
    HeaderValue::from_str(text).map_err(|_| Error::config(format!("{text:?} cannot be an HTTP header value")))
}
