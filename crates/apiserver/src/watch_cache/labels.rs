//! Labels of objects: read once, and one copy for all objects of a resource that have the same.
//!
//! Pods of one controller have the same labels, and lists by selector pass by all of them again and again. A map of its own
//! would take a quarter of what a pod does; reading them in the stored text costs every list a look into memory that it does
//! not need otherwise.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use api::selector::Selector;
use api::shared::{Table, lock};

use crate::json;

pub(crate) type Labels = BTreeMap<String, String>;

/// Nobody outside can find texts with the same hash.
static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The labels of some objects, as their text.
pub(super) struct LabelSet {
    text: Box<[u8]>,
    /// They cannot be compared as they stand.
    is_escaped: bool,
    map: OnceLock<Labels>,
}

impl LabelSet {
    fn new(text: &[u8]) -> Self {
        Self { text: text.into(), is_escaped: text.contains(&b'\\'), map: OnceLock::new() }
    }

    /// For those that are looked at again and again.
    pub(super) fn map(&self) -> &Labels {
        self.map.get_or_init(|| {
            let labels = json::members(&self.text, 0).map(|(key, value)| {
                (String::from_utf8_lossy(key).into_owned(), json::text(&self.text[value]).into_owned())
            });
            labels.collect()
        })
    }

    pub(super) fn matches(&self, selector: &Selector) -> bool {
        if self.is_escaped {
            return selector.matches(Some(self.map()));
        }
        selector.matches_with(|wanted| {
            let (_, value) = json::members(&self.text, 0).find(|(key, _)| *key == wanted.as_bytes())?;
            match json::text(&self.text[value]) {
                Cow::Borrowed(text) => Some(text),
                Cow::Owned(_) => None,
            }
        })
    }
}

/// The labels of all objects of one resource that were asked for them.
#[derive(Default)]
pub(super) struct LabelSets(Mutex<Table<u64, LabelSet>>);

impl LabelSets {
    /// Those of an object, by the text that the store has of it.
    pub(super) fn of(&self, stored: &[u8]) -> Arc<LabelSet> {
        let text = json::find(stored, &["metadata", "labels"]).map_or(&b""[..], |range| &stored[range]);
        let hash = KEY.hash_one(text);
        let is_same = |known: &LabelSet| *known.text == *text;
        if let Some(known) = lock(&self.0).find(&hash).filter(|known| is_same(known)) {
            return known;
        }
        let new = Arc::new(LabelSet::new(text));
        lock(&self.0).keep(hash, new, is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_read_labels_as_they_stand() {
        let sets = LabelSets::default();
        for labels in [
            r#"{"app":"web","tier":"a"}"#,
            r#"{ "tier" : "a" , "app" : "web" }"#,
            r#"{"app":"w\u0065b","tier":"a"}"#,
            r#"{"app":"web"}"#,
            r#"{"app":"","tier":"b"}"#,
            "{}",
            "null",
        ] {
            let stored = format!(r#"{{"kind":"Pod","metadata":{{"name":"a","labels":{labels}}}}}"#);
            let set = sets.of(stored.as_bytes());
            let map: Option<Labels> = serde_json::from_str(labels).unwrap();
            assert_eq!(set.map(), &map.clone().unwrap_or_default());
            for text in
                ["", "app=web", "app=web,tier=a", "tier!=a", "app", "!app", "tier in (a,b)", "tier notin (a)", "x=y"]
            {
                let selector = Selector::parse(text).unwrap();
                assert_eq!(set.matches(&selector), selector.matches(map.as_ref()), "{text} {labels}");
            }
        }
        let bare = sets.of(br#"{"metadata":{}}"#);
        assert!(bare.matches(&Selector::parse("!app").unwrap()) && !bare.matches(&Selector::parse("app").unwrap()));
    }

    #[test]
    fn objects_with_the_same_labels_share_them() {
        let sets = LabelSets::default();
        let of = |name: &str, app: &str| {
            sets.of(format!(r#"{{"metadata":{{"name":"{name}","labels":{{"app":"{app}"}}}}}}"#).as_bytes())
        };
        let web = of("a", "web");
        assert!(Arc::ptr_eq(&web, &of("b", "web")));
        assert!(!Arc::ptr_eq(&web, &of("b", "db")));
    }
}
