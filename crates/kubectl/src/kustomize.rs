//! `-k` and `kubectl kustomize`: builds the manifests of a kustomization directory.

use std::path::Path;

use serde_json::{Map, Value, json};

/// The manifests as one YAML stream.
pub(crate) fn build(dir: &Path) -> Result<String, String> {
    let objects = load(dir, 0)?;
    Ok(objects.iter().map(crate::printers::yaml::to_string).collect::<Vec<_>>().join("---\n"))
}

/// Bases inside bases end somewhere.
const MAX_DEPTH: usize = 50;

fn load(dir: &Path, depth: usize) -> Result<Vec<Value>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("{}: bases refer to each other", dir.display()));
    }
    let file = ["kustomization.yaml", "kustomization.yml", "Kustomization"]
        .iter()
        .map(|n| dir.join(n))
        .find(|p| p.exists())
        .ok_or_else(|| {
            format!(
                "unable to find one of 'kustomization.yaml', 'kustomization.yml' or 'Kustomization' in directory '{}'",
                dir.display()
            )
        })?;
    let text = std::fs::read_to_string(&file).map_err(|e| format!("{}: {e}", file.display()))?;
    let k = crate::files::yaml(&text)?;
    let mut objects = Vec::new();
    for list in ["resources", "bases"] {
        for entry in strings(&k[list]) {
            let path = dir.join(entry);
            if path.is_dir() {
                objects.extend(load(&path, depth + 1)?);
            } else {
                let text = std::fs::read_to_string(&path)
                    .map_err(|e| format!("accumulating resources from '{entry}': {e}"))?;
                let manifests = crate::files::parse(&text, entry).map_err(|e| e.inner())?;
                objects.extend(manifests.into_iter().map(|m| m.object));
            }
        }
    }
    generate(dir, &k, &mut objects)?;
    patches(dir, &k, &mut objects)?;
    transform(&k, &mut objects);
    Ok(objects)
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

fn generate(dir: &Path, k: &Value, objects: &mut Vec<Value>) -> Result<(), String> {
    use base64::Engine;
    for (list, kind) in [("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")] {
        for g in k[list].as_array().into_iter().flatten() {
            let mut data = Map::new();
            let mut put = |key: &str, bytes: &[u8]| {
                let value = if kind == "Secret" {
                    base64::engine::general_purpose::STANDARD.encode(bytes)
                } else {
                    String::from_utf8_lossy(bytes).into_owned()
                };
                data.insert(key.to_owned(), json!(value));
            };
            for literal in strings(&g["literals"]) {
                let (key, value) = literal.split_once('=').unwrap_or((literal, ""));
                put(key, value.trim_matches('"').as_bytes());
            }
            for source in strings(&g["files"]) {
                let (key, path) =
                    source.split_once('=').unwrap_or((source.rsplit('/').next().unwrap_or(source), source));
                let bytes = std::fs::read(dir.join(path)).map_err(|e| format!("{path}: {e}"))?;
                put(key, &bytes);
            }
            for source in strings(&g["envs"]) {
                let text = std::fs::read_to_string(dir.join(source)).map_err(|e| format!("{source}: {e}"))?;
                for line in text.lines().filter(|l| !l.trim().is_empty() && !l.starts_with('#')) {
                    let (key, value) = line.split_once('=').unwrap_or((line, ""));
                    put(key, value.as_bytes());
                }
            }
            let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": g["name"]}, "data": data});
            if kind == "Secret" {
                object["type"] = g.get("type").cloned().unwrap_or(json!("Opaque"));
            }
            if g["namespace"].is_string() {
                object["metadata"]["namespace"] = g["namespace"].clone();
            }
            objects.push(object);
        }
    }
    Ok(())
}

fn patches(dir: &Path, k: &Value, objects: &mut [Value]) -> Result<(), String> {
    let mut all: Vec<(Value, String)> = Vec::new();
    for entry in strings(&k["patchesStrategicMerge"]) {
        let text = std::fs::read_to_string(dir.join(entry)).unwrap_or_else(|_| entry.to_owned());
        all.push((Value::Null, text));
    }
    for list in ["patches", "patchesJson6902"] {
        for p in k[list].as_array().into_iter().flatten() {
            let text = match (p["patch"].as_str(), p["path"].as_str()) {
                (Some(text), _) => text.to_owned(),
                (_, Some(path)) => std::fs::read_to_string(dir.join(path)).map_err(|e| format!("{path}: {e}"))?,
                _ => return Err("a patch needs `patch` or `path`".to_owned()),
            };
            all.push((p["target"].clone(), text));
        }
    }
    for (target, text) in all {
        for patch in crate::files::documents(&text)? {
            for object in objects.iter_mut() {
                let wanted = if target.is_object() { &target } else { &patch };
                let name = if target.is_object() { &target["name"] } else { &patch["metadata"]["name"] };
                let matches = (wanted["kind"].is_null() || wanted["kind"] == object["kind"])
                    && (name.is_null() || *name == object["metadata"]["name"]);
                if !matches {
                    continue;
                }
                let (group, kind) = (
                    object["apiVersion"]
                        .as_str()
                        .and_then(|v| v.split_once('/'))
                        .map_or(String::new(), |(g, _)| g.to_owned()),
                    object["kind"].as_str().unwrap_or("").to_owned(),
                );
                let result = match (&patch, crate::three_way::schema(&group, &kind)) {
                    (Value::Array(_), _) => api::patch::json::apply(object, &patch),
                    (_, Some(schema)) => api::patch::strategic::apply(object, &patch, &schema),
                    (_, None) => api::patch::merge::apply(object, &patch),
                };
                result.map_err(|e| e.to_string())?;
            }
        }
    }
    Ok(())
}

fn transform(k: &Value, objects: &mut [Value]) {
    let (prefix, suffix) = (k["namePrefix"].as_str().unwrap_or(""), k["nameSuffix"].as_str().unwrap_or(""));
    let renamed: Vec<(String, String, String)> = objects
        .iter()
        .filter_map(|o| {
            let (kind, name) = (o["kind"].as_str()?, o["metadata"]["name"].as_str()?);
            Some((kind.to_owned(), name.to_owned(), format!("{prefix}{name}{suffix}")))
        })
        .collect();
    for object in objects.iter_mut() {
        let kind = object["kind"].as_str().unwrap_or("").to_owned();
        if let Some(namespace) = k["namespace"].as_str()
            && !is_cluster_scoped(&kind)
        {
            object["metadata"]["namespace"] = json!(namespace);
        }
        if kind != "Namespace"
            && kind != "CustomResourceDefinition"
            && let Some(name) = object["metadata"]["name"].as_str()
        {
            object["metadata"]["name"] = json!(format!("{prefix}{name}{suffix}"));
        }
        let template = crate::objects::template_pointer(&kind).filter(|p| !p.is_empty());
        for (key, v) in k["commonAnnotations"].as_object().into_iter().flatten() {
            object["metadata"]["annotations"][key] = v.clone();
            if let Some(t) = template.and_then(|p| object.pointer_mut(p)) {
                t["metadata"]["annotations"][key] = v.clone();
            }
        }
        let mut sets: Vec<(&Value, bool)> = vec![(&k["commonLabels"], true)];
        for l in k["labels"].as_array().into_iter().flatten() {
            sets.push((&l["pairs"], l["includeSelectors"] == true));
        }
        for (pairs, selectors) in sets {
            for (key, v) in pairs.as_object().into_iter().flatten() {
                object["metadata"]["labels"][key] = v.clone();
                if !selectors {
                    continue;
                }
                if let Some(t) = template.and_then(|p| object.pointer_mut(p)) {
                    t["metadata"]["labels"][key] = v.clone();
                }
                match kind.as_str() {
                    "Service" | "ReplicationController" if object["spec"]["selector"].is_object() => {
                        object["spec"]["selector"][key] = v.clone()
                    }
                    "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" => {
                        object["spec"]["selector"]["matchLabels"][key] = v.clone();
                    }
                    _ => {}
                }
            }
        }
        for r in k["replicas"].as_array().into_iter().flatten() {
            if object["metadata"]["name"] == json!(format!("{prefix}{}{suffix}", r["name"].as_str().unwrap_or("")))
                && object["spec"]["replicas"].is_number()
            {
                object["spec"]["replicas"] = r["count"].clone();
            }
        }
        if let Some(spec) = crate::objects::pod_spec_mut(object) {
            images(&k["images"], spec);
            references(&renamed, spec);
        }
    }
}

fn is_cluster_scoped(kind: &str) -> bool {
    matches!(
        kind,
        "Namespace"
            | "Node"
            | "PersistentVolume"
            | "ClusterRole"
            | "ClusterRoleBinding"
            | "StorageClass"
            | "PriorityClass"
            | "CustomResourceDefinition"
            | "IngressClass"
            | "RuntimeClass"
            | "APIService"
            | "MutatingWebhookConfiguration"
            | "ValidatingWebhookConfiguration"
    )
}

fn images(rules: &Value, spec: &mut Value) {
    for list in ["initContainers", "containers"] {
        for c in spec[list].as_array_mut().into_iter().flatten() {
            let image = c["image"].as_str().unwrap_or("").to_owned();
            let name_end = image
                .find('@')
                .or_else(|| image.rfind(':').filter(|i| !image[*i..].contains('/')))
                .unwrap_or(image.len());
            let (name, tail) = image.split_at(name_end);
            for rule in rules.as_array().into_iter().flatten() {
                if rule["name"].as_str() != Some(name) {
                    continue;
                }
                let new_name = rule["newName"].as_str().unwrap_or(name);
                let tail = match (
                    rule["digest"].as_str(),
                    rule["newTag"]
                        .as_str()
                        .map(str::to_owned)
                        .or_else(|| rule["newTag"].as_i64().map(|n| n.to_string())),
                ) {
                    (Some(digest), _) => format!("@{digest}"),
                    (None, Some(tag)) => format!(":{tag}"),
                    (None, None) => tail.to_owned(),
                };
                c["image"] = json!(format!("{new_name}{tail}"));
            }
        }
    }
}

/// Names of config maps, secrets and service accounts inside pods follow their objects.
fn references(renamed: &[(String, String, String)], spec: &mut Value) {
    let new_name = |kind: &str, old: &Value| -> Option<Value> {
        renamed.iter().find(|(k, n, _)| k == kind && old == n).map(|(_, _, new)| json!(new))
    };
    if let Some(new) = new_name("ServiceAccount", &spec["serviceAccountName"]) {
        spec["serviceAccountName"] = new;
    }
    for v in spec["volumes"].as_array_mut().into_iter().flatten() {
        if let Some(new) = new_name("ConfigMap", &v["configMap"]["name"]) {
            v["configMap"]["name"] = new;
        }
        if let Some(new) = new_name("Secret", &v["secret"]["secretName"]) {
            v["secret"]["secretName"] = new;
        }
        if let Some(new) = new_name("PersistentVolumeClaim", &v["persistentVolumeClaim"]["claimName"]) {
            v["persistentVolumeClaim"]["claimName"] = new;
        }
    }
    for list in ["initContainers", "containers"] {
        for c in spec[list].as_array_mut().into_iter().flatten() {
            for e in c["env"].as_array_mut().into_iter().flatten() {
                for (key, kind) in [("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")] {
                    if let Some(new) = new_name(kind, &e["valueFrom"][key]["name"]) {
                        e["valueFrom"][key]["name"] = new;
                    }
                }
            }
            for e in c["envFrom"].as_array_mut().into_iter().flatten() {
                for (key, kind) in [("configMapRef", "ConfigMap"), ("secretRef", "Secret")] {
                    if let Some(new) = new_name(kind, &e[key]["name"]) {
                        e[key]["name"] = new;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlays_build() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("d.yaml"), "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web\nspec:\n  replicas: 1\n  template:\n    spec:\n      containers:\n      - name: c\n        image: nginx:1\n        envFrom:\n        - configMapRef:\n            name: cfg\n").unwrap();
        std::fs::write(dir.path().join("kustomization.yaml"), "resources: [d.yaml]\nnamePrefix: dev-\nnamespace: n\ncommonLabels: {app: x}\nimages:\n- name: nginx\n  newTag: \"2\"\nreplicas:\n- name: web\n  count: 3\nconfigMapGenerator:\n- name: cfg\n  literals: [a=b]\n").unwrap();
        let objects = load(dir.path(), 0).unwrap();
        let d = &objects[0];
        assert_eq!(d["metadata"]["name"], "dev-web");
        assert_eq!(d["metadata"]["namespace"], "n");
        assert_eq!(d["spec"]["replicas"], 3);
        assert_eq!(d["spec"]["selector"]["matchLabels"]["app"], "x");
        assert_eq!(d["spec"]["template"]["spec"]["containers"][0]["image"], "nginx:2");
        assert_eq!(d["spec"]["template"]["spec"]["containers"][0]["envFrom"][0]["configMapRef"]["name"], "dev-cfg");
        assert_eq!(objects[1]["data"]["a"], "b");
    }
}
