//! Three initializers, for a server with `--runtime-config=admissionregistration.k8s.io/v1alpha1=true`.
//!
//! `cargo run -p controllers --example initializers -- sidecar|certificate|secret-length` uses the current kubeconfig,
//! registers the initializer and works until interrupted.
//!
//! An initializer watches unfinished objects (`includeUninitialized=true`). When its own name is first on the list of
//! pending ones it changes the object and takes itself off; when that was the last name, the object appears to
//! everybody. It can also leave a failure, which refuses the object.

use client::{Client, Error, Gvr, ListParams, WatchEvent};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// An initializer: its name on the list, the core resource it is about, and what it does with an object.
#[derive(Clone, Copy)]
pub(crate) struct Initializer {
    pub(crate) name: &'static str,
    pub(crate) resource: &'static str,
    /// Changes the object, or says why it must not be.
    pub(crate) finish: fn(&mut Value) -> Result<(), String>,
}

/// Adds a proxy to pods that listen on port 80, or that ask for it.
pub(crate) const SIDECAR: Initializer =
    Initializer { name: "sidecar.initializers.example.com", resource: "pods", finish: inject_sidecar };
/// Gives all pods in the test namespace a volume with test certificates.
pub(crate) const CERTIFICATE: Initializer =
    Initializer { name: "certificate.initializers.example.com", resource: "pods", finish: inject_certificate };
/// Refuses secrets with a value that is too short to be one.
pub(crate) const SECRET_LENGTH: Initializer =
    Initializer { name: "length.initializers.example.com", resource: "secrets", finish: check_secret_length };

impl Initializer {
    /// The object that makes the server ask for this initializer.
    pub(crate) fn configuration(&self) -> Value {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1alpha1",
            "kind": "InitializerConfiguration",
            "metadata": {"name": self.name},
            "initializers": [{"name": self.name, "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": [self.resource]}]}],
        })
    }

    /// Finishes objects until `stop` fires. Lists, then watches; starts over when the watch ends.
    pub(crate) async fn run(&self, client: &Client, stop: &CancellationToken) -> Result<(), Error> {
        let api = client.dynamic(&Gvr::new("", "v1", self.resource), None);
        let params = ListParams { include_uninitialized: true, ..Default::default() };
        loop {
            let list = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                list = api.list(&params) => list?,
            };
            for object in list.items {
                self.initialize(client, object).await?;
            }
            let version = list.metadata.resource_version.unwrap_or_default();
            let mut events = api.watch(&params, &version).await?;
            loop {
                let event = tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    event = events.next() => event,
                };
                match event {
                    Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                        self.initialize(client, object).await?;
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) | None => break,
                }
            }
        }
    }

    /// Does this initializer's part if it is its turn.
    async fn initialize(&self, client: &Client, mut object: Value) -> Result<(), Error> {
        let pending = object["metadata"]["initializers"]["pending"].as_array().cloned().unwrap_or_default();
        if pending.first().is_none_or(|first| first["name"] != self.name) {
            return Ok(());
        }
        object["metadata"]["initializers"]["pending"] = pending[1..].to_vec().into();
        if let Err(reason) = (self.finish)(&mut object) {
            let result = json!({"status": "Failure", "code": 400, "reason": "BadRequest", "message": reason});
            object["metadata"]["initializers"]["result"] = result;
        }
        let namespace = object["metadata"]["namespace"].as_str().map(str::to_owned);
        let api = client.dynamic(&Gvr::new("", "v1", self.resource), namespace.as_deref());
        match api.update(&object).await {
            Ok(_) => Ok(()),
            // Changed or deleted meanwhile: the watch brings the new state.
            Err(error) if error.is_conflict() || error.is_not_found() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Asks for the proxy where no port does.
const INJECT: &str = "initializers.example.com/proxy";
const TEST_NAMESPACE: &str = "test";
const MIN_LENGTH: usize = 20;

fn inject_sidecar(pod: &mut Value) -> Result<(), String> {
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let ports = containers.iter().flat_map(|container| container["ports"].as_array().cloned().unwrap_or_default());
    let listens = ports.into_iter().any(|port| port["containerPort"] == 80);
    let asks = pod["metadata"]["annotations"][INJECT] == "true";
    let has = containers.iter().any(|container| container["name"] == "proxy");
    if (listens || asks)
        && !has
        && let Some(list) = pod["spec"]["containers"].as_array_mut()
    {
        list.push(json!({"name": "proxy", "image": "proxy:1", "args": ["--to", "127.0.0.1:80"]}));
    }
    Ok(())
}

fn inject_certificate(pod: &mut Value) -> Result<(), String> {
    if pod["metadata"]["namespace"] != TEST_NAMESPACE {
        return Ok(());
    }
    let append = |list: &mut Value, item: Value| match list.as_array_mut() {
        Some(list) => list.push(item),
        None => *list = json!([item]),
    };
    append(
        &mut pod["spec"]["volumes"],
        json!({"name": "test-certificates", "secret": {"secretName": "test-certificates"}}),
    );
    for container in pod["spec"]["containers"].as_array_mut().into_iter().flatten() {
        let mount = json!({"name": "test-certificates", "mountPath": "/etc/test-certificates", "readOnly": true});
        append(&mut container["volumeMounts"], mount);
    }
    Ok(())
}

fn check_secret_length(secret: &mut Value) -> Result<(), String> {
    for (key, value) in secret["data"].as_object().into_iter().flatten() {
        // Four characters of base64 are three bytes, less the padding.
        let text = value.as_str().unwrap_or_default().trim_end_matches('=');
        if text.len() * 3 / 4 < MIN_LENGTH {
            return Err(format!("the value of {key:?} is shorter than {MIN_LENGTH} characters"));
        }
    }
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let initializer = match std::env::args().nth(1).as_deref() {
        Some("sidecar") => SIDECAR,
        Some("certificate") => CERTIFICATE,
        Some("secret-length") => SECRET_LENGTH,
        _ => anyhow::bail!("usage: initializers sidecar|certificate|secret-length"),
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work(initializer))
}

async fn work(initializer: Initializer) -> anyhow::Result<()> {
    let config = client::kubeconfig::Kubeconfig::load(None)?;
    let client = Client::from_kubeconfig(&config, &Default::default())?;
    let configurations = Gvr::new("admissionregistration.k8s.io", "v1alpha1", "initializerconfigurations");
    match client.dynamic(&configurations, None).create(&initializer.configuration()).await {
        Err(error) if !error.is_already_exists() => return Err(error.into()),
        _ => println!("{}: finishing {}", initializer.name, initializer.resource),
    }
    let stop = CancellationToken::new();
    tokio::select! {
        outcome = initializer.run(&client, &stop) => Ok(outcome?),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}
