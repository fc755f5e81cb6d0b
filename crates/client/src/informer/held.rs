//! Objects of any type, as informers hold them.
//!
//! What an informer does is compiled once and not for each of dozens of types: `Informer<K>` turns what comes out of
//! [`Erased`](super::erased::Erased) into objects of its type.

use std::any::Any;
use std::sync::Arc;

use api::read::Reader;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Object;

/// An object whose type is not known.
pub(super) trait AnyObject: Any {
    fn object_meta(&self) -> &ObjectMeta;
}

impl<K: Object> AnyObject for K {
    fn object_meta(&self) -> &ObjectMeta {
        self.meta()
    }
}

pub(super) type Held = dyn AnyObject + Send + Sync;

/// Reads an object. The last state of one that is gone (`is_last`) is nobody's to hold.
pub(super) type ReadHeld = fn(from: &mut Reader<'_>, is_last: bool) -> serde_json::Result<Arc<Held>>;

/// What is to be known about a type.
#[derive(Clone, Copy)]
pub(super) struct Kind {
    /// What its objects are called in logs.
    pub(super) name: &'static str,
    pub(super) read: ReadHeld,
}

impl Kind {
    pub(super) fn of<K: Object>() -> Self {
        Self { name: K::kind(), read: read::<K> }
    }
}

fn read<K: Object>(from: &mut Reader<'_>, is_last: bool) -> serde_json::Result<Arc<Held>> {
    from.to_keep();
    let mut object = K::read(from)?;
    // Managed fields are large and nobody here reads them; the server keeps its own when they are missing.
    if object.meta().managed_fields.is_some() {
        object.meta_mut().managed_fields = None;
    }
    let object: Arc<K> = if is_last { Arc::new(object) } else { object.held() };
    let held: Arc<Held> = object;
    Ok(held)
}

const ONE_TYPE: &str = "an informer holds objects of one type";

/// The object in its type.
pub(super) fn typed<K: Object>(held: &Arc<Held>) -> Arc<K> {
    let any: Arc<dyn Any + Send + Sync> = held.clone();
    any.downcast().expect(ONE_TYPE)
}

pub(super) fn typed_ref<K: Object>(held: &Held) -> &K {
    let any: &dyn Any = held;
    any.downcast_ref().expect(ONE_TYPE)
}
