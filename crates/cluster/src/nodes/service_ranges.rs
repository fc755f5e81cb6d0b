//! Ranges of services that are added while the cluster runs get an end on this node, as those have that it began with.

use std::time::Duration;

use anyhow::Result;
use api::cidr::Cidr;
use api::sort::CompactSort as _;
use client::{Client, Informer, InformerFactory};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::node_network;
use crate::options::Options;
use crate::settings::Settings;

const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Follows the ranges until `stop`; what was made stays behind, so that a restart interrupts nobody.
pub(super) async fn run(options: Options, settings: Settings, client: Client, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(client);
    let ranges: Informer<ServiceCIDR> = informers.informer();
    let (changed, mut changes) = watch::channel(());
    ranges.subscribe(move |_| changed.send_replace(()));
    informers.start(stop.child_token());
    tokio::select! {
        () = ranges.synced() => {}
        () = stop.cancelled() => return Ok(()),
    }
    let mut failures = 0;
    loop {
        changes.mark_unchanged();
        let wanted = ends(&settings, ranges.list().iter().map(|range| &**range));
        let (options, settings) = (options.clone(), settings.clone());
        let sealed =
            tokio::task::spawn_blocking(move || node_network::seal_services(&options, &settings, &wanted)).await?;
        failures = match sealed {
            Ok(()) => 0,
            Err(error) => {
                tracing::warn!("service ranges: {error:#}");
                failures + 1
            }
        };
        let retry = async {
            match failures {
                0 => std::future::pending().await,
                _ => tokio::time::sleep(client::backoff::exponential(RETRY.0, RETRY.1, failures)).await,
            }
        };
        tokio::select! {
            change = changes.changed() => change?,
            () = retry => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// The ranges to be sealed. One with the node itself in it would cut the node off.
fn ends<'a>(settings: &Settings, ranges: impl Iterator<Item = &'a ServiceCIDR>) -> Vec<Cidr> {
    let texts = ranges.flat_map(|range| range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()));
    let parsed = texts.filter_map(|text| text.parse().ok()).map(|range: Cidr| range.network());
    let own = [Some(settings.address), settings.second_address];
    let mut ends: Vec<Cidr> =
        parsed.filter(|range| !own.iter().flatten().any(|address| range.contains(*address))).collect();
    ends.compact_sort();
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_range_with_the_node_in_it_is_left_alone() {
        let cluster = json!({"cluster_cidr": "10.42.0.0/16", "service_cidr": "10.43.0.0/16", "cluster_domain": "cluster.local",
            "dns": "10.43.0.10", "routes": "auto"});
        let settings: Settings =
            serde_json::from_value(json!({"name": "n", "address": "192.0.2.7", "second_address": "2001:db8::7",
            "kubelet_port": 10250, "cluster": cluster, "registries": "", "images_dir": "", "also_behind": [],
            "asks_for_certificate": false}))
            .unwrap();
        // A server of an earlier version says nothing of encryption.
        assert_eq!(settings.cluster.encryption, None);
        let range = |cidrs: &[&str]| -> ServiceCIDR {
            serde_json::from_value(json!({"metadata": {}, "spec": {"cidrs": cidrs}})).unwrap()
        };
        let all = [
            range(&["10.99.0.0/16", "fd99::/112"]),
            range(&["192.0.2.0/24", "2001:db8::/32"]),
            range(&["10.99.0.0/16"]),
        ];
        let texts: Vec<String> = ends(&settings, all.iter()).iter().map(Cidr::to_string).collect();
        assert_eq!(texts, ["10.99.0.0/16", "fd99::/112"]);
    }
}
