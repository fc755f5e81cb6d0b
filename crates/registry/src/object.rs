//! One API object in memory, typed or not, behind one door.
//!
//! The generic verbs know only [`Object`]: metadata, a JSON form and a way back to the concrete type for code that
//! reasons about one kind (strategies, admission plug-ins). Every `k8s-openapi` type is an `Object`; a custom
//! resource is one, too, with a dynamic value inside.

use std::any::Any;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use super::parts::Parts;

/// What a concrete type needs in order to be served.
pub trait Typed:
    k8s_openapi::Resource
    + k8s_openapi::Metadata<Ty = ObjectMeta>
    + Parts
    + Serialize
    + Clone
    + PartialEq
    + Send
    + Sync
    + 'static
{
}

impl<K> Typed for K where
    K: k8s_openapi::Resource
        + k8s_openapi::Metadata<Ty = ObjectMeta>
        + Parts
        + Serialize
        + Clone
        + PartialEq
        + Send
        + Sync
        + 'static
{
}

/// An object whose concrete type only its strategy knows.
pub trait Object: Send + Sync {
    fn meta(&self) -> &ObjectMeta;
    fn meta_mut(&mut self) -> &mut ObjectMeta;
    /// Makes a status that says nothing yet where the kind has one.
    fn fill_status(&mut self) {}
    fn to_json(&self) -> serde_json::Result<Vec<u8>>;
    fn to_value(&self) -> serde_json::Result<Value>;
    /// The fields as they are in memory.
    #[cfg(test)]
    fn plain_value(&self) -> Value {
        Value::Null
    }
    fn boxed_clone(&self) -> Box<dyn Object>;
    /// Another object of the same type.
    fn decode_like(&self, value: Value) -> serde_json::Result<Box<dyn Object>>;
    /// Whether both are the same in every field.
    fn same(&self, other: &dyn Object) -> bool;
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

pub type AnyObject = Box<dyn Object>;

impl dyn Object + '_ {
    pub fn downcast_ref<K: Typed>(&self) -> Option<&K> {
        self.as_any().downcast_ref()
    }

    pub fn downcast_mut<K: Typed>(&mut self) -> Option<&mut K> {
        self.as_any_mut().downcast_mut()
    }
}

impl<K: Typed> Object for K {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.metadata_mut()
    }

    fn fill_status(&mut self) {
        Parts::fill_status(self);
    }

    fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        self.write_json()
    }

    fn to_value(&self) -> serde_json::Result<Value> {
        // By way of text: a second writer of every kind would be as large as the first, and is seldom asked.
        serde_json::from_slice(&self.write_json()?)
    }

    #[cfg(test)]
    fn plain_value(&self) -> Value {
        serde_json::to_value(self).unwrap()
    }

    fn boxed_clone(&self) -> AnyObject {
        Box::new(self.clone())
    }

    fn decode_like(&self, value: Value) -> serde_json::Result<AnyObject> {
        Ok(Box::new(api::codec::from_value::<K>(&value)?))
    }

    fn same(&self, other: &dyn Object) -> bool {
        other.as_any().downcast_ref::<K>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
