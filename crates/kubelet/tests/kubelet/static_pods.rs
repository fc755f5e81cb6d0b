//! Pods from files and from a URL, and their mirrors in the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::image;
use crate::node::{Node, container_id, is_ready};

fn manifest(name: &str) -> String {
    let container = json!({"name": "c", "image": image::NAME, "command": ["sleep", "1000"]});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}})
    .to_string()
}

/// Walk 7.1.
/// They run, are shown, outlive a restart of the kubelet and the failure of their source, and end with their manifest.
pub(crate) async fn static_pods_follow_their_manifests(node: &mut Node) {
    let dir = node.dir.path().join("manifests");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("filed.yaml"), manifest("filed")).unwrap();
    let is_broken = Arc::new(AtomicBool::new(false));
    let url = serve(manifest("linked"), is_broken.clone()).await;
    let settings = |settings: &mut kubelet::Settings| {
        settings.static_pod_path = Some(dir.clone());
        settings.static_pod_url = Some(url.clone());
        settings.http_check_frequency = std::time::Duration::from_millis(100);
    };
    node.stop_kubelet().await;
    node.start_kubelet_with(settings);
    let names = ["filed", "linked"].map(|name| format!("{name}-{}", node.name));
    let mut before = Vec::new();
    for (name, source) in names.iter().zip(["file", "http"]) {
        let pod = node.wait(name, "ready", is_ready).await;
        assert_eq!(pod.metadata.annotations.as_ref().unwrap()["kubernetes.io/config.source"], source);
        assert_eq!(pod.metadata.owner_references.as_ref().unwrap()[0].kind, "Node");
        before.push(container_id(&pod));
    }
    // A mirror that somebody deletes comes back, and its pod does not notice.
    let pods = node.api.client().namespaced::<Pod>("default");
    let uid = node.pod(&names[0]).await.unwrap().metadata.uid;
    pods.delete(&names[0], &client::DeleteParams::default().with_grace_period(0)).await.unwrap();
    node.wait(&names[0], "shown again", |pod| pod.metadata.uid != uid && is_ready(pod)).await;
    is_broken.store(true, Ordering::Relaxed);
    node.stop_kubelet().await;
    // Pods in a source that cannot be read are left alone, even by a kubelet that never saw it.
    std::fs::write(dir.join("broken.yaml"), "kind: Pod").unwrap();
    node.start_kubelet_with(settings);
    std::fs::write(dir.join("later.yaml"), manifest("later")).unwrap();
    let later = format!("later-{}", node.name);
    node.wait(&later, "ready", is_ready).await;
    for (name, id) in names.iter().zip(before) {
        assert_eq!(container_id(&node.pod(name).await.unwrap()), id, "{name} goes on");
    }
    is_broken.store(false, Ordering::Relaxed);
    std::fs::remove_file(dir.join("filed.yaml")).unwrap();
    node.wait_gone(&names[0]).await;
    node.wait_empty(&names[0]).await;
    node.wait(&names[1], "ready", is_ready).await;
    // Without its sources a kubelet ends what came from them.
    node.stop_kubelet().await;
    node.start_kubelet();
    for name in [&names[1], &later] {
        node.wait_empty(name).await;
        node.wait_gone(name).await;
    }
}

/// Serves a text over HTTP, or errors while it is broken.
async fn serve(text: String, is_broken: Arc<AtomicBool>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => asked.push(byte),
                    Err(_) => break,
                }
            }
            let (status, body) = match is_broken.load(Ordering::Relaxed) {
                true => ("500 Internal Server Error", ""),
                false => ("200 OK", text.as_str()),
            };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            // A kubelet that stops leaves in the middle.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    format!("http://{address}/pods")
}
