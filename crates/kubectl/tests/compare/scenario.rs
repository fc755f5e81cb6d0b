//! The table of command lines, as text that reads like a terminal.
//!
//! ```text
//! # a comment
//! objects web.yaml               objects of objects/web.yaml are made (with their status) on both sides
//! $ get pods -o wide             a command line; quotes as in a shell, `< file` is standard input
//! ~ <28 stdout: the reason       a known difference to peers older than 1.28 (`~ all stderr,code: …` to any peer)
//! ```
//! `{x}` is the side's own namespace, here and in the files; objects outside of namespaces have it in their names.

use std::path::Path;

pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
}

pub(crate) enum Step {
    Objects(String),
    Line(Line),
}

pub(crate) struct Line {
    pub(crate) text: String,
    pub(crate) differences: Vec<Difference>,
}

pub(crate) struct Difference {
    /// Peers below this minor version differ; any, when there is none.
    below: Option<u32>,
    pub(crate) streams: Vec<String>,
}

impl Difference {
    pub(crate) fn applies(&self, minor: u32) -> bool {
        self.below.is_none_or(|below| minor < below)
    }

    fn parse(text: &str) -> Difference {
        let (head, reason) = text.split_once(": ").unwrap_or_else(|| panic!("a difference without a reason: {text}"));
        assert!(!reason.trim().is_empty(), "a difference without a reason: {text}");
        let (which, streams) = head.split_once(' ').unwrap_or_else(|| panic!("which streams differ? {text}"));
        let below = match which {
            "all" => None,
            older => Some(older.strip_prefix('<').and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{text}"))),
        };
        let streams: Vec<String> = streams.split(',').map(str::to_owned).collect();
        assert!(streams.iter().all(|s| ["stdout", "stderr", "code"].contains(&s.as_str())), "{text}");
        Difference { below, streams }
    }
}

impl Scenario {
    pub(crate) fn lines(&self) -> usize {
        self.steps.iter().filter(|s| matches!(s, Step::Line(_))).count()
    }

    fn parse(name: &str, text: &str) -> Scenario {
        let mut steps = Vec::new();
        for row in text.lines() {
            if let Some(command) = row.strip_prefix("$ ") {
                steps.push(Step::Line(Line { text: command.to_owned(), differences: Vec::new() }));
            } else if let Some(difference) = row.strip_prefix("~ ") {
                let Some(Step::Line(line)) = steps.last_mut() else { panic!("{name}: no line above {row}") };
                line.differences.push(Difference::parse(difference));
            } else if let Some(file) = row.strip_prefix("objects ") {
                steps.push(Step::Objects(file.trim().to_owned()));
            } else {
                assert!(row.is_empty() || row.starts_with('#'), "{name}: what is this? {row}");
            }
        }
        Scenario { name: name.to_owned(), steps }
    }
}

/// Every scenario, by name.
pub(crate) fn all() -> Vec<Scenario> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/scenarios");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .map(|f| Scenario::parse(f.file_stem().unwrap().to_str().unwrap(), &std::fs::read_to_string(f).unwrap()))
        .collect()
}

/// Words as a shell would split them, and the file after `<`.
pub(crate) fn words(text: &str) -> (Vec<String>, Option<String>) {
    let mut words: Vec<String> = Vec::new();
    let mut current: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                current.get_or_insert_default();
            }
            (None, ' ') => words.extend(current.take()),
            _ => current.get_or_insert_default().push(c),
        }
    }
    words.extend(current);
    match words.iter().position(|w| w == "<") {
        Some(at) => {
            let file = words.get(at + 1).unwrap_or_else(|| panic!("no file after < in {text}")).clone();
            words.truncate(at);
            (words, Some(file))
        }
        None => (words, None),
    }
}
