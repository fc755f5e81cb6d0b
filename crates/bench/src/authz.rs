//! RBAC decisions with many bindings: the index that the server decides with, against a scan of every binding.
//!
//! Both sides hold the same objects in memory and give the same answers; what is compared is how they find the rules.

use std::hint::black_box;
use std::time::{Duration, Instant};

use api::UserInfo;
use apiserver::Attributes;
use apiserver::rbac::{Index, allows};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleBinding, RoleRef, Subject};

use crate::Args;
use crate::report::{Better, Times, line};

/// A decision must not cost more than this.
const LIMIT: Duration = Duration::from_micros(50);

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let sizes: &[usize] = if args.quick { &[1_000] } else { &[100, 1_000, 10_000] };
    let decisions = if args.quick { 2_000 } else { 200_000 };
    for &bindings in sizes {
        let world = World::new(bindings);
        for case in ["allow", "deny"] {
            if args.wants(case) {
                world.compare(case, decisions)?;
            }
        }
    }
    Ok(())
}

/// Roles, bindings in many namespaces, and who asks.
struct World {
    roles: Vec<ClusterRole>,
    cluster_bindings: Vec<ClusterRoleBinding>,
    bindings: Vec<RoleBinding>,
    index: Index,
}

const ROLES: usize = 200;

fn namespace(number: usize) -> String {
    format!("team-{}", number % 500)
}

impl World {
    /// One binding in ten is for the whole cluster; each names a user, a group and a service account.
    fn new(count: usize) -> Self {
        let roles: Vec<ClusterRole> = (0..ROLES).map(role).collect();
        let (mut cluster_bindings, mut bindings) = (Vec::new(), Vec::new());
        for number in 0..count {
            let role_ref = RoleRef {
                api_group: Some("rbac.authorization.k8s.io".to_owned()),
                kind: "ClusterRole".to_owned(),
                name: format!("role-{}", number % ROLES),
            };
            let subject = |kind: &str, name: String, namespace| Subject {
                kind: kind.to_owned(),
                name,
                namespace,
                ..Default::default()
            };
            let subjects = Some(vec![
                subject("User", format!("user-{number}"), None),
                subject("Group", format!("group-{}", number % 1000), None),
                subject("ServiceAccount", "robot".to_owned(), Some(namespace(number))),
            ]);
            let mut metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                name: Some(format!("binding-{number}")),
                ..Default::default()
            };
            if number % 10 == 0 {
                cluster_bindings.push(ClusterRoleBinding { metadata, role_ref, subjects });
            } else {
                metadata.namespace = Some(namespace(number));
                bindings.push(RoleBinding { metadata, role_ref, subjects });
            }
        }
        let mut index = Index::default();
        for role in &roles {
            index.set_cluster_role(role.metadata.name.as_deref().unwrap_or_default(), Some(role.clone()));
        }
        for binding in &cluster_bindings {
            index.set_cluster_binding(binding.metadata.name.as_deref().unwrap_or_default(), Some(binding.clone()));
        }
        for binding in &bindings {
            let meta = &binding.metadata;
            let key = format!(
                "{}/{}",
                meta.namespace.as_deref().unwrap_or_default(),
                meta.name.as_deref().unwrap_or_default()
            );
            index.set_binding(&key, Some(binding.clone()));
        }
        Self { roles, cluster_bindings, bindings, index }
    }

    fn compare(&self, case: &str, decisions: usize) -> anyhow::Result<()> {
        let total = self.cluster_bindings.len() + self.bindings.len();
        let (mut ours, mut peer) = (Times::default(), Times::default());
        let scans = (decisions / 100).max(100);
        for turn in 0..decisions {
            let (user, attributes) = question(case, turn, total);
            let started = Instant::now();
            let answer = black_box(self.index.decide(&user, &attributes)).is_ok();
            ours.add(started.elapsed());
            anyhow::ensure!(answer == (case == "allow"), "wrong answer to {user:?} {attributes:?}");
            if turn < scans {
                let started = Instant::now();
                let scanned = black_box(self.scan(&user, &attributes));
                peer.add(started.elapsed());
                anyhow::ensure!(scanned == answer, "the scan disagrees about {user:?} {attributes:?}");
            }
        }
        for percent in [50, 99] {
            let (ours, peer) = (ours.percentile(percent) * 1e3, peer.percentile(percent) * 1e3);
            line(case, format!("bindings={total} p{percent}"), "us", ours, peer, Better::Less);
        }
        let p99 = Duration::from_secs_f64(ours.percentile(99) / 1e3);
        anyhow::ensure!(p99 < LIMIT, "p99 of {case} with {total} bindings is {p99:?}, more than {LIMIT:?}");
        Ok(())
    }

    /// What a decision costs without an index.
    fn scan(&self, user: &UserInfo, attributes: &Attributes) -> bool {
        let role_allows = |reference: &RoleRef| {
            let role = self.roles.iter().find(|role| role.metadata.name.as_deref() == Some(&reference.name));
            role.is_some_and(|role| role.rules.iter().flatten().any(|rule| allows(rule, attributes)))
        };
        let names = |subjects: &Option<Vec<Subject>>| subjects.iter().flatten().any(|subject| is(subject, user));
        self.cluster_bindings.iter().any(|binding| names(&binding.subjects) && role_allows(&binding.role_ref))
            || self.bindings.iter().any(|binding| {
                binding.metadata.namespace.as_deref() == Some(&attributes.namespace)
                    && names(&binding.subjects)
                    && role_allows(&binding.role_ref)
            })
    }
}

fn is(subject: &Subject, user: &UserInfo) -> bool {
    match subject.kind.as_str() {
        "Group" => user.groups.contains(&subject.name),
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().unwrap_or_default();
            user.as_service_account() == Some((namespace, &subject.name))
        }
        _ => user.name == subject.name,
    }
}

/// Twenty rules about resources of their own: deciding means looking at them.
fn role(number: usize) -> ClusterRole {
    let rule = |rule: usize| PolicyRule {
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        api_groups: Some(vec!["example.com".to_owned()]),
        resources: Some(vec![format!("things-{number}-{rule}")]),
        ..Default::default()
    };
    let mut role = ClusterRole { rules: Some((0..20).map(rule).collect()), ..Default::default() };
    role.metadata.name = Some(format!("role-{number}"));
    role
}

/// Somebody with a binding and a few groups asks for what their role allows last, or for what none does.
fn question(case: &str, turn: usize, total: usize) -> (UserInfo, Attributes) {
    // A step that visits all bindings in an order of no use to a cache.
    let number = turn.wrapping_mul(7919) % total;
    let groups = [format!("group-{}", turn % 1000), "system:authenticated".to_owned()];
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let user = UserInfo::new(format!("user-{number}"), &groups);
    let attributes = Attributes {
        is_resource: true,
        verb: if case == "allow" { "get" } else { "delete" }.into(),
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        resource: format!("things-{}-19", number % ROLES),
        namespace: namespace(number),
        name: "one".to_owned(),
        ..Default::default()
    };
    (user, attributes)
}
