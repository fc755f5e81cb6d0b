//! Which of several classes marked as default is the default: of storage, of ingress.

use k8s_openapi::Metadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::parts::Parts;

use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

/// The newest of the classes that carry one of the annotations, then the first by name.
pub(super) fn newest_default<K>(cluster: &Cluster, annotations: &[&str]) -> Result<Option<String>, Unreadable>
where
    K: Metadata<Ty = ObjectMeta> + Parts,
{
    let classes = cluster.objects().list::<K>(None)?;
    let is_default = |meta: &&ObjectMeta| {
        let set = meta.annotations.as_ref();
        set.is_some_and(|set| annotations.iter().any(|key| set.get(*key).is_some_and(|value| value == "true")))
    };
    let chosen = classes
        .iter()
        .map(Metadata::metadata)
        .filter(is_default)
        .min_by(|a, b| b.creation_timestamp.cmp(&a.creation_timestamp).then_with(|| a.name.cmp(&b.name)));
    Ok(chosen.and_then(|meta| meta.name.clone()))
}
