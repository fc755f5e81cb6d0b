//! Impersonation: acting as somebody else, if authorization lets the real user do so.
//!
//! A right to impersonate may be constrained (KEP-5284): to be somebody of one kind takes `impersonate:<mode>`, and to do something as
//! that one takes `impersonate-on:<mode>:<verb>` besides. The modes are tried in order, and last the unconstrained `impersonate`,
//! which is enough for everything. The first that allows it counts; if none does, the first refusal is the answer.

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::{Status, UserInfo};
use http::{HeaderMap, HeaderName};

use crate::authz::{Attributes, Authorizers, refusal};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";
/// The node that a service account's token was given to.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODES: &str = "system:nodes";
const MASTERS: &str = "system:masters";
/// So many groups or values are asked for all at once first (`manyAuthorizationChecksInLoop`, v1.36).
const MANY: usize = 4;

/// Whom a request becomes.
pub(super) struct Impersonated {
    pub(super) user: UserInfo,
    /// The right that allowed it, if it was a constrained one.
    pub(super) constraint: Option<String>,
}

/// The user the request wants to be; `None` if it is content with its own. The headers go no further.
pub(super) async fn impersonate(
    authorizers: &Authorizers,
    user: &UserInfo,
    headers: &mut HeaderMap,
    request: &Attributes,
) -> Result<Option<Impersonated>, Status> {
    let wanted = Wanted::take(headers)?;
    if wanted.name.is_empty() {
        return match wanted.without_a_user() {
            None => Ok(None),
            Some(text) => Err(Status::bad_request(text)),
        };
    }
    // On the heap: most requests do not come here, and need no room for it.
    Box::pin(become_another(authorizers, user, wanted, request)).await.map(Some)
}

async fn become_another(
    authorizers: &Authorizers,
    user: &UserInfo,
    wanted: Wanted,
    request: &Attributes,
) -> Result<Impersonated, Status> {
    let mut first = None;
    for mode in Mode::ALL.into_iter().filter(|mode| mode.fits(&wanted, user)) {
        match constrained(authorizers, user, &wanted, request, mode).await {
            Ok(()) => {
                let constraint = Some(mode.verb());
                return Ok(Impersonated { user: wanted.into_user(Some(mode)), constraint });
            }
            Err(refused) => drop(first.get_or_insert(refused)),
        }
    }
    for attributes in wanted.rights() {
        if let Err(refused) = authorizers.require(user, &attributes).await {
            return Err(first.unwrap_or(refused));
        }
    }
    Ok(Impersonated { user: wanted.into_user(None), constraint: None })
}

/// Kinds of users that one may be given the right to be, and no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo];

    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
        }
    }

    /// To be such a user.
    fn verb(self) -> String {
        format!("impersonate:{}", self.name())
    }

    fn fits(self, wanted: &Wanted, user: &UserInfo) -> bool {
        let is_name_only = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        match self {
            Mode::AssociatedNode => {
                let own = user.extra.get(NODE_NAME).map(Vec::as_slice).unwrap_or_default();
                is_name_only
                    && service_account(&user.name).is_some()
                    && wanted.node().is_some_and(|node| matches!(own, [own] if own == node))
            }
            Mode::ArbitraryNode => is_name_only && wanted.node().is_some(),
            Mode::ServiceAccount => is_name_only && wanted.service_account().is_some(),
            Mode::UserInfo => wanted.node().is_none() && wanted.service_account().is_none(),
        }
    }
}

/// Whether the rights of one mode are enough.
async fn constrained(
    authorizers: &Authorizers,
    user: &UserInfo,
    wanted: &Wanted,
    request: &Attributes,
    mode: Mode,
) -> Result<(), Status> {
    let mut asking = Cow::Borrowed(user);
    if mode == Mode::AssociatedNode {
        // What is decided holds for any node: which one it is must not be known.
        let keys = user.extra.keys().cloned().collect();
        asking.to_mut().extra = [("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)].into();
    }
    let verb = format!("impersonate-on:{}:{}", mode.name(), request.verb.as_str());
    let on = Attributes { verb: registry::Verb::Custom(verb.into()), ..request.clone() };
    authorizers.require(&asking, &on).await?;
    let right = |resource: &str, namespace: &str, name: &str| Attributes {
        is_resource: true,
        verb: registry::Verb::Custom(mode.verb().into()),
        group: AUTHENTICATION.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Default::default()
    };
    let who = match (wanted.node(), wanted.service_account()) {
        (Some(_), _) if mode == Mode::AssociatedNode => right("nodes", "", "*"),
        (Some(node), _) => right("nodes", "", node),
        (None, Some((namespace, account))) => right("serviceaccounts", namespace, account),
        (None, None) => right("users", "", &wanted.name),
    };
    authorizers.require(&asking, &who).await?;
    if !wanted.uid.is_empty() {
        authorizers.require(&asking, &right("uids", "", &wanted.uid)).await?;
    }
    let refuse = |resource: &str, name: &str, why: &str| Err(refusal(user, &right(resource, "", name), why));
    if wanted.groups.iter().any(String::is_empty) {
        return refuse("groups", "", "impersonating the empty string group is not allowed");
    }
    if wanted.groups.iter().any(|group| group == MASTERS) {
        return refuse("groups", MASTERS, "impersonating the system:masters group is not allowed");
    }
    let has_all = wanted.groups.len() >= MANY && authorizers.decide(&asking, &right("groups", "", "*")).await.allowed;
    for group in wanted.groups.iter().filter(|_| !has_all) {
        authorizers.require(&asking, &right("groups", "", group)).await?;
    }
    if let Some(why) = wanted.extra.iter().find_map(|(key, values)| wrong_extra(key, values)) {
        return refuse("userextras", "", &why);
    }
    let of_key = |key: &str, value: &str| Attributes { subresource: key.to_owned(), ..right("userextras", "", value) };
    let count: usize = wanted.extra.values().map(Vec::len).sum();
    if count >= MANY && authorizers.decide(&asking, &of_key("*", "*")).await.allowed {
        return Ok(());
    }
    for (key, values) in &wanted.extra {
        for value in values {
            authorizers.require(&asking, &of_key(key, value)).await?;
        }
    }
    Ok(())
}

/// What is wrong with a piece of extra information, if constrained rights are to allow it.
fn wrong_extra(key: &str, values: &[String]) -> Option<String> {
    if key.is_empty() {
        return Some("impersonating the empty string key in extra is not allowed".to_owned());
    }
    if let Some(why) = no_domain_prefixed_path(key) {
        return Some(format!("impersonating an invalid key in extra is not allowed: extra.key: Invalid value: {why}"));
    }
    if key != key.to_lowercase() {
        let key = api::field::quote(key);
        return Some(format!("impersonating a non-lowercase key in extra is not allowed: {key}"));
    }
    values
        .iter()
        .any(String::is_empty)
        .then(|| "impersonating the empty string value in extra is not allowed".to_owned())
}

/// Why a text is no path below a domain, such as `acme.io/foo` (`IsDomainPrefixedPath`, v1.36).
fn no_domain_prefixed_path(text: &str) -> Option<String> {
    let quote = api::field::quote;
    let (host, path) = match text.split_once('/') {
        Some((host, path)) if !host.is_empty() && !path.is_empty() => (host, path),
        _ => return Some(format!("{}: must be a domain-prefixed path (such as \"acme.io/foo\")", quote(text))),
    };
    if let Some(why) = api::validation::dns1123_subdomain(host).first() {
        return Some(format!("{}: {why}", quote(host)));
    }
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    (!path.bytes().all(is_fine)).then(|| {
        format!("{}: Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')", quote(path))
    })
}

/// Namespace and name of a service account's user name.
fn service_account(user: &str) -> Option<(&str, &str)> {
    let rest = user.strip_prefix("system:serviceaccount:")?;
    rest.split_once(':').filter(|(namespace, name)| {
        api::validation::is_dns1123_label(namespace) && !name.is_empty() && !name.contains(':')
    })
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
        service_account(&self.name)
    }

    /// The node whose user this is.
    fn node(&self) -> Option<&str> {
        self.name.strip_prefix("system:node:").filter(|name| api::validation::dns1123_subdomain(name).is_empty())
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

    /// All nodes have the same groups where a constrained right allows it.
    fn into_user(self, mode: Option<Mode>) -> UserInfo {
        let mut groups = self.groups.clone();
        if mode.is_some() && self.node().is_some() {
            groups = vec![NODES.to_owned()];
        }
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
        let user = one.into_user(None);
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
            assert_eq!(wanted(lines).0.into_user(None).groups, groups, "{lines:?}");
        }
        let (account, _) = wanted(&[("impersonate-user", "system:serviceaccount:a:robot")]);
        assert_eq!(account.rights()[0].resource, "serviceaccounts");
        let (nobody, _) = wanted(&[("impersonate-group", "system:masters")]);
        assert!(nobody.without_a_user().is_some());
    }

    #[test]
    fn modes_fit_kinds_of_users() {
        let user = |name: &str, node: Option<&str>| UserInfo {
            extra: node.map(|node| (NODE_NAME.to_owned(), vec![node.to_owned()])).into_iter().collect(),
            ..UserInfo::new(name, &[])
        };
        let agent = user("system:serviceaccount:a:agent", Some("n1"));
        for (lines, who, expected) in [
            (&[("impersonate-user", "ann")][..], &agent, &[Mode::UserInfo][..]),
            (&[("impersonate-user", "system:node:n1")], &agent, &[Mode::AssociatedNode, Mode::ArbitraryNode]),
            (&[("impersonate-user", "system:node:n2")], &agent, &[Mode::ArbitraryNode]),
            (&[("impersonate-user", "system:node:n1")], &user("ann", Some("n1")), &[Mode::ArbitraryNode]),
            (&[("impersonate-user", "system:node:n1"), ("impersonate-group", "g")], &agent, &[]),
            (&[("impersonate-user", "system:node:N")], &agent, &[Mode::UserInfo]),
            (&[("impersonate-user", "system:serviceaccount:a:b")], &agent, &[Mode::ServiceAccount]),
            (&[("impersonate-user", "system:serviceaccount:a:b"), ("impersonate-uid", "7")], &agent, &[]),
        ] {
            let (wanted, _) = wanted(lines);
            let fitting: Vec<Mode> = Mode::ALL.into_iter().filter(|mode| mode.fits(&wanted, who)).collect();
            assert_eq!(fitting, expected, "{lines:?}");
        }
        let (node, _) = wanted(&[("impersonate-user", "system:node:n1")]);
        assert_eq!(node.into_user(Some(Mode::ArbitraryNode)).groups, ["system:nodes", "system:authenticated"]);
        for (key, value, expected) in [
            ("example.com/scopes", "a", None),
            ("", "a", Some("empty string key")),
            ("scopes", "a", Some("must be a domain-prefixed path")),
            ("Example.com/scopes", "a", Some("invalid key")),
            ("example.com/Scopes", "a", Some("non-lowercase key")),
            ("example.com/a b", "a", Some("Invalid path")),
            ("example.com/scopes", "", Some("empty string value")),
        ] {
            let wrong = wrong_extra(key, &[value.to_owned()]);
            assert_eq!(wrong.is_none(), expected.is_none(), "{key}");
            assert!(wrong.unwrap_or_default().contains(expected.unwrap_or_default()), "{key}");
        }
    }
}
