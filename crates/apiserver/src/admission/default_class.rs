//! The default class, of storage or of ingress.

use api::default_class::{is_marked, order};
use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::parts::Parts;

use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

/// The class that one of the annotations makes the default.
pub(super) fn newest_default<K>(cluster: &Cluster, annotations: &[&str]) -> Result<Option<String>, Unreadable>
where
    K: Metadata<Ty = ObjectMeta> + Parts,
{
    let classes = cluster.objects().list::<K>(None)?;
    let marked = classes.iter().map(Metadata::metadata).filter(|class| is_marked(class, annotations));
    let chosen = marked.min_by(|left, right| order(left, right));
    Ok(chosen.and_then(|meta| meta.name.clone()))
}
