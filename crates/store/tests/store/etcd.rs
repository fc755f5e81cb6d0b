//! The same trait on real etcd: the suite, members that come and go, lost quorum, TLS and passwords.

use crate::peer::Cluster;
use crate::suite;
use futures_util::StreamExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use store::etcd::{Members, Options, Tls};
use store::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_passes_the_suite() {
    let cluster = Cluster::start(1);
    let store = cluster.connect().await;
    let progress = store.answers_progress_requests();
    suite::passes(Arc::new(store), progress).await;
}

/// Walk 3.1.
/// Three members pass the suite; the one in use is killed and restarted under load; then two are gone at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_pass_the_suite_and_survive_the_loss_of_one() {
    let mut cluster = Cluster::start(3);
    let mut options = cluster.options();
    options.timeout = Duration::from_secs(4);
    let store = cluster.connect_with(options).await;
    let progress = store.answers_progress_requests();
    let store: Arc<dyn Store> = Arc::new(store);
    suite::passes(store.clone(), progress).await;
    let mut watch = store.watch(Watch::prefix("/load/")).await.unwrap();

    let writer = |name: &'static str, store: Arc<dyn Store>, stop: tokio_util::sync::CancellationToken| async move {
        let key = format!("/load/{name}");
        let (mut value, mut at, mut acknowledged) = (0u64, Revision::ZERO, 0u64);
        while !stop.is_cancelled() {
            match store.update(&key, format!("{}", value + 1), at).await {
                Ok(revision) => {
                    (value, at) = (value + 1, revision);
                    acknowledged = value;
                }
                // The outcome is open: look.
                Err(StoreError::Unavailable(_)) | Err(StoreError::Conflict { .. }) => {
                    if let Ok(found) = store.get(&key).await {
                        at = found.as_ref().map_or(Revision::ZERO, |kv| kv.mod_revision);
                        value = found.map_or(0, |kv| std::str::from_utf8(&kv.value).unwrap().parse().unwrap());
                        assert!(value >= acknowledged, "{key}: {acknowledged} was acknowledged, found {value}");
                    }
                }
                Err(other) => panic!("{other}"),
            }
        }
        (key, acknowledged)
    };
    let stop = tokio_util::sync::CancellationToken::new();
    let writers: Vec<_> =
        ["a", "b", "c", "d"].map(|name| tokio::spawn(writer(name, store.clone(), stop.clone()))).into();

    let mut seen: std::collections::BTreeMap<String, (u64, Revision)> = Default::default();
    let mut last = Revision::ZERO;
    let mut follow = async |watch: &mut WatchStream, enough: &dyn Fn(u64) -> bool| {
        let mut count = 0;
        while !enough(count) {
            let WatchEvent::Put { kv, .. } = suite::next(watch).await else { panic!("only puts") };
            assert!(kv.mod_revision > last, "no duplicate, no reordering");
            last = kv.mod_revision;
            let entry = seen.entry(kv.key.to_string()).or_default();
            assert_eq!(kv.version, entry.0 + 1, "{}: no gap", kv.key);
            *entry = (kv.version, kv.mod_revision);
            count += 1;
        }
    };
    follow(&mut watch, &|count| count == 100).await;
    cluster.kill(0);
    follow(&mut watch, &|count| count == 100).await;
    cluster.run(0);
    follow(&mut watch, &|count| count == 100).await;
    cluster.kill(1);
    follow(&mut watch, &|count| count == 50).await;
    cluster.run(1);
    stop.cancel();
    for writer in writers {
        let (key, acknowledged) = writer.await.unwrap();
        let kv = store.get(&key).await.unwrap().unwrap();
        let value: u64 = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
        assert!(value >= acknowledged, "{key}");
    }

    cluster.kill(1);
    cluster.kill(2);
    let error = store.put("/lost", "x").await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1") && !text.contains('\n'), "{text}");
    cluster.run(1);
    cluster.run(2);
    let deadline = tokio::time::Instant::now() + suite::WAIT_TIMEOUT;
    while let Err(error) = store.put("/back", "x").await {
        assert!(tokio::time::Instant::now() < deadline, "{error}");
    }
}

/// The member that is asked stands still with its connections open, twice over: what was under way there goes on elsewhere,
/// and is done once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_watches_leave_a_member_that_is_silent() {
    let cluster = Cluster::start(3);
    let mut options = cluster.options();
    options.timeout = Duration::from_secs(60);
    let connected = Arc::new(cluster.connect_with(options).await);
    let store: Arc<dyn Store> = connected.clone();
    let mut at = store.create("/silent/key", "0").await.unwrap();
    let mut watch = store.watch(Watch::prefix("/silent/")).await.unwrap();
    let (mut rounds, mut unknown) = (0, 0);
    while rounds < 2 {
        let asked = connected.endpoint();
        let member = cluster.endpoints().iter().position(|endpoint| *endpoint == asked).unwrap();
        cluster.pause(member);
        let before = store.get("/silent/key");
        let written = store.update("/silent/key", format!("{rounds}-{unknown}"), at);
        let (before, written) = tokio::join!(before, written);
        assert!(before.unwrap().is_some());
        let now = store.get("/silent/key").await.unwrap().unwrap();
        match written {
            Ok(revision) => {
                assert_eq!((revision, now.version), (now.mod_revision, rounds + unknown + 2), "done once");
                rounds += 1;
            }
            // On a busy machine the others may change their leader meanwhile, and a second answer is lost as well.
            Err(StoreError::Unavailable(why)) => {
                assert!(now.mod_revision > at && why.contains("at another revision"), "{why}: {now:?}");
                unknown += 1;
                assert!(unknown < 5, "what changes one revision of a key is sent again: {why}");
            }
            Err(error) => panic!("{error}"),
        }
        at = now.mod_revision;
        let WatchEvent::Put { kv, .. } = suite::next(&mut watch).await else { panic!("only puts") };
        assert_eq!((kv.mod_revision, kv.version), (at, now.version), "while the member is silent");
        cluster.resume(member);
        // It may have to hear of the others' leader first.
        let deadline = tokio::time::Instant::now() + suite::WAIT_TIMEOUT;
        let back = Members::new(&Options::new([asked])).unwrap();
        while !back.status().await.is_ok_and(|status| status.leader != 0 && status.revision >= at) {
            assert!(tokio::time::Instant::now() < deadline, "the member does not come back");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_passwords_are_used() {
    let files = tempfile::tempdir().unwrap();
    let path = |name: &str| files.path().join(name);
    make_certificates(files.path());
    let flag = |name: &str, file: &str| format!("--{name}={}", path(file).display());
    let flags = [
        flag("cert-file", "server.crt"),
        flag("key-file", "server.key"),
        flag("trusted-ca-file", "ca.crt"),
        "--client-cert-auth".to_owned(),
    ];
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let cluster = Cluster::start_with(1, "https", &flags);
    let tls = Tls { ca: path("ca.crt"), identity: Some((path("client.crt"), path("client.key"))) };
    let options = Options { tls: Some(tls.clone()), timeout: Duration::from_secs(20), ..cluster.options() };
    let store: Arc<dyn Store> = Arc::new(cluster.connect_with(options.clone()).await);
    store.put("/tls", "works").await.unwrap();

    let refused = async |options: Options| {
        let error = EtcdStore::connect(options).await.err().expect("refused").to_string();
        assert!(!error.contains('\n'), "{error}");
        error
    };
    let without_certificate = Tls { identity: None, ..tls.clone() };
    refused(Options { tls: Some(without_certificate), timeout: Duration::from_secs(3), ..options.clone() }).await;
    let error = refused(Options { tls: None, ..options.clone() }).await;
    assert!(error.contains("needs a CA certificate"), "{error}");
    let missing = Tls { ca: path("no-such-file"), ..tls.clone() };
    let error = refused(Options { tls: Some(missing), ..options.clone() }).await;
    assert!(error.contains("no-such-file"), "{error}");

    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "server-1:unused"],
        &["user", "grant-role", "server-1", "root"],
        &["auth", "enable"],
    ] {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(arguments).arg("--endpoints").arg(&cluster.endpoints()[0]);
        etcdctl.arg("--cacert").arg(path("ca.crt")).arg("--cert").arg(path("client.crt"));
        let done = etcdctl.arg("--key").arg(path("client.key")).output().expect("apt-get install etcd-client");
        assert!(done.status.success(), "{done:?}");
    }
    let with = |password: &str| Options { credentials: Some(("root".into(), password.into())), ..options.clone() };
    let store: Arc<dyn Store> = Arc::new(cluster.connect_with(with("secret")).await);
    store.put("/password", "works").await.unwrap();
    let mut watch = store.watch(Watch::prefix("/")).await.unwrap();
    store.put("/password", "again").await.unwrap();
    assert!(watch.next().await.unwrap().is_ok());
    // The common name of a certificate is a user, too.
    let tls = Tls { identity: Some((path("server-1.crt"), path("server-1.key"))), ..tls };
    let store: Arc<dyn Store> = Arc::new(cluster.connect_with(Options { tls: Some(tls), ..options.clone() }).await);
    store.put("/name", "works").await.unwrap();
    for options in [with("wrong"), options.clone()] {
        let error = refused(options).await;
        assert!(error.starts_with("store access denied"), "{error}");
    }
}

fn make_certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    let write = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(rcgen::DnType::CommonName, "test authority");
    let ca_key = KeyPair::generate().unwrap();
    write("ca.crt", ca.self_signed(&ca_key).unwrap().pem());
    let issuer = Issuer::new(ca, ca_key);
    for name in ["server", "client", "server-1"] {
        let mut leaf = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        // etcd takes the common name of a client for a user.
        leaf.distinguished_name = rcgen::DistinguishedName::new();
        if name == "server-1" {
            leaf.distinguished_name.push(rcgen::DnType::CommonName, name);
        }
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        write(&format!("{name}.crt"), leaf.signed_by(&key, &issuer).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}
