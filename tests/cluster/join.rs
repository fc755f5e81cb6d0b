//! A machine joins: `cox up` on one host, `cox join` on another with a cable between, and no way out of either.

use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Output};

use base64::Engine;
use cni::netns::Netns;
use tempfile::TempDir;

use crate::harness::{Cluster, Host, describe, http_get, mounts_below, run, said, with_input};
use crate::{inside_pods, manifests};

const SERVER: &str = "192.168.77.1";
const MACHINE: &str = "192.168.77.2";

/// A host that is to become a node.
struct Machine {
    host: Host,
    dir: TempDir,
}

impl Machine {
    /// With a cable to another host.
    fn beside(other: &Host) -> Machine {
        let machine =
            Machine { host: Host::new(), dir: tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap() };
        let inside = |host: &Host, line: &str| run(host.command("ip").args(line.split(' ')));
        inside(other, &format!("link add cable0 type veth peer name cable0 netns {}", machine.host.name()));
        for (host, address) in [(other, SERVER), (&machine.host, MACHINE)] {
            inside(host, &format!("addr add {address}/24 dev cable0"));
            inside(host, "link set cable0 up");
        }
        machine
    }

    fn cox(&self, component: &str) -> Command {
        let mut command = self.host.command(env!("CARGO_BIN_EXE_cox"));
        command.arg(component).env("COX_DATA_DIR", self.path("data")).env("COX_RUN_DIR", self.path("run"));
        command.env("COX_NAME", self.host.name()).env("HOME", self.dir.path()).env_remove("KUBECONFIG");
        command
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// `cox join` with the token on standard input.
    fn join(&self, token: &str, hash: &str) -> Output {
        let mut join = self.cox("join");
        join.args([SERVER, "--token-file", "-", "--ca-hash", hash, "--node-name", "machine-2", "--node-ip", MACHINE]);
        with_input(&mut join, token)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("data/logs/cox.log")).unwrap_or_default()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let output = self.cox("delete").output().unwrap();
        if !std::thread::panicking() {
            assert!(output.status.success(), "cox delete failed\n{}", describe(&output));
            let said = describe(&output);
            assert!(said.contains("'cox kubectl delete node machine-2'") && !said.contains(" INFO "), "{said}");
        }
    }
}

#[test]
fn security_a_machine_joins_with_a_token() {
    let host = Host::new();
    let machine = Machine::beside(&host);
    // Pods of both families, whose traffic between machines is encrypted: whoever joins learns it from the cluster.
    let (pods, services) = ("10.42.0.0/16,fd42::/48", "10.43.0.0/16,fd43::/112");
    let flags = ["--node-ip", SERVER, "--cluster-cidr", pods, "--service-cidr", services, "--encrypt"];
    let cluster = Cluster::up_on(host, &[testkit::images::busybox], &flags);

    // The command to type on the machine; the token is given to it otherwise.
    let line = said(cluster.cox("token").args(["create", "--print-join-command", "--description", "for a test"]));
    let words: Vec<&str> = line.split_whitespace().collect();
    let after = |flag: &str| words[words.iter().position(|word| *word == flag).unwrap() + 1];
    let (token, hash) = (after("--token"), after("--ca-hash"));
    assert_eq!(words[..3], ["cox", "join", &format!("{SERVER}:6443")]);
    let listed = said(cluster.cox("token").arg("list"));
    assert!(
        listed.contains(token) && listed.contains("authentication,signing") && listed.contains("for a test"),
        "{listed}"
    );
    let id = token.split('.').next().unwrap();

    // Neither another secret nor another authority gets in, and nothing is left of the attempts.
    for (token, hash, why) in [
        (format!("{id}.0000000000000000"), hash.to_owned(), "was not signed with the token"),
        (token.to_owned(), format!("sha256:{}", "0".repeat(64)), "which was not given with --ca-hash"),
        ("nonsense".to_owned(), hash.to_owned(), "a token has the form"),
    ] {
        let output = machine.join(&token, &hash);
        assert!(!output.status.success() && describe(&output).contains(why), "{why}: {}", describe(&output));
        assert!(!machine.path("data/membership.json").exists());
    }

    // No registry is within reach of the machine.
    let archive = testkit::images::busybox_image().docker_archive("docker.io/library/busybox:latest");
    std::fs::create_dir_all(machine.path("data/images")).unwrap();
    std::fs::write(machine.path("data/images/busybox.tar"), archive).unwrap();
    let output = machine.join(token, hash);
    assert!(output.status.success(), "{}\n{}\n{}", describe(&output), machine.log(), cluster.log());
    let node = cluster.kubectl("get node machine-2 -o jsonpath={.status.addresses[0].address}/{.spec.podCIDR}");
    assert!(node.starts_with(&format!("{MACHINE}/10.42.1.")), "{node}");
    keeps_no_secret(&machine, token);

    // It is a node like any other: pods run there, are reached from everywhere, and reach the cluster by name.
    cluster.apply(&[manifests::HELLO, SERVICE].concat());
    cluster.kubectl("rollout status daemonset/hello --timeout=170s");
    let service = cluster.kubectl("get service hello -o jsonpath={.spec.clusterIP}") + ":80";
    for (what, network) in [("server", cluster.host.netns()), ("machine", machine.host.netns())] {
        cluster.answers(&format!("of the pods at the {what}"), 2, || http_get(&network, &service));
    }
    what_pods_send_is_encrypted(&cluster, &machine);
    // Its kubelet serves with a certificate of the cluster's: logs and exec go through the API server.
    let there = "get pods -l app=hello --field-selector spec.nodeName=machine-2 -o jsonpath={.items[0].metadata.name}";
    let pod = cluster.kubectl(there);
    let logs = cluster.wait("the pod's log", || {
        let output = cluster.cox("kubectl").args(["logs", &pod]).output().unwrap();
        output.status.success().then(|| describe(&output))
    });
    assert!(!logs.is_empty());

    has_volumes_of_its_own(&cluster, &machine);
    its_credential_is_good_for_itself(&cluster);

    its_authority_is_exchanged(&cluster, &machine, &pod);

    // A token that is deleted is of no use; those who have joined stay.
    let deleted = said(cluster.cox("token").args(["delete", token]));
    assert_eq!(deleted.trim(), format!("bootstrap token \"{id}\" deleted"));
    assert!(!said(cluster.cox("token").arg("list")).contains(id));

    // The machine's process dies and comes back, without being told anything; its pods do not notice.
    let identity =
        || cluster.kubectl(&format!("get pod {pod} -o jsonpath={{.status.containerStatuses[0].containerID}}"));
    let before = identity();
    said(&mut machine.cox("down"));
    let resumed = machine.cox("join").output().unwrap();
    assert!(resumed.status.success(), "{}\n{}", describe(&resumed), machine.log());
    assert!(said(&mut machine.cox("status")).contains(&format!("machine-2 of https://{SERVER}:6443")));
    assert_eq!(identity(), before);
    let again = machine.join(token, hash);
    assert!(describe(&again).contains("already"), "{}", describe(&again));

    let data = machine.path("data");
    drop(machine);
    // It may not take itself out of the cluster.
    assert_eq!(cluster.kubectl("delete node machine-2"), "node \"machine-2\" deleted\n");
    assert_eq!(mounts_below(&data), Vec::<String>::new());
}

#[test]
fn a_machine_whose_certificate_has_ended_joins_again() {
    let host = Host::new();
    let machine = Machine::beside(&host);
    let flags = ["--node-ip", SERVER, "--certificate-validity=75s", "--gateway=false"];
    let cluster = Cluster::up_on(host, &[], &flags);
    let join = || {
        let line = said(cluster.cox("token").args(["create", "--print-join-command"]));
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |flag: &str| words[words.iter().position(|word| *word == flag).unwrap() + 1];
        machine.join(after("--token"), after("--ca-hash"))
    };
    let first = join();
    assert!(first.status.success(), "{}\n{}", describe(&first), machine.log());
    let uid = || cluster.kubectl("get node machine-2 -o jsonpath={.metadata.uid}");
    let before = uid();
    said(&mut machine.cox("down"));
    cluster.wait("the end of the machine's certificate", || {
        describe(&machine.cox("status").output().unwrap()).contains("machine-2 ended at ").then_some(())
    });
    let alone = machine.cox("join").output().unwrap();
    let told = describe(&alone);
    assert!(!alone.status.success() && told.contains("'cox token create --print-join-command'"), "{told}");

    // It is the node that it was.
    let again = join();
    assert!(again.status.success(), "{}\n{}", describe(&again), machine.log());
    assert_eq!(uid(), before);
}

/// Pods reach those of the other machine through devices that encrypt, in both families and with the next generation of keys, too.
fn what_pods_send_is_encrypted(cluster: &Cluster, machine: &Machine) {
    let status = said(&mut machine.cox("status"));
    assert!(status.contains("encryption  WireGuard between nodes, UDP ports 51820 and 51821 (in the "), "{status}");
    let all = cluster.kubectl("get pods -l app=hello -o json");
    let all: serde_json::Value = serde_json::from_str(&all).unwrap();
    let nodes = [cluster.host.netns(), machine.host.netns()];
    let network = |pod: &serde_json::Value| {
        let addresses = pod["status"]["podIPs"].as_array().unwrap().iter();
        let addresses: Vec<IpAddr> = addresses.map(|one| one["ip"].as_str().unwrap().parse().unwrap()).collect();
        assert_eq!(addresses.iter().map(IpAddr::is_ipv6).collect::<Vec<_>>(), [false, true], "{addresses:?}");
        (inside_pods::netns_of(pod["metadata"]["uid"].as_str().unwrap(), &nodes), addresses)
    };
    let pods: Vec<(Netns, Vec<IpAddr>)> = all["items"].as_array().unwrap().iter().map(network).collect();
    assert_eq!(pods.len(), 2);
    let reach_each_other = |link: &str| {
        for (what, host) in [("server", &cluster.host), ("machine", &machine.host)] {
            for (family, range) in [("-4", "/24"), ("-6", "/64")] {
                cluster.wait(&format!("a route {family} of the {what} into {link}"), || {
                    let routes =
                        describe(&host.command("ip").args([family, "route", "show", "dev", link]).output().unwrap());
                    let mut ranges = routes.lines().filter_map(|route| route.split(' ').next());
                    ranges.any(|to| to.ends_with(range)).then_some(())
                });
            }
        }
        for (from, (netns, _)) in pods.iter().enumerate() {
            for address in &pods[1 - from].1 {
                let address = SocketAddr::from((*address, 80)).to_string();
                cluster.wait(&format!("an answer of {address} by way of {link}"), || http_get(netns, &address));
            }
        }
    };
    reach_each_other("cox-wg1");
    let said = cluster.cox_says("node rotate-keys");
    assert!(said.contains("every node has a key of generation 2"), "{said}");
    reach_each_other("cox-wg0");
}

/// Another authority signs for everybody, and nobody is cut off on the way; a command that is ended goes on where it was.
fn its_authority_is_exchanged(cluster: &Cluster, machine: &Machine, pod: &str) {
    let subjects = |file: std::path::PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        text.matches("BEGIN CERTIFICATE").count()
    };
    let ca = cluster.path("data/pki/ca.crt");
    let old = std::fs::read_to_string(&ca).unwrap();
    // A machine that is away is waited for.
    said(&mut machine.cox("down"));
    cluster.wait("everybody but the machine to come along", || {
        let output = cluster.cox("cert").args(["rotate-ca", "--settle", "0s", "--timeout", "20s"]).output().unwrap();
        assert!(!output.status.success(), "{}", describe(&output));
        describe(&output).contains("error: machine-2 has not come along").then_some(())
    });
    assert_eq!(subjects(ca.clone()), 2);
    cluster.kubectl("get --raw /readyz");
    said(&mut machine.cox("join"));
    let said = cluster.cox_says("cert rotate-ca --settle 0s");
    assert!(said.contains("CN=kubernetes-ca-2 is the only authority"), "{said}");
    let new = std::fs::read_to_string(&ca).unwrap();
    assert!(subjects(ca) == 1 && !new.contains(&old) && !cluster.path("data/pki/ca-rotation.json").exists());
    cluster.wait("the machine to trust the new authority only", || {
        (std::fs::read_to_string(machine.path("data/pki/ca.crt")).unwrap() == new).then_some(())
    });
    // Its lease is renewed, and its kubelet answers the API server.
    let renewed = || cluster.kubectl("get lease -n kube-node-lease machine-2 -o jsonpath={.spec.renewTime}");
    let before = renewed();
    cluster.wait("the machine's lease", || (renewed() > before).then_some(()));
    cluster.wait("the pod's log", || {
        cluster.cox("kubectl").args(["logs", pod]).output().unwrap().status.success().then_some(())
    });
    // Who joins from now on is told of the new one, and a token vouches for it as long as it is there.
    let encoded = base64::engine::general_purpose::STANDARD.encode(&new);
    let told = || cluster.kubectl("get configmap -n kube-public cluster-info -o jsonpath={.data}");
    cluster.wait("new machines to be told", || told().contains(&encoded).then_some(()));
    let token = cluster.cox_says("token create");
    let signature = format!("jws-kubeconfig-{}", token.split('.').next().unwrap());
    assert!(told().contains(&signature), "{}", told());
    cluster.cox_says(&format!("token delete {}", token.trim()));
    cluster.wait("the signature to go with its token", || (!told().contains(&signature)).then_some(()));
    cluster.wait("pods to be told", || {
        let published = cluster.kubectl("get configmap -n kube-system kube-root-ca.crt -o jsonpath={.data.ca\\.crt}");
        (published.trim() == new.trim()).then_some(())
    });
}

/// A claim without a class gets a folder of the machine that its pod is on; it outlives the pod, grows, is copied, and goes
/// with its claim.
fn has_volumes_of_its_own(cluster: &Cluster, machine: &Machine) {
    let pod = |name: &str, claim: &str, script: &str| {
        format!(
            "
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeSelector: {{kubernetes.io/hostname: machine-2}}
  restartPolicy: Never
  containers:
  - {{name: c, image: busybox, imagePullPolicy: IfNotPresent, command: [sh, -c, '{script}'], volumeMounts: [{{name: data, mountPath: /data}}]}}
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]
---"
        )
    };
    let claim = |name: &str, size: &str, source: &str| {
        format!(
            "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}{source}}}
---"
        )
    };
    cluster.apply(&[claim("data", "1Mi", ""), pod("writes", "data", "hostname > /data/file")].concat());
    cluster.until_phase("writes", "Succeeded");
    let volume = cluster.kubectl("get pvc data -o jsonpath={.spec.volumeName}");
    let folder = machine.path("data/local-volumes/volumes").join(&volume);
    assert_eq!(std::fs::read_to_string(folder.join("data/file")).unwrap(), "writes\n");
    cluster.kubectl("delete pod writes");
    // Another pod finds it, and so do pods with copies: of the claim, and of what it was when a snapshot was taken.
    cluster.apply(
        "
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: folders, annotations: {snapshot.storage.kubernetes.io/is-default-class: 'true'}}
driver: local.cox
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: then}
spec: {source: {persistentVolumeClaimName: data}}
",
    );
    cluster.kubectl("wait --for=jsonpath={.status.readyToUse}=true volumesnapshot/then --timeout=170s");
    cluster.apply(&pod("reads", "data", "cat /data/file && echo more >> /data/file"));
    cluster.until_phase("reads", "Succeeded");
    assert_eq!(cluster.kubectl("logs reads"), "writes\n");
    let larger = r#"{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}"#;
    cluster.kubectl_args(&["patch", "pvc", "data", "-p", larger]);
    cluster.kubectl("wait --for=jsonpath={.status.capacity.storage}=2Mi pvc/data --timeout=170s");
    let snapshot = ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: then}";
    let copies = [
        claim("clone", "2Mi", ", dataSource: {kind: PersistentVolumeClaim, name: data}"),
        claim("restored", "2Mi", snapshot),
        pod("cloned", "clone", "cat /data/file"),
        pod("restored", "restored", "cat /data/file"),
    ];
    cluster.apply(&copies.concat());
    for (name, expected) in [("cloned", "writes\nmore\n"), ("restored", "writes\n")] {
        cluster.until_phase(name, "Succeeded");
        assert_eq!(cluster.kubectl(&format!("logs {name}")), expected);
    }
    cluster.kubectl("delete pod reads cloned restored");
    cluster.kubectl("delete volumesnapshot then --timeout=170s");
    cluster.kubectl("delete pvc data clone restored --timeout=170s");
    cluster.wait("the end of the volumes", || cluster.kubectl("get pv -o name").is_empty().then_some(()));
    for kind in ["volumes", "snapshots"] {
        let left: Vec<_> =
            std::fs::read_dir(machine.path("data/local-volumes").join(kind)).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// What the machine's kubelet may do in its own name reaches neither other nodes nor new pods.
fn its_credential_is_good_for_itself(cluster: &Cluster) {
    let others = "get nodes --field-selector metadata.name!=machine-2 -o jsonpath={.items[0].metadata.name}";
    let first = cluster.kubectl(others);
    let evil = cluster.path("evil.yaml");
    let pod = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: evil}}\nspec:\n  nodeName: {first}\n  containers:\n\
         \x20 - {{name: c, image: x, securityContext: {{privileged: true}}}}\n"
    );
    std::fs::write(&evil, pod).unwrap();
    let create = format!("create -f {}", evil.display());
    for (line, words) in [
        (create, "can only create mirror pods"),
        (format!("label node {first} a=b"), "not allowed to modify node"),
        ("label node machine-2 node-role.kubernetes.io/control-plane=".to_owned(), "not allowed to modify labels"),
        ("taint node machine-2 a=b:NoSchedule".to_owned(), "not allowed to modify taints"),
        (format!("label node machine-2 --overwrite local.cox/node={first}"), "not allowed to modify labels"),
        (format!("get nodevolumes {first}"), "can only access NodeVolumes with the same name"),
        ("get persistentvolumeclaims -A".to_owned(), "can only get individual resources of this type"),
    ] {
        let mut kubectl = cluster.cox("kubectl");
        kubectl.args(["--as=system:node:machine-2", "--as-group=system:nodes"]).args(line.split_whitespace());
        let output = kubectl.output().unwrap();
        assert!(!output.status.success() && describe(&output).contains(words), "{line}: {}", describe(&output));
    }
    assert!(!cluster.kubectl("get pods -o name").contains("evil"));
    // Nor does anybody, whoever it is, take over addresses of others (CVE-2020-8554).
    let service = cluster.path("taken.yaml");
    let taking = "apiVersion: v1\nkind: Service\nmetadata: {name: taken}\n\
                  spec: {externalIPs: [203.0.113.7], ports: [{port: 80}]}\n";
    std::fs::write(&service, taking).unwrap();
    let output = cluster.cox("kubectl").args(["create", "-f"]).arg(&service).output().unwrap();
    let words = "Use of external IPs is denied by admission control";
    assert!(!output.status.success() && describe(&output).contains(words), "{}", describe(&output));
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {selector: {app: hello}, ports: [{port: 80}]}
";

/// The token is in no file and no argument of a process once the machine is a node.
fn keeps_no_secret(machine: &Machine, token: &str) {
    let secret = token.split('.').nth(1).unwrap();
    for dir in ["data", "run"] {
        let mut grep = Command::new("grep");
        let found = grep.args(["-rlaF", "--exclude-dir=runtime", secret]).arg(machine.path(dir)).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "");
    }
    let pid = std::fs::read_to_string(machine.path("data/lock")).unwrap();
    for file in ["cmdline", "environ"] {
        let content = std::fs::read(format!("/proc/{}/{file}", pid.trim())).unwrap();
        assert!(!String::from_utf8_lossy(&content).contains(secret), "{file}");
    }
}
