//! What kubectl does with running containers, end to end: conformance's area of it with ours. Command lines that need
//! none are compared with another kubectl in `crates/kubectl/tests/compare`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::harness::{Cluster, describe, told};
use crate::manifests;

fn controller(replicas: u32) -> String {
    let web = manifests::web("nginx", "");
    format!(
        "
apiVersion: v1
kind: ReplicationController
metadata: {{name: web, labels: {{app: web}}}}
spec:
  replicas: {replicas}
  selector: {{app: web}}
  template: {{metadata: {{labels: {{app: web}}}}, spec: {{containers: [{web}]}}}}
"
    )
}

const TALKER: &str = "
apiVersion: v1
kind: Pod
metadata: {name: talker}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: talker
    image: busybox
    command: [sh, -c, 'i=0; while [ $i -lt 20 ]; do i=$((i+1)); echo line $i; done; touch /said; exec sleep 100000']
    readinessProbe: {exec: {command: [test, -e, /said]}, periodSeconds: 1}
";

/// Ends with the test, whatever happens.
struct Running {
    child: Child,
    /// Nobody reads what it goes on to say, but it must have somewhere to say it.
    _stdout: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Walk 12.1.
#[test]
fn kubectl_works_on_running_containers() {
    let cluster = Cluster::up(&[testkit::images::nginx, testkit::images::busybox]);
    for (file, text) in [("web.yaml", controller(1).as_str()), ("talker.yaml", TALKER)] {
        std::fs::write(cluster.path(file), text).unwrap();
        cluster.kubectl(&format!("create -f {}", cluster.path(file).display()));
    }
    replication_controller(&cluster);
    cluster.kubectl("wait pod talker --for=condition=Ready --timeout=170s");
    logs(&cluster);
    exec_and_copy(&cluster);
    forwards_and_proxies(&cluster);
    run_and_replace(&cluster);
    asks_the_server(&cluster);
}

/// Created, scaled, exposed, patched, described.
fn replication_controller(cluster: &Cluster) {
    cluster.kubectl("scale rc web --replicas=2 --timeout=170s");
    cluster.wait("two ready pods", || {
        (cluster.kubectl("get rc web -o jsonpath={.status.readyReplicas}") == "2").then_some(())
    });
    let images = cluster.kubectl(
        "get pods -l app=web -o go-template={{range.items}}{{range.spec.containers}}{{.image}};{{end}}{{end}}",
    );
    assert_eq!(images, "nginx;nginx;");

    assert_eq!(cluster.kubectl("expose rc web --name=again --port=1234 --target-port=80"), "service/again exposed\n");
    let addresses = cluster.wait("both pods behind the service", || {
        let said = cluster.kubectl(
            "get endpointslices -l kubernetes.io/service-name=again -o jsonpath={.items[*].endpoints[*].addresses[0]}",
        );
        (said.split(' ').count() == 2).then_some(said)
    });
    for pod in cluster.kubectl("get pods -l app=web -o name").lines() {
        cluster.kubectl(&format!("patch {pod} -p {{\"metadata\":{{\"annotations\":{{\"x\":\"y\"}}}}}}"));
        assert_eq!(cluster.kubectl(&format!("get {pod} -o jsonpath={{.metadata.annotations.x}}")), "y");
    }
    let pod = cluster.kubectl("get pods -l app=web -o jsonpath={.items[0].metadata.name}");
    let first = addresses.split(' ').next().unwrap();
    for (words, parts) in [
        (
            "rc web".to_owned(),
            &["Replicas:     2 current / 2 desired", "2 Running / 0 Waiting", "SuccessfulCreate"][..],
        ),
        (format!("pod {pod}"), &["Controlled By:  ReplicationController/web", "Status:           Running", "Started"]),
        ("service again".to_owned(), &["Port:                     <unset>  1234/TCP", first]),
        ("node node-1".to_owned(), &["Non-terminated Pods:", "Allocated resources:", pod.as_str()]),
        ("namespace default".to_owned(), &["Status:       Active", "No resource quota."]),
    ] {
        for part in parts {
            // Events come beside everything else.
            cluster.wait(&format!("{part:?} in describe {words}"), || {
                cluster.kubectl(&format!("describe {words}")).contains(part).then_some(())
            });
        }
    }
}

fn logs(cluster: &Cluster) {
    assert_eq!(cluster.kubectl("logs talker --tail=1"), "line 20\n");
    assert_eq!(cluster.kubectl("logs talker --limit-bytes=1"), "l");
    assert_eq!(cluster.kubectl("logs talker --since=24h").lines().count(), 20);
    assert_eq!(cluster.kubectl("logs talker talker --tail=2"), "line 19\nline 20\n");
    let stamped = cluster.kubectl("logs talker --tail=1 --timestamps");
    let (time, line) = stamped.split_once(' ').unwrap();
    assert_eq!(line, "line 20\n");
    // Nanoseconds, in UTC.
    assert!(time.len() > "2026-01-01T00:00:00.Z".len() && time.ends_with('Z'), "{time}");
}

fn exec_and_copy(cluster: &Cluster) {
    assert_eq!(cluster.kubectl("exec talker -- hostname"), "talker\n");
    let output =
        cluster.cox("kubectl").args(["exec", "talker", "--", "sh", "-c", "echo oops >&2; exit 7"]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", describe(&output));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "oops\ncommand terminated with exit code 7\n");
    assert_eq!(with_input(cluster, &["exec", "-i", "talker", "--", "cat"], "to and fro"), "to and fro");

    // Others stream by SPDY, which ours does not speak.
    let output = cluster.other_kubectl().args(["exec", "talker", "--", "hostname"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "talker\n", "{}", describe(&output));

    let (here, back) = (cluster.path("here.txt"), cluster.path("back.txt"));
    std::fs::write(&here, "a file\n").unwrap();
    cluster.kubectl(&format!("cp {} talker:/tmp/there.txt", here.display()));
    assert_eq!(cluster.kubectl("exec talker -- cat /tmp/there.txt"), "a file\n");
    cluster.kubectl(&format!("cp talker:/tmp/there.txt {}", back.display()));
    assert_eq!(std::fs::read_to_string(back).unwrap(), "a file\n");
}

fn forwards_and_proxies(cluster: &Cluster) {
    let (_forward, said) = started(cluster, &["port-forward", "rc/web", ":80"]);
    let address = said.strip_prefix("Forwarding from ").and_then(|s| s.strip_suffix(" -> 80")).unwrap();
    let page = cluster.wait("an answer through the forwarded port", || cluster.http_get(address));
    assert!(page.contains("nginx"), "{page}");

    let pod = cluster.kubectl("get pods -l app=web -o jsonpath={.items[0].metadata.name}");
    let page = cluster.kubectl(&format!("get --raw /api/v1/namespaces/default/pods/{pod}:80/proxy/"));
    assert!(page.contains("nginx"), "{page}");

    let socket = cluster.path("proxy.sock");
    let (_proxy, said) = started(cluster, &["proxy", "--unix-socket", socket.to_str().unwrap()]);
    assert_eq!(said, format!("Starting to serve on {}", socket.display()));
    let output = Command::new("curl").args(["-sS", "--unix-socket"]).arg(&socket).arg("http://localhost/api/").output();
    let output = output.unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("\"versions\""), "{}", describe(&output));
}

fn run_and_replace(cluster: &Cluster) {
    let said = with_input(
        cluster,
        &["run", "-i", "--rm", "once", "--image=busybox", "--restart=Never", "--pod-running-timeout=170s", "--", "cat"],
        "through\n",
    );
    assert!(said.contains("through\n") && said.contains("pod \"once\" deleted"), "{said}");

    let pod = cluster.kubectl("get pod talker -o json");
    std::fs::write(cluster.path("pod.json"), pod.replace("\"image\": \"busybox\"", "\"image\": \"nginx\"")).unwrap();
    let said = cluster.kubectl(&format!("replace -f {}", cluster.path("pod.json").display()));
    assert_eq!(said, "pod/talker replaced\n");
    assert_eq!(cluster.kubectl("get pod talker -o jsonpath={.spec.containers[0].image}"), "nginx");
}

fn asks_the_server(cluster: &Cluster) {
    let changed = cluster.path("changed.yaml");
    std::fs::write(&changed, controller(5)).unwrap();
    let output = cluster.cox("kubectl").args(["diff", "-f"]).arg(&changed).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{}", describe(&output));
    assert!(said.contains("-  replicas: 2\n+  replicas: 5\n"), "{said}");
    let said = cluster.kubectl("scale rc web --replicas=7 --dry-run=server");
    assert_eq!(said, "replicationcontroller/web scaled (server dry run)\n");
    assert_eq!(cluster.kubectl("get rc web -o jsonpath={.spec.replicas}"), "2");

    assert!(cluster.kubectl("version").contains("\nServer Version: v1.36."));
    assert!(cluster.kubectl("cluster-info").starts_with("Kubernetes control plane is running at https://"));
    assert!(cluster.kubectl("api-versions").lines().any(|line| line == "v1"));
}

/// Runs kubectl with something on standard input; it must succeed.
fn with_input(cluster: &Cluster, args: &[&str], input: &str) -> String {
    told(cluster.cox("kubectl").args(args), input)
}

/// Starts a kubectl that stays, and waits for its first line.
fn started(cluster: &Cluster, args: &[&str]) -> (Running, String) {
    let mut child = cluster.cox("kubectl").args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    (Running { child, _stdout: stdout }, line.trim_end().to_owned())
}
