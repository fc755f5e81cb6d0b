//! A Corefile in a ConfigMap, followed: what it says takes the place of flags while it is there.
//!
//! Invariant: a Corefile that cannot be used changes nothing. It is told of in the log, an event and a metric.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::{Client, EventRecorder, Informer, InformerFactory, ListParams};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::index::Informers;
use crate::plan::{Flags, Plan};
use crate::responder::Responder;

/// The key of the ConfigMap.
const COREFILE: &str = "Corefile";
const COMPONENT: &str = "coredns";

pub(crate) struct Configuration {
    key: String,
    maps: Informer<ConfigMap>,
    changed: Arc<Notify>,
    recorder: EventRecorder,
    client: Client,
}

impl Configuration {
    pub(crate) fn new(client: &Client, informers: &InformerFactory, namespace: &str, name: &str) -> Self {
        let maps = informers.namespaced::<ConfigMap>(namespace, ListParams::fields(format!("metadata.name={name}")));
        let changed = Arc::new(Notify::new());
        let notify = changed.clone();
        maps.subscribe(move |_| notify.notify_one());
        let recorder = EventRecorder::new(client.clone(), COMPONENT, "");
        Self { key: format!("{namespace}/{name}"), maps, changed, recorder, client: client.clone() }
    }

    /// Has the server answer by what the ConfigMap says, from the first packet on, and whenever that changes.
    pub(crate) async fn first(
        &self,
        config: &Config,
        responder: &Responder,
        index: &Informers,
        stop: &CancellationToken,
    ) {
        self.maps.synced().await;
        self.apply(config, responder, index, stop).await;
    }

    pub(crate) async fn follow(
        self,
        config: Config,
        responder: Arc<Responder>,
        index: Arc<Informers>,
        stop: CancellationToken,
    ) {
        loop {
            self.changed.notified().await;
            self.apply(&config, &responder, &index, &stop).await;
        }
    }

    async fn apply(&self, config: &Config, responder: &Responder, index: &Informers, stop: &CancellationToken) {
        let map = self.maps.get(&self.key);
        let files: BTreeMap<String, String> = map.as_ref().and_then(|map| map.data.clone()).unwrap_or_default();
        let flags = config.flags();
        let plan = match files.get(COREFILE) {
            Some(text) => Plan::of_corefile(text, &files, &flags).map_err(|refusal| refusal.to_string()),
            None => Plan::of_flags(&flags).map_err(|refusal| refusal.to_string()),
        };
        match plan {
            Ok(plan) => {
                if plan.needs_pods() {
                    index.follow_pods(&self.client, stop.clone()).await;
                }
                responder.exchange(plan);
                index.touch();
                tracing::info!(map = self.key, "the configuration is in use");
            }
            Err(message) => {
                responder.metrics.failed_reloads.inc();
                tracing::error!(map = self.key, "{message}: the configuration before it stays in use");
                if let Some(map) = map {
                    let text = format!("{message}. The configuration before it stays in use.");
                    self.recorder.warning(&client::reference(&*map), "InvalidCorefile", text);
                }
            }
        }
    }
}

impl Config {
    /// What this server is told without a Corefile.
    pub(crate) fn flags(&self) -> Flags<'_> {
        Flags {
            domain: &self.domain,
            ttl: self.ttl,
            upstreams: &self.upstreams,
            stub_domains: &self.stub_domains,
            ranges: &self.ranges,
            search: &self.search,
            own: self.listen.iter().chain(&self.own).copied().collect(),
        }
    }
}
