//! Drives a real server: over TLS with Debian's kubectl and curl, and through the in-process door.
#![allow(clippy::unwrap_used)]

#[path = "apiserver/access.rs"]
mod access;
#[path = "apiserver/adversary.rs"]
mod adversary;
#[path = "apiserver/apply.rs"]
mod apply;
#[path = "apiserver/area_01_discovery.rs"]
mod area_01_discovery;
#[path = "apiserver/area_02_watch_and_list.rs"]
mod area_02_watch_and_list;
#[path = "apiserver/area_03_custom_resources.rs"]
mod area_03_custom_resources;
#[path = "apiserver/area_04_aggregation.rs"]
mod area_04_aggregation;
#[path = "apiserver/area_05_admission_webhooks.rs"]
mod area_05_admission_webhooks;
#[path = "apiserver/area_07_field_validation.rs"]
mod area_07_field_validation;
#[path = "apiserver/area_11_quota_and_limits.rs"]
mod area_11_quota_and_limits;
#[path = "apiserver/area_12_events.rs"]
mod area_12_events;
#[path = "apiserver/area_13_devices.rs"]
mod area_13_devices;
#[path = "apiserver/area_14_storage.rs"]
mod area_14_storage;
#[path = "apiserver/area_15_networking.rs"]
mod area_15_networking;
#[path = "apiserver/area_16_lease_template_node.rs"]
mod area_16_lease_template_node;
#[path = "apiserver/area_17_accounts_tokens_reviews.rs"]
mod area_17_accounts_tokens_reviews;
#[path = "apiserver/audit.rs"]
mod audit;
#[path = "apiserver/bad_input.rs"]
mod bad_input;
#[path = "apiserver/can_i.rs"]
mod can_i;
#[path = "apiserver/connect.rs"]
mod connect;
#[allow(dead_code, reason = "shared with the tests of the store, which use all of it")]
#[path = "../../store/tests/store/peer.rs"]
mod etcd;
#[path = "apiserver/extremes.rs"]
mod extremes;
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
#[path = "apiserver/lifecycle.rs"]
mod lifecycle;
#[path = "apiserver/limits.rs"]
mod limits;
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
#[path = "apiserver/reload.rs"]
mod reload;
#[path = "apiserver/remote_decisions.rs"]
mod remote_decisions;
#[path = "apiserver/rest.rs"]
mod rest;
#[path = "apiserver/sealed.rs"]
mod sealed;
#[path = "apiserver/security.rs"]
mod security;
#[path = "apiserver/servers.rs"]
mod servers;
#[path = "apiserver/unreadable.rs"]
mod unreadable;
#[path = "apiserver/watch.rs"]
mod watch;
#[path = "apiserver/webhook_server.rs"]
mod webhook_server;
#[path = "apiserver/webhooks.rs"]
mod webhooks;
#[path = "apiserver/zero_values.rs"]
mod zero_values;
