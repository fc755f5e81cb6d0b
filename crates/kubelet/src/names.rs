//! Names that become parts of paths on this node: looked at before any of them does.
//!
//! The API server checks them when objects are written. A kubelet runs as root and takes nobody's word for it: what is no
//! DNS name never gets a directory, a mount or a container.

use std::sync::Arc;

use api::validation::{dns1123_label, dns1123_subdomain};
use k8s_openapi::api::core::v1::Pod;

use crate::state;

/// What is no part of a path here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    #[error("invalid {what} {name:?}: {why}")]
    Name { what: &'static str, name: String, why: String },
    #[error("invalid pod uid {0:?}")]
    Uid(String),
    #[error("must be a relative path that does not contain '..': {0:?}")]
    Path(String),
}

/// Why the pod itself cannot have a directory here.
pub(crate) fn check_pod(pod: &Pod) -> Result<(), Refused> {
    check("pod name", state::name(pod), dns1123_subdomain)?;
    check("namespace", state::namespace(pod), dns1123_label)?;
    let uid = state::uid(pod);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match uid.starts_with(|c: char| c.is_ascii_alphanumeric()) && uid.len() <= 253 && uid.chars().all(is_plain) {
        true => Ok(()),
        false => Err(Refused::Uid(uid.to_owned())),
    }
}

/// Why the pod's containers and volumes cannot have theirs. Ephemeral containers come later and are looked at one by one.
pub(crate) fn check_spec(pod: &Pod) -> Result<(), Refused> {
    let spec = pod.spec.iter();
    for container in spec.clone().flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers)) {
        check("container name", &container.name, dns1123_label)?;
    }
    for volume in spec.flat_map(|spec| spec.volumes.iter().flatten()) {
        check("volume name", &volume.name, dns1123_label)?;
    }
    Ok(())
}

/// The pod without ephemeral containers whose names are refused, and why they are.
pub(crate) fn without_refused(pod: &Arc<Pod>) -> (Arc<Pod>, Vec<Refused>) {
    let ephemeral = pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten());
    let refused: Vec<Refused> =
        ephemeral.filter_map(|container| check("container name", &container.name, dns1123_label).err()).collect();
    if refused.is_empty() {
        return (pod.clone(), refused);
    }
    let mut rest = pod.as_ref().clone();
    if let Some(list) = rest.spec.as_mut().and_then(|spec| spec.ephemeral_containers.as_mut()) {
        list.retain(|container| dns1123_label(&container.name).is_empty());
    }
    (Arc::new(rest), refused)
}

/// A file below a directory of ours: relative, and never up.
pub(crate) fn check_relative_path(path: &str) -> Result<(), Refused> {
    use std::path::{Component, Path};
    let stays = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    match stays && !path.is_empty() {
        true => Ok(()),
        false => Err(Refused::Path(path.to_owned())),
    }
}

fn check(what: &'static str, name: &str, rule: fn(&str) -> Vec<String>) -> Result<(), Refused> {
    match rule(name).into_iter().next() {
        None => Ok(()),
        Some(why) => Err(Refused::Name { what, name: name.to_owned(), why }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(change: impl FnOnce(&mut serde_json::Value)) -> Arc<Pod> {
        let mut pod = json!({
            "metadata": {"name": "web.a-0", "namespace": "default", "uid": "0b9c-1"},
            "spec": {
                "containers": [{"name": "main"}], "initContainers": [{"name": "init"}],
                "ephemeralContainers": [{"name": "debug"}], "volumes": [{"name": "v"}],
            },
        });
        change(&mut pod);
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn security_names_that_are_paths_are_refused() {
        assert!(check_pod(&pod(|_| {})).is_ok() && check_spec(&pod(|_| {})).is_ok());
        for bad in ["/etc/cron.d", "../../../etc", "..", ".", "", "a/b", "a\0b", "A", "a\nb"] {
            for field in ["name", "namespace", "uid"] {
                // Upper case is fine in a uid, which others than the API may have made.
                let is_refused = !(field == "uid" && bad == "A");
                let changed = pod(|pod| pod["metadata"][field] = json!(bad));
                assert_eq!(check_pod(&changed).is_err(), is_refused, "{field} {bad:?}");
            }
            for list in ["containers", "initContainers", "volumes"] {
                let changed = pod(|pod| pod["spec"][list][0]["name"] = json!(bad));
                assert!(check_spec(&changed).is_err(), "{list} {bad:?}");
            }
            let changed = pod(|pod| pod["spec"]["ephemeralContainers"][0]["name"] = json!(bad));
            let (rest, why) = without_refused(&changed);
            assert_eq!(why.len(), 1, "{bad:?}");
            assert_eq!(state::all_containers(&rest).len(), 2, "{bad:?}");
        }
        let (same, why) = without_refused(&pod(|_| {}));
        assert!(why.is_empty() && state::all_containers(&same).len() == 3);
    }

    #[test]
    fn security_profiles_are_files_below_their_directory() {
        for (path, fine) in [
            ("a.json", true),
            ("dir/a.json", true),
            ("/etc/shadow", false),
            ("../x", false),
            ("a/../../x", false),
            ("", false),
        ] {
            assert_eq!(check_relative_path(path).is_ok(), fine, "{path}");
        }
    }
}
