//! The map is the territory: ARCHITECTURE.md names every crate, what it may depend on, and only paths that exist; the
//! modules of large crates stand in an order; every dependency comes from the registry under a licence that deny.toml allows.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
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
    for document in ["ARCHITECTURE.md", "README.md", "CONTRIBUTING.md", "docs/glossary.md"] {
        // Between backticks, and in drawings.
        for word in read(document).split(|c: char| c.is_whitespace() || "`|,()".contains(c)) {
            let is_path =
                ["crates/", "src/", "tests/", "scripts/", "docs/"].iter().any(|start| word.starts_with(start));
            if is_path && !word.contains(['<', '*', '…']) {
                let word = word.trim_end_matches(['.', ':', ';']);
                assert!(Path::new(ROOT).join(word).exists(), "{document} names {word}, which does not exist");
            }
        }
    }
}

/// A map that takes longer to read than the room it shows is none.
#[test]
fn the_map_says_little_about_each_crate() {
    let map = read("ARCHITECTURE.md");
    let sections: BTreeMap<&str, &str> =
        map.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap_or((section, ""))).collect();
    for name in table().keys() {
        let words = sections.get(name.as_str()).unwrap_or_else(|| panic!("ARCHITECTURE.md has no section {name}"));
        let count = words.split_whitespace().count();
        assert!(count <= 150, "ARCHITECTURE.md says {count} words about {name}, of at most 150");
    }
}

#[test]
fn newcomers_questions_have_answers_that_exist() {
    let guide = read("CONTRIBUTING.md");
    let rows: Vec<&str> = guide.lines().filter(|line| line.starts_with("| Where")).collect();
    assert!(rows.len() >= 12, "{rows:?}");
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let [_, path, declared] = cells[..] else { panic!("no question with answer and declaration: {row}") };
        let path = Path::new(ROOT).join(path);
        assert!(path.exists(), "{} of {row:?} does not exist", path.display());
        assert!(declares(&path, declared), "{declared:?} of {row:?} is not there");
    }
}

/// Whether a file, or one of those below a folder, has a line with this declaration.
fn declares(path: &Path, declared: &str) -> bool {
    if path.is_dir() {
        return std::fs::read_dir(path).unwrap().any(|entry| declares(&entry.unwrap().path(), declared));
    }
    let is_end = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.match_indices(declared).any(|(at, _)| text[at + declared.len()..].starts_with(is_end))
}

/// For each weakness docs/security.md names the tests that show it closed, or where it is closed: all of them exist, and
/// every test whose name begins with `security_` is among them.
#[test]
fn attacks_are_named_where_weaknesses_are_listed() {
    let tests = functions();
    let page = read("docs/security.md");
    let named = existing_names("docs/security.md", &page, &tests);
    let is_missing = |name: &&String| name.starts_with("security_") && !named.contains(name.as_str());
    let missing: Vec<&String> = tests.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/security.md has no row with these tests: {missing:?}");
}

#[test]
fn races_are_named_with_tests_that_exist() {
    let page = read("docs/conformance.md");
    let (_, races) = page.split_once("\n## Races that were found\n").unwrap();
    let races = races.split("\n## ").next().unwrap();
    let tests = functions();
    for row in races.lines().filter(|line| line.starts_with("| ")).skip(1) {
        assert!(!existing_names("docs/conformance.md", row, &tests).is_empty(), "no test in {row:?}");
    }
}

/// The names of all functions, of which tests are some.
fn functions() -> BTreeSet<String> {
    let mut functions = BTreeSet::new();
    let mut open = vec![Path::new(ROOT).join("crates"), Path::new(ROOT).join("tests")];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let names = text.lines().filter_map(|line| line.split_once("fn ")?.1.split_once('('));
            functions.extend(names.map(|(name, _)| name.to_owned()));
        }
    }
    functions
}

/// The tests that a text names between backticks. All of them exist, and so do the files it names.
fn existing_names<'a>(file: &str, text: &'a str, functions: &BTreeSet<String>) -> BTreeSet<&'a str> {
    let is_of_names =
        |word: &str| word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c));
    let mut named = BTreeSet::new();
    for word in text.split('`').skip(1).step_by(2) {
        if word.contains('/') && ["crates/", "docs/", "scripts/", "fuzz/"].iter().any(|start| word.starts_with(start)) {
            assert!(Path::new(ROOT).join(word).exists(), "{file} names {word}, which does not exist");
        } else if is_of_names(word) && word.matches('_').count() > 1 {
            let name = word.rsplit("::").next().unwrap();
            assert!(functions.contains(name), "{file} names {word}, and there is no such test");
            named.insert(name);
        }
    }
    named
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

/// The top-level modules of a crate from the lowest to the highest: each uses only those before it.
struct Floors {
    of: &'static str,
    order: &'static [&'static str],
    /// Uses of a higher module, as `(lower, higher)`. To be removed one by one; none may be added.
    upward: &'static [(&'static str, &'static str)],
}

const FLOORS: &[Floors] = &[
    Floors {
        of: "apiserver",
        order: &[
            // What a request, an answer and a stored object are.
            "body json protobuf elsewhere trace_context request_info stamp expiring config watch_cache status accept",
            // Who asks, whether they may, and what else decides about a write.
            "remote authz audit authn initializers seal versions delete_options cluster admission allocation",
            // What a server keeps while it runs.
            "cors in_flight flow_control metrics aggregation discovery event_leases node_summary node_usage history state",
            // What it does with a request.
            "hooks verbs subresources resource_metrics integrity custom health metrics_page endpoints programs walk chain",
            // What it does by itself.
            "loopback identity_lease api_services bootstrap sampler server_leases serving_certificate answers args server",
        ],
        upward: &[],
    },
    Floors {
        of: "kubelet",
        order: &[
            "backoff metrics parts state qos resources huge_pages file_watch logs plan env containers objects volumes names exchange dns pod_fields pod_source",
            "config cgroups runtime error resize status images status_writer probes hooks thresholds shutdown_state cpu_manager pass node",
            "kubelet usage gc worker static_pods shutdown eviction preemption admit apply_resize cpu_sets housekeeping terminate sync",
            "certificates pleg plugins process server run",
        ],
        upward: &[],
    },
];

#[test]
fn modules_use_only_those_below_them() {
    for floors in FLOORS {
        let order: Vec<&str> = floors.order.iter().flat_map(|row| row.split(' ')).collect();
        let place = |module: &str| order.iter().position(|known| *known == module);
        let used = modules(floors.of);
        let named: BTreeSet<&str> = order.iter().copied().collect();
        let there: BTreeSet<&str> = used.keys().map(String::as_str).collect();
        assert_eq!(named, there, "the modules of {} and their order", floors.of);
        let arrows = used.iter().flat_map(|(from, used)| used.iter().map(move |to| (from.as_str(), to.as_str())));
        let upward: BTreeSet<(&str, &str)> = arrows.filter(|(from, to)| place(to) > place(from)).collect();
        let known: BTreeSet<(&str, &str)> = floors.upward.iter().copied().collect();
        let new: Vec<_> = upward.difference(&known).collect();
        assert!(new.is_empty(), "{}: lower modules use higher ones: {new:?}", floors.of);
        let gone: Vec<_> = known.difference(&upward).collect();
        assert!(gone.is_empty(), "{}: no longer so, take them off the list: {gone:?}", floors.of);
    }
}

/// Modules that use each other in circles are read, tested and moved together or not at all.
#[test]
fn modules_come_in_no_circles() {
    for entry in std::fs::read_dir(Path::new(ROOT).join("crates")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let used = modules(name);
        let in_circles: Vec<&String> = used.keys().filter(|module| reached(&used, module).contains(*module)).collect();
        assert!(in_circles.is_empty(), "{name}: these modules use each other in circles: {in_circles:?}");
    }
}

/// The modules that one uses, and those that they use, and so on.
fn reached<'a>(used: &'a BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<&'a String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&String> = used[from].iter().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(&used[module]);
        }
    }
    found
}

/// What a kind has of its own is in its strategy, in `hooks` or in `subresources`.
#[test]
fn generic_verbs_name_no_kind() {
    let folder = Path::new(ROOT).join("crates/apiserver/src/verbs");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        for kind in ["k8s_openapi::api::", ".plural ==", ".plural !=", ".kind ==", "store_prefix ==", "store_prefix !="]
        {
            assert!(!text.contains(kind), "{}: generic verbs know rows, but here is {kind:?}", path.display());
        }
    }
}

/// Sources outside of tests: path below the root, and text up to the tests at its end.
fn production() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut open = vec![Path::new(ROOT).join("src")];
    let crates = std::fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
    open.extend(crates.map(|entry| entry.unwrap().path().join("src")));
    let of_tests: Vec<PathBuf> = open.iter().flat_map(|src| modules_of_tests(src)).collect();
    while let Some(path) = open.pop() {
        let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
        if stem == "tests" || stem.ends_with("_tests") || of_tests.contains(&path) {
            continue;
        }
        if path.is_dir() {
            open.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default().to_owned();
            found.push((path.strip_prefix(ROOT).unwrap().to_string_lossy().into_owned(), text));
        }
    }
    found.sort();
    found
}

/// The top-level modules that a crate has for its tests alone, as file and as folder.
fn modules_of_tests(src: &Path) -> Vec<PathBuf> {
    let door = std::fs::read_to_string(src.join("lib.rs")).unwrap_or_default();
    let names = door.split("#[cfg(test)]\nmod ").skip(1).filter_map(|rest| rest.split_once(';'));
    names.flat_map(|(name, _)| [src.join(name), src.join(format!("{name}.rs"))]).collect()
}

/// A rule has one home. More lines than this, the same to the letter in two places, are one rule in two.
const SAME_LINES: usize = 10;

#[test]
fn no_long_passage_stands_twice() {
    let sources = production();
    let mut seen: BTreeMap<Vec<&str>, (&str, usize)> = BTreeMap::new();
    let mut twice = Vec::new();
    for (path, text) in &sources {
        // Generated.
        if path == "crates/cri/src/v1.rs" {
            continue;
        }
        let counts = |line: &str| {
            !["//", "use ", "pub use "].iter().any(|start| line.starts_with(start))
                && line.contains(char::is_alphanumeric)
        };
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        let lines: Vec<(usize, &str)> = lines.filter(|(_, line)| counts(line)).collect();
        for window in lines.windows(SAME_LINES + 1) {
            let passage = window.iter().map(|(_, line)| *line).collect();
            let first = seen.entry(passage).or_insert((path, window[0].0));
            if *first != (path.as_str(), window[0].0) {
                twice.push(format!("{path}:{} and {}:{}", window[0].0, first.0, first.1));
            }
        }
    }
    assert!(twice.is_empty(), "more than {SAME_LINES} lines stand twice, give them one home:\n{}", twice.join("\n"));
}

/// A text can only be printed; a type can be matched, retried, and mapped to an event or a status. These are left, by crate:
/// leaf parsers, whose only caller prints what they say. Numbers may only fall.
const TEXT_AS_ERROR: &[(&str, usize)] = &[("cel", 8), ("cni", 2), ("kubelet", 4), ("registry", 3), ("runtime", 1)];

#[test]
fn errors_are_types() {
    for (name, count) in count_by_crate(text_as_error) {
        let most = TEXT_AS_ERROR.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
        assert!(count <= most, "{name} has {count} `Result<_, String>` of at most {most}: make the error a type");
    }
}

/// How often `Result<_, String>` is named, whatever stands in the place of `_`.
fn text_as_error(text: &str) -> usize {
    let mut count = 0;
    for (at, start) in text.match_indices("Result<") {
        let (mut level, mut last, mut before) = (1, String::new(), ' ');
        for c in text[at + start.len()..].chars() {
            match c {
                '<' | '(' | '[' => level += 1,
                // Not of an arrow.
                '>' if before == '-' => {}
                '>' | ')' | ']' => level -= 1,
                _ => {}
            }
            match c {
                _ if level == 0 => break,
                ',' if level == 1 => last = ",".to_owned(),
                c => last.push(c),
            }
            before = c;
        }
        count += usize::from(last.strip_prefix(',').is_some_and(|last| last.trim() == "String"));
    }
    count
}

/// A decision takes the time as an argument; a component gets it from its `Clock`. Commands and the edges of these crates
/// ask the machine themselves; all others never do. Numbers may only fall.
const ASKS_THE_MACHINE: &[(&str, usize)] = &[
    ("apiserver", 9),
    ("bench", 2),
    ("client", 7),
    ("cluster", 19),
    ("cni", 1),
    ("data_plane", 1),
    ("gateway", 1),
    ("kubectl", 12),
    ("local_csi", 1),
    ("profile", 1),
    ("proxy", 4),
    ("runtime", 1),
    ("sim", 3),
    ("tls", 2),
    ("trace", 1),
    ("wireguard", 1),
];

#[test]
fn time_is_an_argument() {
    let asks = |text: &str| -> usize {
        ["Timestamp::now", "SystemTime::now", "Zoned::now"].map(|ask| text.matches(ask).count()).iter().sum()
    };
    for (name, count) in count_by_crate(asks) {
        let most = ASKS_THE_MACHINE.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
        assert!(count <= most, "{name} asks the machine for the time {count} times of at most {most}: use a Clock");
    }
}

/// How often the sources of each crate have something.
fn count_by_crate(count: impl Fn(&str) -> usize) -> BTreeMap<String, usize> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for (path, text) in production() {
        let name = path.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or("cox");
        *found.entry(name.to_owned()).or_default() += count(&text);
    }
    found
}

/// Tests of a component pass over series that it seldom has: each is counted by somebody all the same.
#[test]
fn every_series_of_the_tables_is_written_somewhere() {
    let sources = production();
    let named = sources.iter().flat_map(|(_, text)| text.split('"'));
    let names: BTreeSet<&str> = named
        .map(|text| text.strip_prefix("# TYPE ").and_then(|rest| rest.split(' ').next()).unwrap_or(text))
        .collect();
    let rows = metrics::upstream::Component::ALL.into_iter().flat_map(|component| component.rows());
    let missing: BTreeSet<&str> = rows.map(|row| row.name).filter(|name| !names.contains(name)).collect();
    assert!(missing.is_empty(), "nothing counts these series of crates/metrics/src/upstream.rs: {missing:?}");
}

/// What is not set reads as empty everywhere: `api::meta` has the methods.
const METADATA_SPELLED_OUT: usize = 10;

#[test]
fn metadata_is_read_in_one_way() {
    let spelled_out = |text: &str| -> usize {
        let endings = ["as_deref().unwrap_or_default()", "clone().unwrap_or_default()"];
        let fields = ["name", "namespace", "uid"];
        let all = fields.iter().flat_map(|field| endings.map(|ending| format!("metadata.{field}.{ending}")));
        all.map(|pattern| text.matches(&pattern).count()).sum()
    };
    let count: usize = count_by_crate(spelled_out).values().sum();
    assert!(
        count <= METADATA_SPELLED_OUT,
        "{count} of at most {METADATA_SPELLED_OUT}: read metadata by the methods of api::meta"
    );
}

/// The top-level modules of a crate, each with the others that it names outside of tests, by their own names or by those of what
/// the root of the crate has from them.
fn modules(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let root = Path::new(ROOT).join("crates").join(name).join("src");
    let door = ["lib.rs", "main.rs"].map(|door| root.join(door)).into_iter().find(|door| door.exists()).unwrap();
    let door = std::fs::read_to_string(door).unwrap();
    let exported = exported(&door);
    let mut modules: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut before = "";
    for line in door.lines() {
        let declared = line.strip_prefix("pub ").unwrap_or(line);
        if let Some(module) = declared.strip_prefix("mod ").and_then(|rest| rest.strip_suffix(';'))
            && !before.starts_with("#[cfg(test)]")
            && !before.starts_with("#[cfg(any(test,")
        {
            modules.insert(module.to_owned(), BTreeSet::new());
        }
        before = line;
    }
    let names: BTreeSet<String> = modules.keys().cloned().collect();
    for (module, used) in &mut modules {
        let (file, folder) = (root.join(format!("{module}.rs")), root.join(module));
        let mut open: Vec<(PathBuf, usize)> = vec![(file, 1), (folder, 1)];
        while let Some((path, depth)) = open.pop() {
            let stem = path.file_stem().unwrap().to_string_lossy().into_owned();
            if stem == "tests" || stem.ends_with("_tests") {
                continue;
            }
            if path.is_dir() {
                for entry in std::fs::read_dir(&path).unwrap() {
                    let entry = entry.unwrap().path();
                    let is_door = entry.file_name().is_some_and(|name| name == "mod.rs");
                    open.push((entry, if is_door { depth } else { depth + 1 }));
                }
            } else if path.extension().is_some_and(|ending| ending == "rs") && path.exists() {
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                let of = |name: String| if names.contains(&name) { Some(name) } else { exported.get(&name).cloned() };
                let others = named_in(text, depth).into_iter().filter_map(of);
                used.extend(others.filter(|other| other != module && names.contains(other)));
            }
        }
    }
    modules
}

/// The names that a root has from modules, each with the module: what it takes in by `use`, to pass it on or for itself.
fn exported(door: &str) -> BTreeMap<String, String> {
    let code: String = door.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let mut found = BTreeMap::new();
    for statement in code.split(';') {
        let lines = statement.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let statement = lines.collect::<Vec<_>>().join(" ");
        let starts = ["use ", "pub use ", "pub(crate) use "];
        let Some(list) = starts.iter().find_map(|start| statement.strip_prefix(*start)) else { continue };
        let list = list.strip_prefix("crate::").or_else(|| list.strip_prefix("self::")).unwrap_or(list);
        let Some((module, list)) = list.split_once("::") else { continue };
        // `a::b as c` is called `c`, `a::b` is called `b`. Beside a brace there is nothing.
        let names = list.split([',', '{', '}']).filter_map(|part| part.trim().rsplit([' ', ':']).next());
        found.extend(names.filter(|name| !name.is_empty()).map(|name| (name.to_owned(), module.to_owned())));
    }
    found
}

#[test]
fn what_a_root_passes_on_is_its_modules() {
    let door = "mod a;\nmod b; // use c::D;\n\npub use a::{One, two as Three,\n    four::{five, Six}};\n\
        #[cfg(test)]\nuse self::b::Seven;\nuse std::fmt;\n";
    let found = exported(door);
    for (name, module) in [("One", "a"), ("Three", "a"), ("five", "a"), ("Six", "a"), ("Seven", "b"), ("fmt", "std")] {
        assert_eq!(found.get(name).map(String::as_str), Some(module), "{name}");
    }
    assert!(!["D", "two", ""].iter().any(|name| found.contains_key(*name)), "{found:?}");
}

/// What a file `depth` modules below the root of its crate names there: after `crate::`, or after so many `super::`.
fn named_in(text: &str, depth: usize) -> BTreeSet<String> {
    let code: String = text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
    let word =
        |text: &str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().to_owned();
    let upward = "super::".repeat(depth);
    let mut found = BTreeSet::new();
    for start in ["crate::", &upward] {
        for (at, _) in code.match_indices(start) {
            let (before, rest) = (&code[..at], &code[at + start.len()..]);
            if before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || c == ':') {
                continue;
            }
            let Some(list) = rest.strip_prefix('{') else {
                found.insert(word(rest));
                continue;
            };
            let mut level = 0;
            let mut part = String::new();
            for c in list.chars() {
                match c {
                    '{' => level += 1,
                    '}' if level == 0 => break,
                    '}' => level -= 1,
                    ',' if level == 0 => {
                        found.insert(word(part.trim()));
                        part.clear();
                    }
                    _ => part.push(c),
                }
            }
            found.insert(word(part.trim()));
        }
    }
    found
}
