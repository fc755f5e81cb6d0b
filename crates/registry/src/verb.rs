//! What a request does to a resource, as rules of RBAC, audit policies, flow schemas and discovery name it.
//!
//! Rows list the verbs they serve, a request has one, and everything in between compares values. It is text only where it
//! comes in (URLs, reviews, expressions) and where it goes out. Not here: the operation that admission sees, which is one
//! of four.

use std::borrow::Cow;
use std::fmt;

use serde::{Serialize, Serializer};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    Create,
    Delete,
    DeleteCollection,
    Get,
    List,
    Patch,
    Update,
    Watch,
    /// Methods that name themselves where the path is not that of a resource.
    Head,
    Options,
    Post,
    Put,
    /// One that only rules know (`bind`, `impersonate`, `approve`), or that nobody knows.
    Custom(Cow<'static, str>),
}

impl Verb {
    /// Of a request whose method is no verb of a resource.
    pub const NONE: Verb = Verb::custom("");

    /// One that has no value of its own.
    pub const fn custom(name: &'static str) -> Self {
        Self::Custom(Cow::Borrowed(name))
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Create => "create",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Get => "get",
            Self::List => "list",
            Self::Patch => "patch",
            Self::Update => "update",
            Self::Watch => "watch",
            Self::Head => "head",
            Self::Options => "options",
            Self::Post => "post",
            Self::Put => "put",
            Self::Custom(name) => name,
        }
    }

    /// Shows objects and changes none.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }

    /// Of a collection, where selectors say which of its objects are meant.
    pub fn selects(&self) -> bool {
        matches!(self, Self::List | Self::Watch | Self::DeleteCollection)
    }
}

impl Default for Verb {
    fn default() -> Self {
        Self::NONE
    }
}

/// Verbs are case-sensitive: `GET` is nobody's verb.
impl From<String> for Verb {
    fn from(name: String) -> Self {
        match name.as_str() {
            "create" => Self::Create,
            "delete" => Self::Delete,
            "deletecollection" => Self::DeleteCollection,
            "get" => Self::Get,
            "list" => Self::List,
            "patch" => Self::Patch,
            "update" => Self::Update,
            "watch" => Self::Watch,
            "head" => Self::Head,
            "options" => Self::Options,
            "post" => Self::Post,
            "put" => Self::Put,
            _ => Self::Custom(name.into()),
        }
    }
}

impl From<&str> for Verb {
    fn from(name: &str) -> Self {
        name.to_owned().into()
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_has_one_value() {
        let known = "create delete deletecollection get list patch update watch head options post put";
        for name in known.split(' ') {
            let verb = Verb::from(name);
            assert!(!matches!(verb, Verb::Custom(_)), "{name} has a value of its own");
            assert_eq!(verb.as_str(), name);
        }
        for name in ["bind", "impersonate", "GET", "", "*"] {
            assert_eq!(Verb::from(name), Verb::Custom(name.to_owned().into()));
        }
        assert_eq!(
            serde_json::to_string(crate::resource::ALL_VERBS).unwrap(),
            r#"["create","delete","deletecollection","get","list","patch","update","watch"]"#
        );
    }
}
