//! The kinds that several crates write. (What reads them is not generic: [`crate::read`].)
//!
//! A generic function is compiled in the crate that first uses it, and crates that do not depend on each other each make
//! their own copy: the code for a Pod stood six times in the binary. What stands in the lowest of them is found by every
//! crate above. It pays only while crates share generic code, which those that are compiled for size do, and so not this
//! one in the profile `dist` (`Cargo.toml`): there the crate `client` has what is compiled once.

#[cfg(debug_assertions)]
use std::any::Any;

#[cfg(debug_assertions)]
use serde::Serialize;
#[cfg(debug_assertions)]
use serde::de::DeserializeOwned;

/// Calls a macro with the list, for other crates that have something to compile once per kind.
#[macro_export]
macro_rules! shared_kinds {
    ($each:ident) => {
        $each! {
            k8s_openapi::api::apps::v1::ControllerRevision,
            k8s_openapi::api::apps::v1::DaemonSet,
            k8s_openapi::api::apps::v1::Deployment,
            k8s_openapi::api::apps::v1::ReplicaSet,
            k8s_openapi::api::apps::v1::StatefulSet,
            k8s_openapi::api::batch::v1::CronJob,
            k8s_openapi::api::batch::v1::Job,
            k8s_openapi::api::certificates::v1::CertificateSigningRequest,
            k8s_openapi::api::coordination::v1::Lease,
            k8s_openapi::api::core::v1::ConfigMap,
            k8s_openapi::api::core::v1::Endpoints,
            k8s_openapi::api::core::v1::Event,
            k8s_openapi::api::core::v1::Namespace,
            k8s_openapi::api::core::v1::Node,
            k8s_openapi::api::core::v1::PersistentVolume,
            k8s_openapi::api::core::v1::PersistentVolumeClaim,
            k8s_openapi::api::core::v1::Pod,
            k8s_openapi::api::core::v1::ReplicationController,
            k8s_openapi::api::core::v1::ResourceQuota,
            k8s_openapi::api::core::v1::Secret,
            k8s_openapi::api::core::v1::Service,
            k8s_openapi::api::core::v1::ServiceAccount,
            k8s_openapi::api::discovery::v1::EndpointSlice,
            k8s_openapi::api::networking::v1::ServiceCIDR,
            k8s_openapi::api::policy::v1::PodDisruptionBudget,
            k8s_openapi::api::rbac::v1::ClusterRole,
            k8s_openapi::api::storage::v1::CSIDriver,
            k8s_openapi::api::storage::v1::CSINode,
            k8s_openapi::api::storage::v1::CSIStorageCapacity,
            k8s_openapi::api::storage::v1::StorageClass,
        }
    };
}

/// The ways between an object and a value, which only tests take.
#[cfg(debug_assertions)]
struct Codec {
    _take: fn(serde_json::Value) -> serde_json::Result<Box<dyn Any>>,
    _give: fn(&dyn Any) -> Option<serde_json::Result<serde_json::Value>>,
}

#[cfg(debug_assertions)]
impl Codec {
    const fn of<K: Serialize + DeserializeOwned + 'static>() -> Codec {
        Codec {
            _take: |value| Ok(Box::new(serde_json::from_value::<K>(value)?)),
            _give: |object| Some(serde_json::to_value(object.downcast_ref::<K>()?)),
        }
    }
}

#[cfg(debug_assertions)]
macro_rules! codecs {
    ($($kind:ty),* $(,)?) => {
        #[allow(dead_code, reason = "it is compiled for what it names; what nobody calls, the linker takes out")]
        static CODECS: &[Codec] = &[$(Codec::of::<$kind>()),*];
    };
}
#[cfg(debug_assertions)]
shared_kinds!(codecs);
