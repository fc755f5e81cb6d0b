//! The options of a stream (`PodExecOptions`, `ServiceProxyOptions`, …) as an object that admission can look at.
//!
//! These kinds live only in URLs: they have no metadata and nothing stores them.

use std::any::Any;

use api::Status;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use registry::{AnyObject, Object};
use serde_json::{Value, json};

use crate::request_info::{Query, RequestInfo};

#[derive(Clone, PartialEq)]
pub(super) struct ConnectOptions {
    meta: ObjectMeta,
    value: Value,
}

const FLAGS: [&str; 4] = ["stdin", "stdout", "stderr", "tty"];

/// The ports that a forward asks for, one by one or with commas between. All are read or none: admission sees what the kubelet
/// is told.
pub(super) fn ports(query: &Query) -> Result<Vec<u16>, Status> {
    let all = query.all("ports").flat_map(|list| list.split(','));
    let number = |port: &str| {
        port.parse().map_err(|_| {
            let port = api::field::quote(port);
            Status::bad_request(format!("cannot convert to []int32: strconv.ParseUint: parsing {port}: invalid syntax"))
        })
    };
    all.map(number).collect()
}

impl ConnectOptions {
    pub(super) fn new(group: &str, version: &str, kind: &str, info: &RequestInfo) -> Result<Self, Status> {
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
        let ports = if kind == "PodPortForwardOptions" { ports(&info.query)? } else { Vec::new() };
        if !ports.is_empty() {
            value["ports"] = json!(ports);
        }
        if kind.ends_with("ProxyOptions") {
            value["path"] = info.rest.as_str().into();
        }
        Ok(Self { meta: ObjectMeta::default(), value })
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

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;

    #[test]
    fn security_admission_sees_every_port_that_the_kubelet_is_told_of() {
        for (query, expected) in [
            ("ports=22", Some(json!([22]))),
            ("ports=80,22&ports=443", Some(json!([80, 22, 443]))),
            ("ports=80,%2022", None),
            ("ports=x", None),
            ("ports=65536", None),
            ("ports=", None),
        ] {
            let url = format!("/api/v1/namespaces/a/pods/p/portforward?{query}");
            let info = RequestInfo::new(&Method::POST, &url.parse().unwrap());
            let options = ConnectOptions::new("", "v1", "PodPortForwardOptions", &info);
            assert_eq!(options.ok().map(|options| options.value["ports"].clone()), expected, "{query}");
            let told = ports(&info.query).ok().map(|ports| json!(ports));
            assert_eq!(told, expected, "{query}");
        }
    }
}
