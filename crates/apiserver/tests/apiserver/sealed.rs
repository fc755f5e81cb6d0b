//! Encryption at rest: what is in the store, and what becomes of objects when keys come and go.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use apiserver::{EncryptionFile, Storage};
use serde_json::{Value, json};
use store::{EmbeddedStore, Store};

use crate::harness::Cluster;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const SECRET: &str = "/api/v1/namespaces/default/secrets/s";
const KEY: &str = "/registry/secrets/default/s";
const PLAIN: &str = "a text that nobody else writes";

/// A file that seals some resources with AES-GCM keys of these names, or says what else reads and writes them.
fn write_configuration(path: &Path, resources: &str, keys: &[&str], more: &str) {
    let key = |name: &&str| {
        use base64::Engine;
        let mut secret = [0; 32];
        secret[..name.len()].copy_from_slice(name.as_bytes());
        format!("{{name: {name}, secret: {}}}", base64::engine::general_purpose::STANDARD.encode(secret))
    };
    let keys: Vec<String> = keys.iter().map(key).collect();
    let sealing =
        if keys.is_empty() { String::new() } else { format!("  - aesgcm: {{keys: [{}]}}\n", keys.join(", ")) };
    let text = format!(
        "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [{resources}]\n  \
         providers:\n{sealing}{more}"
    );
    crate::harness::replace(path, &text);
}

const IDENTITY: &str = "  - identity: {}\n";

/// A server over a store that the test looks into, with its configuration in `file`.
async fn server(store: &Arc<dyn Store>, file: &Path, automatic_reload: bool) -> Cluster {
    Cluster::with(|config| {
        config.storage = Storage::Open(store.clone());
        config.encryption = Some(EncryptionFile { path: file.to_owned(), automatic_reload });
        config.disable_admission_plugins.push("ServiceAccount".to_owned());
    })
    .await
}

struct Place {
    dir: tempfile::TempDir,
    store: Arc<dyn Store>,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(EmbeddedStore::open(dir.path().join("store"), Default::default()).unwrap());
        Self { dir, store }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("encryption.yaml")
    }

    async fn stored(&self, key: &str) -> Vec<u8> {
        self.store.get(key).await.unwrap().unwrap().value.to_vec()
    }

    async fn prefix(&self, key: &str) -> String {
        let stored = self.stored(key).await;
        String::from_utf8_lossy(&stored[..stored.len().min(24)]).into_owned()
    }
}

fn secret() -> Value {
    json!({"metadata": {"name": "s"}, "stringData": {"password": PLAIN}})
}

fn contains(bytes: &[u8], text: &str) -> bool {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode(text);
    [text.as_bytes(), encoded.as_bytes()]
        .iter()
        .any(|wanted| bytes.windows(wanted.len()).any(|window| window == *wanted))
}

/// The files below a directory that show a text, plain or in base64.
fn files_with(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_with(&path, text));
        } else if contains(&std::fs::read(&path).unwrap(), text) {
            found.push(path);
        }
    }
    found
}

async fn until(cluster: &Cluster, path: &str, wanted: u16) -> String {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let (code, body) = cluster.send_raw("GET", path, "application/json", Value::Null).await;
        if code == wanted {
            return String::from_utf8_lossy(&body).into_owned();
        }
        assert!(Instant::now() < deadline, "{path}: {code} {}", String::from_utf8_lossy(&body));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn security_no_file_of_the_store_shows_a_secret() {
    let place = Place::new();
    write_configuration(&place.file(), "secrets", &["key1"], IDENTITY);
    let cluster = server(&place.store, &place.file(), false).await;
    let mut watch = watch(&cluster).await;
    assert_eq!(cluster.send("POST", SECRETS, secret()).await.0, 201);
    let other = json!({"metadata": {"name": "c"}, "data": {"text": "a text that may be seen"}});
    assert_eq!(cluster.send("POST", "/api/v1/namespaces/default/configmaps", other).await.0, 201);
    let patch = json!({"metadata": {"labels": {"a": "b"}}});
    let patched = cluster.send_raw("PATCH", SECRET, "application/merge-patch+json", patch).await;
    assert_eq!(patched.0, 200);

    // Whoever may read it sees it in every way there is.
    let (_, read) = cluster.send("GET", SECRET, Value::Null).await;
    assert!(contains(read.to_string().as_bytes(), PLAIN), "{read}");
    let (_, list) = cluster.send("GET", &format!("{SECRETS}?limit=1"), Value::Null).await;
    assert!(contains(list.to_string().as_bytes(), PLAIN), "{list}");
    while !contains(&next(&mut watch).await, PLAIN) {}

    assert!(place.prefix(KEY).await.starts_with("k8s:enc:aesgcm:v1:key1:"));
    cluster.stop().await;
    assert_eq!(files_with(place.dir.path(), PLAIN), Vec::<PathBuf>::new());
    assert!(!files_with(place.dir.path(), "a text that may be seen").is_empty(), "what is not sealed is found");

    // A restart reads what is there.
    let cluster = server(&place.store, &place.file(), false).await;
    assert_eq!(cluster.send("GET", SECRET, Value::Null).await.0, 200);
    until(&cluster, "/readyz", 200).await;
}

type Frames = std::pin::Pin<Box<apiserver::Body>>;

async fn watch(cluster: &Cluster) -> Frames {
    let path = format!("{SECRETS}?watch=true");
    let answer = cluster.request("GET", &path, "application/json", Default::default(), "a", &["system:masters"]).await;
    Box::pin(answer.into_body())
}

async fn next(frames: &mut Frames) -> Vec<u8> {
    use http_body_util::BodyExt;
    let frame = tokio::time::timeout(Duration::from_secs(60), frames.frame()).await.unwrap().unwrap().unwrap();
    frame.into_data().unwrap().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_that_changes_nothing_seals_with_the_key_of_today() {
    let place = Place::new();
    // First plain, as a store that was never sealed; then sealed; then with another key; then plain again.
    write_configuration(&place.file(), "secrets", &[], IDENTITY);
    let cluster = server(&place.store, &place.file(), false).await;
    assert_eq!(cluster.send("POST", SECRETS, secret()).await.0, 201);
    assert!(contains(&place.stored(KEY).await, PLAIN));
    cluster.stop().await;
    for (keys, prefix) in [
        (&["key1"][..], "k8s:enc:aesgcm:v1:key1:"),
        (&["key2", "key1"], "k8s:enc:aesgcm:v1:key2:"),
        (&["key2"], "k8s:enc:aesgcm:v1:key2:"),
    ] {
        write_configuration(&place.file(), "secrets", keys, IDENTITY);
        let cluster = server(&place.store, &place.file(), false).await;
        let (code, found) = cluster.send("GET", SECRET, Value::Null).await;
        assert_eq!(code, 200, "{keys:?}");
        let was_stale = !place.prefix(KEY).await.starts_with(prefix);
        let (code, put) = cluster.send("PUT", SECRET, found.clone()).await;
        assert_eq!(code, 200, "{put}");
        assert_eq!(put["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"], was_stale, "{keys:?}");
        assert!(place.prefix(KEY).await.starts_with(prefix));
        // Once more there is nothing to do.
        let (_, again) = cluster.send("PUT", SECRET, put.clone()).await;
        assert_eq!(again["metadata"]["resourceVersion"], put["metadata"]["resourceVersion"]);
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_key_an_object_is_unreadable_and_a_new_file_brings_it_back() {
    let place = Place::new();
    write_configuration(&place.file(), "secrets", &["key1"], "");
    let cluster = server(&place.store, &place.file(), true).await;
    assert_eq!(cluster.send("POST", SECRETS, secret()).await.0, 201);
    cluster.stop().await;

    write_configuration(&place.file(), "secrets", &["key2"], IDENTITY);
    let cluster = server(&place.store, &place.file(), true).await;
    let (code, answer) = cluster.send("GET", SECRET, Value::Null).await;
    assert_eq!(code, 500, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains(&format!("stored object {KEY} cannot be read")), "{answer}");
    assert_eq!(cluster.send("POST", SECRETS, secret()).await.0, 409, "it is there all the same");
    until(&cluster, "/readyz", 500).await;

    // A wrong file changes nothing; the right one is used without a restart.
    std::fs::write(place.file(), "kind: EncryptionConfiguration").unwrap();
    write_configuration(&place.file(), "secrets", &["key2", "key1"], IDENTITY);
    let found = until(&cluster, SECRET, 200).await;
    assert!(contains(found.as_bytes(), PLAIN));
    until(&cluster, "/readyz", 200).await;
    let other = json!({"metadata": {"name": "other"}});
    assert_eq!(cluster.send("POST", SECRETS, other).await.0, 201);
    assert!(place.prefix("/registry/secrets/default/other").await.starts_with("k8s:enc:aesgcm:v1:key2:"));
}

/// Who can write to the store, but has no key.
#[tokio::test(flavor = "multi_thread")]
async fn security_values_that_are_moved_changed_or_plain_are_not_believed() {
    let place = Place::new();
    write_configuration(&place.file(), "'*.*'", &["key1"], "");
    let cluster = server(&place.store, &place.file(), false).await;
    for name in ["s", "t", "u"] {
        let secret = json!({"metadata": {"name": name}, "stringData": {"of": name}});
        assert_eq!(cluster.send("POST", SECRETS, secret).await.0, 201);
    }
    let definition = json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {"group": "example.com", "scope": "Cluster", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(cluster.send("POST", definitions, definition).await.0, 201);
    until(&cluster, "/apis/example.com/v1/widgets", 200).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    assert_eq!(cluster.send("POST", "/apis/example.com/v1/widgets", widget).await.0, 201);
    assert!(place.prefix("/registry/example.com/widgets/w").await.starts_with("k8s:enc:aesgcm:v1:key1:"));

    let key = |name: &str| format!("/registry/secrets/default/{name}");
    let (s, mut t) = (place.stored(&key("s")).await, place.stored(&key("t")).await);
    place.store.put(&key("u"), s).await.unwrap();
    let last = t.len() - 1;
    t[last] ^= 1;
    place.store.put(&key("t"), t).await.unwrap();
    let forged = json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "v", "namespace": "default"}});
    place.store.put(&key("v"), forged.to_string()).await.unwrap();
    assert_eq!(cluster.send("GET", SECRET, Value::Null).await.0, 200);
    for name in ["t", "u", "v"] {
        let body = until(&cluster, &format!("{SECRETS}/{name}"), 500).await;
        assert!(body.contains(&format!("stored object /registry/secrets/default/{name} cannot be read")), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_etcd_holds_what_was_sealed() {
    let etcd = crate::etcd::Cluster::start(1);
    let store: Arc<dyn Store> = Arc::new(etcd.connect().await);
    let place = Place { dir: tempfile::tempdir().unwrap(), store };
    write_configuration(&place.file(), "secrets", &["key1"], IDENTITY);
    let cluster = server(&place.store, &place.file(), false).await;
    assert_eq!(cluster.send("POST", SECRETS, secret()).await.0, 201);
    assert!(place.prefix(KEY).await.starts_with("k8s:enc:aesgcm:v1:key1:"));
    let (_, read) = cluster.send("GET", SECRET, Value::Null).await;
    assert!(contains(read.to_string().as_bytes(), PLAIN), "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_does_not_start_with_a_wrong_configuration() {
    let place = Place::new();
    write_configuration(&place.file(), "'*'", &["key1"], "");
    let mut config = apiserver::Config::new(Storage::Open(place.store.clone()));
    config.bind = "127.0.0.1:0".parse().unwrap();
    let authority = testkit::keys::write(place.dir.path());
    drop(authority);
    config.tls_cert_file = Some(place.dir.path().join("server.crt"));
    config.tls_private_key_file = Some(place.dir.path().join("server.key"));
    config.encryption = Some(EncryptionFile { path: place.file(), automatic_reload: false });
    let error = apiserver::Server::new(config).await.map(|_| ()).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("resources[0].resources[0]: Invalid value: \"*\": use '*.' to encrypt all"), "{text}");
}
