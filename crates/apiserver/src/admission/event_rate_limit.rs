//! EventRateLimit: a flood of events is refused, for the whole server or by namespace, user or origin.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use api::Status;
use k8s_openapi::api::core::v1::Event;
use parking_lot::Mutex;
use serde::Deserialize;

use super::config::{Setting, parse};
use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;

pub(super) struct EventRateLimit(Vec<Limit>);

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    limits: Vec<Declared>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Declared {
    #[serde(rename = "type")]
    kind: Kind,
    qps: u32,
    burst: u32,
    #[serde(default)]
    cache_size: usize,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
enum Kind {
    Server,
    Namespace,
    User,
    SourceAndObject,
}

/// How many buckets are kept when the configuration does not say.
const CACHE_SIZE: usize = 4096;

struct Limit {
    kind: Kind,
    qps: f64,
    burst: f64,
    size: usize,
    buckets: Mutex<HashMap<String, Bucket>>,
}

/// Fills with time, up to the burst; every event takes one.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl EventRateLimit {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        let setting = setting.ok_or_else(|| anyhow::anyhow!("no config specified"))?;
        let file: File = parse(setting, &["eventratelimit.admission.k8s.io/v1alpha1"], "Configuration")?;
        anyhow::ensure!(!file.limits.is_empty(), "limits: Invalid value: []: must not be empty");
        let limits = file.limits.into_iter().enumerate().map(|(i, declared)| {
            anyhow::ensure!(declared.burst > 0, "limits[{i}].burst: Invalid value: 0: must be positive");
            anyhow::ensure!(declared.qps > 0, "limits[{i}].qps: Invalid value: 0: must be positive");
            Ok(Limit {
                kind: declared.kind,
                qps: f64::from(declared.qps),
                burst: f64::from(declared.burst),
                size: if declared.cache_size == 0 { CACHE_SIZE } else { declared.cache_size },
                buckets: Mutex::default(),
            })
        });
        Ok(Self(limits.collect::<Result<_, _>>()?))
    }
}

impl Plugin for EventRateLimit {
    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let writes = matches!(attributes.verb, Verb::Create | Verb::Update);
        if !writes || attributes.dry_run || attributes.resource.kind != "Event" {
            return admitted();
        }
        let Some(event) = attributes.object_ref::<Event>() else { return admitted() };
        let now = Instant::now();
        let reached: Vec<String> = self
            .0
            .iter()
            .filter_map(|limit| {
                let key = limit.key(attributes, event);
                (!limit.takes(&key, now)).then(|| format!("limit reached on type {:?} for key {key}", limit.kind))
            })
            .collect();
        match reached.as_slice() {
            [] => admitted(),
            [one] => Err(Status::too_many_requests(one, 1)).into(),
            many => Err(Status::too_many_requests(format!("[{}]", many.join(", ")), 1)).into(),
        }
    }
}

impl Limit {
    fn key(&self, attributes: &Attributes<'_>, event: &Event) -> String {
        match self.kind {
            Kind::Server => String::new(),
            Kind::Namespace => attributes.namespace.to_owned(),
            Kind::User => attributes.user().name.clone(),
            Kind::SourceAndObject => {
                let source = event.source.as_ref();
                let object = &event.involved_object;
                let parts = [
                    source.and_then(|source| source.component.as_deref()),
                    source.and_then(|source| source.host.as_deref()),
                    object.kind.as_deref(),
                    object.namespace.as_deref(),
                    object.name.as_deref(),
                    object.uid.as_deref(),
                    object.api_version.as_deref(),
                ];
                parts.into_iter().flatten().collect()
            }
        }
    }

    fn takes(&self, key: &str, now: Instant) -> bool {
        let mut buckets = self.buckets.lock();
        if !buckets.contains_key(key) && buckets.len() >= self.size {
            // Whoever was quiet longest starts over with a full bucket.
            let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.at).map(|(key, _)| key.clone());
            if let Some(key) = oldest {
                buckets.remove(&key);
            }
        }
        let bucket = buckets.entry(key.to_owned()).or_insert(Bucket { tokens: self.burst, at: now });
        let filled = now.saturating_duration_since(bucket.at).as_secs_f64() * self.qps;
        bucket.tokens = (bucket.tokens + filled).min(self.burst);
        bucket.at = now;
        let takes = bucket.tokens >= 1.0;
        if takes {
            bucket.tokens -= 1.0;
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn buckets_fill_with_time() {
        let limit = Limit { kind: Kind::Namespace, qps: 1.0, burst: 2.0, size: 2, buckets: Mutex::default() };
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        for (key, seconds, taken) in
            [("a", 0, true), ("a", 0, true), ("a", 0, false), ("b", 0, true), ("a", 1, true), ("a", 1, false)]
        {
            assert_eq!(limit.takes(key, at(seconds)), taken, "{key} at {seconds}");
        }
        assert!(limit.takes("c", at(2)) && limit.buckets.lock().len() == 2);
    }
}
