//! A manager over HTTPS whose controllers act as their own service accounts, and its port for health and metrics.

use client::Client;
use client::kubeconfig::{AuthInfo, Cluster as KubeCluster, Kubeconfig, Overrides};
use client::serving::Serving;
use http_body_util::BodyExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ServiceAccount;

use crate::harness::{Cluster, deployment, is_rolled_out, patiently};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controllers_over_https_have_their_own_identities() {
    let mut cluster = Cluster::without_manager(2).await;
    // An address that nobody else is given before the manager listens there.
    let place = tokio::net::TcpSocket::new_v4().unwrap();
    place.set_reuseaddr(true).unwrap();
    place.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = place.local_addr().unwrap();
    let mut config = controllers::Config { client: cluster.https("manager"), ..cluster.manager() };
    config.use_service_account_credentials = true;
    config.serving = Some(Serving { bind: address, tls: None, profiling: true, is_optional: false });
    // As `cox controller-manager` has them.
    config.metrics = client::metrics::Metrics::new().with_process("v1.36.0").with_features([("WatchList", true)]);
    cluster.spawn(controllers::run(config, cluster.stop.clone()));

    // The manager itself may not create pods: that they appear shows whose token was used.
    cluster.apply::<Deployment>(deployment("web", 3)).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 3)).await;
    for account in ["deployment-controller", "replicaset-controller"] {
        cluster.until::<ServiceAccount>("kube-system", account, "there", |_| true).await;
    }

    let caller = |token: Option<&str>| {
        let server = KubeCluster {
            server: Some(format!("https://{address}")),
            insecure_skip_tls_verify: Some(true),
            ..KubeCluster::default()
        };
        let user = AuthInfo { token: token.map(str::to_owned), ..AuthInfo::default() };
        Client::from_kubeconfig(&Kubeconfig::single("m", server, user, None), &Overrides::default()).unwrap()
    };
    for (path, token, code, expected) in [
        ("/healthz", None, 200, "ok"),
        ("/readyz?verbose", None, 200, "[+]leaderElection ok\nreadyz check passed\n"),
        ("/metrics", None, 403, "cannot get path \\\"/metrics\\\""),
        ("/metrics", Some("wrong"), 401, "Unauthorized"),
        ("/metrics", Some("secret"), 200, "workqueue_adds_total{name=\"deployment-controller\"}"),
        (
            "/metrics",
            Some("secret"),
            200,
            "running_managed_controllers{manager=\"kube-controller-manager\",name=\"job-controller\"} 1",
        ),
        ("/metrics", Some("secret"), 200, "rest_client_requests_total{code=\"201\""),
        ("/metrics/slis", None, 403, "cannot get path \\\"/metrics/slis\\\""),
        ("/metrics/slis", Some("secret"), 200, "kubernetes_healthcheck{name=\"leaderElection\",type=\"readyz\"} 1"),
        ("/statusz", None, 403, "cannot get path"),
        ("/statusz", Some("secret"), 200, "kube-controller-manager statusz\nWarning: "),
        ("/flagz", None, 403, "cannot get path"),
        ("/flagz", Some("secret"), 200, "kube-controller-manager flagz\nWarning: "),
        ("/nothing", Some("secret"), 404, "404 page not found"),
    ] {
        let request = http::Request::get(path).body(bytes::Bytes::new()).unwrap();
        let response = caller(token).send(request).await.unwrap();
        assert_eq!(response.status().as_u16(), code, "{path} {token:?}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&body);
        assert!(text.contains(expected), "{path} {token:?}: {text}");
    }
    // Some series are there only when their controller has had something to do.
    let wrong = async || {
        let request = http::Request::get("/metrics").body(bytes::Bytes::new()).unwrap();
        let body = caller(Some("secret")).send(request).await.unwrap().into_body();
        let body = body.collect().await.unwrap().to_bytes();
        let component = client::metrics::upstream::Component::ControllerManager;
        client::metrics::upstream::problems(component, &String::from_utf8_lossy(&body))
    };
    if patiently(async || wrong().await.is_empty().then_some(())).await.is_none() {
        panic!("{:#?}", wrong().await);
    }
    cluster.stop().await;
}
