//! What is in the kernel, and the transaction that makes it what is planned. Pure: plans in, text out.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::plan::{Plan, SUBJECTS};

pub(crate) const TABLE: &str = "inet cox-policy";
/// Elements per line, so that an error names few.
const BATCH: usize = 500;

/// Takes whatever table is there away and builds what is planned, at once.
pub(crate) fn afresh(plan: &Plan) -> String {
    let mut text = format!("add table {TABLE}\ndelete table {TABLE}\n");
    if plan.is_empty() {
        return text;
    }
    line(&mut text, format_args!("add table {TABLE} {{ comment \"network policies\" ; }}"));
    for (map, addr) in SUBJECTS {
        line(&mut text, format_args!("add map {TABLE} {map} {{ type {addr} : verdict ; }}"));
    }
    line(&mut text, format_args!("add chain {TABLE} forward {{ type filter hook forward priority 0 ; }}"));
    let nothing =
        Plan { subjects: plan.subjects.keys().map(|map| (*map, BTreeMap::new())).collect(), ..Plan::default() };
    write(&nothing, plan, &mut text);
    text
}

/// The way from one plan to another; empty where they are the same.
pub(crate) fn change(before: &Plan, now: &Plan) -> String {
    match (before.is_empty(), now.is_empty()) {
        (true, true) => String::new(),
        (false, false) => {
            let mut text = String::new();
            write(before, now, &mut text);
            text
        }
        _ => afresh(now),
    }
}

/// Declarations before their use; what is used no longer goes last.
fn write(before: &Plan, now: &Plan, text: &mut String) {
    let is_same_set =
        |name: &String, declaration: &String| before.sets.get(name).is_some_and(|set| set.declaration == *declaration);
    for (name, set) in &now.sets {
        if !is_same_set(name, &set.declaration) {
            line(text, format_args!("add set {TABLE} {name} {}", set.declaration));
        }
        let had = before.sets.get(name).map(|set| &set.elements);
        let gone = had.into_iter().flatten().filter(|element| !set.elements.contains(*element));
        elements(text, "delete", name, gone.cloned());
        let come = set.elements.iter().filter(|element| !had.is_some_and(|had| had.contains(*element)));
        elements(text, "add", name, come.cloned());
    }
    for name in now.chains.keys().filter(|name| !before.chains.contains_key(*name)) {
        line(text, format_args!("add chain {TABLE} {name}"));
    }
    for (name, rules) in &now.chains {
        match before.chains.get(name) {
            Some(had) if had == rules => continue,
            Some(_) => line(text, format_args!("flush chain {TABLE} {name}")),
            None => {}
        }
        for rule in rules {
            line(text, format_args!("add rule {TABLE} {name} {rule}"));
        }
    }
    if before.forward != now.forward {
        line(text, format_args!("flush chain {TABLE} forward"));
        for rule in &now.forward {
            line(text, format_args!("add rule {TABLE} forward {rule}"));
        }
    }
    for (map, entries) in &now.subjects {
        let had = before.subjects.get(map);
        let is_old = |key: &String, value: &String| had.and_then(|had| had.get(key)) == Some(value);
        let gone = had.into_iter().flatten().filter(|(key, value)| entries.get(*key) != Some(*value));
        elements(text, "delete", map, gone.map(|(key, _)| key.clone()));
        let come = entries.iter().filter(|(key, value)| !is_old(key, value));
        elements(text, "add", map, come.map(|(key, value)| format!("{key} : {value}")));
    }
    let gone: Vec<&String> = before.chains.keys().filter(|name| !now.chains.contains_key(*name)).collect();
    for name in &gone {
        line(text, format_args!("flush chain {TABLE} {name}"));
    }
    for name in &gone {
        line(text, format_args!("delete chain {TABLE} {name}"));
    }
    for name in before.sets.keys().filter(|name| !now.sets.contains_key(*name)) {
        line(text, format_args!("delete set {TABLE} {name}"));
    }
}

fn elements(text: &mut String, verb: &str, set: &str, elements: impl Iterator<Item = String>) {
    let all: Vec<String> = elements.collect();
    for batch in all.chunks(BATCH) {
        line(text, format_args!("{verb} element {TABLE} {set} {{ {} }}", batch.join(", ")));
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    // Infallible: writing to a String.
    let _ = text.write_fmt(arguments);
    text.push('\n');
}
