//! The audit log: every request leaves a trace, none leaves a secret.

use std::path::Path;
use std::time::Duration;

use apiserver::{Authorizer, Batching, LogConfig, Mode};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::harness::{ADMIN_TOKEN, Cluster};
use crate::servers::{Answer, Server};

fn to_log(dir: &Path, config: &mut apiserver::Config, policy: Option<&str>) {
    config.authorizers = vec![Authorizer::Node, Authorizer::Rbac];
    let log = LogConfig { path: dir.join("audit.log"), max_age: Duration::ZERO, max_backups: 0, max_bytes: 0 };
    config.audit.log = Some((log, Mode::Blocking));
    config.audit.policy_file = policy.map(|rules| {
        let file = dir.join("policy.yaml");
        std::fs::write(&file, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
        file
    });
}

fn events(cluster: &Cluster) -> Vec<Value> {
    let text = std::fs::read_to_string(cluster.dir.path().join("audit.log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events of requests with this audit id.
fn of(cluster: &Cluster, id: &str) -> Vec<Value> {
    events(cluster).into_iter().filter(|event| event["auditID"] == id).collect()
}

/// The one event with this audit id.
fn only(cluster: &Cluster, id: &str) -> Value {
    let found = of(cluster, id);
    assert_eq!(found.len(), 1, "{found:?}");
    found[0].clone()
}

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_says_how_much_is_recorded() {
    let rules = "omitStages: [RequestReceived]\nrules:\n\
        - {level: None, nonResourceURLs: ['/healthz*']}\n\
        - {level: Request, verbs: [update]}\n\
        - {level: RequestResponse, resources: [{group: '', resources: [configmaps]}], omitManagedFields: true}\n\
        - {level: RequestResponse}\n";
    let cluster = Cluster::with_files(|dir, config| to_log(dir, config, Some(rules))).await;
    let admin = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let call = async |id: &str, path: &str, args: &[&str]| {
        let id = format!("Audit-Id: {id}");
        let mut all = vec!["-H", id.as_str(), "-H", "Content-Type: application/json"];
        all.extend(args);
        cluster.curl(path, &all).await
    };
    let map =
        json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m"}, "data": {"a": "b"}}).to_string();
    assert_eq!(call("create", CONFIG_MAPS, &["-H", &admin, "-d", &map]).await.0, 201);
    let secret =
        json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "s"}, "stringData": {"p": "hunter2"}});
    let secret = secret.to_string();
    assert_eq!(call("secret", "/api/v1/namespaces/default/secrets", &["-H", &admin, "-d", &secret]).await.0, 201);
    assert_eq!(call("health", "/healthz", &[]).await.0, 200);
    assert_eq!(call("refused", CONFIG_MAPS, &["-H", "Authorization: Bearer ann-token"]).await.0, 403);
    assert_eq!(call("unknown", CONFIG_MAPS, &["-H", "Authorization: Bearer wrong"]).await.0, 401);
    let as_ann = ["-H", admin.as_str(), "-H", "Impersonate-User: ann"];
    assert_eq!(call("as-ann", CONFIG_MAPS, &as_ann).await.0, 403);

    let created = only(&cluster, "create");
    assert_eq!((&created["stage"], &created["verb"]), (&json!("ResponseComplete"), &json!("create")));
    assert_eq!(created["user"]["username"], "admin");
    assert_eq!(created["objectRef"]["name"], "m");
    assert_eq!(created["requestObject"]["data"]["a"], "b");
    assert_eq!(created["responseObject"]["metadata"]["namespace"], "default");
    assert!(created["responseObject"]["metadata"]["managedFields"].is_null());
    assert_eq!(created["responseStatus"]["code"], 201);
    assert_eq!(created["annotations"]["authorization.k8s.io/decision"], "allow");
    assert_eq!(created["sourceIPs"], json!(["127.0.0.1"]));

    let kept = only(&cluster, "secret");
    assert_eq!(kept["level"], "Metadata");
    assert!(!std::fs::read_to_string(cluster.dir.path().join("audit.log")).unwrap().contains("hunter2"));
    assert!(of(&cluster, "health").is_empty());

    let refused = only(&cluster, "refused");
    assert_eq!(refused["responseStatus"]["code"], 403);
    assert_eq!(refused["responseStatus"]["reason"], "Forbidden");
    assert_eq!(refused["annotations"]["authorization.k8s.io/decision"], "forbid");
    let unknown = only(&cluster, "unknown");
    assert_eq!((&unknown["responseStatus"]["code"], &unknown["user"]), (&json!(401), &json!({})));
    let as_ann = only(&cluster, "as-ann");
    assert_eq!(
        (&as_ann["user"]["username"], &as_ann["impersonatedUser"]["username"]),
        (&json!("admin"), &json!("ann"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stages_follow_a_watch_from_start_to_end() {
    let cluster = Cluster::with_files(|dir, config| to_log(dir, config, Some("rules: [{level: Metadata}]"))).await;
    let admin = format!("Authorization: Bearer {ADMIN_TOKEN}");
    let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=1");
    assert_eq!(cluster.curl(&path, &["-H", &admin, "-H", "Audit-Id: w"]).await.0, 200);
    let stages: Vec<Value> = of(&cluster, "w").iter().map(|event| event["stage"].clone()).collect();
    assert_eq!(stages, ["RequestReceived", "ResponseStarted", "ResponseComplete"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_policy_there_are_no_bodies() {
    let cluster = Cluster::with_files(|dir, config| to_log(dir, config, None)).await;
    let map = json!({"metadata": {"name": "m"}, "data": {"a": "hunter2"}});
    assert_eq!(cluster.send("POST", CONFIG_MAPS, map).await.0, 201);
    let all = events(&cluster);
    assert!(all.iter().any(|event| event["objectRef"]["name"] == "m" && event["verb"] == "create"));
    assert!(all.iter().all(|event| event["requestObject"].is_null() && event["responseObject"].is_null()));
}

/// Records requests for the version, at a collector.
fn to_collector(dir: &Path, config: &mut apiserver::Config, url: &str, batching: Batching) {
    let kubeconfig = dir.join("collector.yaml");
    let text = format!("clusters:\n- name: c\n  cluster:\n    server: {url}\n    certificate-authority: ca.crt\n");
    std::fs::write(&kubeconfig, text).unwrap();
    let policy = dir.join("policy.yaml");
    let rules =
        "rules: [{level: Metadata, verbs: [get], nonResourceURLs: [/version]}]\nomitStages: [RequestReceived]\n";
    std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    config.audit.policy_file = Some(policy);
    config.audit.webhook = Some((kubeconfig, Mode::Batch(batching)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_batches_and_the_last_ones_when_the_server_stops() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/events", listener.local_addr().unwrap());
    let batching = Batching { buffer: 100, max_size: 3, max_wait: Duration::from_secs(600), throttle: None };
    let cluster = Cluster::with_files(|dir, config| to_collector(dir, config, &url, batching)).await;
    let server = Server::on(listener, cluster.dir.path(), |_, _| Answer::Text(200, ""));
    for _ in 0..4 {
        assert_eq!(cluster.send("GET", "/version", Value::Null).await.0, 200);
    }
    let seen = server.seen.clone();
    let sizes =
        || -> Vec<usize> { seen.lock().iter().map(|(_, list)| list["items"].as_array().unwrap().len()).collect() };
    let full = async {
        while sizes().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), full).await.expect("a full batch is sent at once");
    assert_eq!(sizes(), [3]);
    assert_eq!(seen.lock()[0].1["kind"], "EventList");
    assert_eq!(seen.lock()[0].1["items"][0]["requestURI"], "/version");
    cluster.stop().await;
    assert_eq!(sizes(), [3, 1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_hangs_over_one_batch_gets_the_others() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/events", listener.local_addr().unwrap());
    let cluster = Cluster::with_files(|dir, config| {
        to_collector(dir, config, &url, Batching { max_size: 1, ..Batching::default() })
    })
    .await;
    let server = Server::on(listener, cluster.dir.path(), |_, list| match list["items"][0]["requestURI"].as_str() {
        Some("/version?n=0") => Answer::Silence,
        _ => Answer::Text(200, ""),
    });
    for n in 0..3 {
        assert_eq!(cluster.send("GET", &format!("/version?n={n}"), Value::Null).await.0, 200);
    }
    let all = async {
        while server.count() < 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), all).await.expect("one that is not answered holds up the others");
}

/// It slows nobody, and takes no more memory than its buffer: what does not fit there is lost, and the loss is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_answers_nothing_loses_events_and_holds_up_nobody() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/events", listener.local_addr().unwrap());
    let batching = Batching { buffer: 2, max_size: 1, max_wait: Duration::from_secs(600), throttle: None };
    let cluster = Cluster::with_files(|dir, config| to_collector(dir, config, &url, batching)).await;
    let server = Server::on(listener, cluster.dir.path(), |_, _| Answer::Silence);
    const REQUESTS: usize = 100;
    for n in 0..REQUESTS {
        assert_eq!(cluster.send("GET", &format!("/version?n={n}"), Value::Null).await.0, 200);
    }
    let (_, page) = cluster.send_raw("GET", "/metrics", "application/json", Value::Null).await;
    let page = String::from_utf8(page.to_vec()).unwrap();
    let series = "apiserver_audit_error_total{plugin=\"webhook\"} ";
    let lost = page.lines().find_map(|line| line.strip_prefix(series)).unwrap();
    assert!(lost.parse::<usize>().unwrap() >= REQUESTS / 2, "{lost}");
    assert!(server.count() < REQUESTS / 2, "{}", server.count());
}

/// Whoever is turned away leaves a trace: forged credentials, borrowed names, missing rights, paths that mean two things.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_recorded() {
    let cluster = Cluster::with_files(|dir, config| to_log(dir, config, Some("rules: [{level: Metadata}]"))).await;
    for (id, path, header, code) in [
        ("forged", CONFIG_MAPS, "Authorization: Bearer eyJhbGciOiJub25lIn0.e30.", 401),
        ("borrowed", CONFIG_MAPS, "X-Remote-User: root", 403),
        ("climbing", CONFIG_MAPS, "Impersonate-User: system:admin", 403),
        ("curious", "/api/v1/secrets", "Authorization: Bearer ann-token", 403),
        ("crooked", "/api/v1/namespaces/default/secrets/..%2fx", "Authorization: Bearer ann-token", 400),
    ] {
        let audit_id = format!("Audit-Id: {id}");
        let (found, answer) = cluster.curl(path, &["--path-as-is", "-H", header, "-H", &audit_id]).await;
        assert_eq!(found, code, "{id}: {answer}");
        let recorded = of(&cluster, id);
        let last = recorded.last().unwrap_or_else(|| panic!("{id} left no trace"));
        assert_eq!(
            (&last["stage"], &last["responseStatus"]["code"]),
            (&json!("ResponseComplete"), &json!(code)),
            "{id}"
        );
    }
}
