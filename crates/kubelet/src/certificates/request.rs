//! One CertificateSigningRequest, from the key to the issued certificate.

use std::time::Duration;

use anyhow::{Context, bail};
use client::{Client, Informer, ListParams};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rcgen::{CertificateParams, DnType, KeyPair};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::store::Certificate;

/// An administrator may have to approve.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// What a certificate is for: its signer, its uses, and the names it is to be good for.
pub(crate) struct Purpose {
    signer: &'static str,
    usage: &'static str,
    node_name: String,
    names: Vec<String>,
}

impl Purpose {
    pub(crate) fn client(node_name: &str) -> Self {
        Purpose {
            signer: "kubernetes.io/kube-apiserver-client-kubelet",
            usage: "client auth",
            node_name: node_name.into(),
            names: Vec::new(),
        }
    }

    /// `names` are the addresses the node is reached by.
    pub(crate) fn serving(node_name: &str, names: Vec<String>) -> Self {
        Purpose { signer: "kubernetes.io/kubelet-serving", usage: "server auth", node_name: node_name.into(), names }
    }
}

/// Asks for a certificate and waits until it is issued or refused.
pub(crate) async fn request(client: &Client, purpose: &Purpose) -> anyhow::Result<Certificate> {
    let key = KeyPair::generate().context("making a key")?;
    let mut params = CertificateParams::new(purpose.names.clone()).context("names of the certificate")?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, format!("system:node:{}", purpose.node_name));
    let pem = params.serialize_request(&key).and_then(|request| request.pem()).context("making a request")?;
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".into()), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: purpose.signer.into(),
            usages: Some(vec!["digital signature".into(), purpose.usage.into()]),
            ..Default::default()
        },
        status: None,
    };
    let made = client.all::<CertificateSigningRequest>().create(&wanted).await.context("creating a request")?;
    let name = made.metadata.name.unwrap_or_default();
    let answer = tokio::time::timeout(APPROVAL_TIMEOUT, issued(client, &name));
    let chain = answer.await.with_context(|| format!("certificate request {name} was not answered"))??;
    Certificate::parse(format!("{chain}{}", key.serialize_pem()))
        .with_context(|| format!("certificate request {name} was answered with no certificate"))
}

/// The certificate that a request got.
async fn issued(client: &Client, name: &str) -> anyhow::Result<String> {
    let requests: Informer<CertificateSigningRequest> =
        Informer::new(client.all(), ListParams::fields(format!("metadata.name={name}")));
    let (sender, mut answers) = watch::channel(None);
    requests.subscribe(move |event| {
        if let Some(answer) = answer(event.object()) {
            sender.send_replace(Some(answer));
        }
    });
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    let answered = async {
        let answer = answers.wait_for(Option::is_some).await.context("the watch ended")?.clone();
        answer
            .context("the watch ended")?
            .map_err(|why| anyhow::anyhow!("certificate request {name} was refused: {why}"))
    };
    tokio::select! {
        answer = answered => answer,
        () = requests.run(stop) => bail!("the watch of certificate request {name} ended"),
    }
}

/// There will be no certificate.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{reason}: {message}")]
struct Denied {
    reason: String,
    message: String,
}

/// The certificate, or why there will be none; nothing while it is open.
fn answer(request: &CertificateSigningRequest) -> Option<Result<String, Denied>> {
    let status = request.status.as_ref()?;
    let refused = status.conditions.iter().flatten().find(|c| matches!(c.type_.as_str(), "Denied" | "Failed"));
    if let Some(condition) = refused {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        return Some(Err(Denied { reason: text(&condition.reason), message: text(&condition.message) }));
    }
    let certificate = status.certificate.as_ref().filter(|certificate| !certificate.0.is_empty())?;
    Some(Ok(String::from_utf8_lossy(&certificate.0).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_are_answered_refused_or_open() {
        let with = |status: serde_json::Value| -> CertificateSigningRequest {
            serde_json::from_value(
                json!({"metadata": {}, "spec": {"request": "", "signerName": "s"}, "status": status}),
            )
            .unwrap()
        };
        for (status, expected) in [
            (json!({}), None),
            (json!({"conditions": [{"type": "Approved", "status": "True"}]}), None),
            (json!({"certificate": "eA=="}), Some(Ok("x".to_string()))),
            (
                json!({"conditions": [{"type": "Denied", "status": "True", "reason": "No", "message": "never"}]}),
                Some(Err(Denied { reason: "No".into(), message: "never".into() })),
            ),
        ] {
            assert_eq!(answer(&with(status)), expected);
        }
    }
}
