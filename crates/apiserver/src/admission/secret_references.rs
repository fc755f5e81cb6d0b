//! Which secrets a pod uses, and whether its account lets it: rules of the ServiceAccount plug-in.

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PodSpec, ServiceAccount};

/// An account with this annotation lets pods use only the secrets it lists.
const ENFORCED: &str = "kubernetes.io/enforce-mountable-secrets";

/// Secrets that containers take into their environment: where, and which.
fn in_environment(spec: &PodSpec) -> Vec<(String, &str)> {
    let init = spec.init_containers.iter().flatten().map(|c| ("init container", &c.name, &c.env, &c.env_from));
    let ordinary = spec.containers.iter().map(|c| ("container", &c.name, &c.env, &c.env_from));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|c| ("ephemeral container", &c.name, &c.env, &c.env_from));
    init.chain(ordinary)
        .chain(ephemeral)
        .flat_map(|(what, name, env, from)| of_container(&format!("{what} {name}"), env, from))
        .collect()
}

fn of_container<'a>(
    place: &str,
    env: &'a Option<Vec<EnvVar>>,
    from: &'a Option<Vec<EnvFromSource>>,
) -> Vec<(String, &'a str)> {
    let variables = env.iter().flatten().filter_map(|variable| {
        let secret = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
        Some((format!("{place} with envVar {}", variable.name), secret.name.as_str()))
    });
    let whole = from
        .iter()
        .flatten()
        .filter_map(|source| Some((format!("{place} with envFrom"), source.secret_ref.as_ref()?.name.as_str())));
    variables.chain(whole).collect()
}

/// Whether the pod uses any secret at all.
pub(super) fn any(spec: &PodSpec) -> bool {
    let mounted = spec.volumes.iter().flatten().any(|volume| {
        let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        volume.secret.is_some() || projected.into_iter().any(|source| source.secret.is_some())
    });
    mounted || spec.image_pull_secrets.as_ref().is_some_and(|list| !list.is_empty()) || !in_environment(spec).is_empty()
}

/// Why the account does not let the pod use one of its secrets.
pub(super) fn refusal(account: &ServiceAccount, spec: &PodSpec) -> Option<String> {
    let annotations = account.metadata.annotations.as_ref();
    let enforced = annotations.and_then(|annotations| annotations.get(ENFORCED));
    if !enforced.is_some_and(|value| matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True")) {
        return None;
    }
    let name = account.metadata.name();
    let listed = |secret: &str| account.secrets.iter().flatten().any(|own| own.name.as_deref() == Some(secret));
    let not_listed = format!("is not allowed because service account {name} does not reference that secret");
    for secret in spec.volumes.iter().flatten().filter_map(|volume| volume.secret.as_ref()) {
        let secret = secret.secret_name.as_deref().unwrap_or_default();
        if !listed(secret) {
            return Some(format!("volume with secret.secretName=\"{secret}\" {not_listed}"));
        }
    }
    for (place, secret) in in_environment(spec) {
        if !listed(secret) {
            return Some(format!("{place} referencing secret.secretName=\"{secret}\" {not_listed}"));
        }
    }
    let pulls = |secret: &str| account.image_pull_secrets.iter().flatten().any(|own| own.name == secret);
    let mut own = spec.image_pull_secrets.iter().flatten().enumerate();
    let (i, secret) = own.find(|(_, secret)| !pulls(&secret.name))?;
    Some(format!(
        "imagePullSecrets[{i}].name=\"{}\" is not allowed because service account {name} does not reference that imagePullSecret",
        secret.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn accounts_can_limit_secrets() {
        let account: ServiceAccount = serde_json::from_value(json!({
            "metadata": {"name": "a", "annotations": {ENFORCED: "true"}},
            "secrets": [{"name": "ok"}], "imagePullSecrets": [{"name": "pull"}]}))
        .unwrap();
        let with = |container: serde_json::Value| json!({"containers": [container]});
        let env = |name: &str| json!({"name": "c", "env": [{"name": "E", "valueFrom": {"secretKeyRef": {"name": name, "key": "k"}}}]});
        for (spec, refused) in [
            (with(json!({"name": "c"})), None),
            (with(env("ok")), None),
            (with(env("no")), Some("container c with envVar E referencing secret.secretName=\"no\"")),
            (with(json!({"name": "c", "envFrom": [{"secretRef": {"name": "no"}}]})), Some("container c with envFrom")),
            (
                json!({"containers": [], "volumes": [{"name": "v", "secret": {"secretName": "no"}}]}),
                Some("volume with secret"),
            ),
            (json!({"containers": [], "imagePullSecrets": [{"name": "no"}]}), Some("imagePullSecrets[0].name=\"no\"")),
            (json!({"containers": [], "imagePullSecrets": [{"name": "pull"}]}), None),
        ] {
            let pod: PodSpec = serde_json::from_value(spec.clone()).unwrap();
            let found = refusal(&account, &pod);
            assert_eq!(found.is_some(), refused.is_some(), "{spec}: {found:?}");
            assert!(found.unwrap_or_default().starts_with(refused.unwrap_or_default()), "{spec}");
            assert_eq!(refusal(&ServiceAccount::default(), &pod), None);
        }
        assert!(any(&serde_json::from_value(with(env("x"))).unwrap()));
        assert!(!any(&serde_json::from_value(with(json!({"name": "c"}))).unwrap()));
    }
}
