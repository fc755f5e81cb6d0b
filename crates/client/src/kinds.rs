//! Informers of the kinds that several components watch: compiled here, once (`api::shared_kinds` says why).

use api::cached::{Packed, Pod};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;

use crate::InformerFactory;

macro_rules! informers {
    ($($kind:ty),* $(,)?) => {
        #[allow(dead_code, reason = "it is compiled for what it names; what nobody calls, the linker takes out")]
        static INFORMERS: &[fn(&InformerFactory)] = &[
            $(|informers| drop(informers.informer::<$kind>())),*,
            |informers| drop(informers.informer::<Pod>()),
            |informers| drop(informers.informer::<Packed<ReplicaSet>>()),
            |informers| drop(informers.informer::<Packed<ReplicationController>>()),
        ];
    };
}
api::shared_kinds!(informers);
