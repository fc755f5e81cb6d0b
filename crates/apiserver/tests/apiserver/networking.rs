//! Conformance area 15: the objects of networking, and the claims to cluster IPs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apiserver::Storage;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use store::{EmbeddedStore, KeyRange, Op, Range, RangeResult, Store, StoreError, Txn, TxnResult};

use crate::harness::Cluster;
use crate::lifecycle::Life;

const NETWORKING: &str = "networking.k8s.io/v1";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

#[tokio::test]
async fn networking_objects_live_and_die() {
    let cluster = Cluster::start().await;
    let address = json!({"spec": {"parentRef": {"group": "", "resource": "services", "namespace": "n", "name": "s"}}});
    let lives = [
        (
            "ingresses",
            true,
            "i",
            json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}}),
            Some(json!({"loadBalancer": {"ingress": [{"ip": "169.1.1.1"}]}})),
        ),
        ("ingressclasses", false, "c", json!({"spec": {"controller": "example.com/controller"}}), None),
        ("networkpolicies", true, "p", json!({"spec": {"podSelector": {}}}), None),
        ("ipaddresses", false, "255.255.255.255", address.clone(), None),
        ("ipaddresses", false, "fe80::42:1dff:fe84:f9e2", address, None),
        (
            "servicecidrs",
            false,
            "extra",
            json!({"spec": {"cidrs": ["10.196.0.0/24"]}}),
            Some(json!({"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]})),
        ),
    ];
    for (plural, namespaced, name, body, status) in lives {
        Life { api_version: NETWORKING, plural, namespaced, name, body, status }.run(&cluster).await;
    }
}

#[tokio::test]
async fn services_and_their_endpoints_live_and_die() {
    let cluster = Cluster::start().await;
    let port = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let condition = json!({"type": "Ready", "status": "True", "reason": "r", "message": "m",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status =
        json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1", "ipMode": "VIP"}]}, "conditions": [condition]});
    for (api_version, plural, body, status) in [
        ("v1", "services", json!({"spec": {"type": "LoadBalancer", "ports": port}}), Some(status)),
        ("v1", "endpoints", json!({"subsets": [{"addresses": [{"ip": "10.0.0.24"}], "ports": port}]}), None),
        (
            "discovery.k8s.io/v1",
            "endpointslices",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.24"]}], "ports": port}),
            None,
        ),
    ] {
        Life { api_version, plural, namespaced: true, name: "s", body, status }.run(&cluster).await;
    }
}

#[tokio::test]
async fn the_cluster_has_a_range_that_is_ready() {
    let cluster = Cluster::start().await;
    let path = format!("/apis/{NETWORKING}/servicecidrs/kubernetes");
    for path in [path.clone(), format!("{path}/status")] {
        let (code, range) = cluster.send("GET", &path, Value::Null).await;
        assert_eq!(code, 200, "{range}");
        let ready = &range["status"]["conditions"][0];
        assert_eq!((&ready["type"], &ready["status"]), (&json!("Ready"), &json!("True")), "{range}");
    }
}

async fn service(cluster: &Cluster, name: &str, spec: Value) -> (u16, Value) {
    let mut spec = spec;
    spec["ports"] = json!([{"port": 80}]);
    cluster.send("POST", SERVICES, json!({"metadata": {"name": name}, "spec": spec})).await
}

#[tokio::test]
async fn a_cluster_ip_is_an_object_as_long_as_its_service() {
    let cluster = Cluster::start().await;
    let (code, created) = service(&cluster, "s", json!({})).await;
    assert_eq!(code, 201, "{created}");
    let address = created["spec"]["clusterIP"].as_str().unwrap();
    let (code, claim) = cluster.send("GET", &format!("{ADDRESSES}/{address}"), Value::Null).await;
    assert_eq!(code, 200, "{claim}");
    assert_eq!(claim["spec"]["parentRef"], json!({"resource": "services", "namespace": "default", "name": "s"}));
    assert_eq!(claim["metadata"]["labels"]["ipaddress.kubernetes.io/ip-family"], "IPv4");
    // Taken by a service, or reserved by hand: either way it is not given out.
    let (code, refused) = service(&cluster, "t", json!({"clusterIP": address})).await;
    assert_eq!(code, 422);
    assert!(refused["message"].as_str().unwrap().contains("provided IP is already allocated"), "{refused}");
    let reserved = json!({"metadata": {"name": "10.43.0.77"},
        "spec": {"parentRef": {"resource": "things", "name": "x", "group": "example.com"}}});
    assert_eq!(cluster.send("POST", ADDRESSES, reserved).await.0, 201);
    assert_eq!(service(&cluster, "t", json!({"clusterIP": "10.43.0.77"})).await.0, 422);
    // Neither a dry run nor a refused service leaves a claim behind.
    let before = cluster.send("GET", ADDRESSES, Value::Null).await.1["items"].as_array().map(Vec::len);
    let body = json!({"metadata": {"name": "u"}, "spec": {"ports": [{"port": 80}]}});
    let (code, dry) = cluster.send("POST", &format!("{SERVICES}?dryRun=All"), body).await;
    assert_eq!(code, 201, "{dry}");
    let (code, _) = service(&cluster, "u", json!({"type": "NodePort", "ports": [], "externalName": "Bad Name!"})).await;
    assert!(code == 201 || code == 422);
    cluster.send("DELETE", &format!("{SERVICES}/u"), Value::Null).await;
    let after = cluster.send("GET", ADDRESSES, Value::Null).await.1["items"].as_array().map(Vec::len);
    assert_eq!(before, after);
    cluster.send("DELETE", &format!("{SERVICES}/s"), Value::Null).await;
    assert_eq!(cluster.send("GET", &format!("{ADDRESSES}/{address}"), Value::Null).await.0, 404);
    assert_eq!(service(&cluster, "t", json!({"clusterIP": address})).await.0, 201);
}

#[tokio::test]
async fn a_range_that_is_ready_gives_addresses() {
    let cluster = Cluster::start().await;
    let ranges = format!("/apis/{NETWORKING}/servicecidrs");
    let wanted = json!({"clusterIP": "10.196.7.7"});
    assert_eq!(service(&cluster, "s", wanted.clone()).await.0, 422);
    let range = json!({"metadata": {"name": "extra"}, "spec": {"cidrs": ["10.196.7.0/24"]}});
    assert_eq!(cluster.send("POST", &ranges, range).await.0, 201);
    assert_eq!(service(&cluster, "s", wanted.clone()).await.0, 422, "not ready yet");
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    let url = format!("{ranges}/extra/status");
    assert_eq!(cluster.send_raw("PATCH", &url, crate::lifecycle::MERGE, status).await.0, 200);
    let (code, created) = service(&cluster, "s", wanted).await;
    assert_eq!((code, &created["spec"]["clusterIP"]), (201, &json!("10.196.7.7")), "{created}");
}

/// What a crash leaves behind is put right at the next start.
#[tokio::test]
async fn claims_and_services_are_brought_together_again() {
    let cluster = Cluster::start().await;
    let (_, created) = service(&cluster, "s", json!({"type": "NodePort"})).await;
    let address = created["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let port = created["spec"]["ports"][0]["nodePort"].as_i64().unwrap();
    assert_eq!(cluster.send("DELETE", &format!("{ADDRESSES}/{address}"), Value::Null).await.0, 200);
    let dir = cluster.stop().await;
    let again = Cluster::with(|config| config.storage = apiserver::Storage::Embedded(dir.path().join("store"))).await;
    let (code, claim) = again.send("GET", &format!("{ADDRESSES}/{address}"), Value::Null).await;
    assert_eq!((code, &claim["spec"]["parentRef"]["name"]), (200, &json!("s")), "{claim}");
    let same =
        json!({"metadata": {"name": "t"}, "spec": {"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}});
    let (code, refused) = again.send("POST", SERVICES, same).await;
    assert_eq!(code, 422, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("provided port is already allocated"), "{refused}");
}

const STORED_SERVICES: &str = "/registry/services/specs/";

/// A store that carries out writes of services and then loses its answer, when it is told to, and may not say what became of
/// them either.
struct Forgetful {
    inner: Arc<dyn Store>,
    forgets: AtomicBool,
    is_silent: AtomicBool,
}

fn lost<T: Send + 'static>() -> BoxFuture<'static, store::Result<T>> {
    Box::pin(std::future::ready(Err(StoreError::Unavailable("the answer is lost".to_owned()))))
}

impl Store for Forgetful {
    fn txn(&self, txn: Txn) -> BoxFuture<'_, store::Result<TxnResult>> {
        let is_service = |op: &Op| matches!(op, Op::Put { key, .. } if key.starts_with(STORED_SERVICES));
        let is_lost = txn.success.iter().any(is_service) && self.forgets.load(Ordering::SeqCst);
        Box::pin(async move {
            let done = self.inner.txn(txn).await?;
            if is_lost { lost().await } else { Ok(done) }
        })
    }

    fn range(&self, range: Range) -> BoxFuture<'_, store::Result<RangeResult>> {
        let is_service = matches!(&range.keys, KeyRange::Key(key) if key.starts_with(STORED_SERVICES));
        match is_service && self.is_silent.load(Ordering::SeqCst) {
            true => lost(),
            false => self.inner.range(range),
        }
    }

    store::forward!(
        inner: watch, request_progress, compact, current_revision, grant_lease, keep_alive, revoke_lease, snapshot, size
    );
}

/// Given back, its address and its port could be another's while the service is there after all.
#[tokio::test]
async fn claims_are_kept_when_nobody_knows_whether_the_service_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let inner = Arc::new(EmbeddedStore::open(dir.path().join("store"), Default::default()).unwrap());
    let store = Arc::new(Forgetful { inner, forgets: false.into(), is_silent: false.into() });
    let cluster = Cluster::with(|config| config.storage = Storage::Open(store.clone())).await;
    store.forgets.store(true, Ordering::SeqCst);
    // What is found to be there was created.
    let (code, answer) = service(&cluster, "found", json!({})).await;
    assert_eq!(code, 201, "{answer}");
    store.is_silent.store(true, Ordering::SeqCst);
    let (code, answer) = service(&cluster, "open", json!({"type": "NodePort"})).await;
    assert_eq!(code, 500, "{answer}");
    store.forgets.store(false, Ordering::SeqCst);
    store.is_silent.store(false, Ordering::SeqCst);
    let (code, found) = cluster.send("GET", &format!("{SERVICES}/open"), Value::Null).await;
    assert_eq!(code, 200, "{found}");
    let (address, port) = (&found["spec"]["clusterIP"], &found["spec"]["ports"][0]["nodePort"]);
    for spec in [
        json!({"clusterIP": address, "ports": [{"port": 80}]}),
        json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": port}]}),
    ] {
        let (code, refused) = cluster.send("POST", SERVICES, json!({"metadata": {"name": "late"}, "spec": spec})).await;
        assert_eq!(code, 422, "{refused}");
        assert!(refused["message"].as_str().unwrap().contains("is already allocated"), "{refused}");
    }
}

/// A client may leave at any moment: what its request took is either a service's or nobody's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_has_an_owner_even_if_the_client_leaves() {
    let cluster = Cluster::start().await;
    const ATTEMPTS: usize = 40;
    for polls in 0..ATTEMPTS {
        let body = json!({"metadata": {"name": format!("left-{polls}")}, "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
        let services = "/api/v1/namespaces/default/services";
        let bytes = bytes::Bytes::from(body.to_string());
        let mut request =
            std::pin::pin!(cluster.request("POST", services, "application/json", bytes, "admin", &["system:masters"]));
        for _ in 0..polls {
            if futures_util::poll!(request.as_mut()).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    let settled = async || {
        let (_, services) = cluster.send("GET", "/api/v1/services", Value::Null).await;
        let (_, addresses) = cluster.send("GET", "/apis/networking.k8s.io/v1/ipaddresses", Value::Null).await;
        let mut used: Vec<&Value> =
            services["items"].as_array().unwrap().iter().map(|item| &item["spec"]["clusterIP"]).collect();
        let mut taken: Vec<&Value> =
            addresses["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
        used.sort_by_key(|value| value.to_string());
        taken.sort_by_key(|value| value.to_string());
        used == taken
    };
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(30);
    while !settled().await {
        assert!(tokio::time::Instant::now() < deadline, "an address belongs to nobody");
        tokio::task::yield_now().await;
    }
}
