//! `scripts/conformance` with a test program that runs nothing: what its reports become.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Stands for both e2e.test and ginkgo: copies the report of the part that is asked for, as Ginkgo writes them.
const PROGRAM: &str = r#"#!/bin/sh
here=$(dirname "$0")
for word in "$@"; do
  case $word in
    --version) echo v1.36.4; exit ;;
    --report-dir=*) dir=${word#*=} ;;
    *dry-run) part=plan ;;
    *'&& !Serial') part=${part:-parallel} ;;
    *'&& Serial') part=${part:-serial} ;;
  esac
done
echo "ran $part"
[ ! -e "$here/$part.xml" ] || cp "$here/$part.xml" "$dir/junit_01.xml"
! grep -q 'status="failed"' "$dir/junit_01.xml"
"#;

const DOCUMENT: &str =
    "# Conformance\n\n<!-- scripts/conformance: begin -->\nold\n<!-- scripts/conformance: end -->\nafter\n";

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(reports: &[(&str, &[(&str, &str)])]) -> Bench {
        let bench = Bench { dir: tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap() };
        fs::write(bench.path("e2e.test"), PROGRAM).unwrap();
        fs::set_permissions(bench.path("e2e.test"), fs::Permissions::from_mode(0o755)).unwrap();
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
        let mut words = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/conformance"));
        words.arg(command).env("E2E", self.path("e2e.test")).env("GINKGO", self.path("e2e.test"));
        words.env("OUT", self.path("out")).env("DOC", self.path("document.md")).env("KUBECONFIG", "/dev/null");
        words.output().unwrap()
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
    for line in [
        "| test program | v1.36.4 |",
        "| passed | 2 of 2 |",
        "| failed | 0 |",
        "| not run | 0 |",
        "| wall time, parallel | 2 min in 4 processes |",
        "| wall time, serial | 2 min |",
    ] {
        assert!(document.contains(line), "{line}: {document}");
    }
    assert!(!document.contains("old") && document.ends_with("end -->\nafter\n"), "{document}");
    assert!(!document.contains("Failed:"), "{document}");

    assert_eq!(bench.read("out/bundle/e2e.log"), "ran parallel\nran serial\n");
    let report = bench.read("out/bundle/junit_01.xml");
    assert_eq!(report.matches("<testsuites>").count(), 1, "{report}");
    assert_eq!(report.matches("</testsuites>").count(), 1, "{report}");
    assert_eq!(report.matches("<testsuite ").count(), 2, "{report}");
    assert!(bench.read("out/bundle/PRODUCT.yaml").contains("type: distribution\n"));
    assert!(bench.read("out/bundle/README.md").contains("| passed | 2 of 2 |"));
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
        "| passed | 1 of 4 |",
        "| failed | 2 |",
        "| not run | 1 |",
        "- `[sig-apps] a <b> & 'c' [Conformance]`",
        "- `[sig-apps] slow [Conformance]`",
    ] {
        assert!(document.contains(line), "{line}: {document}");
    }
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
