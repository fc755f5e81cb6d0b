//! Service-account tokens that another program signs (`--service-account-signing-endpoint`, `k8s.io/externaljwt` v1): gRPC over a
//! Unix socket.
//!
//! The program says which public keys count, and for how long its answer holds; they are asked for again by then, and whenever
//! a token names a key that is not among them. While it does not answer, the keys of its last answer count.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::metrics::Metrics;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use grpc::Caller;
use jwt::Key;
use parking_lot::RwLock;
use prost::Message;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

/// All as upstream: for keys, for what is said at the start, and the pause after keys could not be had.
const KEYS_TIMEOUT: Duration = Duration::from_secs(60);
const METADATA_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// For a signature: a request of a client waits for it.
const SIGN_TIMEOUT: Duration = Duration::from_secs(30);
/// The signer may not be there yet when this server starts.
const CONNECT_RETRY_INTERVAL: Duration = Duration::from_millis(200);
const MAX_KEY_ID: usize = 1024;
/// The shortest life that a token may be asked for.
const MIN_LIFE: i64 = 600;
/// Somebody who makes up key ids is not to have the signer asked more often than this.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
const DURATIONS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, PartialEq, Message)]
struct SignRequest {
    #[prost(string, tag = "1")]
    claims: String,
}

#[derive(Clone, PartialEq, Message)]
struct SignResponse {
    #[prost(string, tag = "1")]
    header: String,
    #[prost(string, tag = "2")]
    signature: String,
}

#[derive(Clone, PartialEq, Message)]
struct FetchKeysRequest {}

#[derive(Clone, PartialEq, Message)]
struct FetchKeysResponse {
    #[prost(message, repeated, tag = "1")]
    keys: Vec<PublicKey>,
    #[prost(message, optional, tag = "2")]
    data_timestamp: Option<Time>,
    #[prost(int64, tag = "3")]
    refresh_hint_seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PublicKey {
    #[prost(string, tag = "1")]
    key_id: String,
    #[prost(bytes = "vec", tag = "2")]
    key: Vec<u8>,
    #[prost(bool, tag = "3")]
    exclude_from_oidc_discovery: bool,
}

/// `google.protobuf.Timestamp`.
#[derive(Clone, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct MetadataRequest {}

#[derive(Clone, PartialEq, Message)]
struct MetadataResponse {
    #[prost(int64, tag = "1")]
    max_token_expiration_seconds: i64,
}

/// Why there is no token, or no key.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignerError {
    #[error("{what}: {status}")]
    Call { what: &'static str, status: tonic::Status },
    #[error("{what}: no answer within {limit:?}")]
    Late { what: &'static str, limit: Duration },
    #[error("while validating header: {0}")]
    Header(String),
    #[error("empty signature returned")]
    NoSignature,
    #[error("found invalid refresh hint ({0}s)")]
    Hint(i64),
    #[error("found no keys")]
    NoKeys,
    #[error("invalid data timestamp")]
    NoTime,
    #[error("found invalid public key id {0:?}")]
    KeyId(String),
    #[error("while parsing external public keys: the key {0:?} is neither RSA nor on the curves P-256 and P-384")]
    Key(String),
    #[error("max token life supported by external-jwt-signer ({0}s) is less than acceptable (min 600s)")]
    ShortLife(i64),
}

impl SignerError {
    /// For metrics: the code of the protocol, if the call came so far.
    fn code(&self) -> &'static str {
        match self {
            SignerError::Call { status, .. } => name(status.code()),
            SignerError::Late { .. } => "DeadlineExceeded",
            _ => "unknown-non-grpc",
        }
    }
}

/// Go's words for codes.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// The keys of one answer.
struct KeySet {
    /// In the order of the answer; those that only verify are `hidden`.
    all: Arc<Vec<Key>>,
    hidden: Vec<String>,
    refresh: Instant,
}

pub(crate) struct ExternalSigner {
    channel: Channel,
    keys: RwLock<Arc<KeySet>>,
    /// When keys were asked for last; one at a time asks.
    asked: tokio::sync::Mutex<Instant>,
    max_life: Duration,
    metrics: Metrics,
}

/// `@name` is a socket without a file.
fn socket(endpoint: &str) -> PathBuf {
    match endpoint.strip_prefix('@') {
        Some(name) => PathBuf::from(format!("\0{name}")),
        None => PathBuf::from(endpoint),
    }
}

/// Whether an endpoint that begins with `@` is one, as upstream has it.
pub(crate) fn is_endpoint(text: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    text.strip_prefix('@').is_none_or(|name| name.split('.').all(is_word))
}

async fn call<Q, A>(
    channel: &Channel,
    metrics: &Metrics,
    method: &'static str,
    message: Q,
    limit: Duration,
) -> Result<A, SignerError>
where
    Q: Message + Clone + Send + Sync + 'static,
    A: Message + Default + Send + Sync + 'static,
{
    let (path, what) = match method {
        "Sign" => ("/v1.ExternalJWTSigner/Sign", "while signing jwt"),
        "FetchKeys" => ("/v1.ExternalJWTSigner/FetchKeys", "while getting externally supported jwt signing keys"),
        _ => ("/v1.ExternalJWTSigner/Metadata", "while asking for metadata"),
    };
    let began = Instant::now();
    let asked = async {
        // A signer that is not there yet, or no longer, is waited for as long as the call may take.
        loop {
            let mut grpc = Caller::new(channel.clone());
            let answer = match grpc.ready().await {
                Ok(()) => {
                    grpc.unary(
                        tonic::Request::new(message.clone()),
                        PathAndQuery::from_static(path),
                        ProstCodec::<Q, A>::default(),
                    )
                    .await
                }
                Err(error) => Err(tonic::Status::unavailable(error.to_string())),
            };
            match answer {
                Err(status) if status.code() == Code::Unavailable => tokio::time::sleep(CONNECT_RETRY_INTERVAL).await,
                answer => return answer.map(tonic::Response::into_inner),
            }
        }
    };
    let outcome = match tokio::time::timeout(limit, asked).await {
        Ok(answer) => answer.map_err(|status| SignerError::Call { what, status }),
        Err(_) => Err(SignerError::Late { what, limit }),
    };
    let code = outcome.as_ref().err().map_or("OK", SignerError::code);
    let help = "Request duration and time for calls to external-jwt-signer";
    let labels = [("method", path), ("code", code)];
    metrics
        .histogram("apiserver_externaljwt_request_duration_seconds", help, DURATIONS, &labels)
        .observe_duration(began.elapsed());
    outcome
}

impl ExternalSigner {
    /// Asks for keys and for the longest life of a token; fails if either cannot be had.
    pub(crate) async fn connect(endpoint: &str, metrics: &Metrics) -> Result<Self, SignerError> {
        let channel = grpc::lazy(socket(endpoint));
        let keys = fetch(&channel, metrics).await?;
        let said: MetadataResponse = call(&channel, metrics, "Metadata", MetadataRequest {}, METADATA_TIMEOUT).await?;
        let seconds = said.max_token_expiration_seconds;
        let life =
            u64::try_from(seconds).ok().filter(|_| seconds >= MIN_LIFE).ok_or(SignerError::ShortLife(seconds))?;
        Ok(Self {
            channel,
            keys: RwLock::new(Arc::new(keys)),
            asked: tokio::sync::Mutex::new(Instant::now()),
            max_life: Duration::from_secs(life),
            metrics: metrics.clone(),
        })
    }

    fn current(&self) -> Arc<KeySet> {
        self.keys.read().clone()
    }

    /// The longest life of a token that the signer signs.
    pub(crate) fn max_life(&self) -> Duration {
        self.max_life
    }

    /// How long the last answer still holds.
    pub(crate) fn max_age(&self) -> Duration {
        self.current().refresh.saturating_duration_since(Instant::now())
    }

    /// All keys that count. The same value as long as nothing changes.
    pub(crate) fn keys(&self) -> Arc<Vec<Key>> {
        self.current().all.clone()
    }

    /// Those that others are told of.
    pub(crate) fn published(&self) -> Vec<Key> {
        let keys = self.current();
        keys.all.iter().filter(|key| !keys.hidden.contains(&key.id)).cloned().collect()
    }

    /// All keys, asked for anew if the one that is named is not among them.
    pub(crate) async fn keys_for(&self, id: &str) -> Arc<Vec<Key>> {
        if !id.is_empty() && !self.current().all.iter().any(|key| key.id == id) {
            self.refresh(Some(id)).await.unwrap_or_else(|error| tracing::error!(%error, "error while syncing keys"));
        }
        self.keys()
    }

    /// Asks for keys; for one that is missing, not again if somebody just did.
    async fn refresh(&self, missing: Option<&str>) -> Result<(), SignerError> {
        let mut asked = self.asked.lock().await;
        if let Some(id) = missing
            && (self.current().all.iter().any(|key| key.id == id) || asked.elapsed() < SYNC_INTERVAL)
        {
            return Ok(());
        }
        *asked = Instant::now();
        let fetched = fetch(&self.channel, &self.metrics).await;
        // Whoever waited meanwhile has this answer: one after the other would wait for a signer that is away.
        *asked = Instant::now();
        let mut found = fetched?;
        let known = self.current();
        // What was checked with the same keys need not be checked again.
        let is_same = |one: &[Key], other: &[Key]| {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| one.id == other.id && one.material == other.material)
        };
        if is_same(&known.all, &found.all) {
            found.all = known.all.clone();
        }
        *self.keys.write() = Arc::new(found);
        Ok(())
    }

    /// Keeps the keys fresh until `stop`.
    pub(crate) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut pause = self.current().refresh.saturating_duration_since(Instant::now());
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = match self.refresh(None).await {
                Ok(()) => self.current().refresh.saturating_duration_since(Instant::now()),
                Err(error) => {
                    tracing::error!(%error, "the keys of service-account tokens are those of before");
                    RETRY_INTERVAL
                }
            };
        }
    }

    /// The token with these claims.
    pub(crate) async fn token(&self, claims: &serde_json::Value) -> Result<String, SignerError> {
        let signed = self.sign(claims).await;
        let code = signed.as_ref().err().map_or("OK", SignerError::code);
        let labels = [("code", code)];
        self.metrics
            .counter("apiserver_externaljwt_sign_request_total", "Total attempts at signing JWT", &labels)
            .inc();
        signed
    }

    async fn sign(&self, claims: &serde_json::Value) -> Result<String, SignerError> {
        let claims = URL_SAFE_NO_PAD.encode(claims.to_string());
        let request = SignRequest { claims: claims.clone() };
        let answer: SignResponse = call(&self.channel, &self.metrics, "Sign", request, SIGN_TIMEOUT).await?;
        let id = key_of_header(&answer.header)?;
        self.keys_for(&id).await;
        if self.current().hidden.contains(&id) {
            let text = format!("key used for signing JWT (kid: {id}) is excluded from OIDC discovery docs");
            return Err(SignerError::Header(text));
        }
        if answer.signature.is_empty() {
            return Err(SignerError::NoSignature);
        }
        Ok(format!("{}.{claims}.{}", answer.header, answer.signature))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    #[serde(default)]
    alg: String,
    #[serde(default)]
    kid: String,
    #[serde(default)]
    typ: String,
}

/// The key that a header names; it has nothing that a token of ours may not have.
fn key_of_header(header: &str) -> Result<String, SignerError> {
    let wrong = |why: String| SignerError::Header(why);
    let bytes = URL_SAFE_NO_PAD.decode(header).map_err(|error| wrong(format!("while unwrapping header: {error}")))?;
    let header: Header =
        serde_json::from_slice(&bytes).map_err(|error| wrong(format!("while parsing header JSON: {error}")))?;
    if header.typ != "JWT" {
        return Err(wrong("bad type".to_owned()));
    }
    if header.kid.is_empty() {
        return Err(wrong("key id missing".to_owned()));
    }
    if header.kid.len() > MAX_KEY_ID {
        return Err(wrong("key id longer than 1 kb".to_owned()));
    }
    // Upstream has ES512, too, which nothing here can verify.
    if !["RS256", "ES256", "ES384"].contains(&header.alg.as_str()) {
        return Err(wrong(format!("bad signing algorithm {:?}", header.alg)));
    }
    Ok(header.kid)
}

async fn fetch(channel: &Channel, metrics: &Metrics) -> Result<KeySet, SignerError> {
    let answer = call::<_, FetchKeysResponse>(channel, metrics, "FetchKeys", FetchKeysRequest {}, KEYS_TIMEOUT).await;
    let found = answer.and_then(|answer| Ok((key_set(&answer)?, answer.data_timestamp.ok_or(SignerError::NoTime)?)));
    let code = found.as_ref().err().map_or("OK", SignerError::code);
    let help = "Total attempts at syncing supported JWKs";
    metrics.counter("apiserver_externaljwt_fetch_keys_request_total", help, &[("code", code)]).inc();
    let (keys, time) = found?;
    let gauge = |name: &'static str, help: &'static str, value: f64| metrics.gauge(name, help, &[]).set(value);
    gauge(
        "apiserver_externaljwt_fetch_keys_success_timestamp",
        "Unix Timestamp in seconds of the last successful FetchKeys request",
        std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs_f64(),
    );
    gauge(
        "apiserver_externaljwt_fetch_keys_data_timestamp",
        "Unix Timestamp in seconds of the last successful FetchKeys data_timestamp value returned by the external signer",
        time.seconds as f64 + f64::from(time.nanos) / 1e9,
    );
    Ok(keys)
}

fn key_set(answer: &FetchKeysResponse) -> Result<KeySet, SignerError> {
    let hint = u64::try_from(answer.refresh_hint_seconds).ok().filter(|hint| *hint > 0);
    let hint = hint.ok_or(SignerError::Hint(answer.refresh_hint_seconds))?;
    if answer.keys.is_empty() {
        return Err(SignerError::NoKeys);
    }
    let (mut all, mut hidden) = (Vec::new(), Vec::new());
    for found in &answer.keys {
        if found.key_id.is_empty() || found.key_id.len() > MAX_KEY_ID {
            return Err(SignerError::KeyId(found.key_id.clone()));
        }
        let key = Key::from_spki(&found.key_id, &found.key).ok_or_else(|| SignerError::Key(found.key_id.clone()))?;
        if found.exclude_from_oidc_discovery {
            hidden.push(key.id.clone());
        }
        all.push(key);
    }
    // No answer holds for more than a day here: nobody could take a key back.
    let refresh = Instant::now() + Duration::from_secs(hint.min(24 * 3600));
    Ok(KeySet { all: Arc::new(all), hidden, refresh })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> PublicKey {
        use rcgen::PublicKeyData;
        let key = rcgen::KeyPair::generate().unwrap().subject_public_key_info();
        PublicKey { key_id: id.to_owned(), key, exclude_from_oidc_discovery: false }
    }

    fn answer(keys: Vec<PublicKey>, hint: i64) -> FetchKeysResponse {
        FetchKeysResponse { keys, data_timestamp: Some(Time { seconds: 1, nanos: 0 }), refresh_hint_seconds: hint }
    }

    #[test]
    fn answers_with_keys_are_checked() {
        let hidden = PublicKey { exclude_from_oidc_discovery: true, ..key("old") };
        let set = key_set(&answer(vec![key("new"), hidden], 60)).map_err(|error| error.to_string()).unwrap();
        assert_eq!((set.all.len(), set.hidden), (2, vec!["old".to_owned()]));
        let garbage = PublicKey { key: vec![1, 2, 3], ..key("x") };
        for (wrong, why) in [
            (answer(vec![key("a")], 0), "found invalid refresh hint (0s)"),
            (answer(vec![key("a")], -5), "found invalid refresh hint (-5s)"),
            (answer(vec![], 60), "found no keys"),
            (answer(vec![key("")], 60), "found invalid public key id \"\""),
            (answer(vec![key(&"x".repeat(1025))], 60), "found invalid public key id"),
            (answer(vec![garbage], 60), "while parsing external public keys"),
        ] {
            let error = key_set(&wrong).err().unwrap().to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }

    #[test]
    fn security_headers_have_what_a_token_may_have() {
        let of = |text: &str| key_of_header(&URL_SAFE_NO_PAD.encode(text)).map_err(|error| error.to_string());
        assert_eq!(of(r#"{"alg":"RS256","kid":"k","typ":"JWT"}"#), Ok("k".to_owned()));
        for (header, why) in [
            (r#"{"alg":"RS256","kid":"k"}"#, "bad type"),
            (r#"{"alg":"RS256","typ":"JWT"}"#, "key id missing"),
            (r#"{"alg":"none","kid":"k","typ":"JWT"}"#, "bad signing algorithm \"none\""),
            (r#"{"alg":"HS256","kid":"k","typ":"JWT"}"#, "bad signing algorithm"),
            (r#"{"alg":"RS256","kid":"k","typ":"JWT","jku":"https://x"}"#, "while parsing header JSON"),
            ("{", "while parsing header JSON"),
        ] {
            assert!(of(header).unwrap_err().starts_with(&format!("while validating header: {why}")), "{header}");
        }
        assert!(key_of_header("***").unwrap_err().to_string().contains("while unwrapping header"));
    }

    #[test]
    fn endpoints_are_paths_or_abstract_names() {
        for (text, good) in [
            ("/run/s.sock", true),
            ("@signer", true),
            ("@a.b-c_d", true),
            ("@", false),
            ("@a/b", false),
            ("@a..b", false),
        ] {
            assert_eq!(is_endpoint(text), good, "{text}");
        }
        assert_eq!(socket("@signer"), PathBuf::from("\0signer"));
    }

    /// Its name, its bytes, and whether it is only for verifying.
    type NamedKey = (String, Vec<u8>, bool);

    /// A signer on a socket: its keys by name, which of them signs, and how long its tokens may live.
    #[derive(Clone)]
    struct Program {
        keys: Arc<parking_lot::Mutex<Vec<NamedKey>>>,
        signs: Arc<parking_lot::Mutex<String>>,
        fetches: Arc<std::sync::atomic::AtomicUsize>,
        life: i64,
    }

    impl Program {
        fn new(names: &[(&str, bool)]) -> Program {
            let program = Program {
                keys: Arc::default(),
                signs: Arc::new(parking_lot::Mutex::new(names[0].0.to_owned())),
                fetches: Arc::default(),
                life: 3600,
            };
            names.iter().for_each(|(name, hidden)| program.add(name, *hidden));
            program
        }

        fn add(&self, name: &str, hidden: bool) {
            let key = rcgen::KeyPair::generate().unwrap().serialize_der();
            self.keys.lock().push((name.to_owned(), key, hidden));
        }

        fn answer(&self, method: &str, body: &[u8]) -> Vec<u8> {
            use rcgen::PublicKeyData;
            match method {
                "Metadata" => MetadataResponse { max_token_expiration_seconds: self.life }.encode_to_vec(),
                "FetchKeys" => {
                    self.fetches.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let public = |(name, key, hidden): &(String, Vec<u8>, bool)| PublicKey {
                        key_id: name.clone(),
                        key: rcgen::KeyPair::try_from(key.as_slice()).unwrap().subject_public_key_info(),
                        exclude_from_oidc_discovery: *hidden,
                    };
                    answer(self.keys.lock().iter().map(public).collect(), 3600).encode_to_vec()
                }
                _ => {
                    let claims = SignRequest::decode(body).unwrap().claims;
                    let name = self.signs.lock().clone();
                    let header = format!(r#"{{"alg":"ES256","kid":"{name}","typ":"JWT"}}"#);
                    let header = URL_SAFE_NO_PAD.encode(header);
                    let keys = self.keys.lock();
                    let (_, key, _) = keys.iter().find(|(known, _, _)| *known == name).unwrap();
                    let random = ring::rand::SystemRandom::new();
                    let kind = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
                    let pair = ring::signature::EcdsaKeyPair::from_pkcs8(kind, key, &random).unwrap();
                    let signature = pair.sign(&random, format!("{header}.{claims}").as_bytes()).unwrap();
                    SignResponse { header, signature: URL_SAFE_NO_PAD.encode(signature) }.encode_to_vec()
                }
            }
        }

        fn serve(&self, socket: &std::path::Path) -> tokio::task::JoinHandle<()> {
            use http_body_util::BodyExt;
            use hyper_util::rt::{TokioExecutor, TokioIo};
            let _ = std::fs::remove_file(socket);
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            let program = self.clone();
            tokio::spawn(async move {
                let mut open = tokio::task::JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    let program = program.clone();
                    let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let program = program.clone();
                        async move {
                            let method =
                                request.uri().path().strip_prefix("/v1.ExternalJWTSigner/").unwrap().to_owned();
                            let body = request.into_body().collect().await?.to_bytes();
                            let answer = program.answer(&method, &body[5..]);
                            let frame = [&[0][..], &(answer.len() as u32).to_be_bytes(), &answer].concat();
                            let mut trailers = http::HeaderMap::new();
                            trailers.insert("grpc-status", 0.into());
                            let body = http_body_util::Full::new(bytes::Bytes::from(frame));
                            let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
                            let head = http::Response::builder().header("content-type", "application/grpc");
                            Ok::<_, hyper::Error>(head.body(body).unwrap())
                        }
                    });
                    let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                    open.spawn(async move { drop(builder.serve_connection(TokioIo::new(stream), service).await) });
                }
            })
        }
    }

    fn is_good(signer: &ExternalSigner, token: &str) -> bool {
        jwt::Token::parse(token).unwrap().is_signed_by(&signer.keys())
    }

    #[tokio::test]
    async fn another_program_signs_and_its_keys_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("signer.sock");
        let program = Program::new(&[("one", false), ("old", true)]);
        let metrics = Metrics::default();
        let endpoint = socket.display().to_string();
        let connecting = ExternalSigner::connect(&endpoint, &metrics);
        // It is waited for.
        let starting = async {
            tokio::time::sleep(CONNECT_RETRY_INTERVAL).await;
            Some(program.serve(&socket))
        };
        let (signer, serving) = tokio::join!(connecting, starting);
        let serving = serving.unwrap();
        let signer = signer.unwrap();
        assert_eq!(signer.max_life(), Duration::from_secs(3600));
        let published: Vec<String> = signer.published().into_iter().map(|key| key.id).collect();
        assert_eq!(published, ["one"], "what only verifies is not told");
        assert!(signer.max_age() <= Duration::from_secs(3600) && signer.max_age() > Duration::from_secs(3000));
        let claims = serde_json::json!({"iss": "i", "sub": "s"});
        let first = signer.token(&claims).await.unwrap();
        assert!(is_good(&signer, &first));
        assert_eq!(jwt::Token::parse(&first).unwrap().claims, claims);

        // A key that is new is asked for when it is seen, once however many see it.
        *signer.asked.lock().await = Instant::now().checked_sub(SYNC_INTERVAL).unwrap();
        program.add("two", false);
        *program.signs.lock() = "two".to_owned();
        let second = signer.token(&claims).await.unwrap();
        assert!(is_good(&signer, &second) && is_good(&signer, &first));
        let before = program.fetches.load(std::sync::atomic::Ordering::SeqCst);
        for _ in 0..50 {
            signer.keys_for("made-up").await;
        }
        assert!(program.fetches.load(std::sync::atomic::Ordering::SeqCst) <= before + 2, "made-up names cost nothing");

        *program.signs.lock() = "old".to_owned();
        let refused = signer.token(&claims).await.unwrap_err().to_string();
        assert!(refused.contains("(kid: old) is excluded from OIDC discovery docs"), "{refused}");
        let text = metrics.render();
        for series in [
            r#"apiserver_externaljwt_sign_request_total{code="OK"} 2"#,
            r#"apiserver_externaljwt_sign_request_total{code="unknown-non-grpc"} 1"#,
            "apiserver_externaljwt_fetch_keys_success_timestamp",
            "apiserver_externaljwt_fetch_keys_data_timestamp 1",
            "apiserver_externaljwt_request_duration_seconds_count",
        ] {
            assert!(text.contains(series), "{series} in\n{text}");
        }

        // Gone: what was known counts on, and what is taken back does not.
        serving.abort();
        assert!(is_good(&signer, &second));
    }

    #[tokio::test]
    async fn security_a_signer_of_tokens_that_live_too_short_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("signer.sock");
        let program = Program { life: 599, ..Program::new(&[("one", false)]) };
        let _serving = program.serve(&socket);
        let refused = ExternalSigner::connect(&socket.display().to_string(), &Metrics::default()).await;
        let refused = refused.err().unwrap().to_string();
        assert_eq!(
            refused,
            "max token life supported by external-jwt-signer (599s) is less than acceptable (min 600s)"
        );
    }
}
