//! The map is the territory: ARCHITECTURE.md names every crate, what it may depend on, and only paths that exist;
//! every dependency comes from the registry under a licence that deny.toml allows.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Of every platform, so that cargo may have to fetch what building here did not need.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(ROOT)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Our crates by folder name, each with the crates of ours that it uses outside of tests.
fn crates(metadata: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let members: BTreeSet<&str> = metadata["workspace_members"].as_array().unwrap().iter().map(text).collect();
    let packages = metadata["packages"].as_array().unwrap();
    let ours = || packages.iter().filter(|package| members.contains(text(&package["id"])));
    let folders: BTreeMap<&str, String> = ours()
        .map(|package| {
            let folder = Path::new(text(&package["manifest_path"])).parent().unwrap().file_name().unwrap();
            (text(&package["name"]), folder.to_str().unwrap().to_owned())
        })
        .collect();
    ours()
        .filter(|package| text(&package["name"]) != "cox")
        .map(|package| {
            let used = package["dependencies"].as_array().unwrap().iter();
            let used = used.filter(|dependency| dependency["kind"] != "dev");
            let used = used.filter_map(|dependency| folders.get(text(&dependency["name"])).cloned());
            (folders[text(&package["name"])].clone(), used.collect())
        })
        .collect()
}

/// The rows of ARCHITECTURE.md's table of crates: `` | `name` | holds | `a`, `b` | ``.
fn table() -> BTreeMap<String, BTreeSet<String>> {
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<BTreeSet<_>>();
    read("ARCHITECTURE.md")
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
            let name = names(cells[0]).pop_first().unwrap();
            (name, names(cells.last().unwrap()))
        })
        .collect()
}

#[test]
fn crates_depend_only_on_what_the_map_allows() {
    let (crates, table) = (crates(&metadata()), table());
    for (name, used) in &crates {
        let allowed = table.get(name).unwrap_or_else(|| panic!("ARCHITECTURE.md's table has no row for {name}"));
        let extra: Vec<_> = used.difference(allowed).collect();
        assert!(extra.is_empty(), "{name} must not depend on {extra:?}");
    }
    let absent: Vec<_> = table.keys().filter(|name| !crates.contains_key(*name)).collect();
    assert!(absent.is_empty(), "ARCHITECTURE.md names crates that do not exist: {absent:?}");
}

#[test]
fn paths_that_documents_name_exist() {
    for document in ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md"] {
        for word in read(document).split('`').skip(1).step_by(2) {
            let is_path =
                ["crates/", "src/", "tests/", "scripts/", "docs/"].iter().any(|start| word.starts_with(start));
            if is_path && !word.contains(['<', '*', ' ']) {
                assert!(Path::new(ROOT).join(word).exists(), "{document} names {word}, which does not exist");
            }
        }
    }
}

#[test]
fn every_stage_of_the_walk_has_a_test_that_names_it() {
    let walk = read("docs/walk.md");
    let mut stages = Vec::new();
    for row in walk.lines().filter(|line| line.starts_with("| ") && line.contains("` |")) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (major, minor) = cells[0].split_once('.').unwrap();
        stages.push((major.parse::<u32>().unwrap(), minor.parse::<u32>().unwrap()));
        for path in cells[2].split('`').skip(1).step_by(2) {
            let names = |line: &str| {
                line.trim_start().starts_with("/// Walk")
                    && line
                        .split([' ', ',', '.', ':'])
                        .collect::<Vec<_>>()
                        .windows(2)
                        .any(|pair| pair == [major, minor])
            };
            assert!(read(path).lines().any(names), "{path} has no test of stage {}", cells[0]);
        }
    }
    let (mut expected, mut last) = (Vec::new(), (0, 0));
    for &(major, minor) in &stages {
        let next = if major == last.0 { (major, last.1 + 1) } else { (last.0 + 1, 1) };
        expected.push(next);
        last = (major, minor);
    }
    assert_eq!(stages, expected, "stages without gaps");
    assert_eq!(last, (12, 2));
}

#[test]
fn dependencies_come_from_the_registry_under_allowed_licences() {
    let deny = read("deny.toml");
    let list = deny.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap();
    let allowed: BTreeSet<&str> = list.split('"').skip(1).step_by(2).collect();
    for package in metadata()["packages"].as_array().unwrap() {
        let Some(source) = package["source"].as_str() else { continue };
        let name = text(&package["name"]);
        assert!(source.starts_with("registry+"), "{name} comes from {source}");
        // "Or later" includes the version itself.
        let licence = text(&package["license"]).replace(['(', ')', '+'], "").replace('/', " OR ");
        let acceptable =
            licence.split(" OR ").any(|choice| choice.split(" AND ").all(|part| allowed.contains(part.trim())));
        assert!(acceptable, "{name} has licence {licence:?}, which deny.toml does not allow");
    }
}
