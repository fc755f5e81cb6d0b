//! What people are told while they wait for a node.

use std::time::Duration;

use client::Client;
use k8s_openapi::api::core::v1::Node;

use crate::progress;

const INTERVAL: Duration = Duration::from_secs(15);

/// Waits for something of a node that is starting, and says now and then why the node is not ready.
pub(super) async fn saying_why<T>(client: &Client, node: &str, event: impl Future<Output = T>) -> T {
    let mut event = std::pin::pin!(event);
    loop {
        if let Ok(event) = tokio::time::timeout(INTERVAL, &mut event).await {
            return event;
        }
        let nodes = client.all::<Node>();
        let why = match tokio::time::timeout(INTERVAL, nodes.get(node)).await {
            Ok(Ok(found)) => why_not_ready(&found),
            Ok(Err(error)) if error.is_not_found() => "its kubelet has not registered it".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the API server does not answer".to_owned(),
        };
        tracing::warn!(node, why, "not ready yet");
        progress::note(&format!("node {node} is not ready yet: {why}; 'cox logs' shows more"));
    }
}

fn why_not_ready(node: &Node) -> String {
    let ready = api::node::condition(node, "Ready");
    let message = ready.and_then(|ready| ready.message.clone()).filter(|message| !message.is_empty());
    message.unwrap_or_else(|| "its kubelet has not reported yet".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_says_why_it_is_not_ready() {
        let ready = |message: &str| json!([{"type": "Ready", "status": "False", "message": message}]);
        for (conditions, expected) in [
            (json!([]), "its kubelet has not reported yet"),
            (ready(""), "its kubelet has not reported yet"),
            (ready("container runtime network not ready"), "container runtime network not ready"),
        ] {
            let node = json!({"metadata": {}, "status": {"conditions": conditions}});
            assert_eq!(why_not_ready(&serde_json::from_value(node).unwrap()), expected);
        }
    }
}
