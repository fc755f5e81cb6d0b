//! Label selectors of objects that kubectl holds as values: matched where kubectl itself must (files with `-l`), and
//! written as the query parameter wants them. The rules are those of [`api::selector`].

use api::selector::Selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use crate::failure::{Failure, Result};

pub(crate) fn matches_labels(selector: &str, labels: &Value) -> Result<bool> {
    let parsed = Selector::parse(selector)
        .map_err(|error| Failure::message(format!("the provided selector {selector:?} is not valid: {error}")))?;
    Ok(parsed.matches_with(|key| labels[key].as_str()))
}

/// `k=v,…` of a LabelSelector object, empty when it is absent; `None` when it is not valid.
pub(crate) fn from_label_selector(selector: &Value) -> Option<String> {
    let selector: Option<LabelSelector> = serde_json::from_value(selector.clone()).ok()?;
    Selector::from_label_selector(selector.as_ref()).ok().map(|selector| selector.to_string())
}

/// `k=v,…` of a plain map (labels; the selectors of Services and ReplicationControllers).
pub(crate) fn from_map(map: &Value) -> String {
    let pairs = map.as_object().into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or("")));
    pairs.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_match_as_objects_do() {
        let labels = json!({"a": "1", "b": "2"});
        for (selector, expected, without_labels) in [
            ("a=1", true, false),
            ("a==1,b=2", true, false),
            ("a in (1,3), b", true, false),
            ("a notin (1,3)", false, true),
            ("a in(1)", true, false),
            ("!a", false, true),
            ("b>1", true, false),
            ("c!=1", true, true),
        ] {
            assert_eq!(matches_labels(selector, &labels).unwrap(), expected, "{selector}");
            assert_eq!(matches_labels(selector, &Value::Null).unwrap(), without_labels, "{selector}");
        }
        let refused = matches_labels("a b", &labels).unwrap_err().to_string();
        assert!(refused.contains("the provided selector \"a b\" is not valid"), "{refused}");
    }

    #[test]
    fn selectors_are_written_for_queries() {
        let expression = |operator: &str| json!({"key": "b", "operator": operator, "values": ["y", "x"]});
        let selector = |operator: &str| json!({"matchLabels": {"c": "1"}, "matchExpressions": [expression(operator)]});
        assert_eq!(from_label_selector(&selector("In")).unwrap(), "b in (x,y),c=1");
        assert_eq!(from_label_selector(&selector("Near")), None);
        assert_eq!(from_label_selector(&Value::Null).unwrap(), "");
        assert_eq!(from_map(&json!({"a": "1", "b": "2"})), "a=1,b=2");
    }
}
