//! The default StorageClass: a claim that names none gets a folder on the node its pod lands on.

use anyhow::{Context, Result};
use client::Client;
use k8s_openapi::api::storage::v1::StorageClass;
use serde_json::json;

const NAME: &str = "local-path";

/// Makes the class if it is not there; one that someone changed stays as it is.
pub(crate) async fn ensure(client: &Client) -> Result<()> {
    let class = json!({
        "metadata": {"name": NAME, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": controllers::LOCAL_PATH,
        "reclaimPolicy": "Delete",
        // The scheduler chooses the node first: the folder can only be on one.
        "volumeBindingMode": "WaitForFirstConsumer",
    });
    let class: StorageClass = serde_json::from_value(class).context("the default storage class")?;
    match client.all::<StorageClass>().create(&class).await {
        Err(error) if !error.is_already_exists() => Err(error).context("making the default storage class"),
        _ => Ok(()),
    }
}
