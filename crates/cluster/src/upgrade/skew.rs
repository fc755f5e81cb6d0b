//! Which versions may run beside each other, as Kubernetes' version skew policy has it: pure.

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::Node;

use crate::node_roles::CONTROL_PLANE;

/// A version as far as it matters here: 1.36.
pub(super) type Minor = (u32, u32);

/// How far a node may be behind the servers.
const NODES_BEHIND: u32 = 3;

/// Why a program may not take the place of another.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Skew {
    #[error("from v{}.{} to v{}.{}: upgrade one minor version at a time, or say --force", old.0, old.1, new.0, new.1)]
    TooFar { old: Minor, new: Minor },
    #[error("the server {name} is of v{}.{}, and servers are at most one minor version apart: upgrade it first, or say --force", its.0, its.1)]
    AheadOfServer { name: String, its: Minor },
    #[error("the server {name} is of v{}.{} already, and may have stored what an older one cannot read: take that version, or say --force", its.0, its.1)]
    BelowServer { name: String, its: Minor },
    #[error("the node {name} is of v{}.{}, and nodes are at most three minor versions behind: upgrade it first, or say --force", its.0, its.1)]
    NodeBehind { name: String, its: Minor },
    #[error("the servers are of v{}.{}, and no node is newer than they are: upgrade them first, or say --force", servers.0, servers.1)]
    NodeAhead { servers: Minor },
    #[error("the server {name} is of the version {version:?}, which says nothing: say --force to go on")]
    Unknown { name: String, version: String },
}

/// What `cox version` says, as the version of Kubernetes.
pub(super) fn minor(said: &str) -> Option<Minor> {
    minor_of(said.split("Kubernetes ").nth(1)?.split([')', ' ', '\n']).next()?)
}

/// Of a version such as v1.36.4 the first two numbers.
pub(super) fn minor_of(version: &str) -> Option<Minor> {
    let mut numbers = version.strip_prefix('v')?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Whether a program may take the place of another: objects are read by the same version, and by the next.
pub(super) fn check_step(old: Minor, new: Minor) -> Result<(), Skew> {
    match new.0 == old.0 && (new.1 == old.1 || new.1 == old.1 + 1) {
        true => Ok(()),
        false => Err(Skew::TooFar { old, new }),
    }
}

/// Whether a node may run a program: none that is newer than the oldest server's.
pub(super) fn check_node(servers: Minor, new: Minor) -> Result<(), Skew> {
    if new > servers { Err(Skew::NodeAhead { servers }) } else { Ok(()) }
}

/// Whether the server `own` may run a program beside the other servers and the nodes that there are.
pub(super) fn check_server(own: &str, new: Minor, nodes: &[Node]) -> Result<(), Skew> {
    for node in nodes {
        let name = node.metadata.name().to_owned();
        if name == own {
            continue;
        }
        let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
        let version = info.map(|info| info.kubelet_version.clone()).unwrap_or_default();
        let is_server = is_server(node);
        let its = match minor_of(&version) {
            Some(its) => its,
            None if is_server => return Err(Skew::Unknown { name, version }),
            // Of something that only looks like a node; it goes on as it can.
            None => continue,
        };
        if is_server {
            if new.0 != its.0 || new.1 > its.1 + 1 {
                return Err(Skew::AheadOfServer { name, its });
            }
            if new < its {
                return Err(Skew::BelowServer { name, its });
            }
        } else if new.0 != its.0 || new.1 > its.1 + NODES_BEHIND {
            return Err(Skew::NodeBehind { name, its });
        }
    }
    Ok(())
}

/// Whether a server runs beside a node.
pub(super) fn is_server(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(CONTROL_PLANE))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_go_up_one_at_a_time() {
        assert_eq!(minor("cox 0.1.0 (Kubernetes v1.36)\n"), Some((1, 36)));
        assert_eq!(minor("cox 0.2.0 (Kubernetes v1.37.2)\n"), Some((1, 37)));
        for other in ["", "kubectl v1.36", "cox (Kubernetes vx.y)"] {
            assert_eq!(minor(other), None, "{other}");
        }
        assert_eq!(minor_of("v1.36.4+cox"), Some((1, 36)));
        assert!(check_node((1, 36), (1, 36)).is_ok() && check_node((1, 36), (1, 35)).is_ok());
        assert!(check_node((1, 36), (1, 37)).unwrap_err().to_string().contains("upgrade them first"));
        for (new, is_allowed) in
            [((1, 35), false), ((1, 36), true), ((1, 37), true), ((1, 38), false), ((2, 36), false)]
        {
            assert_eq!(check_step((1, 36), new).is_ok(), is_allowed, "{new:?}");
        }
    }

    #[test]
    fn servers_are_one_minor_version_apart_and_nodes_not_too_far_behind() {
        let node = |name: &str, is_server: bool, version: &str| -> Node {
            let labels = if is_server { json!({CONTROL_PLANE: ""}) } else { json!({}) };
            let info = json!({
                "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": version, "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
            });
            let metadata = json!({"name": name, "labels": labels});
            serde_json::from_value(json!({"metadata": metadata, "status": {"nodeInfo": info}})).unwrap()
        };
        let own = || node("a", true, "v1.36.0");
        let (server, worker) = (|version: &str| node("b", true, version), |version: &str| node("w", false, version));
        let its = |name: &str, minor| (name.to_owned(), (1, minor));
        for (others, new, expected) in [
            (vec![server("v1.36.2")], 37, None),
            (vec![server("v1.37.0")], 37, None),
            // The second step, while one has not made the first.
            (vec![server("v1.35.9")], 37, Some("ahead")),
            (vec![server("v1.37.0")], 36, Some("below")),
            (vec![worker("v1.34.1"), server("v1.36.0")], 37, None),
            (vec![worker("v1.33.1")], 37, Some("behind")),
            (vec![server("latest")], 37, Some("unknown")),
            (vec![worker("fake")], 37, None),
        ] {
            let nodes: Vec<Node> = others.into_iter().chain([own()]).collect();
            let found = check_server("a", (1, new), &nodes).err().map(|skew| match skew {
                Skew::AheadOfServer { name, its: found } if (name.clone(), found) == its("b", 35) => "ahead",
                Skew::BelowServer { name, its: found } if (name.clone(), found) == its("b", 37) => "below",
                Skew::NodeBehind { name, its: found } if (name.clone(), found) == its("w", 33) => "behind",
                Skew::Unknown { .. } => "unknown",
                other => panic!("{other:?}"),
            });
            assert_eq!(found, expected, "to 1.{new}");
        }
    }
}
