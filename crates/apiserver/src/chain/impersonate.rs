//! Impersonation: acting as somebody else, if authorization lets the real user do so.

use std::collections::BTreeMap;

use api::{Status, UserInfo};
use http::{HeaderMap, HeaderName};

use crate::authz::{Attributes, Authorizers};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The user the request wants to be; `None` if it is content with its own. The headers go no further.
pub(super) async fn impersonate(
    authorizers: &Authorizers,
    user: &UserInfo,
    headers: &mut HeaderMap,
) -> Result<Option<UserInfo>, Status> {
    let wanted = Wanted::take(headers)?;
    if wanted.name.is_empty() {
        return match wanted.without_a_user() {
            None => Ok(None),
            Some(text) => Err(Status::bad_request(text)),
        };
    }
    for attributes in wanted.rights() {
        authorizers.require(user, &attributes).await?;
    }
    Ok(Some(wanted.into_user()))
}

/// What the headers say.
#[derive(Default)]
struct Wanted {
    name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl Wanted {
    /// Takes the headers out. One that cannot be read is an error: passed over, the request would run with the rights
    /// of whoever wanted to be somebody else.
    fn take(headers: &mut HeaderMap) -> Result<Self, Status> {
        let mut wanted = Self::default();
        for (header, value) in headers.iter().filter(|(header, _)| is_ours(header)) {
            let value = crate::request_info::readable(header, value)?;
            match header.as_str() {
                USER if wanted.name.is_empty() => wanted.name = value.to_owned(),
                UID if wanted.uid.is_empty() => wanted.uid = value.to_owned(),
                GROUP => wanted.groups.push(value.to_owned()),
                other => {
                    if let Some(key) = other.strip_prefix(EXTRA) {
                        let key = api::percent::decode(key, false).into_owned();
                        wanted.extra.entry(key).or_default().push(value.to_owned());
                    }
                }
            }
        }
        let ours: Vec<HeaderName> = headers.keys().filter(|key| is_ours(key)).cloned().collect();
        ours.iter().for_each(|key| drop(headers.remove(key)));
        Ok(wanted)
    }

    /// Why groups and the like mean nothing without a user.
    fn without_a_user(&self) -> Option<String> {
        let mut parts: Vec<&str> = Vec::new();
        parts.extend((!self.groups.is_empty()).then_some("groups"));
        parts.extend((!self.extra.is_empty()).then_some("extra"));
        parts.extend((!self.uid.is_empty()).then_some("uid"));
        (!parts.is_empty()).then(|| format!("requested [{}] without impersonating a user", parts.join(" ")))
    }

    fn service_account(&self) -> Option<(&str, &str)> {
        let rest = self.name.strip_prefix("system:serviceaccount:")?;
        rest.split_once(':').filter(|(namespace, name)| {
            api::validation::is_dns1123_label(namespace) && !name.is_empty() && !name.contains(':')
        })
    }

    /// What the real user must be allowed to impersonate, one by one.
    fn rights(&self) -> Vec<Attributes> {
        let right = |group: &str, resource: &str, namespace: &str, name: &str| Attributes {
            is_resource: true,
            verb: registry::Verb::custom("impersonate"),
            group: group.to_owned(),
            version: "v1".to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Default::default()
        };
        let mut rights = vec![match self.service_account() {
            Some((namespace, account)) => right("", "serviceaccounts", namespace, account),
            None => right("", "users", "", &self.name),
        }];
        rights.extend(self.groups.iter().map(|group| right("", "groups", "", group)));
        for (key, values) in &self.extra {
            let of_key = |value: &String| Attributes {
                subresource: key.clone(),
                ..right(AUTHENTICATION, "userextras", "", value)
            };
            rights.extend(values.iter().map(of_key));
        }
        if !self.uid.is_empty() {
            rights.push(right(AUTHENTICATION, "uids", "", &self.uid));
        }
        rights
    }

    fn into_user(self) -> UserInfo {
        let mut groups = self.groups.clone();
        if let (true, Some((namespace, _))) = (groups.is_empty(), self.service_account()) {
            groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
        }
        let has = |group: &str| groups.iter().any(|mine| mine == group);
        let everyone = if self.name == api::user::ANONYMOUS {
            (!has(api::user::UNAUTHENTICATED)).then_some(api::user::UNAUTHENTICATED)
        } else {
            let is_said = has(api::user::AUTHENTICATED) || has(api::user::UNAUTHENTICATED);
            (!is_said).then_some(api::user::AUTHENTICATED)
        };
        groups.extend(everyone.map(str::to_owned));
        UserInfo { name: self.name, uid: self.uid, groups, extra: self.extra }
    }
}

fn is_ours(header: &HeaderName) -> bool {
    matches!(header.as_str(), USER | GROUP | UID) || header.as_str().starts_with(EXTRA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(lines: &[(&'static str, &str)]) -> (Wanted, HeaderMap) {
        let mut headers = HeaderMap::new();
        headers.insert("accept", "a".parse().unwrap());
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        (Wanted::take(&mut headers).unwrap(), headers)
    }

    #[test]
    fn headers_become_a_user_and_the_rights_it_takes() {
        let (one, left) = wanted(&[
            ("impersonate-user", "ann"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "ops"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-scopes%2fx", "a"),
            ("impersonate-extra-scopes%2fx", "b"),
        ]);
        assert_eq!(left.len(), 1);
        let rights: Vec<String> = one
            .rights()
            .iter()
            .map(|right| format!("{}/{}/{} {}", right.group, right.resource, right.subresource, right.name))
            .collect();
        let expected = [
            "/users/ ann",
            "/groups/ dev",
            "/groups/ ops",
            "authentication.k8s.io/userextras/scopes/x a",
            "authentication.k8s.io/userextras/scopes/x b",
            "authentication.k8s.io/uids/ 7",
        ];
        assert_eq!(rights, expected);
        let user = one.into_user();
        assert_eq!(user.groups, ["dev", "ops", api::user::AUTHENTICATED]);
        assert_eq!((user.uid.as_str(), user.extra["scopes/x"].len()), ("7", 2));
    }

    #[test]
    fn security_a_header_that_cannot_be_read_is_not_passed_over() {
        for name in ["impersonate-user", "impersonate-group", "impersonate-uid", "impersonate-extra-scopes"] {
            let mut headers = HeaderMap::new();
            headers.insert("impersonate-user", "ann".parse().unwrap());
            headers.insert(name, http::HeaderValue::from_bytes(b"\xff\xfe").unwrap());
            assert_eq!(Wanted::take(&mut headers).map(|_| ()).unwrap_err().code(), 400, "{name}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("impersonate-user", http::HeaderValue::from_bytes("ünal".as_bytes()).unwrap());
        assert_eq!(Wanted::take(&mut headers).unwrap().name, "ünal");
    }

    #[test]
    fn groups_follow_the_kind_of_user() {
        for (lines, groups) in [
            (&[("impersonate-user", "ann")][..], vec!["system:authenticated"]),
            (&[("impersonate-user", "system:anonymous")], vec!["system:unauthenticated"]),
            (
                &[("impersonate-user", "ann"), ("impersonate-group", "system:unauthenticated")],
                vec!["system:unauthenticated"],
            ),
            (
                &[("impersonate-user", "system:serviceaccount:a:robot")],
                vec!["system:serviceaccounts", "system:serviceaccounts:a", "system:authenticated"],
            ),
        ] {
            assert_eq!(wanted(lines).0.into_user().groups, groups, "{lines:?}");
        }
        let (account, _) = wanted(&[("impersonate-user", "system:serviceaccount:a:robot")]);
        assert_eq!(account.rights()[0].resource, "serviceaccounts");
        let (nobody, _) = wanted(&[("impersonate-group", "system:masters")]);
        assert!(nobody.without_a_user().is_some());
    }
}
