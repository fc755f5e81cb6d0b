//! What is known while one pod is brought a step closer to its spec.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;

use crate::env::Context;
use crate::resize;
use crate::state::PodState;
use crate::status::Waiting;
use crate::volumes::Mounted;

/// One pass over one pod, once its volumes are mounted and its sandbox runs.
pub(crate) struct Pass<'a> {
    pub(crate) pod: &'a Pod,
    /// What the runtime has of it.
    pub(crate) state: &'a PodState,
    pub(crate) memory: &'a mut Memory,
    /// What environment variables may refer to.
    pub(crate) context: &'a Context<'a>,
    /// Its volumes, by name, and the groups that they are for.
    pub(crate) mounted: &'a HashMap<String, Mounted>,
    pub(crate) volume_groups: &'a BTreeSet<i64>,
}

/// What a worker remembers between passes; nothing that a restart would miss.
#[derive(Default)]
pub(crate) struct Memory {
    /// Why containers are not started, by name.
    pub(crate) waiting: HashMap<String, Waiting>,
    /// The object the API shows for a static pod.
    pub(crate) mirror: Option<Arc<Pod>>,
    pub(crate) resize: resize::Progress,
    /// When the pod came here, until it runs.
    pub(crate) first_seen: Option<Instant>,
}

impl Memory {
    pub(crate) fn api_pod<'a>(&'a self, pod: &'a Pod) -> &'a Pod {
        self.mirror.as_deref().unwrap_or(pod)
    }
}
