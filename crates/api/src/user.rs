//! Who a request comes from, as authentication found it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An authenticated identity. It travels in `http::Extensions` from authentication to authorization,
/// admission and audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UserInfo {
    #[serde(rename = "username", skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The group whose members pass every authorization check.
pub const MASTERS: &str = "system:masters";
/// The group of everyone who proved who they are.
pub const AUTHENTICATED: &str = "system:authenticated";
/// The group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The user name of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";

impl UserInfo {
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        Self { name: name.into(), groups: groups.iter().map(|&group| group.to_owned()).collect(), ..Self::default() }
    }

    /// The identity of requests that carry no credentials.
    pub fn anonymous() -> Self {
        Self::new(ANONYMOUS, &[UNAUTHENTICATED])
    }

    /// A service account as authorization sees it.
    pub fn service_account(namespace: &str, name: &str, uid: impl Into<String>) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: uid.into(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                AUTHENTICATED.to_owned(),
            ],
            extra: BTreeMap::new(),
        }
    }

    pub fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|mine| mine == group)
    }

    /// Splits `system:serviceaccount:<namespace>:<name>`.
    pub fn as_service_account(&self) -> Option<(&str, &str)> {
        self.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_account_names_round_trip() {
        let user = UserInfo::service_account("kube-system", "gc", "u1");
        assert_eq!(user.as_service_account(), Some(("kube-system", "gc")));
        assert!(user.in_group("system:serviceaccounts:kube-system"));
        assert_eq!(UserInfo::anonymous().as_service_account(), None);
    }
}
