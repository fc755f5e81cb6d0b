//! Gives a pod its node, by POSTing a Binding.

use api::cached::Pod;
use client::{Client, Written};
use k8s_openapi::api::core::v1::{Binding, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::framework::{Outcome, Placement, Plugin, PluginError, Point};

pub(crate) struct DefaultBinder {
    /// None where nothing is ever bound: decisions alone.
    pub(crate) client: Option<Client>,
}

impl DefaultBinder {
    async fn post(client: &Client, placement: &Placement) -> Result<(), PluginError> {
        let metadata = &placement.pod.pod.metadata;
        let binding = Binding {
            metadata: ObjectMeta {
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                uid: metadata.uid.clone(),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".into()),
                name: Some(placement.node.to_string()),
                ..ObjectReference::default()
            },
        };
        let pods = client.namespaced::<Pod>(placement.pod.namespace());
        let answer = pods.create_subresource::<_, Written>(placement.pod.name(), "binding", &binding).await;
        Ok(answer.map(drop)?)
    }
}

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        "DefaultBinder"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Bind]
    }

    fn bind<'a>(&'a self, placement: &'a Placement) -> Option<Outcome<'a>> {
        let client = self.client.as_ref()?;
        Some(Box::pin(Self::post(client, placement)))
    }
}
