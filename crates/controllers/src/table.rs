//! The one list of controllers. A new one is a line here and a module beside this file.

use crate::controller::Descriptor;
use crate::{
    bootstrap_tokens, certificates, cluster_role_aggregation, cron_job, daemon_set, deployment, disruption, endpoints,
    garbage, horizontal_pod_autoscaler, job, namespace, node_ipam, node_lifecycle, pod_gc, replica_set, resource_quota,
    root_ca, service_account, service_cidr, service_lb, stateful_set, storage_version_migration, taint_eviction,
    ttl_after_finished, volume,
};

#[rustfmt::skip]
pub const CONTROLLERS: &[Descriptor] = &[
    Descriptor { name: "deployment-controller", account: "deployment-controller", workers: 16, build: deployment::build },
    Descriptor { name: "replicaset-controller", account: "replicaset-controller", workers: 16, build: replica_set::build_replica_sets },
    Descriptor { name: "replicationcontroller-controller", account: "replication-controller", workers: 4, build: replica_set::build_replication_controllers },
    Descriptor { name: "statefulset-controller", account: "statefulset-controller", workers: 4, build: stateful_set::build },
    Descriptor { name: "daemonset-controller", account: "daemon-set-controller", workers: 4, build: daemon_set::build },
    Descriptor { name: "job-controller", account: "job-controller", workers: 8, build: job::build },
    Descriptor { name: "cronjob-controller", account: "cronjob-controller", workers: 4, build: cron_job::build },
    Descriptor { name: "endpoints-controller", account: "endpoint-controller", workers: 4, build: endpoints::build_legacy },
    Descriptor { name: "endpointslice-controller", account: "endpointslice-controller", workers: 4, build: endpoints::build_slices },
    Descriptor { name: "serviceaccount-controller", account: "service-account-controller", workers: 2, build: service_account::build },
    Descriptor { name: "serviceaccount-token-controller", account: "", workers: 5, build: service_account::build_tokens },
    Descriptor { name: "legacy-serviceaccount-token-cleaner-controller", account: "legacy-service-account-token-cleaner", workers: 1, build: service_account::build_cleaner },
    Descriptor { name: "bootstrap-signer-controller", account: "bootstrap-signer", workers: 1, build: bootstrap_tokens::build_signer },
    Descriptor { name: "token-cleaner-controller", account: "token-cleaner", workers: 1, build: bootstrap_tokens::build_cleaner },
    Descriptor { name: "root-ca-certificate-publisher-controller", account: "root-ca-cert-publisher", workers: 2, build: root_ca::build },
    Descriptor { name: "namespace-controller", account: "namespace-controller", workers: 4, build: namespace::build },
    Descriptor { name: "garbage-collector-controller", account: "generic-garbage-collector", workers: 16, build: garbage::build },
    Descriptor { name: "node-ipam-controller", account: "node-controller", workers: 1, build: node_ipam::build },
    Descriptor { name: "pod-garbage-collector-controller", account: "pod-garbage-collector", workers: 2, build: pod_gc::build },
    Descriptor { name: "node-lifecycle-controller", account: "node-controller", workers: 2, build: node_lifecycle::build },
    Descriptor { name: "taint-eviction-controller", account: "node-controller", workers: 4, build: taint_eviction::build },
    Descriptor { name: "resourcequota-controller", account: "resourcequota-controller", workers: 2, build: resource_quota::build },
    Descriptor { name: "horizontal-pod-autoscaler-controller", account: "horizontal-pod-autoscaler", workers: 5, build: horizontal_pod_autoscaler::build },
    Descriptor { name: "disruption-controller", account: "disruption-controller", workers: 2, build: disruption::build },
    Descriptor { name: "ttl-after-finished-controller", account: "ttl-after-finished-controller", workers: 2, build: ttl_after_finished::build },
    Descriptor { name: "clusterrole-aggregation-controller", account: "clusterrole-aggregation-controller", workers: 1, build: cluster_role_aggregation::build },
    Descriptor { name: "endpointslice-mirroring-controller", account: "endpointslicemirroring-controller", workers: 2, build: endpoints::build_mirror },
    Descriptor { name: "persistentvolume-attach-detach-controller", account: "attachdetach-controller", workers: 4, build: volume::build_attach_detach },
    Descriptor { name: "persistentvolume-binder-controller", account: "persistent-volume-binder", workers: 8, build: volume::build_binder },
    Descriptor { name: "persistentvolumeclaim-protection-controller", account: "pvc-protection-controller", workers: 1, build: volume::build_claim_protection },
    Descriptor { name: "persistentvolume-protection-controller", account: "pv-protection-controller", workers: 1, build: volume::build_volume_protection },
    Descriptor { name: "volumeattributesclass-protection-controller", account: "volumeattributesclass-protection-controller", workers: 1, build: volume::build_attributes_class_protection },
    Descriptor { name: "persistentvolume-expander-controller", account: "expand-controller", workers: 1, build: volume::build_expander },
    Descriptor { name: "volumesnapshot-controller", account: "snapshot-controller", workers: 2, build: volume::build_snapshots },
    Descriptor { name: "local-volume-provisioner-controller", account: "local-volume-provisioner", workers: 8, build: volume::build_local },
    Descriptor { name: "ephemeral-volume-controller", account: "ephemeral-volume-controller", workers: 5, build: volume::build_ephemeral },
    Descriptor { name: "certificatesigningrequest-approving-controller", account: "certificate-controller", workers: 1, build: certificates::build_approver },
    Descriptor { name: "certificatesigningrequest-signing-controller", account: "certificate-controller", workers: 1, build: certificates::build_signer },
    Descriptor { name: "certificatesigningrequest-cleaner-controller", account: "certificate-controller", workers: 1, build: certificates::build_cleaner },
    Descriptor { name: "service-cidr-controller", account: "service-cidrs-controller", workers: 1, build: service_cidr::build },
    Descriptor { name: "storage-version-migrator-controller", account: "storage-version-migrator-controller", workers: 1, build: storage_version_migration::build },
    Descriptor { name: "service-lb-controller", account: "service-controller", workers: 1, build: service_lb::build },
];

/// Run only when `--controllers` names them. Load balancers are mostly somebody else's work where `cox up` did not make the cluster,
/// and migrations are served where a server is told to.
const OFF_BY_DEFAULT: [&str; 4] = [
    "bootstrap-signer-controller",
    "token-cleaner-controller",
    "service-lb-controller",
    "storage-version-migrator-controller",
];

/// Upstream's older names that do not follow from the present ones.
const ALIASES: [(&str, &str); 15] = [
    ("horizontalpodautoscaling", "horizontal-pod-autoscaler-controller"),
    ("endpoint", "endpoints-controller"),
    ("podgc", "pod-garbage-collector-controller"),
    ("csrsigning", "certificatesigningrequest-signing-controller"),
    ("csrapproving", "certificatesigningrequest-approving-controller"),
    ("csrcleaner", "certificatesigningrequest-cleaner-controller"),
    ("attachdetach", "persistentvolume-attach-detach-controller"),
    ("persistentvolume-expander", "persistentvolume-expander-controller"),
    ("persistentvolume-binder", "persistentvolume-binder-controller"),
    ("pvc-protection", "persistentvolumeclaim-protection-controller"),
    ("pv-protection", "persistentvolume-protection-controller"),
    ("root-ca-cert-publisher", "root-ca-certificate-publisher-controller"),
    ("service", "service-lb-controller"),
    ("svm", "storage-version-migrator-controller"),
    ("legacy-service-account-token-cleaner", "legacy-serviceaccount-token-cleaner-controller"),
];

const NO_CLOUD: &str = "there is no cloud provider";
const NO_DEVICES: &str = "devices are not claimed here";

/// Upstream's controllers that there are none of here, their older names, and why.
const ABSENT: &[(&str, &str, &str)] = &[
    ("cloud-node-lifecycle-controller", "cloud-node-lifecycle", NO_CLOUD),
    ("node-route-controller", "route", NO_CLOUD),
    ("device-taint-eviction-controller", "", NO_DEVICES),
    ("resourceclaim-controller", "resource-claim-controller", NO_DEVICES),
    ("resourcepoolstatusrequest-controller", "", NO_DEVICES),
    ("kube-apiserver-serving-clustertrustbundle-publisher-controller", "", "nodes project no trust bundles"),
    ("podcertificaterequest-cleaner-controller", "", "nodes ask for no certificates of pods"),
    ("podgroup-protection-controller", "", "pods are placed one by one"),
    ("selinux-warning-controller", "", "labels of SELinux are not compared"),
    (
        "storageversion-garbage-collector-controller",
        "storage-version-gc",
        "versions of what is stored are not recorded",
    ),
    ("ttl-controller", "ttl", "nodes watch what their pods use"),
    ("validatingadmissionpolicy-status-controller", "", "the API server writes what it finds in policies"),
];

/// Why `--controllers` cannot be so.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    #[error("{0:?} is not in the list of known controllers")]
    Unknown(String),
    #[error("the controller {0} is not supported: {1}")]
    Absent(&'static str, &'static str),
}

/// Whether every name in `--controllers` is one of upstream's. What there is none of can be left out, and not be asked for.
pub fn check_selection(selection: &[String]) -> Result<(), SelectionError> {
    for item in selection.iter().filter(|item| !item.is_empty() && *item != "*") {
        let (text, removes) = item.strip_prefix('-').map_or((item.as_str(), false), |text| (text, true));
        if CONTROLLERS.iter().any(|descriptor| is_called(descriptor.name, text)) {
            continue;
        }
        let absent = ABSENT.iter().find(|(name, older, _)| text == *name || (!older.is_empty() && text == *older));
        match absent {
            Some(_) if removes => {}
            Some(&(name, _, why)) => return Err(SelectionError::Absent(name, why)),
            None => return Err(SelectionError::Unknown(text.to_owned())),
        }
    }
    Ok(())
}

fn is_called(name: &str, text: &str) -> bool {
    let short = name.trim_end_matches("-controller");
    text == name || text == short || text == short.replace('-', "") || ALIASES.contains(&(text, name))
}

/// Who speaks in the events of a controller, where that is not its name (`EventSource.Component`, v1.36).
const EVENT_SOURCES: [(&str, &str); 12] = [
    ("horizontal-pod-autoscaler-controller", "horizontal-pod-autoscaler"),
    ("replicationcontroller-controller", "replication-controller"),
    ("node-lifecycle-controller", "node-controller"),
    ("node-ipam-controller", "cidrAllocator"),
    ("disruption-controller", "controllermanager"),
    ("endpoints-controller", "endpoint-controller"),
    ("endpointslice-controller", "endpoint-slice-controller"),
    ("endpointslice-mirroring-controller", "endpoint-slice-mirroring-controller"),
    ("persistentvolume-binder-controller", "persistentvolume-controller"),
    ("persistentvolume-attach-detach-controller", "attachdetach-controller"),
    ("persistentvolume-expander-controller", "volume_expand"),
    ("ephemeral-volume-controller", "ephemeral_volume"),
];

/// The name that the events of a controller carry.
pub(crate) fn event_source(name: &'static str) -> &'static str {
    EVENT_SOURCES.iter().find(|(controller, _)| *controller == name).map_or(name, |(_, source)| *source)
}

/// Whether `--controllers` selects `name`: `*` is all that are on by default, `foo` adds, `-foo` removes. Upstream's older short names
/// (`deployment`, `garbagecollector`, `podgc`) are understood.
pub(crate) fn is_enabled(name: &str, selection: &[String]) -> bool {
    let names = |text: &str| is_called(name, text);
    if selection.iter().any(|item| item.strip_prefix('-').is_some_and(names)) {
        return false;
    }
    selection.iter().any(|item| (item == "*" && !OFF_BY_DEFAULT.contains(&name)) || names(item))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::controller::{Context, Read, Wake};

    #[test]
    fn the_selection_adds_and_removes() {
        let list = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        for (selection, name, expected) in [
            ("*", "deployment-controller", true),
            ("*,-deployment", "deployment-controller", false),
            ("*,-deployment-controller", "deployment-controller", false),
            ("*,-deployment", "replicaset-controller", true),
            ("deployment", "deployment-controller", true),
            ("deployment", "job-controller", false),
            ("*,-garbagecollector", "garbage-collector-controller", false),
            ("*,-podgc", "pod-garbage-collector-controller", false),
            ("*", "token-cleaner-controller", false),
            ("*", "service-lb-controller", false),
            ("*,service", "service-lb-controller", true),
            ("*,tokencleaner", "token-cleaner-controller", true),
        ] {
            assert_eq!(is_enabled(name, &list(selection)), expected, "{selection} {name}");
        }
    }

    /// The controllers of v1.36.
    const UPSTREAM: &str = "
        bootstrap-signer-controller certificatesigningrequest-approving-controller
        certificatesigningrequest-cleaner-controller certificatesigningrequest-signing-controller
        cloud-node-lifecycle-controller clusterrole-aggregation-controller cronjob-controller daemonset-controller
        deployment-controller device-taint-eviction-controller disruption-controller endpoints-controller
        endpointslice-controller endpointslice-mirroring-controller ephemeral-volume-controller
        garbage-collector-controller horizontal-pod-autoscaler-controller job-controller
        kube-apiserver-serving-clustertrustbundle-publisher-controller
        legacy-serviceaccount-token-cleaner-controller namespace-controller node-ipam-controller
        node-lifecycle-controller node-route-controller persistentvolume-attach-detach-controller
        persistentvolume-binder-controller persistentvolume-expander-controller
        persistentvolume-protection-controller persistentvolumeclaim-protection-controller
        pod-garbage-collector-controller podcertificaterequest-cleaner-controller podgroup-protection-controller
        replicaset-controller replicationcontroller-controller resourceclaim-controller
        resourcepoolstatusrequest-controller resourcequota-controller root-ca-certificate-publisher-controller
        selinux-warning-controller service-cidr-controller service-lb-controller serviceaccount-controller
        serviceaccount-token-controller statefulset-controller storage-version-migrator-controller
        storageversion-garbage-collector-controller taint-eviction-controller token-cleaner-controller
        ttl-after-finished-controller ttl-controller validatingadmissionpolicy-status-controller
        volumeattributesclass-protection-controller
    ";

    #[test]
    fn every_controller_of_upstream_is_known_and_no_other() {
        let check = |item: &str| check_selection(&["*".to_owned(), item.to_owned()]);
        for name in UPSTREAM.split_whitespace() {
            assert_eq!(check(&format!("-{name}")), Ok(()), "{name}");
        }
        for older in ["-route", "-cloud-node-lifecycle", "-ttl", "svm", "podgc", "-storage-version-gc", "tokencleaner"]
        {
            assert_eq!(check(older), Ok(()), "{older}");
        }
        assert!(matches!(check("ttl"), Err(SelectionError::Absent("ttl-controller", _))));
        assert_eq!(check(""), Ok(()));
        for mistake in ["deploymnt", "-deploymnt", "-"] {
            assert!(matches!(check(mistake), Err(SelectionError::Unknown(_))), "{mistake}");
        }
        for (name, ..) in ABSENT {
            assert!(UPSTREAM.split_whitespace().any(|known| known == *name), "{name}");
        }
    }

    #[test]
    fn events_come_from_controllers_that_there_are() {
        for (controller, _) in EVENT_SOURCES {
            assert!(CONTROLLERS.iter().any(|descriptor| descriptor.name == controller), "{controller}");
        }
        assert_eq!(event_source("horizontal-pod-autoscaler-controller"), "horizontal-pod-autoscaler");
        assert_eq!(event_source("deployment-controller"), "deployment-controller");
    }

    /// All informers that controllers read.
    fn reads() -> Vec<(&'static Descriptor, Read)> {
        let handler: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        let client = client::Client::in_process(handler, api::UserInfo::default());
        let config = Arc::new(crate::Config::new(client.clone()));
        let of = |descriptor: &'static Descriptor| {
            let recorder = client::EventRecorder::new(client.clone(), descriptor.name, "");
            let informers = client::InformerFactory::new(client.clone());
            let context = Context::new(descriptor.name, client.clone(), recorder, informers, config.clone());
            (descriptor.build)(&context);
            context.reads().into_iter().map(move |read| (descriptor, read))
        };
        CONTROLLERS.iter().flat_map(of).collect()
    }

    /// Whoever reads a second cache is woken by it, or says why not.
    #[tokio::test]
    async fn every_informer_that_a_controller_reads_brings_it_back() {
        let mut exceptions = Vec::new();
        for (descriptor, read) in reads() {
            match read.wake {
                Wake::Unsaid => panic!("{}: nothing wakes it when a {} changes", descriptor.name, read.kind),
                Wake::Events => {}
                Wake::Nothing(reason) => exceptions.push((descriptor.name, read.kind, reason)),
            }
        }
        let daily = "everything is looked at again every day";
        let cleaner = "legacy-serviceaccount-token-cleaner-controller";
        assert_eq!(
            exceptions,
            [
                (cleaner, "Secret", daily),
                (cleaner, "ServiceAccount", daily),
                (cleaner, "Pod", daily),
                ("node-lifecycle-controller", "Lease", "renewals only note the time, which a timer per node looks at"),
                ("horizontal-pod-autoscaler-controller", "Pod", "every period is a new look at all pods"),
            ]
        );
    }

    /// Whether the role of a controller, in the bootstrap policy of the API server, lets it list and watch a resource.
    fn may_watch(account: &str, (group, plural): (&str, &str)) -> bool {
        let role = match account {
            "" => "system:kube-controller-manager".to_owned(),
            account => format!("system:controller:{account}"),
        };
        let group = if group.is_empty() { "core" } else { group };
        let mut is_its_own = false;
        include_str!("../../apiserver/src/authz/bootstrap_policy.txt").lines().any(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let has = |at: usize, word: &str| words[at].split(',').any(|known| known == "*" || known == word);
            match words[..] {
                ["clusterrole", name, ..] | ["role", _, name] => is_its_own = name == role,
                [_, "@", _, ":", _] if is_its_own => {
                    return has(0, "list") && has(0, "watch") && has(2, group) && has(4, plural);
                }
                _ => {}
            }
            false
        })
    }

    /// All controllers share the manager's informers, and the manager may watch everything. So only this holds a controller to what
    /// its own role is for. Upstream's roles leave out the same where a controller watches and does not ask.
    #[tokio::test]
    async fn controllers_read_what_their_roles_are_for() {
        let others: Vec<_> = reads().into_iter().filter(|(of, read)| !may_watch(of.account, read.resource)).collect();
        let others: Vec<_> = others.iter().map(|(of, read)| (of.name, read.kind)).collect();
        let cleaner = "legacy-serviceaccount-token-cleaner-controller";
        assert_eq!(
            others,
            [
                ("serviceaccount-controller", "Namespace"),
                ("serviceaccount-controller", "ServiceAccount"),
                (cleaner, "Secret"),
                (cleaner, "ServiceAccount"),
                (cleaner, "Pod"),
                ("root-ca-certificate-publisher-controller", "Namespace"),
                ("root-ca-certificate-publisher-controller", "ConfigMap"),
                ("disruption-controller", "Pod"),
                ("storage-version-migrator-controller", "StorageVersionMigration"),
                ("service-lb-controller", "EndpointSlice"),
                ("service-lb-controller", "Ingress"),
            ]
        );
    }

    #[test]
    fn names_are_unique() {
        let names: std::collections::HashSet<_> = CONTROLLERS.iter().map(|controller| controller.name).collect();
        assert_eq!(names.len(), CONTROLLERS.len());
    }
}
