//! What everybody asks of an object's metadata. What is not set reads as empty, as it does in Go.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub trait Meta {
    fn name(&self) -> &str;
    /// Empty for what has no namespace.
    fn namespace(&self) -> &str;
    fn uid(&self) -> &str;
    fn label(&self, key: &str) -> Option<&str>;
    fn annotation(&self, key: &str) -> Option<&str>;
    /// The reference to the one owner that manages the object.
    fn controller(&self) -> Option<&OwnerReference>;

    fn is_controlled_by(&self, uid: &str) -> bool {
        self.controller().is_some_and(|owner| owner.uid == uid)
    }
}

impl Meta for ObjectMeta {
    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or_default()
    }

    fn uid(&self) -> &str {
        self.uid.as_deref().unwrap_or_default()
    }

    fn label(&self, key: &str) -> Option<&str> {
        self.labels.as_ref()?.get(key).map(String::as_str)
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.as_ref()?.get(key).map(String::as_str)
    }

    fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_set_is_empty() {
        let none = ObjectMeta::default();
        assert_eq!((none.name(), none.namespace(), none.uid()), ("", "", ""));
        assert_eq!((none.label("a"), none.annotation("a"), none.controller()), (None, None, None));
        let owner = |uid: &str, controller| OwnerReference { uid: uid.into(), controller, ..OwnerReference::default() };
        let some = ObjectMeta {
            name: Some("n".into()),
            namespace: Some("s".into()),
            uid: Some("u".into()),
            labels: Some([("a".to_owned(), "1".to_owned())].into()),
            annotations: Some([("a".to_owned(), "2".to_owned())].into()),
            owner_references: Some(vec![owner("x", None), owner("y", Some(false)), owner("z", Some(true))]),
            ..ObjectMeta::default()
        };
        assert_eq!((some.name(), some.namespace(), some.uid()), ("n", "s", "u"));
        assert_eq!((some.label("a"), some.annotation("a"), some.label("b")), (Some("1"), Some("2"), None));
        assert!(some.is_controlled_by("z") && !some.is_controlled_by("x") && !some.is_controlled_by(""));
    }
}
