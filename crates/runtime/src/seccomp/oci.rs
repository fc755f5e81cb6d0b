//! A profile in the words of the OCI runtime specification, for runtimes that compile filters themselves.

use serde_json::{Value, json};

use super::bpf::{Action, Compare, Condition, Profile};
use super::syscalls::TABLE;

pub(super) fn describe(profile: &Profile) -> Value {
    let architecture = if cfg!(target_arch = "x86_64") { "SCMP_ARCH_X86_64" } else { "SCMP_ARCH_AARCH64" };
    let rules: Vec<Value> = profile
        .rules
        .iter()
        .filter_map(|rule| {
            let (name, _) = TABLE.iter().find(|(_, number)| *number == rule.syscall)?;
            let mut value = json!({"names": [name]});
            set_action(&mut value, ["action", "errnoRet"], rule.action);
            if !rule.conditions.is_empty() {
                value["args"] = rule.conditions.iter().map(argument).collect();
            }
            Some(value)
        })
        .collect();
    let mut value = json!({"architectures": [architecture], "syscalls": rules});
    set_action(&mut value, ["defaultAction", "defaultErrnoRet"], profile.default);
    value
}

/// The upper half of an action says what happens, the lower half carries a number.
fn set_action(value: &mut Value, [kind, number]: [&str; 2], action: Action) {
    let name = match Action(action.0 & 0xffff_0000) {
        Action::ALLOW => "SCMP_ACT_ALLOW",
        Action::LOG => "SCMP_ACT_LOG",
        Action::TRAP => "SCMP_ACT_TRAP",
        Action::KILL_PROCESS => "SCMP_ACT_KILL_PROCESS",
        Action::KILL_THREAD => "SCMP_ACT_KILL_THREAD",
        other if other == Action::trace(0) => "SCMP_ACT_TRACE",
        _ => "SCMP_ACT_ERRNO",
    };
    value[kind] = json!(name);
    if matches!(name, "SCMP_ACT_ERRNO" | "SCMP_ACT_TRACE") {
        value[number] = json!(action.0 & 0xffff);
    }
}

fn argument(condition: &Condition) -> Value {
    let (op, mask) = match condition.compare {
        Compare::NotEqual => ("SCMP_CMP_NE", None),
        Compare::Less => ("SCMP_CMP_LT", None),
        Compare::LessOrEqual => ("SCMP_CMP_LE", None),
        Compare::Equal => ("SCMP_CMP_EQ", None),
        Compare::GreaterOrEqual => ("SCMP_CMP_GE", None),
        Compare::Greater => ("SCMP_CMP_GT", None),
        Compare::MaskedEqual(mask) => ("SCMP_CMP_MASKED_EQ", Some(mask)),
    };
    match mask {
        Some(mask) => json!({"index": condition.argument, "value": mask, "valueTwo": condition.value, "op": op}),
        None => json!({"index": condition.argument, "value": condition.value, "op": op}),
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::runtime_default;
    use super::*;

    #[test]
    fn the_default_profile_is_described() {
        let value = describe(&runtime_default(0));
        assert_eq!((&value["defaultAction"], &value["defaultErrnoRet"]), (&json!("SCMP_ACT_ERRNO"), &json!(1)));
        let rule = |name: &str| {
            let rules = value["syscalls"].as_array().unwrap();
            rules.iter().find(|rule| rule["names"][0] == name).cloned()
        };
        assert_eq!(rule("read"), Some(json!({"names": ["read"], "action": "SCMP_ACT_ALLOW"})));
        assert_eq!(rule("clone").unwrap()["args"][0]["op"], "SCMP_CMP_MASKED_EQ");
        assert_eq!(rule("clone3").unwrap()["errnoRet"], 38);
        assert_eq!(rule("mount"), None);
    }
}
