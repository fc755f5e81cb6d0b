//! The behavior of an autoscaler in an annotation of v1: upstream writes its internal type there.

use api::quantity::Quantity;
use k8s_openapi::api::autoscaling::v2;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use serde::Serialize;
use serde_json::Value;

/// Upstream's internal type: without names for JSON, Go writes those of its fields, and null for what is not set.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Behavior<'a> {
    scale_up: Option<ScalingRules<'a>>,
    scale_down: Option<ScalingRules<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ScalingRules<'a> {
    stabilization_window_seconds: Option<i32>,
    select_policy: Option<&'a str>,
    policies: Option<Vec<ScalingPolicy<'a>>>,
    tolerance: Option<&'a RawQuantity>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ScalingPolicy<'a> {
    r#type: &'a str,
    value: i32,
    period_seconds: i32,
}

impl<'a> From<&'a v2::HorizontalPodAutoscalerBehavior> for Behavior<'a> {
    fn from(behavior: &'a v2::HorizontalPodAutoscalerBehavior) -> Self {
        let policy = |policy: &'a v2::HPAScalingPolicy| ScalingPolicy {
            r#type: &policy.type_,
            value: policy.value,
            period_seconds: policy.period_seconds,
        };
        let rules = |rules: &'a v2::HPAScalingRules| ScalingRules {
            stabilization_window_seconds: rules.stabilization_window_seconds,
            select_policy: rules.select_policy.as_deref(),
            policies: rules.policies.as_ref().map(|policies| policies.iter().map(policy).collect()),
            tolerance: rules.tolerance.as_ref(),
        };
        Self { scale_up: behavior.scale_up.as_ref().map(rules), scale_down: behavior.scale_down.as_ref().map(rules) }
    }
}

/// The behavior of an annotation; nothing if it says nothing or cannot be read, as upstream: what is missing has its defaults.
pub(super) fn read(text: &str) -> Option<v2::HorizontalPodAutoscalerBehavior> {
    let behavior: v2::HorizontalPodAutoscalerBehavior =
        serde_json::from_value(in_camel_case(serde_json::from_str(text).ok()?)).ok()?;
    let rules = || [&behavior.scale_up, &behavior.scale_down].into_iter().flatten();
    let is_readable = rules().all(|rules| rules.tolerance.as_ref().is_none_or(|one| Quantity::try_from(one).is_ok()));
    (is_readable && behavior != Default::default()).then_some(behavior)
}

/// Go reads the names of fields in any case, and null as nothing.
fn in_camel_case(value: Value) -> Value {
    const FIELDS: [&str; 9] = [
        "scaleUp",
        "scaleDown",
        "stabilizationWindowSeconds",
        "selectPolicy",
        "policies",
        "tolerance",
        "type",
        "value",
        "periodSeconds",
    ];
    let named =
        |name: String| FIELDS.iter().find(|field| field.eq_ignore_ascii_case(&name)).map(|name| name.to_string());
    // A quantity may also be a number.
    let field = |(name, value): (String, Value)| match value {
        Value::Number(number) if name == "tolerance" => (name, number.to_string().into()),
        value => (name, in_camel_case(value)),
    };
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.filter_map(|(name, value)| Some((named(name)?, value))).map(field).collect()
        }
        Value::Array(items) => items.into_iter().map(in_camel_case).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn behavior_is_read_in_any_case_of_letters() {
        let expected = json!({"scaleDown": {"selectPolicy": "Disabled", "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}]}});
        for text in [
            r#"{"ScaleDown":{"SelectPolicy":"Disabled","Policies":[{"Type":"Percent","Value":10,"PeriodSeconds":60}]}}"#,
            r#"{"scaleDown":{"selectPolicy":"Disabled","policies":[{"type":"Percent","value":10,"periodSeconds":60}]},"more":1}"#,
        ] {
            assert_eq!(json!(read(text)), expected, "{text}");
        }
        let tolerant = json!({"scaleUp": {"tolerance": "0.1"}});
        for text in [r#"{"ScaleUp":{"Tolerance":"0.1"}}"#, r#"{"ScaleUp":{"Tolerance":0.1}}"#] {
            assert_eq!(json!(read(text)), tolerant, "{text}");
        }
        for text in
            ["", "{}", "[]", "null", r#"{"ScaleUp":null}"#, r#"{"ScaleUp":{"Tolerance":"much"}}"#, r#"{"ScaleUp":7}"#]
        {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
