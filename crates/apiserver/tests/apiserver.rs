//! Drives a real server: over TLS with Debian's kubectl and curl, and through the in-process door.
#![allow(clippy::unwrap_used)]

#[path = "apiserver/access.rs"]
mod access;
#[path = "apiserver/accounts_tokens_reviews.rs"]
mod accounts_tokens_reviews;
#[path = "apiserver/admission_webhooks.rs"]
mod admission_webhooks;
#[path = "apiserver/adversary.rs"]
mod adversary;
#[path = "apiserver/aggregation.rs"]
mod aggregation;
#[path = "apiserver/apply.rs"]
mod apply;
#[path = "apiserver/audit.rs"]
mod audit;
#[path = "apiserver/bad_input.rs"]
mod bad_input;
#[path = "apiserver/can_i.rs"]
mod can_i;
#[path = "apiserver/connect.rs"]
mod connect;
#[path = "apiserver/constrained_impersonation.rs"]
mod constrained_impersonation;
#[path = "apiserver/custom_resources.rs"]
mod custom_resources;
#[path = "apiserver/devices.rs"]
mod devices;
#[path = "apiserver/discovery.rs"]
mod discovery;
#[allow(dead_code, reason = "shared with the tests of the store, which use all of it")]
#[path = "../../store/tests/store/peer.rs"]
mod etcd;
#[path = "apiserver/events.rs"]
mod events;
#[path = "apiserver/eviction.rs"]
mod eviction;
#[path = "apiserver/extremes.rs"]
mod extremes;
#[path = "apiserver/field_validation.rs"]
mod field_validation;
#[path = "apiserver/floods.rs"]
mod floods;
#[path = "apiserver/foreign_store.rs"]
mod foreign_store;
#[path = "apiserver/harness.rs"]
mod harness;
#[path = "apiserver/identities.rs"]
mod identities;
#[path = "apiserver/initializers.rs"]
mod initializers;
#[path = "apiserver/kube_rs.rs"]
mod kube_rs;
#[path = "apiserver/kubectl.rs"]
mod kubectl;
#[path = "apiserver/lease_template_node.rs"]
mod lease_template_node;
#[path = "apiserver/lifecycle.rs"]
mod lifecycle;
#[path = "apiserver/limits.rs"]
mod limits;
#[path = "apiserver/metrics.rs"]
mod metrics;
#[path = "apiserver/networking.rs"]
mod networking;
#[path = "apiserver/oidc.rs"]
mod oidc;
#[path = "apiserver/plugins.rs"]
mod plugins;
#[path = "apiserver/pod_security.rs"]
mod pod_security;
#[path = "apiserver/policies.rs"]
mod policies;
#[path = "apiserver/protobuf.rs"]
mod protobuf;
#[path = "apiserver/python.rs"]
mod python;
#[path = "apiserver/quota_and_limits.rs"]
mod quota_and_limits;
#[path = "apiserver/reload.rs"]
mod reload;
#[path = "apiserver/remote_decisions.rs"]
mod remote_decisions;
#[path = "apiserver/resource_metrics.rs"]
mod resource_metrics;
#[path = "apiserver/rest.rs"]
mod rest;
#[path = "apiserver/rights.rs"]
mod rights;
#[path = "apiserver/sealed.rs"]
mod sealed;
#[path = "apiserver/security.rs"]
mod security;
#[path = "apiserver/servers.rs"]
mod servers;
#[path = "apiserver/shared_etcd.rs"]
mod shared_etcd;
#[path = "apiserver/storage.rs"]
mod storage;
#[path = "apiserver/tracing.rs"]
mod tracing;
#[path = "apiserver/unreadable.rs"]
mod unreadable;
#[path = "apiserver/watch.rs"]
mod watch;
#[path = "apiserver/watch_and_list.rs"]
mod watch_and_list;
#[path = "apiserver/webhook_server.rs"]
mod webhook_server;
#[path = "apiserver/webhooks.rs"]
mod webhooks;
#[path = "apiserver/zero_values.rs"]
mod zero_values;
