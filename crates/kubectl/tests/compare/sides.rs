//! One of the two kubectls, with a home, a kubeconfig and namespaces of its own.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::AsyncWriteExt;

use crate::normal::{in_order, normal, without_custom_groups};
use crate::peer::Peer;
use crate::scenario::{Line, Scenario, Step, words};
use crate::server::Server;

pub(crate) struct Side {
    /// Part of every name that only one side may have. Both are equally long, so tables keep their widths.
    word: &'static str,
    program: PathBuf,
    /// Whether some of its lines come in another order every time.
    map_order: bool,
    dir: PathBuf,
    server: String,
    authority: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
}

/// What a command line did.
pub(crate) struct Outcome {
    stdout: String,
    stderr: String,
    code: String,
}

impl Outcome {
    pub(crate) fn pairs<'a>(a: &'a Outcome, b: &'a Outcome) -> [(&'static str, &'a str, &'a str); 3] {
        [("stdout", &a.stdout, &b.stdout), ("stderr", &a.stderr, &b.stderr), ("code", &a.code, &b.code)]
    }
}

impl Side {
    /// The peer's side and ours.
    pub(crate) fn both(server: &Server, peer: &Peer) -> [Side; 2] {
        [Side { map_order: true, ..Side::new(server, "kcaaa", &peer.program) }, Side::ours(server)]
    }

    pub(crate) fn ours(server: &Server) -> Side {
        Side::new(server, "kcaab", Path::new(env!("CARGO_BIN_EXE_kubectl")))
    }

    fn new(server: &Server, word: &'static str, program: &Path) -> Side {
        Side {
            word,
            program: program.to_owned(),
            map_order: false,
            dir: server.dir().join(word),
            server: server.url.clone(),
            authority: server.dir().join("ca.crt"),
            certificate: server.dir().join("admin.crt"),
            key: server.dir().join("admin.key"),
        }
    }

    fn namespace(&self, scenario: &Scenario) -> String {
        format!("{}-{}", self.word, scenario.name)
    }

    pub(crate) fn workdir(&self, scenario: &Scenario) -> PathBuf {
        self.dir.join(&scenario.name)
    }

    /// A namespace, a working directory with the files that lines name, and a kubeconfig.
    pub(crate) async fn prepare(&self, server: &Server, scenario: &Scenario) {
        server.namespace(&self.namespace(scenario)).await;
        let dir = self.workdir(scenario);
        let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/files");
        copy_dir(&files, &dir, &|text| self.fill(scenario, text));
        std::fs::write(dir.join("kubeconfig"), self.kubeconfig(&self.namespace(scenario))).unwrap();
        // Those that come first are made before any line runs, so that lists of all namespaces hold still.
        for step in &scenario.steps {
            let Step::Objects(file) = step else { break };
            self.load(server, scenario, file).await;
        }
    }

    fn kubeconfig(&self, namespace: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: main\nclusters:\n- name: local\n  cluster:\n    server: {}\n    certificate-authority: {}\n\
             users:\n- name: admin\n  user:\n    client-certificate: {}\n    client-key: {}\ncontexts:\n- name: main\n  context:\n    cluster: local\n    user: admin\n    namespace: {namespace}\n",
            self.server,
            self.authority.display(),
            self.certificate.display(),
            self.key.display()
        )
    }

    fn fill(&self, scenario: &Scenario, text: &str) -> String {
        text.replace("{x}", &self.namespace(scenario))
    }

    pub(crate) async fn load(&self, server: &Server, scenario: &Scenario, file: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/objects").join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        for part in self.fill(scenario, &text).split("\n---\n") {
            let object = api::codec::from_yaml(part.as_bytes()).unwrap_or_else(|e| panic!("{file}: {e}")).value;
            server.put(&self.namespace(scenario), object).await;
        }
    }

    /// The scenario's own directory, configuration and caches on this side, and nothing of ours.
    pub(crate) fn environment(&self, scenario: &Scenario, command: &mut tokio::process::Command) {
        let dir = self.workdir(scenario);
        command
            .current_dir(&dir)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", dir.join("home"))
            .env("KUBECONFIG", dir.join("kubeconfig"))
            .env("EDITOR", "./editor")
            .env("TZ", "UTC");
    }

    pub(crate) async fn run(&self, scenario: &Scenario, line: &Line) -> Outcome {
        let (words, input) = words(&self.fill(scenario, &line.text));
        let dir = self.workdir(scenario);
        let mut command = tokio::process::Command::new(&self.program);
        self.environment(scenario, &mut command);
        command.args(&words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        if let Some(file) = input {
            let bytes = std::fs::read(dir.join(&file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            // A command that ends without reading its input is fine.
            let _ = stdin.write_all(&bytes).await;
        }
        drop(stdin);
        let output = child.wait_with_output().await.unwrap();
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).replace(&dir.display().to_string(), "DIR");
            let text = normal(&without_custom_groups(&text.replace(self.word, "side_")));
            if self.map_order { in_order(&text) } else { text }
        };
        let code = output.status.code().map_or_else(|| output.status.to_string(), |code| code.to_string());
        Outcome { stdout: text(&output.stdout), stderr: text(&output.stderr), code }
    }
}

fn copy_dir(from: &Path, to: &Path, fill: &dyn Fn(&str) -> String) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_dir(&path, &target, fill);
            continue;
        }
        std::fs::write(&target, fill(&std::fs::read_to_string(&path).unwrap())).unwrap();
        std::fs::set_permissions(&target, std::fs::metadata(&path).unwrap().permissions()).unwrap();
    }
}
