//! `scripts/conformance` with a test program that runs nothing: what its reports become.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Stands for both e2e.test and ginkgo: copies the report of the part that is asked for, as Ginkgo writes them.
const PROGRAM: &str = r#"#!/bin/sh
here=$(dirname "$0")
for word in "$@"; do
  case $word in
    --version) echo v1.36.4; exit ;;
    --list-images) printf 'example.com/%s\n' a:1 b:2; echo invalid.example.com/c:3; exit ;;
    --report-dir=*) dir=${word#*=} ;;
    *dry-run) part=plan ;;
    *'!Serial') part=${part:-parallel} ;;
    *Serial) part=${part:-serial} ;;
    *focus=*) echo "$word" ;;
  esac
done
echo "ran $part"
[ ! -e "$here/$part.xml" ] || cp "$here/$part.xml" "$dir/junit_01.xml"
! grep -q 'status="failed"' "$dir/junit_01.xml"
"#;

const DOCUMENT: &str = "# Conformance\n\n<!-- scripts/conformance: begin -->\nold\n<!-- scripts/conformance: end -->\nbetween\n\
    <!-- scripts/conformance repeat: begin -->\nolder\n<!-- scripts/conformance repeat: end -->\nafter\n";

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(reports: &[(&str, &[(&str, &str)])]) -> Bench {
        let bench = Bench { dir: tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap() };
        fs::write(bench.path("draft"), PROGRAM).unwrap();
        // By another process: while it is open for writing here, a child that another test is starting has it open too, and nobody
        // can run it ("Text file busy").
        let installed = Command::new("install").arg(bench.path("draft")).arg(bench.path("e2e.test")).status();
        assert!(installed.unwrap().success());
        fs::write(bench.path("document.md"), DOCUMENT).unwrap();
        for (part, cases) in reports {
            fs::write(bench.path(&format!("{part}.xml")), junit(cases)).unwrap();
        }
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn run(&self, command: &str) -> Output {
        self.run_with(&[command], &[])
    }

    fn run_with(&self, words: &[&str], settings: &[(&str, &str)]) -> Output {
        let mut script = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/conformance"));
        script.args(words).env("E2E", self.path("e2e.test")).env("GINKGO", self.path("e2e.test"));
        script.env("OUT", self.path("out")).env("DOC", self.path("document.md")).env("KUBECONFIG", "/dev/null");
        script.env("FAILED", self.path("failed.txt")).env("IMAGES", "").env("BUSY", "no");
        script.envs(settings.iter().copied());
        script.output().unwrap()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn junit(cases: &[(&str, &str)]) -> String {
    let mut text = String::from(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n  <testsuites tests=\"9\" time=\"95.5\">\n      <testsuite name=\"e2e\" package=\"/x\" time=\"95.5\">\n\
         <testcase name=\"[SynchronizedBeforeSuite]\" classname=\"e2e\" status=\"passed\" time=\"0.1\"></testcase>\n",
    );
    for (name, status) in cases {
        text += &format!(
            "          <testcase name=\"[It] {name}\" classname=\"e2e\" status=\"{status}\" time=\"1.5\">\n<system-err>a &lt;testcase status=&#34;failed&#34;&#xA;</system-err></testcase>\n"
        );
    }
    text + "      </testsuite>\n  </testsuites>\n"
}

fn describe(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_run_becomes_a_table_and_a_bundle() {
    let parallel = [("[sig-apps] a &lt;b&gt; &amp; c [Conformance]", "passed"), ("[sig-node] left out", "skipped")];
    let serial = [("[sig-node] d [Serial] [Conformance]", "passed")];
    let plan = [parallel[0], serial[0]];
    let bench = Bench::new(&[("plan", &plan), ("parallel", &parallel), ("serial", &serial)]);
    let output = bench.run("run");
    assert!(output.status.success(), "{}", describe(&output));

    let document = bench.read("document.md");
    for line in ["| test program | v1.36.4 |", "| processes | 4 |", "| 1 | 2 of 2 | 0 | 0 | 2 min | 2 min |"] {
        assert!(document.contains(line), "{line}: {document}");
    }
    assert!(
        !document.contains("old\n") && document.contains("older\n") && document.ends_with("end -->\nafter\n"),
        "{document}"
    );
    assert!(!document.contains("Failed:"), "{document}");

    assert_eq!(bench.read("out/bundle/e2e.log"), "ran parallel\nran serial\n");
    let report = bench.read("out/bundle/junit_01.xml");
    assert_eq!(report.matches("<testsuites>").count(), 1, "{report}");
    assert_eq!(report.matches("</testsuites>").count(), 1, "{report}");
    assert_eq!(report.matches("<testsuite ").count(), 2, "{report}");
    assert!(bench.read("out/bundle/PRODUCT.yaml").contains("type: distribution\n"));
    assert!(bench.read("out/bundle/README.md").contains("| 1 | 2 of 2 | 0 |"));
}

#[test]
fn failures_are_named_and_missing_tests_are_counted() {
    let parallel = [
        ("[sig-apps] a &lt;b&gt; &amp; &#39;c&#39; [Conformance]", "failed"),
        ("[sig-apps] slow [Conformance]", "timedout"),
    ];
    let serial = [("[sig-node] d [Serial] [Conformance]", "passed")];
    let plan = [parallel[0], parallel[1], serial[0], ("[sig-node] e [Conformance]", "passed")];
    let bench = Bench::new(&[("plan", &plan), ("parallel", &parallel), ("serial", &serial)]);
    let output = bench.run("run");
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    let document = bench.read("document.md");
    for line in [
        "| 1 | 1 of 4 | 2 | 1 | 2 min | 2 min |",
        "\nFailed:\n\n- `[sig-apps] a <b> & 'c' [Conformance]` (run 1)\n- `[sig-apps] slow [Conformance]` (run 1)\n<!--",
    ] {
        assert!(document.contains(line), "{line}: {document}");
    }
    assert_eq!(bench.read("failed.txt"), "[sig-apps] a <b> & 'c' [Conformance]\n[sig-apps] slow [Conformance]\n");
}

#[test]
fn several_runs_have_a_line_each_and_names_once() {
    let parallel = [("[sig-apps] a [Conformance]", "failed"), ("[sig-apps] b [Conformance]", "passed")];
    let bench = Bench::new(&[("plan", &parallel), ("parallel", &parallel), ("serial", &[])]);
    let output = bench.run_with(&["run"], &[("RUNS", "3"), ("PROCS", "8")]);
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    let document = bench.read("document.md");
    for line in ["| processes | 8 |", "| 1 | 1 of 2 | 1 | 0 |", "| 2 | 1 of 2 | 1 | 0 |", "| 3 | 1 of 2 | 1 | 0 |"] {
        assert!(document.contains(line), "{line}: {document}");
    }
    assert_eq!(document.matches("- `[sig-apps] a [Conformance]` (run 1, 2, 3)\n").count(), 1, "{document}");
}

#[test]
fn tests_that_failed_are_repeated() {
    let parallel = [("[sig-apps] a (b) [Conformance]", "passed"), ("[sig-apps] c [Conformance]", "failed")];
    let serial = [("[sig-node] d [Serial] [Conformance]", "passed")];
    let bench = Bench::new(&[("parallel", &parallel), ("serial", &serial)]);
    fs::write(bench.path("failed.txt"), "[sig-apps] a (b) [Conformance]\n[sig-node] d [Serial] [Conformance]\n")
        .unwrap();
    let times = [("TIMES", "2")];
    let output = bench.run_with(&["repeat"], &times);
    assert!(output.status.success(), "{}", describe(&output));
    let document = bench.read("document.md");
    assert!(document.contains("| passed 2 times of 2 | 2 of 2 tests |\n<!--"), "{document}");
    assert!(document.contains("\nold\n") && !document.contains("older"), "{document}");
    assert!(bench.read("out/repeat/2/parallel/e2e.log").contains(r"--focus=\[sig-apps\] a \(b\) \[Conformance\]"));
    assert!(
        bench.read("out/repeat/2/serial/e2e.log").contains(r"--ginkgo.focus=\[sig-node\] d \[Serial\] \[Conformance\]")
    );

    let output = bench.run_with(&["repeat", "[sig-apps] c [Conformance]", "[sig-apps] no such"], &times);
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    let document = bench.read("document.md");
    for line in [
        "| passed 2 times of 2 | 0 of 2 tests |",
        "- `[sig-apps] c [Conformance]`: 0 of 2",
        "- `[sig-apps] no such`: 0 of 2",
    ] {
        assert!(document.contains(line), "{line}: {document}");
    }
}

#[test]
fn images_that_no_archive_has_are_named() {
    let bench = Bench::new(&[]);
    fs::create_dir(bench.path("images")).unwrap();
    fs::write(bench.path("manifest.json"), r#"[{"Config":"x","RepoTags":["example.com/a:1","other:2"]}]"#).unwrap();
    let archive = bench.path("images/a.tar");
    let made =
        Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(bench.dir.path()).arg("manifest.json").status();
    assert!(made.unwrap().success());
    for (images, missing) in [("", "example.com/a:1\nexample.com/b:2\n"), ("images", "example.com/b:2\n")] {
        let images = if images.is_empty() { String::new() } else { bench.path(images).display().to_string() };
        let output = bench.run_with(&["images"], &[("IMAGES", images.as_str())]);
        assert!(output.status.success(), "{}", describe(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), missing);
    }
    let output = bench.run_with(&["images"], &[("E2E", "false")]);
    assert_eq!(output.status.code(), Some(1), "no list is not an empty one: {}", describe(&output));
}

#[test]
fn a_run_that_cannot_begin_leaves_the_results_of_the_last() {
    let parallel = [("[sig-apps] a [Conformance]", "passed")];
    let bench = Bench::new(&[("plan", &parallel), ("parallel", &parallel), ("serial", &[])]);
    let output = bench.run("run");
    assert!(output.status.success(), "{}", describe(&output));
    let output = bench.run_with(&["run"], &[("E2E", "/nowhere/e2e.test")]);
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    let output = bench.run("report");
    assert!(output.status.success(), "{}", describe(&output));
}

#[test]
fn what_is_missing_is_said_and_the_document_stays() {
    let bench = Bench::new(&[("plan", &[]), ("parallel", &[])]);
    for (command, says) in [("report", "run scripts/conformance run first"), ("run", "left no report")] {
        let output = bench.run(command);
        assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
        assert!(describe(&output).contains(says), "{says}: {}", describe(&output));
        assert_eq!(bench.read("document.md"), DOCUMENT);
    }
}
