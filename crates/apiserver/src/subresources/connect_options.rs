//! The options of a stream (`PodExecOptions`, `ServiceProxyOptions`, …) as an object that admission can look at.
//!
//! These kinds live only in URLs: they have no metadata and nothing stores them.

use std::any::Any;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::{AnyObject, Object};
use serde_json::{Value, json};

use crate::request_info::RequestInfo;

#[derive(Clone, PartialEq)]
pub(super) struct ConnectOptions {
    meta: ObjectMeta,
    value: Value,
}

const FLAGS: [&str; 4] = ["stdin", "stdout", "stderr", "tty"];

impl ConnectOptions {
    pub(super) fn new(group: &str, version: &str, kind: &str, info: &RequestInfo) -> Self {
        let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        let mut value = json!({"kind": kind, "apiVersion": api_version});
        for flag in FLAGS.into_iter().filter(|flag| info.query.flag(flag)) {
            value[flag] = true.into();
        }
        if let Some(container) = info.query.get("container") {
            value["container"] = container.into();
        }
        let command: Vec<&str> = info.query.all("command").collect();
        if !command.is_empty() {
            value["command"] = json!(command);
        }
        let ports: Vec<i64> = info.query.all("ports").filter_map(|port| port.parse().ok()).collect();
        if !ports.is_empty() {
            value["ports"] = json!(ports);
        }
        if kind.ends_with("ProxyOptions") {
            value["path"] = info.rest.as_str().into();
        }
        Self { meta: ObjectMeta::default(), value }
    }
}

impl Object for ConnectOptions {
    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }

    fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec(&self.value)
    }

    fn to_value(&self) -> serde_json::Result<Value> {
        Ok(self.value.clone())
    }

    fn boxed_clone(&self) -> AnyObject {
        Box::new(self.clone())
    }

    fn decode_like(&self, value: Value) -> serde_json::Result<AnyObject> {
        Ok(Box::new(Self { meta: ObjectMeta::default(), value }))
    }

    fn same(&self, other: &dyn Object) -> bool {
        other.as_any().downcast_ref::<Self>() == Some(self)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
