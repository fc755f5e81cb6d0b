//! Informers and writers of the kinds that several components watch and write: compiled here, once (`api::shared_kinds` says
//! why).

use std::any::Any;

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

/// The way from an object to the text of JSON.
type Write = fn(&dyn Any) -> Option<serde_json::Result<Vec<u8>>>;

macro_rules! writers {
    ($($kind:ty),* $(,)?) => {
        #[allow(dead_code, reason = "it is compiled for what it names; what nobody calls, the linker takes out")]
        static WRITERS: &[Write] = &[$(
            |object| Some(api::schema::encode_plain(object.downcast_ref::<$kind>()?)),
        )*];
    };
}
api::shared_kinds!(writers);
