//! StorageVersionMigrations against the real API server: objects are written once more with the present key, and stay as they are.

use std::path::Path;
use std::sync::Arc;

use apiserver::{EncryptionFile, RuntimeConfig, Server, Storage};
use client::{Client, Gvr};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use serde_json::{Value, json};
use store::{EmbeddedStore, Range, Store};
use tokio_util::sync::CancellationToken;

use crate::harness::WAIT_TIMEOUT;

const KEYS: [(&str, &str); 2] =
    [("one", "Zmlyc3Qga2V5IG9mIHRoaXJ0eS10d28gYnl0ZXMuLi4="), ("two", "c2Vjb25kIGtleSBvZiB0aGlydHktdHdvIGJ5dGVzLi4=")];

fn write_keys(file: &Path, names: &[&str]) {
    let keys = names.iter().map(|name| {
        let (_, secret) = KEYS.iter().find(|(key, _)| key == name).unwrap();
        json!({"name": name, "secret": secret})
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": [{"secretbox": {"keys": keys.collect::<Vec<_>>()}}]}],
    });
    std::fs::write(file, configuration.to_string()).unwrap();
}

struct Running {
    client: Client,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

impl Running {
    async fn start(dir: &Path, store: &Arc<dyn Store>) -> Running {
        let path = |name: &str| dir.join(name);
        let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        std::fs::write(path("tls.crt"), certificate.cert.pem()).unwrap();
        std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
        let mut config = apiserver::Config::new(Storage::Open(store.clone()));
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.tls_cert_file = Some(path("tls.crt"));
        config.tls_private_key_file = Some(path("tls.key"));
        config.authorizers = vec![apiserver::Authorizer::Rbac];
        config.encryption = Some(EncryptionFile { path: path("keys.json"), automatic_reload: false });
        config.runtime_config = RuntimeConfig::parse("storagemigration.k8s.io/v1beta1=true").unwrap();
        let server = Server::new(config).await.unwrap();
        let user = |name: &str, group: &str| Client::in_process(server.handler(), api::UserInfo::new(name, &[group]));
        let client = user("admin", "system:masters");
        let mut manager = controllers::Config::new(user("system:kube-controller-manager", "system:authenticated"));
        manager.controllers = vec!["storage-version-migrator-controller".to_owned()];
        let (stop, mut tasks) = (CancellationToken::new(), tokio::task::JoinSet::new());
        let (serving, managing) = (stop.clone(), stop.clone());
        tasks.spawn(async move { server.serve(serving).await.unwrap() });
        tasks.spawn(async move { controllers::run(manager, managing).await.unwrap() });
        Running { client, stop, tasks }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }

    /// Waits for the end of a migration and returns it.
    async fn finished(&self, name: &str) -> StorageVersionMigration {
        let migrations = self.client.all::<StorageVersionMigration>();
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        loop {
            let found = migrations.get(name).await.unwrap();
            let is_closed = condition(&found, "Running").as_deref() == Some("False");
            if is_closed {
                return found;
            }
            assert!(tokio::time::Instant::now() < deadline, "{found:?}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    async fn migrate(&self, name: &str, resource: Value) -> StorageVersionMigration {
        let migrations =
            self.client.dynamic(&Gvr::new("storagemigration.k8s.io", "v1beta1", "storageversionmigrations"), None);
        migrations.create(&json!({"metadata": {"name": name}, "spec": {"resource": resource}})).await.unwrap();
        self.finished(name).await
    }
}

fn condition(migration: &StorageVersionMigration, kind: &str) -> Option<String> {
    let conditions = migration.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|one| one.type_ == kind).map(|one| one.status.clone())
}

/// The names of the keys that the Secrets of a store are sealed with.
async fn sealed_with(store: &Arc<dyn Store>) -> Vec<String> {
    let found = store.range(Range::prefix("/registry/secrets/")).await.unwrap();
    let name = |value: &[u8]| String::from_utf8_lossy(value).split(':').nth(4).unwrap_or_default().to_owned();
    let mut names: Vec<String> = found.kvs.iter().map(|kv| name(&kv.value)).collect();
    names.dedup();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_migration_leaves_nothing_sealed_with_the_old_key() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("keys.json");
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path().join("store"), Default::default()).unwrap());
    write_keys(&file, &["one"]);
    let cluster = Running::start(dir.path(), &store).await;
    let secrets = |cluster: &Running| cluster.client.namespaced::<Secret>("default");
    for number in 0..7 {
        let secret =
            json!({"metadata": {"name": format!("s{number}"), "labels": {"a": "b"}}, "stringData": {"p": "x"}});
        secrets(&cluster).create(&serde_json::from_value(secret).unwrap()).await.unwrap();
    }
    cluster.stop().await;
    assert_eq!(sealed_with(&store).await, ["one"]);

    write_keys(&file, &["two", "one"]);
    let cluster = Running::start(dir.path(), &store).await;
    let list = async |cluster: &Running| secrets(cluster).list(&Default::default()).await.unwrap().items;
    let before = list(&cluster).await;
    let done = cluster.migrate("first", json!({"resource": "secrets"})).await;
    assert_eq!(condition(&done, "Succeeded").as_deref(), Some("True"), "{done:?}");
    let version: u64 = done.status.as_ref().unwrap().resource_version.as_ref().unwrap().parse().unwrap();
    let after = list(&cluster).await;
    for (old, new) in before.iter().zip(&after) {
        let number = |secret: &Secret| secret.metadata.resource_version.as_ref().unwrap().parse::<u64>().unwrap();
        assert!(number(old) <= version && number(new) > version);
        let mut same = new.clone();
        same.metadata.resource_version = old.metadata.resource_version.clone();
        assert_eq!(&same, old, "written, and unchanged");
    }
    // All is as it should be: another one, or one that is taken up again, writes nothing.
    let again = cluster.migrate("second", json!({"resource": "secrets"})).await;
    assert_eq!(condition(&again, "Succeeded").as_deref(), Some("True"));
    assert_eq!(list(&cluster).await, after);
    // What cannot be migrated says why.
    let odd =
        cluster.migrate("odd", json!({"group": "authorization.k8s.io", "resource": "subjectaccessreviews"})).await;
    assert_eq!(condition(&odd, "Failed").as_deref(), Some("True"), "{odd:?}");
    cluster.stop().await;
    assert_eq!(sealed_with(&store).await, ["two"]);

    // The old key is not missed.
    write_keys(&file, &["two"]);
    let cluster = Running::start(dir.path(), &store).await;
    assert_eq!(list(&cluster).await.len(), 7);
    cluster.stop().await;
}
