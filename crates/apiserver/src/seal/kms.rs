//! Key management services, version 2 of the protocol: gRPC over a Unix socket.
//!
//! The service seals a seed once; a key per value is derived from it here, so that a write asks nobody. When the
//! service says that its key has another id, there is a new seed. Seeds that others wrote are opened once and kept.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use grpc::Caller;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use super::SealError;
use super::cipher::{self, ExtendedNonce, Gcm};
use super::messages::{
    AES_GCM_KEY, DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, EncryptedObject, SEED,
    StatusRequest, StatusResponse,
};

/// How often the service is asked, how long a seed may be written with after the last good answer, and how long an
/// answer stands for those who ask about the service's health; all as upstream.
#[derive(Clone, Copy)]
pub(super) struct Times {
    healthy: Duration,
    unhealthy: Duration,
    write: Duration,
    positive: Duration,
    negative: Duration,
}

pub(super) const TIMES: Times = Times {
    healthy: Duration::from_secs(60),
    unhealthy: Duration::from_secs(10),
    write: Duration::from_secs(180),
    positive: Duration::from_secs(20),
    negative: Duration::from_secs(3),
};

/// Opened seeds are kept this long after they were used last.
const SEED_LIFE: Duration = Duration::from_secs(24 * 3600);
/// No seed: all of them.
const SILENT: &[u8] = &[];
const MAX_KEY_ID: usize = 1024;
const MAX_SEALED_SEED: usize = 1024;
const MAX_ANNOTATIONS: usize = 32 * 1024;

pub(super) struct Kms {
    name: String,
    channel: Channel,
    timeout: Duration,
    times: Times,
    write: RwLock<Option<Arc<WriteKey>>>,
    /// By what the service needs to open them, encoded.
    seeds: Mutex<HashMap<Vec<u8>, Kept>>,
    /// Why seeds could not be opened a moment ago, by the same: thousands of values are not to ask one by one. A service
    /// that does not answer at all is [`SILENT`]; one that refuses a seed may well open others.
    failed: Mutex<HashMap<Vec<u8>, (Instant, String)>>,
    health: tokio::sync::Mutex<Option<(Instant, Result<(), SealError>)>>,
}

/// A key, and when it was used last.
type Kept = (Arc<DataKey>, Instant);

enum DataKey {
    Seed(ExtendedNonce),
    /// As upstream's first servers of this version wrote.
    Key(Gcm),
}

struct WriteKey {
    seed: Arc<DataKey>,
    /// Everything that is stored with a value but the value.
    envelope: EncryptedObject,
    expires: Instant,
}

impl Kms {
    pub(super) fn new(name: &str, endpoint: &str, timeout: Duration, times: Times) -> Self {
        Self {
            name: name.to_owned(),
            channel: grpc::lazy(endpoint),
            timeout,
            times,
            write: RwLock::default(),
            seeds: Mutex::default(),
            failed: Mutex::default(),
            health: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn seal(&self, plain: &[u8], context: &[u8]) -> Result<Vec<u8>, SealError> {
        let write = self.write.read().clone().ok_or_else(|| self.error("the service has not sealed a seed yet"))?;
        if write.expires < Instant::now() {
            return Err(self.error("the seed has expired: the service does not answer or is not healthy"));
        }
        let DataKey::Seed(seed) = &*write.seed else { return Err(self.error("the seed is a key")) };
        let envelope = EncryptedObject { encrypted_data: seed.seal(plain, context)?, ..write.envelope.clone() };
        Ok(envelope.encode_to_vec())
    }

    /// The value, and whether it is sealed with another key than a write would use now.
    pub(super) async fn open(&self, sealed: &[u8], context: &[u8]) -> Result<(Vec<u8>, bool), SealError> {
        let mut envelope = EncryptedObject::decode(sealed).map_err(|error| SealError::Envelope(error.to_string()))?;
        validate(&envelope)?;
        let data = std::mem::take(&mut envelope.encrypted_data);
        let plain = match &*self.data_key(&envelope).await? {
            DataKey::Seed(seed) => seed.open(&data, context)?,
            DataKey::Key(key) => key.open(&data, context)?,
        };
        Ok((plain, !self.is_current(&envelope)))
    }

    /// Whether a write would use the same key of the service.
    fn is_current(&self, envelope: &EncryptedObject) -> bool {
        let write = self.write.read();
        write.as_ref().is_some_and(|write| {
            write.envelope.key_id == envelope.key_id
                && write.envelope.encrypted_dek_source_type == envelope.encrypted_dek_source_type
        })
    }

    async fn data_key(&self, envelope: &EncryptedObject) -> Result<Arc<DataKey>, SealError> {
        let id = envelope.encode_to_vec();
        if let Some((key, used)) = self.seeds.lock().get_mut(&id) {
            *used = Instant::now();
            return Ok(key.clone());
        }
        if let Some(reason) = self.failed_lately(&id) {
            return Err(self.error(&reason));
        }
        let request = DecryptRequest {
            ciphertext: envelope.encrypted_dek_source.clone(),
            uid: crate::stamp::unique_id(),
            key_id: envelope.key_id.clone(),
            annotations: envelope.annotations.clone(),
        };
        let answer: Result<DecryptResponse, SealError> = self.call("/v2.KeyManagementService/Decrypt", request).await;
        let opened = answer.inspect_err(|error| {
            let is_silent = matches!(error, SealError::Kms { is_silent: true, .. });
            let failed = if is_silent { SILENT.to_vec() } else { id.clone() };
            self.fail(failed, format!("failed to decrypt DEK, error: {error}"));
        })?;
        let key = match envelope.encrypted_dek_source_type {
            SEED => DataKey::Seed(ExtendedNonce::new(&opened.plaintext)?),
            _ => DataKey::Key(Gcm::new(&opened.plaintext).ok_or_else(|| self.error("not a key of AES"))?),
        };
        let key = Arc::new(key);
        self.keep(id, key.clone());
        Ok(key)
    }

    fn failed_lately(&self, id: &[u8]) -> Option<String> {
        let failed = self.failed.lock();
        let (_, reason) =
            [SILENT, id].iter().filter_map(|id| failed.get(*id)).find(|(at, _)| at.elapsed() < self.times.negative)?;
        Some(reason.clone())
    }

    fn fail(&self, id: Vec<u8>, reason: String) {
        let mut failed = self.failed.lock();
        failed.retain(|_, (at, _)| at.elapsed() < self.times.negative);
        failed.insert(id, (Instant::now(), reason));
    }

    fn keep(&self, id: Vec<u8>, key: Arc<DataKey>) {
        let mut seeds = self.seeds.lock();
        seeds.retain(|_, (_, used)| used.elapsed() < SEED_LIFE);
        seeds.insert(id, (key, Instant::now()));
    }

    /// Asks the service how it is, and for a new seed if its key has changed.
    pub(super) async fn probe(&self) -> Result<(), SealError> {
        let status: StatusResponse = self.call("/v2.KeyManagementService/Status", StatusRequest {}).await?;
        let mut problems = Vec::new();
        if status.healthz != "ok" {
            problems.push(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !matches!(status.version.as_str(), "v2" | "v2beta1") {
            problems.push(format!("expected KMSv2 API version v2, got {}", status.version));
        }
        problems.extend(validate_key_id(&status.key_id).err().map(|error| error.to_string()));
        if !problems.is_empty() {
            let problems = api::field::aggregate(&problems);
            return Err(self.error(&format!("kmsv2 Provider {} is not healthy, error: {problems}", self.name)));
        }
        let expires = Instant::now() + self.times.write;
        let current = self.write.read().clone().filter(|write| write.envelope.key_id == status.key_id);
        let write = match current {
            Some(write) => WriteKey { seed: write.seed.clone(), envelope: write.envelope.clone(), expires },
            None => self.new_seed(expires).await?,
        };
        self.keep(write.envelope.encode_to_vec(), write.seed.clone());
        *self.write.write() = Some(Arc::new(write));
        self.failed.lock().remove(SILENT);
        Ok(())
    }

    async fn new_seed(&self, expires: Instant) -> Result<WriteKey, SealError> {
        let seed: [u8; cipher::SEED] = cipher::random()?;
        let request = EncryptRequest { plaintext: seed.to_vec(), uid: crate::stamp::unique_id() };
        let sealed: EncryptResponse = self.call("/v2.KeyManagementService/Encrypt", request).await?;
        let mut envelope = EncryptedObject {
            // Checked with the rest, and not to be empty.
            encrypted_data: vec![0],
            key_id: sealed.key_id,
            encrypted_dek_source: sealed.ciphertext,
            annotations: sealed.annotations,
            encrypted_dek_source_type: SEED,
        };
        validate(&envelope)?;
        envelope.encrypted_data.clear();
        Ok(WriteKey { seed: Arc::new(DataKey::Seed(ExtendedNonce::new(&seed)?)), envelope, expires })
    }

    /// For health checks: the answer of a moment ago is good enough.
    pub(super) async fn health(&self) -> Result<(), SealError> {
        let mut health = self.health.lock().await;
        if let Some((at, outcome)) = &*health {
            let life = if outcome.is_ok() { self.times.positive } else { self.times.negative };
            if at.elapsed() < life {
                return outcome.clone();
            }
        }
        let outcome = self.probe().await;
        *health = Some((Instant::now(), outcome.clone()));
        outcome
    }

    /// Keeps the seed fresh for as long as it is polled.
    pub(super) async fn follow(self: Arc<Self>) {
        let mut known = Ok(());
        loop {
            let outcome = self.probe().await;
            match &outcome {
                Err(error) if known.is_ok() => tracing::error!(%error, "a key management service fails"),
                Ok(()) if known.is_err() => tracing::info!(name = self.name, "a key management service is back"),
                _ => {}
            }
            let pause = if outcome.is_ok() { self.times.healthy } else { self.times.unhealthy };
            known = outcome;
            tokio::time::sleep(pause).await;
        }
    }

    async fn call<Q, A>(&self, path: &'static str, message: Q) -> Result<A, SealError>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let mut grpc = Caller::new(self.channel.clone());
        let call = async {
            grpc.ready().await.map_err(|error| self.error(&chain(&error)))?;
            let path = PathAndQuery::from_static(path);
            let answer = grpc.unary(tonic::Request::new(message), path, ProstCodec::<Q, A>::default()).await;
            answer.map(tonic::Response::into_inner).map_err(|status| self.error(&chain(&status)))
        };
        let answer = tokio::time::timeout(self.timeout, call).await;
        answer.unwrap_or_else(|_| {
            let reason = format!("no answer within {:?}", self.timeout);
            Err(SealError::Kms { name: self.name.clone(), reason, is_silent: true })
        })
    }

    fn error(&self, reason: &str) -> SealError {
        SealError::Kms { name: self.name.clone(), reason: reason.to_owned(), is_silent: false }
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// What is stored with a value is bounded, whoever wrote it.
fn validate(envelope: &EncryptedObject) -> Result<(), SealError> {
    let refuse = |reason: String| Err(SealError::Envelope(reason));
    if !matches!(envelope.encrypted_dek_source_type, AES_GCM_KEY | SEED) {
        return refuse(format!("unknown encryptedDEKSourceType: {}", envelope.encrypted_dek_source_type));
    }
    if envelope.encrypted_data.is_empty() {
        return refuse("encrypted data is empty".to_owned());
    }
    let source = "failed to validate encrypted DEK source: encrypted DEK source";
    match envelope.encrypted_dek_source.len() {
        0 => return refuse(format!("{source} is empty")),
        size if size > MAX_SEALED_SEED => {
            return refuse(format!("{source} is {size} bytes, which exceeds the max size of {MAX_SEALED_SEED}"));
        }
        _ => {}
    }
    validate_key_id(&envelope.key_id)?;
    let mut size = 0;
    for (key, value) in &envelope.annotations {
        size += key.len() + value.len();
        if !key.contains('.') {
            return refuse(format!(
                "failed to validate annotations: annotations: Invalid value: {}: should be a domain with at least two \
                 segments separated by dots",
                api::field::quote(key)
            ));
        }
    }
    if size > MAX_ANNOTATIONS {
        return refuse(format!(
            "failed to validate annotations: total size of annotations is {size}, which exceeds the max size of \
             {MAX_ANNOTATIONS}"
        ));
    }
    Ok(())
}

fn validate_key_id(id: &str) -> Result<(), SealError> {
    match id.len() {
        0 => Err(SealError::Envelope("failed to validate key id: keyID is empty".to_owned())),
        size if size > MAX_KEY_ID => Err(SealError::Envelope(format!(
            "failed to validate key id: keyID is {size} bytes, which exceeds the max size of {MAX_KEY_ID}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tonic::codegen::{Body, BoxFuture, Service, StdError, http};

    /// A service whose keys are bytes to add; calls can be made to fail.
    #[derive(Clone, Default)]
    pub(crate) struct Plugin {
        pub(crate) key: Arc<Mutex<u8>>,
        pub(crate) healthz: Arc<Mutex<String>>,
        pub(crate) decrypts: Arc<AtomicUsize>,
    }

    impl Plugin {
        pub(crate) fn serve(&self, socket: &Path) -> tokio::task::JoinHandle<()> {
            *self.healthz.lock() = "ok".to_owned();
            let _ = std::fs::remove_file(socket);
            let listener = tokio::net::UnixListener::bind(socket).unwrap();
            let incoming = futures_util::stream::unfold(listener, |listener| async move {
                Some((listener.accept().await.map(|(stream, _)| stream), listener))
            });
            let server = tonic::transport::Server::builder().add_service(self.clone());
            tokio::spawn(async move { server.serve_with_incoming(Box::pin(incoming)).await.unwrap() })
        }

        fn answer(&self, method: &str, body: &[u8]) -> Vec<u8> {
            let add = |bytes: &[u8], key: u8| bytes.iter().map(|byte| byte.wrapping_add(key)).collect::<Vec<u8>>();
            match method {
                "Status" => StatusResponse {
                    version: "v2".into(),
                    healthz: self.healthz.lock().clone(),
                    key_id: self.key.lock().to_string(),
                }
                .encode_to_vec(),
                "Encrypt" => {
                    let request = EncryptRequest::decode(body).unwrap();
                    let key = *self.key.lock();
                    let annotations = BTreeMap::from([("kms.example.com".to_owned(), vec![key])]);
                    let ciphertext = add(&request.plaintext, key);
                    EncryptResponse { ciphertext, key_id: key.to_string(), annotations }.encode_to_vec()
                }
                _ => {
                    self.decrypts.fetch_add(1, Ordering::SeqCst);
                    let request = DecryptRequest::decode(body).unwrap();
                    let Ok(key) = request.key_id.parse::<u8>() else {
                        return b"no message".to_vec();
                    };
                    assert_eq!(request.annotations["kms.example.com"][0].to_string(), request.key_id);
                    DecryptResponse { plaintext: add(&request.ciphertext, key.wrapping_neg()) }.encode_to_vec()
                }
            }
        }
    }

    impl tonic::server::NamedService for Plugin {
        const NAME: &'static str = "v2.KeyManagementService";
    }

    impl<B> Service<http::Request<B>> for Plugin
    where
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<StdError> + Send + 'static,
    {
        type Response = http::Response<tonic::body::Body>;
        type Error = std::convert::Infallible;
        type Future = BoxFuture<Self::Response, Self::Error>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<B>) -> Self::Future {
            use http_body_util::BodyExt;
            let plugin = self.clone();
            Box::pin(async move {
                let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
                let body = request.into_body().collect().await.map_err(Into::into).unwrap().to_bytes();
                let answer = plugin.answer(&method, &body[5..]);
                let mut frame = vec![0];
                frame.extend((answer.len() as u32).to_be_bytes());
                frame.extend(answer);
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", 0.into());
                let body = http_body_util::Full::new(bytes::Bytes::from(frame));
                let body = body.with_trailers(std::future::ready(Some(Ok(trailers))));
                let response = http::Response::builder().header("content-type", "application/grpc");
                Ok(response.body(tonic::body::Body::new(body)).unwrap())
            })
        }
    }

    fn kms(socket: &Path) -> Kms {
        // Answers about health never stand here.
        let times = Times { positive: Duration::ZERO, negative: Duration::ZERO, ..TIMES };
        Kms::new("k", &format!("unix://{}", socket.display()), Duration::from_secs(60), times)
    }

    #[tokio::test]
    async fn values_round_trip_and_keys_rotate() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("kms.sock");
        let plugin = Plugin::default();
        *plugin.key.lock() = 1;
        let serving = plugin.serve(&socket);
        let kms = kms(&socket);
        assert!(kms.seal(b"plain", b"k").is_err(), "there is no seed yet");
        kms.health().await.unwrap();
        let first = kms.seal(b"plain", b"k").unwrap();
        assert!(!first.windows(5).any(|window| window == b"plain"));
        assert_eq!(kms.open(&first, b"k").await.unwrap(), (b"plain".to_vec(), false));
        assert!(kms.open(&first, b"other").await.is_err());
        assert_eq!(plugin.decrypts.load(Ordering::SeqCst), 0, "its own seed is known");

        *plugin.key.lock() = 2;
        kms.health().await.unwrap();
        let second = kms.seal(b"plain", b"k").unwrap();
        assert_eq!(kms.open(&first, b"k").await.unwrap(), (b"plain".to_vec(), true));
        assert_eq!(kms.open(&second, b"k").await.unwrap(), (b"plain".to_vec(), false));

        // Another server asks once for each seed, not for each value.
        let other = self::kms(&socket);
        other.health().await.unwrap();
        for _ in 0..3 {
            assert_eq!(other.open(&first, b"k").await.unwrap(), (b"plain".to_vec(), true));
            assert_eq!(other.open(&second, b"k").await.unwrap(), (b"plain".to_vec(), false));
        }
        assert_eq!(plugin.decrypts.load(Ordering::SeqCst), 2);

        *plugin.healthz.lock() = "ill".to_owned();
        let error = kms.health().await.unwrap_err().to_string();
        assert!(
            error.contains("kmsv2 Provider k is not healthy, error: got unexpected healthz status: ill"),
            "{error}"
        );
        // What is known goes on.
        assert!(kms.open(&first, b"k").await.is_ok() && kms.seal(b"plain", b"k").is_ok());
        serving.abort();
        let _ = serving.await;
        let error = self::kms(&dir.path().join("nobody.sock")).open(&first, b"k").await.unwrap_err().to_string();
        assert!(error.contains("KMS provider k"), "{error}");
    }

    #[tokio::test]
    async fn security_a_seed_that_is_refused_does_not_hide_others() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("kms.sock");
        let plugin = Plugin::default();
        *plugin.key.lock() = 1;
        let serving = plugin.serve(&socket);
        let kms = || {
            let times = Times { negative: Duration::from_secs(3600), ..TIMES };
            Kms::new("k", &format!("unix://{}", socket.display()), Duration::from_secs(60), times)
        };
        let writer = kms();
        writer.probe().await.unwrap();
        let good = writer.seal(b"plain", b"k").unwrap();
        let refused = EncryptedObject { key_id: "gone".into(), ..EncryptedObject::decode(&good[..]).unwrap() };
        let refused = refused.encode_to_vec();
        let reader = kms();
        for _ in 0..3 {
            assert!(reader.open(&refused, b"k").await.is_err());
        }
        assert_eq!(plugin.decrypts.load(Ordering::SeqCst), 1, "asked once for many values");
        assert_eq!(reader.open(&good, b"k").await.unwrap().0, b"plain");

        // One that does not answer is not asked for each of them.
        let deaf = kms();
        deaf.fail(SILENT.to_vec(), "no answer".to_owned());
        assert!(deaf.open(&good, b"k").await.unwrap_err().to_string().contains("no answer"));
        assert_eq!(plugin.decrypts.load(Ordering::SeqCst), 2);
        deaf.probe().await.unwrap();
        assert!(deaf.open(&good, b"k").await.is_ok(), "it answers again");
        serving.abort();
    }

    #[tokio::test]
    async fn security_envelopes_are_bounded() {
        let good = EncryptedObject {
            encrypted_data: vec![1],
            key_id: "1".into(),
            encrypted_dek_source: vec![1],
            annotations: BTreeMap::new(),
            encrypted_dek_source_type: SEED,
        };
        validate(&good).unwrap();
        let annotated = |key: &str, size| BTreeMap::from([(key.to_owned(), vec![0; size])]);
        for (bad, reason) in [
            (EncryptedObject { encrypted_data: vec![], ..good.clone() }, "encrypted data is empty"),
            (EncryptedObject { key_id: String::new(), ..good.clone() }, "keyID is empty"),
            (EncryptedObject { key_id: "x".repeat(1025), ..good.clone() }, "exceeds the max size of 1024"),
            (EncryptedObject { encrypted_dek_source: vec![], ..good.clone() }, "encrypted DEK source is empty"),
            (EncryptedObject { encrypted_dek_source: vec![0; 1025], ..good.clone() }, "exceeds the max size of 1024"),
            (EncryptedObject { encrypted_dek_source_type: 2, ..good.clone() }, "unknown encryptedDEKSourceType: 2"),
            (EncryptedObject { annotations: annotated("a", 1), ..good.clone() }, "at least two segments"),
            (
                EncryptedObject { annotations: annotated("a.b", 40_000), ..good.clone() },
                "exceeds the max size of 32768",
            ),
        ] {
            let error = validate(&bad).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let kms = kms(&dir.path().join("nobody.sock"));
        for garbage in [&b"\xff\xff\xff"[..], b"", b"plain"] {
            assert!(kms.open(garbage, b"k").await.is_err());
        }
    }
}
