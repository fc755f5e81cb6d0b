//! The machine loses power and comes back: everything of ours is gone but the data. `cox up` finds the same objects and
//! runs the same pods again, and they find what they wrote into their volumes. `COX_REBOOTS` says how often.

use std::collections::BTreeSet;

use crate::harness::Cluster;
use crate::leftovers::{forget_like_a_reboot, kill_everything};
use crate::manifests;

const WORK: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {greeting: hello}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---";

/// Where the keeper has volumes: of the default class, a directory of the node that is a PersistentVolume, and one that is not.
const VOLUMES: [&str; 3] = ["/disk", "/local", "/host"];

fn work(cluster: &Cluster) -> String {
    let (local, host) = (cluster.path("local"), cluster.path("host"));
    for dir in [&local, &host] {
        std::fs::create_dir(dir).unwrap();
    }
    let web = manifests::web(
        "cox.local/hello",
        ", volumeMounts: [{name: settings, mountPath: /settings}, {name: scratch, mountPath: /scratch}]",
    );
    let spread = "
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      volumes:
      - {name: settings, configMap: {name: settings}}
      - {name: scratch, emptyDir: {}}";
    let serve = "mkdir -p /www && echo Hello from $(hostname) > /www/index.html && exec httpd -f -p 80 -h /www";
    let mounts =
        VOLUMES.map(|path| format!("{{name: {}, mountPath: {path}}}", path.trim_start_matches('/'))).join(", ");
    let more = format!(", imagePullPolicy: IfNotPresent, command: [sh, -c, '{serve}'], volumeMounts: [{mounts}]");
    let keeper = manifests::web("busybox", &more);
    let keeper = format!(
        "
apiVersion: v1
kind: PersistentVolume
metadata: {{name: local}}
spec:
  capacity: {{storage: 1Mi}}
  accessModes: [ReadWriteOnce]
  mountOptions: [nosuid]
  local: {{path: {local}}}
  nodeAffinity: {{required: {{nodeSelectorTerms: [
    {{matchExpressions: [{{key: kubernetes.io/hostname, operator: In, values: [node-1]}}]}}]}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: local}}
spec:
  accessModes: [ReadWriteOnce]
  resources: {{requests: {{storage: 1Mi}}}}
  storageClassName: ''
  volumeName: local
---
apiVersion: v1
kind: Pod
metadata: {{name: keeper, labels: {{app: keeper}}}}
spec:
  containers: [{keeper}]
  volumes:
  - {{name: disk, persistentVolumeClaim: {{claimName: disk}}}}
  - {{name: local, persistentVolumeClaim: {{claimName: local}}}}
  - {{name: host, hostPath: {{path: {host}, type: Directory}}}}
---",
        local = local.display(),
        host = host.display(),
    );
    let web = manifests::deployment("web", 4, &format!("{spread}\n      containers: [{web}]"));
    [WORK, &web, &keeper, &manifests::node_port("web")].concat()
}

/// Kind, name and uid of everything in the namespace that lasts.
fn objects(cluster: &Cluster) -> BTreeSet<String> {
    let kinds = "configmaps,secrets,services,serviceaccounts,persistentvolumeclaims,deployments,replicasets,pods";
    let path = "{range .items[*]}{.kind}/{.metadata.name}/{.metadata.uid}{\"\\n\"}{end}";
    let said = cluster.kubectl_args(&["get", kinds, "-o", &format!("jsonpath={path}")]);
    said.lines().map(str::to_owned).collect()
}

/// All pods are ready, with addresses of their own, and the service leads to those of the deployment.
fn until_all_answers(cluster: &Cluster) {
    cluster.kubectl("wait --for=condition=Ready nodes --all --timeout=170s");
    // A pod that was Ready before the lights went out says so until its kubelet has looked.
    let names = cluster.wait("five pods that answer for themselves", || {
        let listed: serde_json::Value = serde_json::from_str(&cluster.kubectl("get pods -o json")).unwrap();
        let pods = listed["items"].as_array().unwrap();
        let answers = |pod: &&serde_json::Value| {
            let address = pod["status"]["podIP"].as_str()?;
            let name = pod["metadata"]["name"].as_str()?;
            cluster.http_get(&format!("{address}:80"))?.contains(&format!("Hello from {name}")).then(|| name.to_owned())
        };
        let names: BTreeSet<String> = pods.iter().filter_map(|pod| answers(&pod)).collect();
        (pods.len() == 5 && names.len() == 5).then_some(names)
    });
    cluster.kubectl("wait --for=condition=Ready pods --all --timeout=170s");
    cluster.kubectl("rollout status deployment/web --timeout=170s");
    let service = cluster.kubectl("get service web -o jsonpath={.spec.clusterIP}:{.spec.ports[0].port}");
    let seen = cluster.answers("through the service", 4, || cluster.http_get(&service));
    assert!(seen.iter().all(|line| names.contains(line.trim_start_matches("Hello from "))), "{seen:?} of {names:?}");
}

/// Adds a line to a file of each volume.
fn write(cluster: &Cluster, round: u32) {
    for path in VOLUMES {
        let script = format!("echo {round} >> {path}/rounds && sync");
        cluster.kubectl_args(&["exec", "keeper", "--", "sh", "-c", &script]);
    }
}

fn assert_written(cluster: &Cluster, rounds: u32) {
    let expected: String = (0..=rounds).map(|round| format!("{round}\n")).collect();
    for path in VOLUMES {
        let file = format!("{path}/rounds");
        assert_eq!(cluster.kubectl_args(&["exec", "keeper", "--", "cat", &file]), expected, "{file}");
    }
}

#[test]
fn a_power_cut_leaves_the_same_cluster() {
    let rounds: u32 = std::env::var("COX_REBOOTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let cluster = Cluster::up_with(&[testkit::images::busybox], &["--nodes", "2"]);
    cluster.apply(&work(&cluster));
    until_all_answers(&cluster);
    let before = objects(&cluster);
    for round in 0..rounds {
        write(&cluster, round);
        kill_everything(&cluster);
        // Half of the time the kernel lived on and has everything still: a crash of ours, not of the machine.
        if round % 2 == 0 {
            forget_like_a_reboot(&cluster);
        }
        cluster.up_again();
        assert_eq!(objects(&cluster), before, "round {round}");
        until_all_answers(&cluster);
        assert_eq!(objects(&cluster), before, "round {round}, after a while");
        assert_written(&cluster, round);
    }
    cluster.kubectl("delete deployment,service,pod,pvc --all --timeout=170s");
    cluster.wait("the end of the pods", || cluster.kubectl("get pods -o name").is_empty().then_some(()));
}
