//! Root CA publisher: every namespace has a ConfigMap with the certificate authority of the API server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use client::metrics::{Metrics, exponential};
use client::{Client, Informer, ListParams};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::namespace::is_active;

const NAME: &str = "kube-root-ca.crt";
const DESCRIPTION: (&str, &str) = (
    "kubernetes.io/description",
    "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal \
     service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.",
);

static SYNC_BOUNDS: [f64; 15] = exponential(0.001, 2.0);

struct Controller {
    client: Client,
    namespaces: Informer<Namespace>,
    maps: Informer<ConfigMap>,
    root_ca: Option<String>,
    metrics: Metrics,
}

/// Keys are namespaces.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let namespaces = context.on_self::<Namespace>();
    let maps = context.filtered::<ConfigMap>(ListParams::fields(format!("metadata.name={NAME}")));
    let queue = context.queue.clone();
    let maps = maps.wakes(move |event| {
        if let Some(namespace) = &event.object().metadata.namespace {
            queue.add(namespace.clone());
        }
    });
    let (root_ca, metrics) = (context.config.root_ca.clone(), context.config.metrics.clone());
    Arc::new(Controller { client: context.client.clone(), namespaces, maps, root_ca, metrics })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(root_ca) = &self.root_ca else { return Ok(Requeue::Never) };
            if !self.namespaces.get(key).is_some_and(|namespace| is_active(&namespace)) {
                return Ok(Requeue::Never);
            }
            let (api, began) = (self.client.namespaced::<ConfigMap>(key), Instant::now());
            let data = BTreeMap::from([("ca.crt".to_owned(), root_ca.clone())]);
            let written = match self.maps.get(&format!("{key}/{NAME}")) {
                Some(present) if present.data.as_ref() == Some(&data) => return Ok(Requeue::Never),
                Some(present) => api.update(&ConfigMap { data: Some(data), ..ConfigMap::clone(&present) }).await,
                None => {
                    let mut map = ConfigMap { data: Some(data), ..ConfigMap::default() };
                    map.metadata.name = Some(NAME.into());
                    map.metadata.namespace = Some(key.into());
                    map.metadata.annotations = Some([(DESCRIPTION.0.to_owned(), DESCRIPTION.1.to_owned())].into());
                    api.create(&map).await
                }
            };
            let code = written.as_ref().map_or_else(|error| error.code().unwrap_or(500), |_| 200).to_string();
            let labels = [("code", code.as_str())];
            self.metrics.counter("root_ca_cert_publisher_sync_total", "Namespaces given the authority", &labels).inc();
            let (name, help) = ("root_ca_cert_publisher_sync_duration_seconds", "How long that took");
            self.metrics.histogram(name, help, &SYNC_BOUNDS, &labels).observe_duration(began.elapsed());
            match written {
                Ok(_) => Ok(Requeue::Never),
                Err(error) if error.is_already_exists() || error.is_namespace_terminating() || error.is_not_found() => {
                    Ok(Requeue::Never)
                }
                Err(error) => Err(error.into()),
            }
        })
    }
}
