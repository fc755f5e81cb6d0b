//! Impersonation: acting as somebody else, if authorization lets the real user do so.

use std::collections::BTreeMap;

use api::{Status, UserInfo};
use http::HeaderMap;

use crate::authz::Attributes;
use crate::state::State;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

/// The user the rest of the chain sees. The headers go no further.
pub(crate) fn impersonate(state: &State, user: UserInfo, headers: &mut HeaderMap) -> Result<UserInfo, Status> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let name = text(USER).filter(|name| !name.is_empty());
    let uid = text(UID).filter(|uid| !uid.is_empty());
    let groups: Vec<String> =
        headers.get_all(GROUP).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (key, value) in headers.iter() {
        if let (Some(key), Ok(value)) = (key.as_str().strip_prefix(EXTRA), value.to_str()) {
            let key = super::request_info::decode(key, false).into_owned();
            extra.entry(key).or_default().push(value.to_owned());
        }
    }
    let Some(name) = name else {
        if uid.is_some() || !groups.is_empty() || !extra.is_empty() {
            return Err(Status::internal(format!(
                "requested {} without impersonating a user",
                [groups.first().map(|_| "groups"), uid.as_ref().map(|_| "uid"), extra.keys().next().map(|_| "extra")]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(", ")
            )));
        }
        return Ok(user);
    };
    let mut target = UserInfo {
        name: name.clone(),
        uid: uid.clone().unwrap_or_default(),
        groups: groups.clone(),
        extra: extra.clone(),
    };
    let check = |group: &str, resource: &str, subresource: &str, namespace: &str, name: &str| {
        let attributes = Attributes {
            is_resource: true,
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            path: String::new(),
        };
        state.authz.require(state, &user, &attributes)
    };
    match target.as_service_account() {
        Some((namespace, account)) => check("", "serviceaccounts", "", namespace, account)?,
        None => check("", "users", "", "", &name)?,
    }
    for group in &groups {
        check("", "groups", "", "", group)?;
    }
    if let Some(uid) = &uid {
        check("authentication.k8s.io", "uids", "", "", uid)?;
    }
    for (key, values) in &extra {
        for value in values {
            check("authentication.k8s.io", "userextras", key, "", value)?;
        }
    }
    if groups.is_empty()
        && let Some((namespace, _)) = target.as_service_account()
    {
        target.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let everyone =
        if target.name == api::user::ANONYMOUS { api::user::UNAUTHENTICATED } else { api::user::AUTHENTICATED };
    if !target.in_group(api::user::AUTHENTICATED) && !target.in_group(api::user::UNAUTHENTICATED) {
        target.groups.push(everyone.to_owned());
    }
    let ours: Vec<http::HeaderName> =
        headers.keys().filter(|key| key.as_str().starts_with("impersonate-")).cloned().collect();
    ours.iter().for_each(|key| drop(headers.remove(key)));
    Ok(target)
}
