//! Bootstrap tokens: `<id>.<secret>`, kept as secrets in kube-system, with which a new node introduces itself.

use api::UserInfo;
use k8s_openapi::api::core::v1::Secret;

use crate::watch_cache::Caches;

pub(super) fn find(caches: &Caches, token: &str) -> Option<UserInfo> {
    let (id, given) = token.split_once('.')?;
    let alphanumeric = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if id.len() != 6 || given.len() != 16 || !alphanumeric(id) || !alphanumeric(given) {
        return None;
    }
    // A secret that cannot be read lets nobody in.
    let secret: Secret = caches.peek("secrets", &format!("kube-system/bootstrap-token-{id}")).ok()??;
    if secret.type_.as_deref() != Some("bootstrap.kubernetes.io/token") || secret.metadata.deletion_timestamp.is_some()
    {
        return None;
    }
    let data = secret.data?;
    let text = |key: &str| data.get(key).and_then(|value| std::str::from_utf8(&value.0).ok()).unwrap_or_default();
    if text("token-id") != id || text("usage-bootstrap-authentication") != "true" {
        return None;
    }
    if !super::same_secret(text("token-secret").as_bytes(), given.as_bytes()) {
        return None;
    }
    let expiration = text("expiration");
    if !expiration.is_empty() && expiration.parse::<jiff::Timestamp>().ok()? < jiff::Timestamp::now() {
        return None;
    }
    let mut groups = vec!["system:bootstrappers".to_owned()];
    let extra =
        text("auth-extra-groups").split(',').map(str::trim).filter(|group| group.starts_with("system:bootstrappers:"));
    groups.extend(extra.map(str::to_owned));
    Some(UserInfo { name: format!("system:bootstrap:{id}"), groups, ..Default::default() })
}
