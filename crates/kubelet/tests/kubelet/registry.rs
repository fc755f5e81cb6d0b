//! Images from a registry that asks for a password.

use base64::Engine;
use k8s_openapi::api::core::v1::{Pod, Secret};
use serde_json::json;
use testkit::registry;

use crate::image;
use crate::node::{Node, is_ready, waiting_reason};

/// Walk 7.3.
/// Who has the password gets the image; who has not does not, also when it is on the node already.
pub(crate) async fn secrets_open_registries(node: &mut Node) {
    let registry = registry::start_with_password();
    registry.push("library/app", "1", &image::busybox(&["sleep", "1000"]));
    let name = format!("{}/library/app:1", registry.addr);
    let secret = |name: &str, password: &str| -> Secret {
        let auth = base64::engine::general_purpose::STANDARD.encode(format!("{}:{password}", registry::USER));
        let config = json!({"auths": {registry.addr.to_string(): {"auth": auth}}});
        serde_json::from_value(json!({
            "metadata": {"name": name}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config.to_string()},
        }))
        .unwrap()
    };
    let secrets = node.api.client().namespaced::<Secret>("default");
    secrets.create(&secret("right", registry::PASSWORD)).await.unwrap();
    secrets.create(&secret("wrong", "guess")).await.unwrap();
    let pod = |secrets: &[&str], policy: &str| {
        let secrets: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
        json!({"containers": [{"name": "c", "image": name, "imagePullPolicy": policy}], "imagePullSecrets": secrets,
            "terminationGracePeriodSeconds": 0})
    };
    let is_refused = |pod: &Pod| matches!(waiting_reason(pod).as_deref(), Some("ErrImagePull" | "ImagePullBackOff"));
    node.create("nobody", pod(&[], "IfNotPresent")).await;
    node.create("guesser", pod(&["wrong"], "IfNotPresent")).await;
    node.wait("nobody", "refused", is_refused).await;
    node.wait("guesser", "refused", is_refused).await;
    node.create("owner", pod(&["missing", "wrong", "right"], "IfNotPresent")).await;
    node.wait("owner", "ready", is_ready).await;
    node.create("free-rider", pod(&[], "IfNotPresent")).await;
    node.create("friend", pod(&["right"], "IfNotPresent")).await;
    node.create("fresh", pod(&["right"], "Always")).await;
    node.wait("friend", "ready", is_ready).await;
    node.wait("fresh", "ready", is_ready).await;
    node.wait("free-rider", "refused", is_refused).await;
    let missing = "Unable to retrieve some image pull secrets (missing); attempting to pull the image may not succeed.";
    node.wait_message(missing).await;
}
