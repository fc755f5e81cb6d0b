//! The next step of a volume of `local.cox`, from the objects as they are: pure.

use std::sync::Arc;

use api::node_volumes::{Action, Answer, DRIVER, Request, Source, TOPOLOGY_KEY};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};

use super::super::decision::{PROVISIONED_BY, annotation, volume_name};
use super::super::matching::{capacity, requested};

/// Keeps the object of a volume until its folder is gone, whoever deletes it (external-provisioner's name for it).
pub(super) const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// A request about the volume, and the answer to it, if there is one.
#[derive(Debug, Clone)]
pub(super) struct Asked<'a> {
    pub(super) node: &'a str,
    pub(super) request: &'a Request,
    pub(super) answer: Option<&'a Answer>,
}

/// Where a claim is to get its volume.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Target {
    pub(super) node: String,
    pub(super) source: Option<Source>,
}

pub(super) struct Seen<'a> {
    pub(super) volume: Option<&'a PersistentVolume>,
    /// The one that the volume belongs to, or that waits for it.
    pub(super) claim: Option<&'a PersistentVolumeClaim>,
    /// Of a claim that waits.
    pub(super) target: Option<&'a Target>,
    pub(super) asked: &'a [Asked<'a>],
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    Nothing,
    /// Asks a node for something, instead of what it was asked for before.
    Ask {
        node: String,
        action: Action,
        capacity: i64,
        source: Option<Source>,
        instead_of: Option<String>,
    },
    /// Nobody waits for the answer any more, or it was heard.
    Withdraw {
        node: String,
        token: String,
    },
    /// The folder is there: now the object.
    Provision {
        node: String,
        capacity: i64,
    },
    /// The folder is gone: now the object.
    Remove {
        node: String,
        token: String,
    },
    /// The folder may be larger: now the object, then the claim.
    Grow {
        node: String,
        token: String,
        size: i64,
    },
    /// The claim shows less than its volume has.
    Show(i64),
    /// A volume that is to be kept, and whose object is being deleted.
    LetGo,
    Fail {
        node: String,
        token: String,
        action: Action,
        message: String,
    },
}

pub(super) fn handle(volume: &PersistentVolume) -> Option<&str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    (source.driver == DRIVER).then_some(source.volume_handle.as_str())
}

/// The node that a volume of ours is on: its affinity says so, and nobody but us and administrators writes that.
pub(super) fn node_of(volume: &PersistentVolume) -> Option<&str> {
    handle(volume)?;
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let expressions = required.node_selector_terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
    let mut own = expressions.filter(|one| one.key == TOPOLOGY_KEY);
    match own.next()?.values.as_deref()? {
        [node] => Some(node),
        _ => None,
    }
}

/// Whether a volume says that it is the claim's: claims can name any volume.
pub(super) fn is_bound_to(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    reference.is_some_and(|reference| reference.uid.is_some() && reference.uid == claim.metadata.uid)
}

pub(super) fn is_released(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released")
        // One without a claim was made free again, whatever its phase still says.
        && spec.is_some_and(|spec| spec.claim_ref.as_ref().is_some_and(|claim| claim.uid.is_some()))
}

/// Whether nobody needs a volume any more, and its folder is to go.
pub(super) fn is_done_with(volume: &PersistentVolume) -> bool {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    node_of(volume).is_some()
        && annotation(&volume.metadata, PROVISIONED_BY) == Some(DRIVER)
        && policy == Some("Delete")
        && is_released(volume)
}

/// Which object decides about a folder that several stand for: as long as one of them needs it, it stays.
pub(super) fn deciding(volumes: Vec<Arc<PersistentVolume>>) -> Option<Arc<PersistentVolume>> {
    volumes.into_iter().min_by_key(|volume| is_done_with(volume))
}

/// Whether a claim needs a volume that is to go. One that has another needs this one no more, which was made for it as well.
pub(super) fn needs(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let has_another = volume_name(claim).is_some_and(|name| Some(name) != volume.metadata.name.as_deref());
    is_bound_to(volume, claim) && !has_another
}

pub(super) fn has_finalizer(volume: &PersistentVolume) -> bool {
    volume.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER)
}

pub(super) fn next(seen: &Seen<'_>) -> Step {
    let home = seen.volume.map_or_else(|| seen.target.map(|target| target.node.as_str()), node_of);
    for asked in seen.asked.iter().filter(|asked| Some(asked.node) != home) {
        match unwanted(asked) {
            Step::Nothing => {}
            step => return step,
        }
    }
    let Some(node) = home else { return Step::Nothing };
    let asked = seen.asked.iter().find(|asked| asked.node == node);
    match (seen.volume, seen.target) {
        (Some(volume), _) => of_volume(volume, seen.claim, node, asked),
        (None, Some(target)) => of_claim(seen.claim, target, asked),
        (None, None) => Step::Nothing,
    }
}

fn withdraw(asked: &Asked<'_>) -> Step {
    Step::Withdraw { node: asked.node.to_owned(), token: asked.request.token.clone() }
}

fn ask(node: &str, action: Action, capacity: i64, source: Option<Source>, before: Option<&Asked<'_>>) -> Step {
    let instead_of = before.map(|asked| asked.request.token.clone());
    Step::Ask { node: node.to_owned(), action, capacity, source, instead_of }
}

/// What a node has answered to a request, if it has.
fn answered(asked: &Asked<'_>, done: impl FnOnce(String, String) -> Step) -> Step {
    let (node, token) = (asked.node.to_owned(), asked.request.token.clone());
    match asked.answer {
        None => Step::Nothing,
        Some(Answer { error: None, .. }) => done(node, token),
        Some(Answer { error: Some(message), .. }) => {
            Step::Fail { node, token, action: asked.request.action, message: message.clone() }
        }
    }
}

/// On a node where the volume is not, and is not to be.
fn unwanted(asked: &Asked<'_>) -> Step {
    match asked.request.action {
        // It may be made already, or about to be.
        Action::Create => ask(asked.node, Action::Delete, 0, None, Some(asked)),
        Action::Delete => answered(asked, |node, token| Step::Withdraw { node, token }),
        Action::Expand | Action::Find => withdraw(asked),
    }
}

fn of_claim(claim: Option<&PersistentVolumeClaim>, target: &Target, asked: Option<&Asked<'_>>) -> Step {
    let Some(claim) = claim else { return Step::Nothing };
    let wanted = requested(claim).value().max(0);
    match asked {
        None => ask(&target.node, Action::Create, wanted, target.source.clone(), None),
        Some(asked) if asked.request.action == Action::Create => {
            answered(asked, |node, _| Step::Provision { node, capacity: asked.request.capacity })
        }
        // What was there before goes first.
        Some(asked) => answered(asked, |node, token| Step::Withdraw { node, token }),
    }
}

fn of_volume(
    volume: &PersistentVolume,
    claim: Option<&PersistentVolumeClaim>,
    node: &str,
    asked: Option<&Asked<'_>>,
) -> Step {
    let action = asked.map(|asked| asked.request.action);
    if is_done_with(volume) {
        return match asked {
            Some(asked) if action == Some(Action::Delete) => {
                answered(asked, |node, token| Step::Remove { node, token })
            }
            other => ask(node, Action::Delete, 0, None, other),
        };
    }
    // First: a request to remove the folder must not outlast the decision to keep it.
    if let (Some(asked), Some(Action::Create | Action::Delete)) = (asked, action) {
        return withdraw(asked);
    }
    let is_claimed = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()).is_some_and(|it| it.uid.is_some());
    let is_let_go = volume.metadata.deletion_timestamp.is_some() && (is_released(volume) || !is_claimed);
    if is_let_go && has_finalizer(volume) {
        return Step::LetGo;
    }
    let claim = claim.filter(|claim| {
        claim.metadata.deletion_timestamp.is_none() && volume_name(claim) == volume.metadata.name.as_deref()
    });
    let has = capacity(volume).value();
    let wanted = claim.map_or(0, |claim| requested(claim).value());
    match asked {
        Some(asked) if wanted > has && asked.request.capacity >= wanted => {
            let size = asked.request.capacity;
            answered(asked, |node, token| Step::Grow { node, token, size })
        }
        other if wanted > has => ask(node, Action::Expand, wanted, None, other),
        Some(asked) => withdraw(asked),
        None => match claim.and_then(shown) {
            Some(shown) if shown < has => Step::Show(has),
            _ => Step::Nothing,
        },
    }
}

/// The size that a claim shows.
fn shown(claim: &PersistentVolumeClaim) -> Option<i64> {
    let shown = claim.status.as_ref()?.capacity.as_ref()?.get("storage")?;
    api::quantity::Quantity::try_from(shown).ok().map(|shown| shown.value())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(change: impl FnOnce(&mut Value)) -> PersistentVolume {
        let mut volume = json!({
            "metadata": { "name": "pvc-u", "annotations": { PROVISIONED_BY: DRIVER } },
            "spec": {
                "capacity": { "storage": "1Mi" }, "csi": { "driver": DRIVER, "volumeHandle": "pvc-u" },
                "persistentVolumeReclaimPolicy": "Delete", "claimRef": { "namespace": "ns", "name": "c", "uid": "u" },
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [
                    { "key": TOPOLOGY_KEY, "operator": "In", "values": ["n"] }] }] } },
            },
            "status": { "phase": "Bound" },
        });
        change(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    fn claim(size: &str, shown: &str, volume: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": { "name": "c", "namespace": "ns", "uid": "u" },
            "spec": { "volumeName": volume, "resources": { "requests": { "storage": size } } },
            "status": { "capacity": { "storage": shown } },
        }))
        .unwrap()
    }

    /// `<node>:<action>[:<capacity>][=ok|=error]`
    fn asked(text: &str) -> (String, Request, Option<Answer>) {
        let (text, answer) = text.split_once('=').map_or((text, None), |(text, answer)| (text, Some(answer)));
        let mut parts = text.split(':');
        let node = parts.next().unwrap().to_owned();
        let action = serde_json::from_value(json!(parts.next().unwrap())).unwrap();
        let capacity = parts.next().map_or(0, |number| number.parse().unwrap());
        let answer = answer.map(|answer| Answer {
            token: "t".into(),
            error: (answer != "ok").then(|| answer.to_owned()),
            ..Answer::default()
        });
        (node, Request { token: "t".into(), action, capacity, source: None }, answer)
    }

    fn word(step: &Step) -> String {
        match step {
            Step::Nothing => "nothing".into(),
            Step::Ask { node, action, capacity, instead_of, .. } => {
                format!("ask {node} {action:?} {capacity}{}", if instead_of.is_some() { " instead" } else { "" })
            }
            Step::Withdraw { node, .. } => format!("withdraw {node}"),
            Step::Provision { node, capacity } => format!("provision {node} {capacity}"),
            Step::Remove { node, .. } => format!("remove {node}"),
            Step::Grow { node, size, .. } => format!("grow {node} {size}"),
            Step::Show(size) => format!("show {size}"),
            Step::LetGo => "let go".into(),
            Step::Fail { node, action, message, .. } => format!("fail {node} {action:?} {message}"),
        }
    }

    fn decide(
        volume: Option<&PersistentVolume>,
        claim: Option<&PersistentVolumeClaim>,
        target: Option<&str>,
        texts: &[&str],
    ) -> String {
        let target = target.map(|node| Target { node: node.into(), source: None });
        let texts: Vec<_> = texts.iter().map(|text| asked(text)).collect();
        let asked: Vec<Asked<'_>> =
            texts.iter().map(|(node, request, answer)| Asked { node, request, answer: answer.as_ref() }).collect();
        word(&next(&Seen { volume, claim, target: target.as_ref(), asked: &asked }))
    }

    #[test]
    fn a_claim_gets_its_volume_on_one_node() {
        let claim = claim("5", "0", "");
        for (target, asked, expected) in [
            (Some("n"), &[][..], "ask n Create 5"),
            (Some("n"), &["n:Create:5"], "nothing"),
            (Some("n"), &["n:Create:5=ok"], "provision n 5"),
            (Some("n"), &["n:Create:5=full"], "fail n Create full"),
            // The scheduler chose again: what the first node was asked for goes.
            (Some("m"), &["n:Create:5"], "ask n Delete 0 instead"),
            (Some("m"), &["n:Create:5=ok"], "ask n Delete 0 instead"),
            (Some("m"), &["n:Delete"], "ask m Create 5"),
            (Some("m"), &["n:Delete=ok"], "withdraw n"),
            // And again: first what was there goes.
            (Some("n"), &["n:Delete"], "nothing"),
            (Some("n"), &["n:Delete=ok"], "withdraw n"),
            (None, &["n:Create:5"], "ask n Delete 0 instead"),
            (None, &["n:Expand:5"], "withdraw n"),
            (None, &[], "nothing"),
        ] {
            assert_eq!(decide(None, Some(&claim), target, asked), expected, "{target:?} {asked:?}");
        }
    }

    #[test]
    fn a_volume_grows_with_its_claim() {
        let mib = 1 << 20;
        for (size, shown, named, asked, expected) in [
            ("1Mi", "1Mi", "pvc-u", &[][..], "nothing".to_owned()),
            ("3Mi", "1Mi", "pvc-u", &[], format!("ask n Expand {}", 3 * mib)),
            ("3Mi", "1Mi", "pvc-u", &["n:Expand:3145728"], "nothing".into()),
            ("3Mi", "1Mi", "pvc-u", &["n:Expand:3145728=ok"], format!("grow n {}", 3 * mib)),
            ("3Mi", "1Mi", "pvc-u", &["n:Expand:3145728=full"], "fail n Expand full".into()),
            ("4Mi", "1Mi", "pvc-u", &["n:Expand:3145728=ok"], format!("ask n Expand {} instead", 4 * mib)),
            ("1Mi", "500Ki", "pvc-u", &[], format!("show {mib}")),
            ("1Mi", "1Mi", "pvc-u", &["n:Create:1048576=ok"], "withdraw n".into()),
            // It names another volume.
            ("3Mi", "1Mi", "other", &[], "nothing".into()),
        ] {
            let claim = claim(size, shown, named);
            assert_eq!(decide(Some(&volume(|_| {})), Some(&claim), None, asked), expected, "{size} {shown} {asked:?}");
        }
    }

    #[test]
    fn security_only_released_volumes_are_deleted_and_only_where_they_are() {
        let released = |volume: &mut Value| volume["status"]["phase"] = json!("Released");
        let gone = volume(released);
        for (asked, expected) in [
            (&[][..], "ask n Delete 0"),
            (&["n:Delete"], "nothing"),
            (&["n:Delete=ok"], "remove n"),
            (&["n:Delete=in use"], "fail n Delete in use"),
            // Another node's word is not heard.
            (&["m:Delete=ok"], "withdraw m"),
            (&["n:Expand:5"], "ask n Delete 0 instead"),
        ] {
            assert_eq!(decide(Some(&gone), None, None, asked), expected, "{asked:?}");
        }
        let changes: [&dyn Fn(&mut Value); 5] = [
            &|volume| volume["spec"]["claimRef"] = json!(null),
            &|volume| volume["status"]["phase"] = json!("Bound"),
            &|volume| volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain"),
            &|volume| volume["spec"]["csi"]["driver"] = json!("other"),
            &|volume| volume["metadata"]["annotations"][PROVISIONED_BY] = json!("other"),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let kept = volume(|volume| {
                released(volume);
                change(volume);
            });
            assert!(!is_done_with(&kept), "{number}");
            assert_eq!(decide(Some(&kept), None, None, &[]), "nothing", "{number}");
        }
        let kept = volume(|volume| {
            released(volume);
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
            volume["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            volume["metadata"]["finalizers"] = json!([FINALIZER]);
        });
        assert_eq!(decide(Some(&kept), None, None, &[]), "let go");
        // Somebody has made another object for the folder.
        let (gone, other) = (Arc::new(gone), Arc::new(volume(|volume| volume["metadata"]["name"] = json!("other"))));
        for all in [vec![gone.clone(), other.clone()], vec![other.clone(), gone.clone()]] {
            assert_eq!(deciding(all), Some(other.clone()));
        }
        assert_eq!(deciding(vec![gone.clone()]), Some(gone));
        assert_eq!(deciding(Vec::new()), None);
    }

    #[test]
    fn a_volume_that_was_made_in_vain_goes_and_no_other() {
        let volume = volume(|_| {});
        for (named, expected) in [("pvc-u", true), ("", true), ("other", false)] {
            assert_eq!(needs(&claim("1Mi", "1Mi", named), &volume), expected, "{named}");
        }
        let mut another = claim("1Mi", "1Mi", "pvc-u");
        another.metadata.uid = Some("another".into());
        assert!(!needs(&another, &volume));
    }

    #[test]
    fn security_a_claim_that_names_a_volume_does_not_have_it() {
        let mut claim = claim("1Mi", "1Mi", "pvc-u");
        assert!(is_bound_to(&volume(|_| {}), &claim));
        assert!(!is_bound_to(&volume(|volume| volume["spec"]["claimRef"]["uid"] = json!("victim")), &claim));
        assert!(!is_bound_to(&volume(|volume| volume["spec"]["claimRef"] = json!(null)), &claim));
        claim.metadata.uid = None;
        assert!(!is_bound_to(&volume(|volume| volume["spec"]["claimRef"]["uid"] = json!(null)), &claim));
    }
}
