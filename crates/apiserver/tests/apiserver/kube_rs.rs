//! kube-rs as the client: its requests, its reading of our answers, its errors; through the in-process door.

use std::convert::Infallible;

use futures_util::{StreamExt, TryStreamExt};
use http::Request;
use http_body_util::BodyExt;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::rbac::v1::Role;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::Status;
use kube::{Client, Error, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::harness::Cluster;

fn client(cluster: &Cluster) -> Client {
    let handler = cluster.handler.clone();
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let handler = handler.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let mut request = Request::from_parts(parts, body);
            request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
            Ok::<_, Infallible>(handler(request).await)
        }
    });
    Client::new(service, "default")
}

fn made<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn refusal(error: Error) -> Box<Status> {
    match error {
        Error::Api(status) => status,
        other => panic!("not an answer of the server: {other}"),
    }
}

/// Create, get, list, replace, patch in three ways, watch and delete, all of which any kind has.
async fn every_verb<K>(client: &Client, object: K)
where
    K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::default_namespaced(client.clone());
    let name = object.name_any();
    let created = api.create(&PostParams::default(), &object).await.unwrap();
    assert!(created.uid().is_some() && created.creation_timestamp().is_some(), "{created:?}");
    let mut changed = api.get(&name).await.unwrap();
    changed.labels_mut().insert("replaced".into(), "yes".into());
    let replaced = api.replace(&name, &PostParams::default(), &changed).await.unwrap();
    let stale = api.replace(&name, &PostParams::default(), &changed).await.unwrap_err();
    assert_eq!(refusal(stale).reason, "Conflict");

    let labels = |name: &str| json!({"metadata": {"labels": {name: "yes"}}});
    let default = PatchParams::default();
    api.patch(&name, &default, &Patch::Merge(labels("merged"))).await.unwrap();
    api.patch(&name, &default, &Patch::Strategic(labels("strategic"))).await.unwrap();
    let mut config = labels("applied");
    config["apiVersion"] = K::api_version(&Default::default()).into();
    config["kind"] = K::kind(&Default::default()).into();
    config["metadata"]["name"] = name.as_str().into();
    let applied = api.patch(&name, &PatchParams::apply("tests"), &Patch::Apply(config)).await.unwrap();
    let found: Vec<&str> = applied.labels().keys().map(String::as_str).collect();
    for label in ["applied", "merged", "replaced", "strategic"] {
        assert!(found.contains(&label), "{name}: {found:?}");
    }

    let listed = api.list(&ListParams::default().labels("strategic=yes,merged")).await.unwrap();
    assert_eq!(listed.items.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), std::slice::from_ref(&name));
    let metadata = api.list_metadata(&ListParams::default().fields(&format!("metadata.name={name}"))).await.unwrap();
    assert_eq!(metadata.items.len(), 1);

    let events = api.watch(&WatchParams::default(), &replaced.resource_version().unwrap()).await.unwrap();
    let mut events = events.boxed();
    let _ = api.delete(&name, &DeleteParams::default().grace_period(0)).await.unwrap();
    let mut modified = 0;
    loop {
        match events.try_next().await.unwrap().unwrap() {
            WatchEvent::Modified(_) => modified += 1,
            WatchEvent::Deleted(gone) => break assert_eq!(gone.name_any(), name),
            other => panic!("{other:?}"),
        }
    }
    assert!(modified >= 3, "{name}: {modified}");
    assert_eq!(refusal(api.get(&name).await.unwrap_err()).code, 404);
    assert!(api.get_opt(&name).await.unwrap().is_none());
}

#[tokio::test]
async fn every_verb_on_a_sample_of_the_groups() {
    let cluster = Cluster::start().await;
    let client = client(&cluster);
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &made(json!({"metadata": {"name": "other"}}))).await.unwrap();
    let account = json!({"metadata": {"name": "default"}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;

    let template =
        json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
    let meta = json!({"name": "sample", "labels": {"app": "web"}});
    every_verb::<ConfigMap>(&client, made(json!({"metadata": meta, "data": {"a": "b"}}))).await;
    every_verb::<Pod>(&client, made(json!({"metadata": meta, "spec": template["spec"]}))).await;
    let spec = json!({"selector": {"matchLabels": {"app": "web"}}, "template": template});
    every_verb::<Deployment>(&client, made(json!({"metadata": meta, "spec": spec}))).await;
    let mut job = template.clone();
    job["spec"]["restartPolicy"] = "Never".into();
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": job}}});
    every_verb::<CronJob>(&client, made(json!({"metadata": meta, "spec": spec}))).await;
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    every_verb::<Role>(&client, made(json!({"metadata": meta, "rules": rules}))).await;
    every_verb::<Lease>(&client, made(json!({"metadata": meta, "spec": {"holderIdentity": "me"}}))).await;
}

#[tokio::test]
async fn subresources_pages_and_kinds_found_at_run_time() {
    let cluster = Cluster::start().await;
    let client = client(&cluster);
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let deployment = made(json!({
        "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web"}]}}}
    }));
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let scale = deployments.get_scale("web").await.unwrap();
    assert_eq!(scale.spec.unwrap().replicas, Some(2));
    let patch = Patch::Merge(json!({"spec": {"replicas": 5}}));
    deployments.patch_scale("web", &PatchParams::default(), &patch).await.unwrap();
    let patch = Patch::Merge(json!({"status": {"replicas": 4, "observedGeneration": 2}, "spec": {"replicas": 9}}));
    let written = deployments.patch_status("web", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!((written.spec.unwrap().replicas, written.status.unwrap().replicas), (Some(5), Some(4)));
    let invalid = Patch::Merge(json!({"spec": {"replicas": -1}}));
    let refused = refusal(deployments.patch("web", &PatchParams::default(), &invalid).await.unwrap_err());
    assert_eq!((refused.code, refused.reason.as_str()), (422, "Invalid"));

    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    for n in 0..5 {
        let map = made(json!({"metadata": {"name": format!("m{n}"), "labels": {"page": "yes"}}}));
        maps.create(&PostParams::default(), &map).await.unwrap();
    }
    let mut page = ListParams::default().labels("page=yes").limit(2);
    let mut names = Vec::new();
    loop {
        let list = maps.list(&page).await.unwrap();
        names.extend(list.items.iter().map(ResourceExt::name_any));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, ["m0", "m1", "m2", "m3", "m4"]);

    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");
    let (kind, capabilities) =
        kube::discovery::pinned_kind(&client, &kube::core::GroupVersionKind::gvk("apps", "v1", "Deployment"))
            .await
            .unwrap();
    assert_eq!(kind, ApiResource::erase::<Deployment>(&()));
    assert!(capabilities.subresources.iter().any(|(subresource, _)| subresource.plural == "scale"));
    let dynamic: Api<DynamicObject> = Api::default_namespaced_with(client, &kind);
    assert_eq!(dynamic.get("web").await.unwrap().data["spec"]["replicas"], 5);
}
