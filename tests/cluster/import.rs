//! `cox import`: a cluster as kubeadm leaves it on a disk and in a real etcd, and one as k3s does in SQLite, become ours.
//!
//! The old cluster is an API server over etcd with keys made by OpenSSL in the forms that Go writes. Before it is stopped, the
//! objects in etcd are exchanged for their protobuf form, in which upstream stores them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Cluster, Host, WAIT_TIMEOUT, describe, run, said, told, until_done};

const SECRET: &str = "what-nobody-may-read";
/// Of the cluster whose keys and objects are taken.
const OLD_PORT: u16 = 7443;

/// Authorities, a server's certificate with names of its own, an administrator, and a key of service accounts. kubeadm
/// has one authority with RSA, k3s one for servers and one for clients, on a curve.
const KEYS: &str = r#"
set -e
cd "$DIR"
rsa() { openssl genrsa -traditional -out "$1" 2048 2>/dev/null; }
curve() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
authority() { "$KIND" "$1.key"; openssl req -x509 -new -key "$1.key" -out "$1.crt" -days 3650 -subj "/CN=$2" \
  -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,digitalSignature" 2>/dev/null; }
signed() { "$KIND" "$1.key"; printf "$4" > ext; openssl req -new -key "$1.key" -subj "$3" -out csr 2>/dev/null
  openssl x509 -req -in csr -CA "$2.crt" -CAkey "$2.key" -CAcreateserial -days 365 -out "$1.crt" -extfile ext 2>/dev/null; }
SERVER="subjectAltName=DNS:api.old.example,DNS:kubernetes,IP:127.0.0.1,IP:192.0.2.77\nextendedKeyUsage=serverAuth,clientAuth\n"
CLIENT="extendedKeyUsage=clientAuth\n"
if [ "$KIND" = rsa ]; then
  mkdir -p etcd
  authority ca kubernetes; authority front-proxy-ca front-proxy-ca; authority etcd/ca etcd-ca
  signed apiserver ca "/CN=kube-apiserver" "$SERVER"
  signed admin ca "/O=kubeadm:cluster-admins/CN=kubernetes-admin" "$CLIENT"
  signed super-admin ca "/O=system:masters/CN=kubernetes-super-admin" "$CLIENT"
  signed etcd/server etcd/ca "/CN=old" "$SERVER"
  signed apiserver-etcd-client etcd/ca "/CN=kube-apiserver-etcd-client" "$CLIENT"
  rsa sa.key; openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
else
  authority server-ca k3s-server-ca@1; authority client-ca k3s-client-ca@1; authority request-header-ca k3s-request-header-ca@1
  signed serving-kube-apiserver server-ca "/CN=kube-apiserver" "$SERVER"
  signed client-admin client-ca "/O=system:masters/CN=system:admin" "$CLIENT"
  openssl genrsa -traditional -out service.key 2048 2>/dev/null
fi
"#;

/// What a user and kubeadm made.
const OBJECTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: prices, namespace: shop}
data: {tea: "3"}
---
apiVersion: v1
kind: Secret
metadata: {name: till, namespace: shop}
stringData: {password: what-nobody-may-read}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: clerk, namespace: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: counter, namespace: shop}
spec:
  replicas: 0
  selector: {matchLabels: {app: counter}}
  template: {metadata: {labels: {app: counter}}, spec: {containers: [{name: c, image: nginx}]}}
---
apiVersion: v1
kind: Service
metadata: {name: counter, namespace: shop}
spec: {selector: {app: counter}, ports: [{port: 80}], clusterIP: 10.96.7.7}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {selector: {k8s-app: kube-dns}, ports: [{port: 53, protocol: UDP}], clusterIP: 10.96.0.10}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kubeadm-config, namespace: kube-system}
data: {ClusterConfiguration: "networking: {dnsDomain: cluster.local, podSubnet: 10.244.0.0/16}"}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: kube-proxy}}
  template: {metadata: {labels: {k8s-app: kube-proxy}}, spec: {containers: [{name: c, image: kube-proxy}]}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: kube-scheduler, namespace: kube-system}
spec: {holderIdentity: old}
---
apiVersion: v1
kind: Node
metadata: {name: worker-1, labels: {disk: fast}}
spec: {podCIDR: 10.244.5.0/24, podCIDRs: [10.244.5.0/24]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "kubeadm:cluster-admins"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "kubeadm:cluster-admins"}]
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.old.example}
spec:
  group: old.example
  scope: Namespaced
  names: {plural: boats, singular: boat, kind: Boat, listKind: BoatList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]
"#;
const BOAT: &str = "apiVersion: old.example/v1\nkind: Boat\nmetadata: {name: one, namespace: shop}\nspec: {oars: 2}\n";

/// What is stored in JSON by upstream, too, or is no object.
fn has_protobuf(key: &str) -> bool {
    ![
        "/registry/apiextensions.k8s.io/",
        "/registry/apiregistration.k8s.io/",
        "/registry/old.example/",
        "/registry/cox/",
    ]
    .iter()
    .any(|start| key.starts_with(start))
}

/// A cluster with its files, its etcd and its API server.
struct Old {
    dir: tempfile::TempDir,
    etcd: Child,
    server: Option<Child>,
}

impl Drop for Old {
    fn drop(&mut self) {
        for process in self.server.iter_mut().chain([&mut self.etcd]) {
            let _ = (process.kill(), process.wait());
        }
    }
}

impl Old {
    fn start(host: &Host) -> Old {
        let dir = tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap();
        let pki = dir.path().join("kubernetes/pki");
        std::fs::create_dir_all(&pki).unwrap();
        run(Command::new("bash").args(["-c", KEYS]).env("DIR", &pki).env("KIND", "rsa"));
        let encryption = json!({"kind": "EncryptionConfiguration", "apiVersion": "apiserver.config.k8s.io/v1", "resources": [
            {"resources": ["secrets"], "providers": [
                {"aescbc": {"keys": [{"name": "old", "secret": "b2xkIGtleSBvZiAzMiBieXRlcywgbm8gbW9yZS4uLi4="}]}}, {"identity": {}}]}]});
        std::fs::write(dir.path().join("kubernetes/enc.yaml"), encryption.to_string()).unwrap();
        let flag = |name: &str, file: &str| format!("--{name}={}", pki.join(file).display());
        let mut etcd = host.command("etcd");
        etcd.args(["--name=m", "--log-level=error", "--client-cert-auth"]);
        etcd.arg(format!("--data-dir={}", dir.path().join("etcd").display()));
        etcd.args(["--listen-client-urls=https://127.0.0.1:2379", "--advertise-client-urls=https://127.0.0.1:2379"]);
        etcd.args([
            flag("cert-file", "etcd/server.crt"),
            flag("key-file", "etcd/server.key"),
            flag("trusted-ca-file", "etcd/ca.crt"),
        ]);
        let etcd = etcd.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("apt-get install etcd-server");
        let mut old = Old { dir, etcd, server: None };
        // A server that does not find it within some seconds gives up.
        until_done("etcd", old.etcdctl(host).args(["endpoint", "health"]));
        old.start_server(host);
        old
    }

    fn flags(&self) -> Vec<String> {
        let pki = self.path("kubernetes/pki");
        let file = |name: &str, file: &str| format!("--{name}={}", pki.join(file).display());
        vec![
            format!("--secure-port={OLD_PORT}"),
            "--advertise-address=192.0.2.77".into(),
            "--authorization-mode=Node,RBAC".into(),
            "--etcd-servers=https://127.0.0.1:2379".into(),
            file("etcd-cafile", "etcd/ca.crt"),
            file("etcd-certfile", "apiserver-etcd-client.crt"),
            file("etcd-keyfile", "apiserver-etcd-client.key"),
            file("client-ca-file", "ca.crt"),
            file("tls-cert-file", "apiserver.crt"),
            file("tls-private-key-file", "apiserver.key"),
            file("service-account-key-file", "sa.pub"),
            file("service-account-signing-key-file", "sa.key"),
            file("requestheader-client-ca-file", "front-proxy-ca.crt"),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            "--service-cluster-ip-range=10.96.0.0/12".into(),
            format!("--encryption-provider-config={}", self.path("kubernetes/enc.yaml").display()),
        ]
    }

    fn start_server(&mut self, host: &Host) {
        let mut server = host.command(env!("CARGO_BIN_EXE_cox"));
        let log = std::fs::File::create(self.path("apiserver.log")).unwrap();
        server.arg("apiserver").args(self.flags()).stdout(Stdio::null()).stderr(log);
        self.server = Some(server.spawn().unwrap());
        let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
        while !self.kubectl(host, "super-admin").args(["get", "--raw", "/readyz"]).output().unwrap().status.success() {
            let log = std::fs::read_to_string(self.path("apiserver.log")).unwrap();
            assert!(std::time::Instant::now() < deadline, "the old API server does not come up\n{log}");
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// kubectl by a kubeconfig as kubeadm writes it.
    fn kubectl(&self, host: &Host, user: &str) -> Command {
        let file = self.path(&format!("{user}.conf"));
        std::fs::write(&file, kubeconfig(&self.path("kubernetes/pki"), "ca", user, OLD_PORT)).unwrap();
        kubectl_by(host, &file)
    }

    fn etcdctl(&self, host: &Host) -> Command {
        let pki = self.path("kubernetes/pki");
        let mut command = host.command("etcdctl");
        command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", "https://127.0.0.1:2379", "--cacert"])
            .arg(pki.join("etcd/ca.crt"));
        command.arg("--cert").arg(pki.join("apiserver-etcd-client.crt"));
        command.arg("--key").arg(pki.join("apiserver-etcd-client.key"));
        command
    }

    /// Everything that a cluster has, stored as upstream stores it. Returns a token of a service account, and what objects look
    /// like.
    fn fill(&self, host: &Host) -> (String, Value) {
        let apply = |text: &str| told(self.kubectl(host, "super-admin").args(["create", "-f", "-"]), text);
        apply(OBJECTS);
        let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
        while !self.kubectl(host, "super-admin").args(["get", "boats", "-A"]).output().unwrap().status.success() {
            assert!(std::time::Instant::now() < deadline, "boats are not served");
        }
        apply(BOAT);
        // Somebody's, and owned.
        let deployment =
            said(self.kubectl(host, "super-admin").args(["get", "deployment", "counter", "-n", "shop", "-o", "json"]));
        let deployment: Value = serde_json::from_str(&deployment).unwrap();
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "counter", "controller": true,
            "uid": deployment["metadata"]["uid"]});
        let owned = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet",
            "metadata": {"name": "counter-1", "namespace": "shop", "labels": {"app": "counter"}, "ownerReferences": [owner]},
            "spec": {"replicas": 0, "selector": deployment["spec"]["selector"], "template": deployment["spec"]["template"]}});
        apply(&owned.to_string());
        let token = said(self.kubectl(host, "super-admin").args(["create", "token", "clerk", "-n", "shop"]));
        let objects = self
            .kubectl(host, "super-admin")
            .args([
                "get",
                "deployments,replicasets,services,configmaps,boats,serviceaccounts",
                "-n",
                "shop",
                "-o",
                "json",
            ])
            .output()
            .unwrap();
        let objects: Value = serde_json::from_slice(&objects.stdout).unwrap();

        let keys = said(self.etcdctl(host).args(["get", "/registry/", "--prefix", "--keys-only"]));
        let mut exchanged = 0;
        for (key, path) in keys.lines().filter(|key| has_protobuf(key)).filter_map(|key| Some((key, api_path(key)?))) {
            let pki = self.path("kubernetes/pki");
            let mut get = host.command("curl");
            get.args(["-sf", "-H", "Accept: application/vnd.kubernetes.protobuf", "--cacert"]).arg(pki.join("ca.crt"));
            get.arg("--cert").arg(pki.join("super-admin.crt")).arg("--key").arg(pki.join("super-admin.key"));
            let object = get.arg(format!("https://127.0.0.1:{OLD_PORT}{path}")).output().unwrap();
            assert!(object.stdout.starts_with(b"k8s\0"), "{path}: {}", describe(&object));
            let file = self.path("object");
            std::fs::write(&file, &object.stdout).unwrap();
            let put =
                self.etcdctl(host).arg("put").arg(key).stdin(std::fs::File::open(&file).unwrap()).output().unwrap();
            assert!(put.status.success(), "{key}: {}", describe(&put));
            exchanged += 1;
        }
        assert!(exchanged >= 8, "{keys}");
        (token.trim().to_owned(), objects)
    }

    fn stop(&mut self) {
        let mut server = self.server.take().unwrap();
        let _ = (server.kill(), server.wait());
    }

    fn write_manifests(&self) {
        let dir = self.path("kubernetes/manifests");
        std::fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, flags: Vec<String>| {
            let command: Vec<String> = [name.to_owned()].into_iter().chain(flags).collect();
            let pod = json!({"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [{"name": name, "command": command}]}});
            std::fs::write(dir.join(format!("{name}.yaml")), pod.to_string()).unwrap();
        };
        // As they stand on a server, wherever the directory is now.
        let real = self.path("kubernetes").display().to_string();
        let flags = self.flags().into_iter().map(|flag| flag.replace(&real, "/etc/kubernetes").replace("7443", "6443"));
        write("kube-apiserver", flags.chain(["--profiling=false".to_owned()]).collect());
        write("kube-controller-manager", vec!["--cluster-cidr=10.244.0.0/16".into()]);
    }
}

/// Where the API has what is stored under a key, for kinds that this test makes; a Secret stays as it is sealed.
fn api_path(key: &str) -> Option<String> {
    let parts: Vec<&str> = key.strip_prefix("/registry/")?.split('/').collect();
    Some(match parts.as_slice() {
        ["configmaps", namespace, name] => format!("/api/v1/namespaces/{namespace}/configmaps/{name}"),
        ["deployments" | "replicasets" | "daemonsets", namespace, name] => {
            format!("/apis/apps/v1/namespaces/{namespace}/{}/{name}", parts[0])
        }
        ["services", "specs", namespace, name] => format!("/api/v1/namespaces/{namespace}/services/{name}"),
        ["serviceaccounts", namespace, name] => format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}"),
        ["namespaces", name] => format!("/api/v1/namespaces/{name}"),
        ["minions", name] => format!("/api/v1/nodes/{name}"),
        ["clusterrolebindings", name] if *name == "kubeadm:cluster-admins" => {
            format!("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/{name}")
        }
        _ => return None,
    })
}

fn kubeconfig(pki: &Path, authority: &str, user: &str, port: u16) -> String {
    let file = |name: String| pki.join(name).display().to_string();
    json!({"kind": "Config", "apiVersion": "v1", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        // By a name that only the old certificate had.
        "clusters": [{"name": "k", "cluster": {"server": format!("https://127.0.0.1:{port}"), "tls-server-name": "api.old.example",
            "certificate-authority": file(format!("{authority}.crt"))}}],
        "users": [{"name": "u", "user": {"client-certificate": file(format!("{user}.crt")), "client-key": file(format!("{user}.key"))}}]})
    .to_string()
}

fn kubectl_by(host: &Host, kubeconfig: &Path) -> Command {
    let mut command = host.command(env!("CARGO_BIN_EXE_cox"));
    command.args(["kubectl", "--kubeconfig"]).arg(kubeconfig);
    command
}

/// A directory for a cluster on a host that has another.
struct Place(tempfile::TempDir);

impl Place {
    fn import(&self, host: &Host, words: &[&str]) -> Command {
        let mut command = host.command(env!("CARGO_BIN_EXE_cox"));
        command.arg("import").args(words).env("COX_DATA_DIR", self.0.path().join("data"));
        command.env("COX_RUN_DIR", self.0.path().join("run")).env("COX_NAME", host.name());
        command
    }
}

/// What was there is there, as it was.
fn is_the_same(cluster: &Cluster, before: &Value, admin: &Path, token: &str) {
    let get = |what: &str| said(kubectl_by(&cluster.host, admin).args(what.split(' ')));
    for object in before["items"].as_array().unwrap() {
        let (kind, meta) = (object["kind"].as_str().unwrap(), &object["metadata"]);
        let name = meta["name"].as_str().unwrap();
        let found: Value = serde_json::from_str(&get(&format!("get {kind} {name} -n shop -o json"))).unwrap();
        for field in ["uid", "creationTimestamp", "ownerReferences"] {
            assert_eq!(found["metadata"][field], meta[field], "{kind} {name}: {field}");
        }
    }
    assert_eq!(get("get cm prices -n shop -o jsonpath={.data.tea}"), "3");
    assert_eq!(get("get boat one -n shop -o jsonpath={.spec.oars}"), "2");
    assert_eq!(get("get svc counter -n shop -o jsonpath={.spec.clusterIP}"), "10.96.7.7");
    assert_eq!(get("get node worker-1 -o jsonpath={.metadata.labels.disk}"), "fast");
    let secret = get("get secret till -n shop -o go-template={{.data.password|base64decode}}");
    assert_eq!(secret, SECRET);
    // Which is in no file of ours.
    let store = cluster.path("data/store");
    for file in std::fs::read_dir(&store).unwrap().flatten() {
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "{:?}", file.path());
    }
    assert!(!get("get daemonsets -A -o name").contains("kube-proxy"));
    assert!(!get("get leases -n kube-system -o name").contains("kube-scheduler"), "that of the old leader");
    let mut dns = kubectl_by(&cluster.host, admin);
    let dns = said(dns.args([
        "get",
        "svc",
        "kube-dns",
        "-n",
        "kube-system",
        "-o",
        "jsonpath={.spec.clusterIP} {.spec.selector}",
    ]));
    assert_eq!(dns.trim(), "10.96.0.10", "ours, at the address of theirs");
    // Somebody who has a token of the old cluster, and nothing else.
    if !token.is_empty() {
        let mut config: Value = serde_json::from_str(&std::fs::read_to_string(admin).unwrap()).unwrap();
        config["users"][0]["user"] = json!({"token": token});
        let file = cluster.path("clerk.conf");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut whoami = kubectl_by(&cluster.host, &file);
        let whoami = said(whoami.args(["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]));
        assert_eq!(whoami, "system:serviceaccount:shop:clerk");
    }
}

#[test]
fn a_cluster_of_kubeadm_is_taken_over() {
    let host = Host::new();
    let mut old = Old::start(&host);
    let (token, before) = old.fill(&host);
    old.write_manifests();
    let place = Place(tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap());
    let from = old.path("kubernetes").display().to_string();
    let words = ["kubeadm", "--from", &from];

    // While the old server runs: a rehearsal, and a refusal.
    let rehearsed = said(place.import(&host, &words).arg("--dry-run"));
    for expected in [
        "services 10.96.0.0/12, pods 10.244.0.0/16, domain cluster.local, port 6443",
        "known as     api.old.example, 192.0.2.77",
        "daemonsets/kube-system/kube-proxy",
        "of the old servers: ours write their own",
        "--profiling=false",
        "nodes        worker-1",
        "would be refused now: the API server at 192.0.2.77 runs",
        "Nothing was changed.",
    ] {
        assert!(rehearsed.contains(expected), "{expected:?} in\n{rehearsed}");
    }
    assert!(!place.0.path().join("data").exists(), "a rehearsal leaves nothing");
    let refused = describe(&place.import(&host, &words).output().unwrap());
    assert!(refused.contains("the API server at 192.0.2.77 runs"), "{refused}");
    old.stop();
    // From a snapshot, which is of before and needs no etcd.
    let snapshot = old.path("snapshot.db");
    run(old.etcdctl(&host).args(["snapshot", "save"]).arg(&snapshot));
    let rehearsed = said(place.import(&host, &words).arg("--dry-run").arg("--etcd-snapshot").arg(&snapshot));
    assert!(rehearsed.contains("nodes        worker-1") && !rehearsed.contains("refused"), "{rehearsed}");

    let deadline = std::time::Instant::now() + WAIT_TIMEOUT;
    let done = loop {
        let output = place.import(&host, &words).args(["--settle", "1s"]).output().unwrap();
        if output.status.success() {
            break describe(&output);
        }
        // What it said of itself ends after some seconds.
        assert!(
            describe(&output).contains("some seconds ago") && std::time::Instant::now() < deadline,
            "{}",
            describe(&output)
        );
        std::thread::sleep(std::time::Duration::from_millis(500));
    };
    assert!(done.contains("of them encrypted, from revision"), "{done}");
    let again = describe(&place.import(&host, &words).output().unwrap());
    assert!(again.contains("there is a cluster here already"), "{again}");
    let admin = old.path("admin-new.conf");
    std::fs::write(&admin, kubeconfig(&old.path("kubernetes/pki"), "ca", "admin", 6443)).unwrap();
    let _ = (old.etcd.kill(), old.etcd.wait());

    let cluster = Cluster::resume(host, place.0, &["--node-name", "cp-1"]);
    is_the_same(&cluster, &before, &admin, &token);
}

#[test]
fn a_cluster_of_k3s_is_taken_over() {
    let host = Host::new();
    let mut old = Old::start(&host);
    let (_, before) = old.fill(&host);
    old.stop();
    // The same objects in kine's table, and the directory of a server.
    let server = old.path("k3s");
    for dir in ["tls", "cred", "db"] {
        std::fs::create_dir_all(server.join(dir)).unwrap();
    }
    run(Command::new("bash").args(["-c", KEYS]).env("DIR", server.join("tls")).env("KIND", "curve"));
    std::fs::copy(old.path("kubernetes/enc.yaml"), server.join("cred/encryption-config.json")).unwrap();
    let kvs = said(old.etcdctl(&host).args(["get", "", "--prefix", "-w", "json"]));
    let fill = r#"
import base64, json, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER, create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)")
last = 0
for kv in sorted(json.load(sys.stdin)["kvs"], key=lambda kv: kv["mod_revision"]):
    # What etcd wrote at once has one revision there, and a row each here.
    last = max(last + 1, kv["mod_revision"])
    new = kv["mod_revision"] == kv["create_revision"]
    row = (last, base64.b64decode(kv["key"]).decode(), new, kv["create_revision"], base64.b64decode(kv.get("value", "")))
    db.execute("INSERT INTO kine VALUES (?,?,?,0,?,0,0,?,NULL)", row)
db.commit()
"#;
    told(Command::new("python3").args(["-c", fill]).arg(server.join("db/state.db")), &kvs);
    let _ = (old.etcd.kill(), old.etcd.wait());
    std::fs::write(old.path("config.yaml"), "cluster-cidr: 10.244.0.0/16\nservice-cidr: 10.96.0.0/12\n").unwrap();

    let place = Place(tempfile::Builder::new().prefix("coxtest-").tempdir().unwrap());
    let (from, config) = (server.display().to_string(), old.path("config.yaml").display().to_string());
    let words = ["k3s", "--from", &from, "--config", &config];
    let rehearsed = said(place.import(&host, &words).arg("--dry-run"));
    assert!(rehearsed.contains("k3s-server-ca@1") && rehearsed.contains("k3s-client-ca@1"), "{rehearsed}");
    said(&mut place.import(&host, &words));
    let admin = old.path("k3s.conf");
    std::fs::write(&admin, kubeconfig(&server.join("tls"), "server-ca", "client-admin", 6443)).unwrap();
    let cluster = Cluster::resume(host, place.0, &["--node-name", "cp-1"]);
    is_the_same(&cluster, &before, &admin, "");
}
