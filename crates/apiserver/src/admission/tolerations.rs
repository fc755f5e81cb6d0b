//! Comparing and merging tolerations, for the plug-ins that add or restrict them.

use k8s_openapi::api::core::v1::Toleration;

/// Both lists without what another toleration already covers (upstream's `MergeTolerations`).
pub(super) fn merge(first: Vec<Toleration>, second: Vec<Toleration>) -> Vec<Toleration> {
    let all: Vec<Toleration> = first.into_iter().chain(second).collect();
    let mut merged: Vec<Toleration> = Vec::new();
    'next: for (i, toleration) in all.iter().enumerate() {
        if merged.iter().any(|kept| is_superset(kept, toleration)) {
            continue;
        }
        for later in &all[i + 1..] {
            if later != toleration && is_superset(later, toleration) {
                continue 'next;
            }
        }
        merged.push(toleration.clone());
    }
    merged
}

/// Whether everything is covered by something on the list.
pub(super) fn are_allowed(tolerations: &[Toleration], allowed: &[Toleration]) -> bool {
    tolerations.iter().all(|toleration| allowed.iter().any(|wide| is_superset(wide, toleration)))
}

/// Whether `wide` tolerates everything that `narrow` does.
fn is_superset(wide: &Toleration, narrow: &Toleration) -> bool {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if wide == narrow {
        return true;
    }
    let (key, effect) = (text(&wide.key), text(&wide.effect));
    if key != text(&narrow.key) && !(key.is_empty() && text(&wide.operator) == "Exists") {
        return false;
    }
    if effect != text(&narrow.effect) && !effect.is_empty() {
        return false;
    }
    if effect == "NoExecute"
        && let Some(seconds) = wide.toleration_seconds
        && narrow.toleration_seconds.is_none_or(|other| other > seconds)
    {
        return false;
    }
    match text(&wide.operator).as_str() {
        "Equal" | "" => matches!(text(&narrow.operator).as_str(), "Equal" | "") && wide.value == narrow.value,
        "Exists" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(value: serde_json::Value) -> Vec<Toleration> {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn covered_tolerations_are_dropped() {
        for (first, second, count) in [
            (json!([{"key": "a", "operator": "Exists"}]), json!([{"key": "a", "value": "1"}]), 1),
            (json!([{"key": "a", "value": "1"}]), json!([{"key": "a", "operator": "Exists"}]), 1),
            (json!([{"key": "a", "value": "1"}]), json!([{"key": "b", "value": "1"}]), 2),
            (json!([{"key": "a", "value": "1"}]), json!([{"key": "a", "value": "1"}]), 1),
            (
                json!([{"operator": "Exists"}]),
                json!([{"key": "a", "value": "1"}, {"key": "b", "operator": "Exists"}]),
                1,
            ),
        ] {
            assert_eq!(merge(list(first.clone()), list(second.clone())).len(), count, "{first} {second}");
        }
        let allowed = list(json!([{"key": "a", "operator": "Exists"}]));
        assert!(are_allowed(&list(json!([{"key": "a", "value": "x"}])), &allowed));
        assert!(!are_allowed(&list(json!([{"key": "b", "operator": "Exists"}])), &allowed));
    }
}
