//! TLS bootstrap and rotation: a kubelet that starts with nothing but a token gets certificates, and new ones in time.

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use rcgen::{CertificateSigningRequestParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::json;

use crate::api::BOOTSTRAP_TOKEN;
use crate::node::{Node, container_id, is_ready, restarts};

/// Long gone and soon over: more than nine tenths of its life have passed, so a kubelet renews it at once.
const NEARLY_OVER: (i64, i64) = (-100_000, 3600);
const FRESH: (i64, i64) = (-300, 86_400);
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";
const WAIT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(120);

pub(crate) async fn nodes_get_and_renew_their_certificates(node: &mut Node) {
    node.stop_kubelet().await;
    let client = node.api.client();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "bootstrap"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:bootstrappers"}],
    }))
    .unwrap();
    client.all::<ClusterRoleBinding>().create(&binding).await.unwrap();
    let bootstrap = node.dir.path().join("bootstrap");
    std::fs::write(&bootstrap, node.api.kubeconfig(BOOTSTRAP_TOKEN)).unwrap();
    let flag = format!("--bootstrap-kubeconfig={}", bootstrap.display());
    node.spawn_kubelet_with(&[&flag, "--rotate-certificates=true", "--rotate-server-certificates=true"]);

    let first = grant_next(node, NEARLY_OVER).await;
    assert_eq!(first.spec.username.as_deref(), Some("system:bootstrap:test"), "the first is asked for with the token");
    let renewed = grant_next(node, FRESH).await;
    let own = format!("system:node:{}", node.name);
    assert_eq!(renewed.spec.username.as_deref(), Some(own.as_str()), "the next with the certificate before it");
    node.wait_condition("Ready", "True").await;
    node.create(
        "kept",
        json!({"containers": [{"name": "c", "command": ["sleep", "1000"]}], "terminationGracePeriodSeconds": 0}),
    )
    .await;
    let pod = node.wait("kept", "ready", is_ready).await;

    // One that is nearly over is replaced as well; requests of the kubelet before the restart are nobody's any more.
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    let mut granted = 0;
    loop {
        for request in open(node, SERVING).await {
            assert_eq!(request.spec.username.as_deref(), Some(own.as_str()));
            grant(node, request, if granted < 3 { NEARLY_OVER } else { FRESH }).await;
            granted += 1;
        }
        if granted > 3 && is_served_by_authority(node).await {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{granted} certificates to serve with, and none is used");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let after = node.pod("kept").await.unwrap();
    assert_eq!((container_id(&after), restarts(&after)), (container_id(&pod), 0));
}

/// Whether the kubelet's server shows a certificate that the authority signed for its address.
async fn is_served_by_authority(node: &Node) -> bool {
    let url = format!("https://127.0.0.1:{}/healthz", node.port().await);
    let mut curl = tokio::process::Command::new("curl");
    curl.args(["-sSf", "--max-time", "20", "--cacert"]).arg(node.dir.path().join("ca.crt")).arg(&url);
    curl.output().await.unwrap().stdout == b"ok"
}

/// Requests of a signer that nobody has answered.
async fn open(node: &Node, signer: &str) -> Vec<CertificateSigningRequest> {
    let mut all = node.api.client().all::<CertificateSigningRequest>().list(&Default::default()).await.unwrap().items;
    all.retain(|request| {
        let is_open = request.status.as_ref().is_none_or(|status| status.certificate.is_none());
        is_open && request.spec.signer_name == signer
    });
    all
}

/// Waits for the next request for a client certificate and grants it.
async fn grant_next(node: &Node, lifetime: (i64, i64)) -> CertificateSigningRequest {
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(request) = open(node, CLIENT).await.pop() {
            return grant(node, request, lifetime).await;
        }
        assert!(tokio::time::Instant::now() < deadline, "no request for a client certificate");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Approves a request and signs it for a lifetime around now, in seconds.
async fn grant(
    node: &Node,
    mut request: CertificateSigningRequest,
    (from, to): (i64, i64),
) -> CertificateSigningRequest {
    let api = node.api.client().all::<CertificateSigningRequest>();
    let approved = CertificateSigningRequestCondition {
        type_: "Approved".into(),
        status: "True".into(),
        reason: Some("Test".into()),
        message: None,
        last_update_time: None,
        last_transition_time: None,
    };
    request.status.get_or_insert_default().conditions = Some(vec![approved]);
    let name = request.metadata.name.clone().unwrap();
    let patch = client::Patch::merge(json!({"status": request.status}));
    let mut request: CertificateSigningRequest = api.patch_path(&name, Some("approval"), &patch).await.unwrap();

    let (authority, key) = node.api.authority();
    let issuer = Issuer::from_ca_cert_pem(&authority, KeyPair::from_pem(&key).unwrap()).unwrap();
    let pem = std::str::from_utf8(&request.spec.request.0).unwrap();
    let mut params = CertificateSigningRequestParams::from_pem(pem).unwrap();
    let now = jiff::Timestamp::now().as_second();
    let moment = |offset: i64| rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs((now + offset) as u64);
    (params.params.not_before, params.params.not_after) = (moment(from), moment(to));
    params.params.extended_key_usages = match request.spec.signer_name == SERVING {
        true => vec![ExtendedKeyUsagePurpose::ServerAuth],
        false => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    let signed = params.signed_by(&issuer).unwrap().pem();
    request.status.get_or_insert_default().certificate = Some(ByteString(signed.into_bytes()));
    api.update_status(&request).await.unwrap()
}
