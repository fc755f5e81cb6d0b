//! What has no peer to be compared with: the proxy, a shell's completion, preferences, and errors that teach.

use std::path::PathBuf;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use crate::scenario::Scenario;
use crate::server::Server;
use crate::sides::Side;

/// Our kubectl with a namespace, `objects/web.yaml` in it, and a kubeconfig.
pub(crate) struct Alone {
    _server: Server,
    side: Side,
    scenario: Scenario,
}

impl Alone {
    pub(crate) async fn start() -> Alone {
        let server = Server::start().await;
        let side = Side::ours(&server);
        let scenario = Scenario { name: "alone".to_owned(), steps: Vec::new() };
        side.prepare(&server, &scenario).await;
        side.load(&server, &scenario, "web.yaml").await;
        Alone { _server: server, side, scenario }
    }

    pub(crate) fn command(&self, program: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(program);
        self.side.environment(&self.scenario, &mut command);
        command.stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// stdout, stderr
    async fn run(&self, args: &[&str]) -> (String, String) {
        self.run_with(args, "KUBERC", "off").await
    }

    pub(crate) async fn run_with(&self, args: &[&str], variable: &str, value: &str) -> (String, String) {
        let output = self.command(KUBECTL).args(args).env(variable, value).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&output.stdout), text(&output.stderr))
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.side.workdir(&self.scenario)
    }
}

pub(crate) const KUBECTL: &str = env!("CARGO_BIN_EXE_kubectl");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxy_adds_credentials_and_keeps_strangers_out() {
    let alone = Alone::start().await;
    let mut proxy = alone.command(KUBECTL).args(["proxy", "--port=0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(proxy.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    let address = line.strip_prefix("Starting to serve on ").unwrap().to_owned();
    for (path, host, status) in [
        ("/api/v1/namespaces/default", "localhost", "200"),
        ("/api/v1/namespaces/missing", "localhost", "404"),
        ("/api/v1/namespaces/default", "evil.example.com", "403"),
        ("/api/v1/namespaces/default/pods/a/exec", "localhost", "403"),
    ] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(status), "{path} {host}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bash_completes_commands_flags_and_names() {
    let alone = Alone::start().await;
    let (script, _) = alone.run(&["completion", "bash"]).await;
    std::fs::write(alone.dir().join("completion.bash"), script).unwrap();
    for (line, expected) in [
        ("kubectl rollout res", "restart resume"),
        ("kubectl get pods web-", "web-1 web-2"),
        ("kubectl get pods --field-s", "--field-selector="),
        ("kubectl get pods --output=ya", "yaml"),
        ("kubectl logs web-1 -c ng", "nginx"),
        ("kubectl config use-context ma", "main"),
    ] {
        let script = format!(
            "source completion.bash; kubectl() {{ {KUBECTL} \"$@\"; }}; COMP_LINE='{line}' COMP_POINT={} COMP_TYPE=9; __kubectl_complete; echo \"${{COMPREPLY[@]}}\"",
            line.len()
        );
        let output = alone.command("bash").args(["-c", &script]).output().await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), expected, "{line}: {stderr}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn preferences_give_aliases_and_defaults() {
    let alone = Alone::start().await;
    let file = alone.dir().join("kuberc").display().to_string();
    let set = |args: &'static [&'static str]| alone.run_with(args, "KUBERC", &file);
    set(&["kuberc", "set", "--section", "defaults", "--command", "get", "--option", "output=name"]).await;
    set(&["kuberc", "set", "--section", "aliases", "--name", "cms", "--command", "get", "--prependarg", "cm"]).await;
    let (stdout, stderr) = set(&["get", "cm", "settings"]).await;
    assert_eq!(stdout, "configmap/settings\n", "{stderr}");
    assert_eq!(set(&["cms", "settings", "-o", "jsonpath={.data.a}"]).await.0, "1");
    assert!(set(&["cms", "settings"]).await.0.starts_with("NAME"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_say_what_to_do_next() {
    let alone = Alone::start().await;
    for (args, expected) in [
        (&["get", "deploymnets"][..], &["Did you mean this?", "deployments.apps"][..]),
        (&["get", "pods", "--outptu=yaml"], &["Did you mean this?", "--output"]),
        (&["describ", "pods"], &["Did you mean this?", "describe"]),
        (&["rollout", "restrat"], &["Did you mean this?", "restart"]),
        (
            &["get", "pods", "-s", "https://127.0.0.1:1"],
            &["127.0.0.1:1 was refused", "kubeconfig", "context main", "kubectl config get-contexts"],
        ),
    ] {
        let (_, stderr) = alone.run(args).await;
        for part in expected {
            assert!(stderr.contains(part), "{args:?}: no {part:?} in {stderr}");
        }
    }
}

/// Walk 1.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_get_sends_one_request() {
    let alone = Alone::start().await;
    alone.run(&["get", "pods"]).await;
    let (_, stderr) = alone.run(&["get", "pods", "-v=6"]).await;
    let requests: Vec<&str> = stderr.lines().filter(|l| l.contains("verb=\"GET\" url=\"https://")).collect();
    assert_eq!(requests.len(), 1, "{stderr}");
}
