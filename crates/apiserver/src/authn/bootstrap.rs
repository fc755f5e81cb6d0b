//! Bootstrap tokens: `<id>.<secret>`, kept as secrets in kube-system, with which a new node introduces itself.

use api::UserInfo;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;

use crate::watch_cache::{Caches, Unreadable};

/// Whose token this is; an error if that cannot be told, and nobody may be let in on it.
pub(super) fn find(caches: &Caches, token: &str, now: Timestamp) -> Result<Option<UserInfo>, Unreadable> {
    let Some((id, given)) = token.split_once('.') else { return Ok(None) };
    let alphanumeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if id.len() != 6 || given.len() != 16 || !alphanumeric(id) || !alphanumeric(given) {
        return Ok(None);
    }
    let secret = caches.objects().get::<Secret>("kube-system", &format!("bootstrap-token-{id}"))?;
    Ok(secret.and_then(|secret| user(&secret, id, given, now)))
}

/// The user of a token, if the secret is one that holds it.
fn user(secret: &Secret, id: &str, given: &str, now: Timestamp) -> Option<UserInfo> {
    if secret.type_.as_deref() != Some("bootstrap.kubernetes.io/token") || secret.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let data = secret.data.as_ref()?;
    let text = |key: &str| data.get(key).and_then(|value| std::str::from_utf8(&value.0).ok()).unwrap_or_default();
    if text("token-id") != id || text("usage-bootstrap-authentication") != "true" {
        return None;
    }
    if !super::same_secret(text("token-secret").as_bytes(), given.as_bytes()) {
        return None;
    }
    let expiration = text("expiration");
    if !expiration.is_empty() && expiration.parse::<Timestamp>().ok()? < now {
        return None;
    }
    let mut groups = vec!["system:bootstrappers".to_owned()];
    let extra =
        text("auth-extra-groups").split(',').map(str::trim).filter(|group| group.starts_with("system:bootstrappers:"));
    groups.extend(extra.map(str::to_owned));
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..Default::default() })
}
