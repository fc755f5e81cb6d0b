//! An object of a custom kind in memory: typed metadata, and the rest as it is.

use std::any::Any;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::Error;
use serde_json::{Map, Value};

use crate::{AnyObject, Object};

/// What objects of one version of one kind say about themselves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TypeMeta {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

#[derive(Clone)]
pub(crate) struct CustomObject {
    pub(crate) of: Arc<TypeMeta>,
    pub(crate) meta: ObjectMeta,
    /// Everything but `apiVersion`, `kind` and `metadata`.
    pub(crate) rest: Map<String, Value>,
}

impl CustomObject {
    /// Takes a value apart. What it says about its type does not count.
    pub(crate) fn new(of: &Arc<TypeMeta>, value: Value) -> serde_json::Result<Self> {
        let Value::Object(mut rest) = value else { return Err(serde_json::Error::custom("not an object")) };
        rest.remove("apiVersion");
        rest.remove("kind");
        let meta = match rest.remove("metadata") {
            None | Some(Value::Null) => ObjectMeta::default(),
            Some(metadata) => serde_json::from_value(metadata)?,
        };
        Ok(Self { of: of.clone(), meta, rest })
    }
}

impl Object for CustomObject {
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }

    fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let TypeMeta { api_version, kind } = &*self.of;
        let head = format!("{{\"apiVersion\":\"{api_version}\",\"kind\":\"{kind}\",\"metadata\":");
        let mut out = head.into_bytes();
        serde_json::to_writer(&mut out, &self.meta)?;
        for (name, value) in &self.rest {
            out.push(b',');
            serde_json::to_writer(&mut out, name)?;
            out.push(b':');
            serde_json::to_writer(&mut out, value)?;
        }
        out.push(b'}');
        Ok(out)
    }

    fn to_value(&self) -> serde_json::Result<Value> {
        let mut object = self.rest.clone();
        object.insert("apiVersion".to_owned(), self.of.api_version.as_str().into());
        object.insert("kind".to_owned(), self.of.kind.as_str().into());
        object.insert("metadata".to_owned(), serde_json::to_value(&self.meta)?);
        Ok(Value::Object(object))
    }

    fn boxed_clone(&self) -> AnyObject {
        Box::new(self.clone())
    }

    fn decode_like(&self, value: Value) -> serde_json::Result<AnyObject> {
        Ok(Box::new(Self::new(&self.of, value)?))
    }

    fn same(&self, other: &dyn Object) -> bool {
        let other = other.as_any().downcast_ref::<Self>();
        other.is_some_and(|other| self.of == other.of && self.meta == other.meta && self.rest == other.rest)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
