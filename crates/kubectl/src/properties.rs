//! Properties of the languages and merges that scripts rely on, held against expectations computed another way: plain Rust
//! on the generated data, never the code under test.

use std::collections::{BTreeMap, BTreeSet};

use api::sort::CompactCollect as _;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::printers::go_template::Template;
use crate::printers::jsonpath::JsonPath;
use crate::three_way;

/// Names and what is known about each: the shape of a list of objects.
type Things = Vec<(String, i64, BTreeMap<String, String>)>;

fn things() -> impl Strategy<Value = Things> {
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]{1,2}", 0..3);
    proptest::collection::vec(("[a-z]{1,4}", -3i64..20, labels), 0..6)
}

fn list(things: &Things) -> Value {
    let items: Vec<Value> =
        things.iter().map(|(name, size, labels)| json!({"name": name, "size": size, "labels": labels})).collect();
    json!({"items": items})
}

fn path(template: &str, data: &Value) -> String {
    JsonPath::parse(template).unwrap().allow_missing(true).render(data).unwrap()
}

fn template(text: &str, data: &Value) -> String {
    Template::parse(text).unwrap().render(data, true).unwrap()
}

fn joined<T: ToString>(values: impl Iterator<Item = T>) -> String {
    values.map(|v| v.to_string()).collect::<Vec<_>>().join(" ")
}

proptest! {
    #[test]
    fn jsonpath_selects_what_iterators_select(things in things(), at in 0usize..7, from in -4i64..7, to in -4i64..7, limit in -3i64..20) {
        let data = list(&things);
        prop_assert_eq!(path("{.items[*].name}", &data), joined(things.iter().map(|t| &t.0)));
        prop_assert_eq!(path("{range .items[*]}{.name}={.size};{end}", &data),
            things.iter().map(|(n, s, _)| format!("{n}={s};")).collect::<String>());
        if let Some(thing) = things.get(at) {
            prop_assert_eq!(path(&format!("{{.items[{at}].size}}"), &data), thing.1.to_string());
        }
        // Slices count negative bounds from the end, and are empty when they cross.
        let length = things.len() as i64;
        let bound = |n: i64| if n < 0 { n + length } else { n };
        let (low, high) = (bound(from), bound(to).min(length));
        if (0..=length).contains(&low) && high >= low {
            prop_assert_eq!(path(&format!("{{.items[{from}:{to}].name}}"), &data),
                joined(things[low as usize..high as usize].iter().map(|t| &t.0)), "[{}:{}]", from, to);
        }
        prop_assert_eq!(path(&format!("{{.items[?(@.size>{limit})].name}}"), &data),
            joined(things.iter().filter(|t| t.1 > limit).map(|t| &t.0)));
        prop_assert_eq!(path(&format!("{{.items[?(@.size<={limit})].name}}"), &data),
            joined(things.iter().filter(|t| t.1 <= limit).map(|t| &t.0)));
        prop_assert_eq!(path("{.items[?(@.labels.a==\"x\")].name}", &data),
            joined(things.iter().filter(|t| t.2.get("a").is_some_and(|v| v == "x")).map(|t| &t.0)));
        prop_assert_eq!(path("{.items[?(@.labels.a)].name}", &data),
            joined(things.iter().filter(|t| t.2.contains_key("a")).map(|t| &t.0)));
        prop_assert_eq!(path("{..size}", &data), joined(things.iter().map(|t| t.1)));
    }

    #[test]
    fn jsonpath_quotes_any_key(key in "[a-zA-Z][a-zA-Z./_-]{0,11}", value in "[ -~&&[^\"\\\\]]{0,10}") {
        let data = json!({"m": {key.clone(): value.clone()}});
        let escaped: String = key.chars().map(|c| if c == '.' { "\\.".to_owned() } else { c.to_string() }).collect();
        prop_assert_eq!(path(&format!("{{.m.{escaped}}}"), &data), value.clone());
        prop_assert_eq!(path(&format!("{{.m['{}']}}", key.replace('.', "\\.")), &data), value);
    }

    #[test]
    fn templates_compute_what_rust_computes(things in things(), limit in -3i64..20, word in "[a-z]{0,4}") {
        let data = list(&things);
        prop_assert_eq!(template("{{len .items}}", &data), things.len().to_string());
        prop_assert_eq!(template("{{range .items}}{{.name}},{{else}}none{{end}}", &data),
            if things.is_empty() { "none".to_owned() } else { things.iter().map(|t| format!("{},", t.0)).collect() });
        prop_assert_eq!(template("{{range $i, $t := .items}}{{$i}}:{{$t.size}} {{end}}", &data),
            things.iter().enumerate().map(|(i, t)| format!("{i}:{} ", t.1)).collect::<String>());
        // Only JSON's own numbers are compared: they are floats to a template.
        prop_assert_eq!(template(&format!("{{{{range .items}}}}{{{{if gt .size {limit}.0}}}}{{{{.name}}}} {{{{end}}}}{{{{end}}}}"), &data),
            things.iter().filter(|t| t.1 > limit).map(|t| format!("{} ", t.0)).collect::<String>());
        prop_assert_eq!(template(&format!("{{{{range .items}}}}{{{{if or (eq .name \"{word}\") (eq .labels.a \"x\")}}}}1{{{{else}}}}0{{{{end}}}}{{{{end}}}}"), &data),
            things.iter().map(|t| if t.0 == word || t.2.get("a").is_some_and(|v| v == "x") { '1' } else { '0' }).collect::<String>());
        prop_assert_eq!(template("{{range .items}}{{range $k, $v := .labels}}{{$k}}={{$v}};{{end}}{{end}}", &data),
            things.iter().flat_map(|t| t.2.iter().map(|(k, v)| format!("{k}={v};"))).collect::<String>());
        prop_assert_eq!(template("{{range .items}}{{printf \"%-6s|%q\" .name .name}} {{end}}", &data),
            things.iter().map(|t| format!("{:<6}|{:?} ", t.0, t.0)).collect::<String>());
    }

    #[test]
    fn templates_know_what_is_true(number in -2i64..3, word in "[a-b]{0,1}", items in proptest::collection::vec(0i64..2, 0..2), flag: bool) {
        let data = json!({"number": number, "word": word, "items": items, "flag": flag, "nothing": null});
        for (field, expected) in [
            ("number", number != 0), ("word", !word.is_empty()), ("items", !items.is_empty()), ("flag", flag), ("nothing", false),
        ] {
            prop_assert_eq!(template(&format!("{{{{if .{field}}}}}yes{{{{else}}}}no{{{{end}}}}"), &data), if expected { "yes" } else { "no" });
            prop_assert_eq!(template(&format!("{{{{not .{field}}}}}"), &data), (!expected).to_string());
        }
    }
}

/// A deployment reduced to what merges in different ways: labels (a map), replicas (a value), containers (a list merged by
/// name, each with an image and an environment merged by name), tolerations (a list replaced as a whole).
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    labels: BTreeMap<String, String>,
    replicas: Option<i64>,
    containers: BTreeMap<String, (String, BTreeMap<String, String>)>,
    tolerations: Vec<String>,
}

fn model() -> impl Strategy<Value = Model> {
    let word = || "[u-z]{1}";
    let environment = proptest::collection::btree_map("[A-C]", word(), 0..3);
    let container = ("[i-k]", environment);
    (
        proptest::collection::btree_map("[a-c]", word(), 0..3),
        proptest::option::of(0i64..3),
        proptest::collection::btree_map("[p-s]", container, 0..4),
        proptest::collection::vec("[t-v]", 0..3),
    )
        .prop_map(|(labels, replicas, containers, tolerations)| Model {
            labels,
            replicas,
            containers,
            tolerations,
        })
}

impl Model {
    fn object(&self) -> Value {
        let mut spec = json!({});
        let containers: Vec<Value> = self
            .containers
            .iter()
            .map(|(name, (image, env))| {
                let env: Vec<Value> = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
                json!({"name": name, "image": image, "env": env})
            })
            .collect();
        spec["containers"] = json!(containers);
        if !self.tolerations.is_empty() {
            spec["tolerations"] = self.tolerations.iter().map(|key| json!({"key": key})).collect();
        }
        // Maps and keyed lists are always there: leaving a whole one out deletes it, with what others put into it.
        let mut object = json!({"metadata": {"labels": self.labels}, "spec": {"template": {"spec": spec}}});
        if let Some(replicas) = self.replicas {
            object["spec"]["replicas"] = json!(replicas);
        }
        object
    }

    /// Back from JSON; the order of keyed lists does not count.
    fn read(object: &Value) -> Model {
        let map = |v: &Value| -> BTreeMap<String, String> {
            v.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.as_str().unwrap().to_owned())).collect()
        };
        let text = |v: &Value| v.as_str().unwrap().to_owned();
        let spec = &object["spec"]["template"]["spec"];
        let items = |v: &Value| v.as_array().cloned().unwrap_or_default();
        Model {
            labels: map(&object["metadata"]["labels"]),
            replicas: object["spec"]["replicas"].as_i64(),
            containers: items(&spec["containers"])
                .iter()
                .map(|c| {
                    let env = items(&c["env"]).iter().map(|e| (text(&e["name"]), text(&e["value"]))).collect();
                    (text(&c["name"]), (text(&c["image"]), env))
                })
                .collect(),
            tolerations: items(&spec["tolerations"]).iter().map(|t| text(&t["key"])).collect(),
        }
    }
}

/// Three-way, said plainly: what is wanted wins; what was wanted before and is not now goes; the rest stays.
fn merged_map<V: Clone>(
    original: &BTreeMap<String, V>,
    modified: &BTreeMap<String, V>,
    current: &BTreeMap<String, V>,
    both: impl Fn(&str) -> V,
) -> BTreeMap<String, V> {
    let names: BTreeSet<&String> = modified.keys().chain(current.keys()).compact_collect();
    names
        .into_iter()
        .filter_map(|name| match (modified.contains_key(name), original.contains_key(name)) {
            (true, _) => Some((name.clone(), both(name))),
            (false, true) => None,
            (false, false) => Some((name.clone(), current[name].clone())),
        })
        .collect()
}

fn expected(original: &Model, modified: &Model, current: &Model) -> Model {
    let none = (String::new(), BTreeMap::new());
    Model {
        labels: merged_map(&original.labels, &modified.labels, &current.labels, |k| modified.labels[k].clone()),
        replicas: match (modified.replicas, original.replicas) {
            (Some(n), _) => Some(n),
            (None, Some(_)) => None,
            (None, None) => current.replicas,
        },
        containers: merged_map(&original.containers, &modified.containers, &current.containers, |name| {
            let (image, wanted) = &modified.containers[name];
            let (_, before) = original.containers.get(name).unwrap_or(&none);
            let (_, live) = current.containers.get(name).unwrap_or(&none);
            (image.clone(), merged_map(before, wanted, live, |k| wanted[k].clone()))
        }),
        tolerations: match (modified.tolerations.is_empty(), original.tolerations.is_empty()) {
            (false, _) => modified.tolerations.clone(),
            (true, false) => Vec::new(),
            (true, true) => current.tolerations.clone(),
        },
    }
}

proptest! {
    #[test]
    fn three_way_apply_does_what_it_says(original in model(), modified in model(), current in model()) {
        let schema = three_way::schema("apps", "Deployment").unwrap();
        let (o, m, c) = (original.object(), modified.object(), current.object());
        let patch = three_way::strategic(Some(&o), &m, &c, &schema);
        let mut result = c.clone();
        api::patch::strategic::apply(&mut result, &patch, &schema).unwrap();
        prop_assert_eq!(Model::read(&result), expected(&original, &modified, &current), "patch {}", patch);
        // A second apply of the same file has nothing to do.
        prop_assert_eq!(three_way::strategic(Some(&m), &m, &result, &schema), json!({}), "result {}", result);
    }

    #[test]
    fn strategic_patches_lead_from_one_object_to_the_other(from in model(), to in model()) {
        let schema = three_way::schema("apps", "Deployment").unwrap();
        let (a, b) = (from.object(), to.object());
        // Two-way is three-way with the live object as what was applied last.
        let patch = three_way::strategic(Some(&a), &b, &a, &schema);
        let mut result = a.clone();
        api::patch::strategic::apply(&mut result, &patch, &schema).unwrap();
        prop_assert_eq!(Model::read(&result), to, "patch {}", patch);
        // Keyed lists come in the order of the wanted object.
        let names = |o: &Value| -> Vec<Value> {
            o["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten().map(|c| c["name"].clone()).collect()
        };
        prop_assert_eq!(names(&result), names(&b));
        prop_assert_eq!(a == b, patch == json!({}));
    }
}
