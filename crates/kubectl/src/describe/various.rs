//! Smaller kinds.

use base64::Engine;
use serde_json::Value;

use super::{Writer, or_none, plain, strings, write_meta};
use crate::context::Context;
use crate::failure::Result;
use crate::objects::text;
use crate::request::Request;
use crate::resources::all_items;

pub(super) async fn namespace(cx: &Context, ns: &Value, w: &mut Writer) -> Result<()> {
    write_meta(w, ns);
    w.line(0, format!("Status:\t{}", text(ns, "/status/phase")));
    let name = text(ns, "/metadata/name");
    for (resource, missing) in
        [("resourcequotas", "\nNo resource quota."), ("limitranges", "\nNo LimitRange resource.")]
    {
        let path = format!("/api/v1/namespaces/{name}/{resource}");
        let Ok(list) = all_items(cx, || Request::get(path.clone())).await else { continue };
        if list.is_empty() {
            w.line(0, missing);
        } else if resource == "resourcequotas" {
            w.line(0, "\nResource Quotas");
            for q in &list {
                w.line(1, format!("Name:\t{}", text(q, "/metadata/name")));
                super::policy::quota_scopes(q, 1, "* ", w);
                w.line(1, "Resource\tUsed\tHard");
                w.line(1, "--------\t---\t---");
                for (k, hard) in q["status"]["hard"].as_object().into_iter().flatten() {
                    w.line(1, format!("{k}\t{}\t{}", plain(&q["status"]["used"][k]), plain(hard)));
                }
            }
        } else {
            w.line(
                0,
                "\nResource Limits\n Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio",
            );
            w.line(0, " ----\t--------\t---\t---\t---------------\t-------------\t-----------------------");
            for l in &list {
                super::policy::limits(l, " ", w);
            }
        }
    }
    Ok(())
}

pub(super) fn config_map(object: &Value, w: &mut Writer) {
    write_meta(w, object);
    w.line(0, "\nData\n====");
    for (k, v) in object["data"].as_object().into_iter().flatten() {
        w.line(0, format!("{k}:\n----\n{}\n", v.as_str().unwrap_or("")));
    }
    w.line(0, "\nBinaryData\n====");
    for (k, v) in object["binaryData"].as_object().into_iter().flatten() {
        let bytes = base64::engine::general_purpose::STANDARD.decode(v.as_str().unwrap_or("")).map_or(0, |b| b.len());
        w.line(0, format!("{k}: {bytes} bytes"));
    }
    w.line(0, "");
}

pub(super) fn secret(object: &Value, w: &mut Writer) {
    write_meta(w, object);
    w.line(0, format!("\nType:\t{}", text(object, "/type")));
    w.line(0, "\nData\n====");
    for (k, v) in object["data"].as_object().into_iter().flatten() {
        let decoded = base64::engine::general_purpose::STANDARD.decode(v.as_str().unwrap_or("")).unwrap_or_default();
        // A service account's token is meant to be read.
        if text(object, "/type") == "kubernetes.io/service-account-token" && k == "token" {
            w.line(0, format!("{k}:\t{}", String::from_utf8_lossy(&decoded)));
        } else {
            w.line(0, format!("{k}:\t{} bytes", decoded.len()));
        }
    }
}

pub(super) async fn service_account(cx: &Context, sa: &Value, w: &mut Writer) -> Result<()> {
    write_meta(w, sa);
    let _ = cx;
    for (title, key) in [("Image pull secrets", "imagePullSecrets"), ("Mountable secrets", "secrets")] {
        let names: Vec<&str> = sa[key].as_array().into_iter().flatten().map(|s| text(s, "/name")).collect();
        if names.is_empty() && key == "imagePullSecrets" {
            w.line(0, format!("{title}:\t<none>"));
        }
        for (i, name) in names.iter().enumerate() {
            w.line(0, format!("{}\t{name}", if i == 0 { format!("{title}:") } else { String::new() }));
        }
    }
    Ok(())
}

pub(super) async fn ingress(cx: &Context, ing: &Value, w: &mut Writer) -> Result<()> {
    let (meta, spec) = (&ing["metadata"], &ing["spec"]);
    let namespace = text(meta, "/namespace").to_owned();
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    super::write_labels(w, "Labels", &meta["labels"]);
    w.line(0, format!("Namespace:\t{namespace}"));
    let addresses: Vec<&str> = ing["status"]["loadBalancer"]["ingress"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|i| if text(i, "/ip").is_empty() { text(i, "/hostname") } else { text(i, "/ip") })
        .collect();
    w.line(0, format!("Address:\t{}", addresses.join(",")));
    w.line(0, format!("Ingress Class:\t{}", or_none(text(spec, "/ingressClassName"))));
    let default_backend = match &spec["defaultBackend"] {
        Value::Null => "<default>".to_owned(),
        given => backend(cx, &namespace, given).await,
    };
    w.line(0, format!("Default backend:\t{default_backend}"));
    if let Some(tls) = spec["tls"].as_array().filter(|t| !t.is_empty()) {
        w.line(0, "TLS:");
        for t in tls {
            let hosts = strings(&t["hosts"]).join(",");
            match text(t, "/secretName") {
                "" => w.line(1, format!("SNI routes {hosts}")),
                secret => w.line(1, format!("{secret} terminates {hosts}")),
            }
        }
    }
    w.line(0, "Rules:\n  Host\tPath\tBackends");
    w.line(1, "----\t----\t--------");
    let mut any = false;
    for rule in spec["rules"].as_array().into_iter().flatten().filter(|rule| rule["http"].is_object()) {
        any = true;
        w.line(1, format!("{}\t", if text(rule, "/host").is_empty() { "*" } else { text(rule, "/host") }));
        for path in rule["http"]["paths"].as_array().into_iter().flatten() {
            let backend = backend(cx, &namespace, &path["backend"]).await;
            w.line(2, format!("\t{} \t{backend}", text(path, "/path")));
        }
    }
    if !any {
        w.line(1, format!("*\t*\t{default_backend}"));
    }
    super::write_annotations(w, "Annotations", &meta["annotations"]);
    Ok(())
}

async fn backend(cx: &Context, namespace: &str, backend: &Value) -> String {
    let service = &backend["service"];
    if !service.is_object() {
        return format!(
            "APIGroup: {}, Kind: {}, Name: {}",
            or_none(text(backend, "/resource/apiGroup")),
            text(backend, "/resource/kind"),
            text(backend, "/resource/name")
        );
    }
    let name = text(service, "/name");
    let port = if service["port"]["number"].is_null() {
        text(service, "/port/name").to_owned()
    } else {
        plain(&service["port"]["number"])
    };
    match behind(cx, namespace, name, &port).await {
        Ok(endpoints) => format!("{name}:{port} ({endpoints})"),
        Err(failure) => format!("{name}:{port} (<error: {}>)", failure.inner()),
    }
}

/// The endpoints behind one port of a service.
async fn behind(cx: &Context, namespace: &str, name: &str, port: &str) -> Result<String> {
    let slices = super::service::slices(cx, namespace, name).await?;
    // The service says which of its ports is meant; the slices know that port by its name.
    let service = Request::get(format!("/api/v1/namespaces/{namespace}/services/{name}")).value(cx).await?;
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    let meant = ports.find(|p| p["name"] == port || plain(&p["port"]) == port);
    Ok(super::service::endpoints(&slices, meant.map_or("", |p| text(p, "/name"))))
}

pub(super) fn role(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    super::write_labels(w, "Labels", &object["metadata"]["labels"]);
    super::write_annotations(w, "Annotations", &object["metadata"]["annotations"]);
    w.line(0, "PolicyRule:");
    w.line(1, "Resources\tNon-Resource URLs\tResource Names\tVerbs");
    w.line(1, "---------\t-----------------\t--------------\t-----");
    let list = |v: &Value| format!("[{}]", strings(v).join(" "));
    let rules = object["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    for rule in crate::rbac_rules::compact(rules) {
        let resource = strings(&rule["resources"]).first().copied().unwrap_or_default();
        let group = strings(&rule["apiGroups"]).first().copied().unwrap_or_default();
        let name = match resource.split_once('/') {
            _ if group.is_empty() => resource.to_owned(),
            Some((main, sub)) => format!("{main}.{group}/{sub}"),
            None => format!("{resource}.{group}"),
        };
        let [urls, names, verbs] = ["nonResourceURLs", "resourceNames", "verbs"].map(|key| list(&rule[key]));
        w.line(1, format!("{name}\t{urls}\t{names}\t{verbs}"));
    }
}

pub(super) fn binding(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    super::write_labels(w, "Labels", &object["metadata"]["labels"]);
    super::write_annotations(w, "Annotations", &object["metadata"]["annotations"]);
    w.line(0, "Role:");
    w.line(1, format!("Kind:\t{}", text(object, "/roleRef/kind")));
    w.line(1, format!("Name:\t{}", text(object, "/roleRef/name")));
    w.line(0, "Subjects:");
    w.line(1, "Kind\tName\tNamespace");
    w.line(1, "----\t----\t---------");
    for s in object["subjects"].as_array().into_iter().flatten() {
        w.line(1, format!("{}\t{}\t{}", text(s, "/kind"), text(s, "/name"), text(s, "/namespace")));
    }
}
