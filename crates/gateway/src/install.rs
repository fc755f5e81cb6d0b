//! What a cluster needs for the gateway: definitions of the Gateway API, classes, and permission to read what it serves.
//!
//! What is there already is left alone: definitions may be newer, and classes may have been changed.

use std::time::Duration;

use anyhow::{Context, Result};
use client::{Client, Error, Gvr, ListParams, Patch};
use k8s_openapi::api::networking::v1::IngressClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use serde_json::{Value, json};

use crate::gateway_api::{GROUP, GatewayClass, definitions};
use crate::{CLASS, GATEWAY_CONTROLLER, INGRESS_CONTROLLER};

const ROLE: &str = "cox:gateway";
const PORTS_ROLE: &str = "cox:gateway-ports";
const MANAGER: &str = "cox";
const RBAC: &str = "rbac.authorization.k8s.io";
/// A definition that was just made takes a moment to be served.
const ATTEMPTS: u32 = 100;
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Makes what is not there yet.
pub async fn install(client: &Client) -> Result<()> {
    let api = client.dynamic(&Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"), None);
    for definition in definitions() {
        let made = absent(api.create(&definition).await);
        made.with_context(|| format!("making the definition of {}", definition["spec"]["names"]["kind"]))?;
    }
    ingress_class(client).await.context("making the class of Ingresses")?;
    gateway_class(client).await.context("making the class of Gateways")
}

/// The default class, where there is none at all.
async fn ingress_class(client: &Client) -> Result<()> {
    let classes = client.all::<IngressClass>();
    if !classes.list(&ListParams { limit: Some(1), ..ListParams::default() }).await?.items.is_empty() {
        return Ok(());
    }
    let class: IngressClass = api::codec::from_value(&json!({
        "metadata": {"name": CLASS, "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": INGRESS_CONTROLLER},
    }))?;
    absent(classes.create(&class).await)
}

async fn gateway_class(client: &Client) -> Result<()> {
    let classes = client.dynamic(&Gvr::new(GROUP, "v1", GatewayClass::PLURAL), None);
    let class = json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": "GatewayClass",
        "metadata": {"name": CLASS},
        "spec": {"controllerName": GATEWAY_CONTROLLER},
    });
    for _ in 1..ATTEMPTS {
        match classes.create(&class).await {
            Err(error) if error.is_not_found() => tokio::time::sleep(RETRY_INTERVAL).await,
            made => return absent(made),
        }
    }
    absent(classes.create(&class).await)
}

fn absent<T>(made: Result<T, Error>) -> Result<()> {
    match made {
        Err(error) if !error.is_already_exists() => Err(error.into()),
        _ => Ok(()),
    }
}

/// Lets a user be the gateway: it reads what it serves and writes statuses, and nothing else. Which Secrets are named is known only
/// from what it reads, so it may read all of them; it asks for those of type `kubernetes.io/tls`, and for ConfigMaps while there are
/// BackendTLSPolicies, which name authorities in them.
pub async fn grant(client: &Client, user: &str) -> Result<()> {
    let kinds = ["gatewayclasses", "gateways", "httproutes", "grpcroutes", "tlsroutes", "backendtlspolicies"];
    let statuses = kinds.map(|kind| format!("{kind}/status"));
    let read = |group: &str, resources: &[&str]| -> Value {
        json!({"apiGroups": [group], "resources": resources, "verbs": ["list", "watch"]})
    };
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": ROLE},
        "rules": [
            read("", &["services", "namespaces", "nodes", "secrets", "configmaps"]),
            read("discovery.k8s.io", &["endpointslices"]),
            read("networking.k8s.io", &["ingresses", "ingressclasses"]),
            read("apiextensions.k8s.io", &["customresourcedefinitions"]),
            read(GROUP, &[&kinds[..], &["referencegrants"]].concat()),
            {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses/status"], "verbs": ["patch"]},
            {"apiGroups": [GROUP], "resources": statuses, "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
        ],
    });
    bind(client, ROLE, role, json!({"apiGroup": RBAC, "kind": "User", "name": user})).await
}

/// Lets the controller of load balancers see which ports Gateways have.
pub async fn grant_ports(client: &Client) -> Result<()> {
    let role = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRole",
        "metadata": {"name": PORTS_ROLE},
        "rules": [{"apiGroups": [GROUP], "resources": ["gatewayclasses", "gateways"], "verbs": ["list"]}],
    });
    let account = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "service-controller"});
    bind(client, PORTS_ROLE, role, account).await
}

async fn bind(client: &Client, name: &str, role: Value, subject: Value) -> Result<()> {
    let binding = json!({
        "apiVersion": format!("{RBAC}/v1"),
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        "subjects": [subject],
    });
    let (roles, bindings) = (client.all::<ClusterRole>(), client.all::<ClusterRoleBinding>());
    roles
        .patch(name, &Patch::apply(MANAGER, role).force())
        .await
        .with_context(|| format!("writing the role {name}"))?;
    let bound = bindings.patch(name, &Patch::apply(MANAGER, binding).force()).await;
    bound.with_context(|| format!("binding the role {name}"))?;
    Ok(())
}
