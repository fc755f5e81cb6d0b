//! ExtendedResourceToleration: nodes with special hardware are tainted by its name; pods that ask for it tolerate that.

use std::collections::BTreeSet;
use std::sync::Arc;

use api::pod::resources::is_extended;
use api::sort::CompactCollect as _;
use k8s_openapi::api::core::v1::{Pod, Toleration};

use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

pub(super) struct ExtendedResourceToleration;

impl Plugin for ExtendedResourceToleration {
    fn admit<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let applies = attributes.writes("", "pods");
        let Some(spec) = attributes.object_mut::<Pod>().filter(|_| applies).and_then(|pod| pod.spec.as_mut()) else {
            return admitted();
        };
        let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let resources = containers.filter_map(|container| container.resources.as_ref()?.requests.as_ref());
        let wanted: BTreeSet<String> =
            resources.flat_map(|requests| requests.keys()).filter(|name| is_extended(name)).cloned().compact_collect();
        for name in wanted {
            let toleration = Toleration {
                key: Some(name),
                operator: Some("Exists".to_owned()),
                effect: Some("NoSchedule".to_owned()),
                ..Default::default()
            };
            let tolerations = spec.tolerations.get_or_insert_default();
            if !tolerations.contains(&toleration) {
                tolerations.push(toleration);
            }
        }
        admitted()
    }
}
