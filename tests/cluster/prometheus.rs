//! Figures as dashboards look for them: a real Prometheus scrapes a cluster, and its own checker finds nothing to mend.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use base64::Engine;
use metrics::upstream::{Component, problems};

use crate::harness::{Cluster, run, said, with_input};
use crate::manifests::deployment;

/// What the nodes answer, below the proxy of the API server.
const OF_NODES: [&str; 5] = ["metrics", "metrics/cadvisor", "metrics/resource", "metrics/probes", "metrics/slis"];

/// Questions of imported dashboards and alerts that must find data.
const QUESTIONS: &[&str] = &[
    r#"sum by (pod) (container_memory_working_set_bytes{container="busy",image!=""}) > 0"#,
    r#"sum by (pod) (container_cpu_usage_seconds_total{cpu="total",container="busy",image!=""}) > 0"#,
    r#"container_spec_memory_limit_bytes{container="busy"} == 67108864"#,
    r#"container_cpu_cfs_periods_total{container="busy"} > 0"#,
    r#"container_spec_cpu_quota{container="busy"} == 10000"#,
    r#"container_network_receive_packets_total{interface="eth0",namespace="default"}"#,
    r#"container_processes{container="busy"} >= 1"#,
    r#"container_memory_rss{id="/"}"#,
    r#"container_fs_usage_bytes{id="/",device!=""}"#,
    r#"container_start_time_seconds{container="busy"} > 1e9"#,
    r#"machine_memory_bytes > 1e8"#,
    r#"kubelet_node_name{node="node-1"} == 1"#,
    r#"kubelet_running_pods > 0"#,
    r#"kubelet_desired_pods{static=""} > 0"#,
    r#"sum(kubelet_runtime_operations_total{operation_type="run_podsandbox"}) > 0"#,
    r#"histogram_quantile(0.99, sum by (le) (kubelet_pleg_relist_duration_seconds_bucket)) >= 0"#,
    r#"histogram_quantile(0.99, sum by (le) (kubelet_pod_worker_duration_seconds_bucket)) >= 0"#,
    r#"kubelet_pod_start_duration_seconds_count > 0"#,
    r#"kubelet_started_containers_total{container_type="container"} > 0"#,
    r#"kubelet_http_requests_total{path="metrics/cadvisor"} > 0"#,
    r#"kubelet_certificate_manager_client_ttl_seconds > 0"#,
    r#"prober_probe_total{container="busy",probe_type="Readiness",result="successful"} > 0"#,
    r#"node_cpu_usage_seconds_total > 0"#,
    r#"sum(apiserver_request_total{resource="pods"}) > 0"#,
    // What the rules of kube-prometheus ask the API server.
    r#"sum by (verb, scope, le) (increase(apiserver_request_sli_duration_seconds_bucket[1m])) >= 0"#,
    r#"histogram_quantile(0.01, sum by (le) (apiserver_client_certificate_expiration_seconds_bucket)) > 604800"#,
    r#"sum(apiserver_longrunning_requests{verb="WATCH",resource="pods"}) > 0"#,
    r#"histogram_quantile(0.99, sum by (le, operation) (etcd_request_duration_seconds_bucket)) >= 0"#,
    r#"apiserver_storage_size_bytes{storage_cluster_id="etcd-0"} > 0"#,
    r#"sum(apiserver_watch_events_total{resource="pods"}) > 0"#,
    r#"max(kubernetes_feature_enabled{name="WatchList"}) == 1"#,
    r#"kubernetes_healthcheck{name="etcd-readiness",type="readyz"} == 1"#,
    r#"kubernetes_healthcheck{name="syncloop",type="healthz"} == 1"#,
    r#"sum(rest_client_requests_total{job="/metrics"}) > 0"#,
    r#"sum(rest_client_requests_total{job="10250"}) > 0"#,
    r#"max by (instance) (kubernetes_build_info{job="10257"}) == 1"#,
    r#"sum(workqueue_adds_total{job="10257",name="deployment-controller"}) > 0"#,
    r#"histogram_quantile(0.99, sum by (le) (scheduler_scheduling_attempt_duration_seconds_bucket{job="10259"})) > 0"#,
    r#"histogram_quantile(0.9, sum by (le) (scheduler_scheduling_algorithm_duration_seconds_bucket{job="10259"})) > 0"#,
    r#"histogram_quantile(0.5, sum by (le) (scheduler_pod_scheduling_sli_duration_seconds_bucket{job="10259"})) > 0"#,
    // The proxy of a node, and its names.
    r#"sum(kubeproxy_sync_proxy_rules_duration_seconds_count{job="10249"}) > 0"#,
    r#"max by (ip_family) (kubeproxy_sync_proxy_rules_last_timestamp_seconds{job="10249"}) > 0"#,
    r#"coredns_build_info{job="dns"} == 1"#,
    r#"sum(coredns_cache_requests_total{job="dns"}) >= 0"#,
    r#"process_resident_memory_bytes{job="dns"} > 0"#,
    // And its dashboards of nodes.
    r#"sum(kubelet_cgroup_manager_duration_seconds_count{operation_type="create"}) > 0"#,
    r#"sum(storage_operation_duration_seconds_count{operation_name="volume_mount",status="success"}) > 0"#,
    r#"volume_manager_total_volumes{plugin_name="kubernetes.io/projected",state="desired_state_of_world"} > 0"#,
    r#"volume_manager_total_volumes{plugin_name="kubernetes.io/projected",state="actual_state_of_world"} > 0"#,
];

/// Ports of components that have one of their own: controller manager, scheduler, and the kubelet beside the way through the
/// API server.
const PORTS: [u16; 3] = [10257, 10259, 10250];

/// Names that the checker would rather see otherwise, and that every dashboard knows as they are.
const NAMED_BY_UPSTREAM: &[&str] = &[
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "kubelet_server_expiration_renew_errors",
    "authenticated_user_requests",
    "authentication_attempts",
    "cadvisor_version_info",
    "container_fs_inodes_total",
    "container_memory_failcnt",
    "kubelet_evictions",
    "kubelet_preemptions",
    "apiserver_admission_webhook_rejection_count",
    "apiserver_admission_webhook_fail_open_count",
    "attach_detach_controller_attachdetach_controller_forced_detaches",
    "endpoint_slice_controller_changes",
    "endpoint_slice_controller_syncs",
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    "node_ipam_controller_cidrset_allocation_tries_per_request",
    "node_ipam_controller_cidrset_cidrs_allocations_total",
    "node_ipam_controller_cidrset_cidrs_releases_total",
    "node_ipam_controller_cidrset_usage_cidrs",
    "node_ipam_controller_cirdset_max_cidrs",
];

#[test]
fn prometheus_finds_the_figures_of_dashboards() {
    let write = format!("http://{}/api/v1/write", Prometheus::ADDRESS);
    let cluster = Cluster::up_with(&[testkit::images::busybox], &["--history-remote-write-url", &write]);
    let busy = "
      containers:
      - name: busy
        image: busybox
        command: [sh, -c, 'while :; do :; done']
        readinessProbe: {exec: {command: ['true']}, periodSeconds: 1}
        resources: {limits: {cpu: 100m, memory: 64Mi}}";
    cluster.apply(&deployment("busy", 1, busy));
    cluster.kubectl("rollout status deployment busy --timeout=180s");

    // Somebody has to ask for the checks to be made.
    for path in ["/readyz", "/api/v1/nodes/node-1/proxy/healthz"] {
        cluster.kubectl_args(&["get", "--raw", path]);
    }
    let proxied = OF_NODES.map(|path| format!("/api/v1/nodes/node-1/proxy/{path}"));
    for path in proxied.iter().map(String::as_str).chain(["/metrics", "/metrics/slis"]) {
        let component = match path {
            "/metrics" => Some(Component::Apiserver),
            path if path.ends_with("/metrics") => Some(Component::Kubelet),
            path if path.ends_with("/metrics/cadvisor") => Some(Component::KubeletCadvisor),
            path if path.ends_with("/metrics/resource") => Some(Component::KubeletResources),
            path if path.ends_with("/metrics/probes") => Some(Component::KubeletProbes),
            path if path.ends_with("/metrics/slis") => Some(Component::Slis),
            _ => None,
        };
        the_page_is_whole(&cluster, path, component, || cluster.kubectl_args(&["get", "--raw", path]));
    }

    let prometheus = Prometheus::start(&cluster);
    let bearer = format!("Authorization: Bearer {}", std::fs::read_to_string(cluster.path("token")).unwrap());
    for (address, component) in [
        ("https://127.0.0.1:10257", Some(Component::ControllerManager)),
        ("https://127.0.0.1:10259", Some(Component::Scheduler)),
        // Some of its series move only with Services.
        ("http://127.0.0.1:10249", None),
    ] {
        // Once the collector's roles are known where the request is authorized.
        let ask = || {
            cluster.wait(&format!("metrics of {address}"), || {
                let mut command = cluster.host.command("curl");
                command.args(["-sk", "--max-time", "20", "-H", &bearer, &format!("{address}/metrics")]);
                let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
                text.contains("kubernetes_build_info{").then_some(text)
            })
        };
        the_page_is_whole(&cluster, address, component, ask);
    }
    for question in QUESTIONS {
        cluster.wait(question, || prometheus.has(&cluster, question).then_some(()));
    }
    // The cluster's own memory of the same.
    cluster.wait("the history of the node and of the pod", || {
        let told = cluster.kubectl_args(&["get", "--raw", "/cox/history?format=openmetrics"]);
        let has = |name: &str| told.contains(&format!("cox_history_cpu_cores{{name=\"{name}"));
        (has("node-1") && has("busy-")).then_some(())
    });
    // And what it told Prometheus of it by itself.
    for question in [
        r#"cox_history_cpu_cores{of="node",name="node-1"} > 0"#,
        r#"cox_history_memory_bytes{of="pod",namespace="default",name=~"busy-.*"} > 0"#,
        r#"cox_history_requests_per_second{of="component",name="kube-apiserver"} > 0"#,
    ] {
        cluster.wait(question, || prometheus.has(&cluster, question).then_some(()));
    }
    profiles_are_read_by_their_tools(&cluster);
    for page in ["statusz", "flagz"] {
        let text = cluster.kubectl_args(&["get", "--raw", &format!("/api/v1/nodes/node-1/proxy/{page}")]);
        assert!(text.trim_start().starts_with(&format!("kubelet {page}\nWarning: ")), "{text}");
    }
    let top = said(cluster.cox("top").arg("--once"));
    assert!(top.contains("node-1") && top.contains("default/busy-"), "{top}");
    // Once it has been throttled for long enough to say so.
    cluster.wait("what is wrong with the cluster", || {
        let why = said(cluster.cox("why").arg("cluster"));
        (why.contains("a container is held back by its limit of CPU") && !why.contains("not seen")).then_some(())
    });
    // A scrape has a second, which a busy machine may need longer than now and then.
    let all_up = "count(up == 1) == 12";
    cluster.wait(all_up, || prometheus.has(&cluster, all_up).then_some(()));
}

/// A page has every series of its component, once each has been moved, and the checker is content with it.
fn the_page_is_whole(cluster: &Cluster, page: &str, component: Option<Component>, ask: impl Fn() -> String) {
    let mut last = Vec::new();
    let text = cluster.wait(&format!("all series of {page}"), || {
        let text = ask();
        let wrong = component.map(|component| problems(component, &text)).unwrap_or_default();
        let wrong: Vec<String> = wrong.into_iter().filter(|of| !is_for_others(of)).collect();
        if wrong.is_empty() {
            return Some(text);
        }
        if wrong != last {
            eprintln!("{page}: {wrong:#?}");
            last = wrong;
        }
        None
    });
    the_checker_is_content(page, &text);
}

/// Prometheus' own checker finds nothing in a page that upstream would not have so too.
fn the_checker_is_content(page: &str, text: &str) {
    let checked = with_input(std::process::Command::new("promtool").args(["check", "metrics"]), text);
    let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    let is_upstreams = |line: &&str| NAMED_BY_UPSTREAM.iter().any(|name| line.split(' ').next() == Some(name));
    let unknown: Vec<&str> = said.lines().filter(|line| !is_upstreams(line)).collect();
    assert!(unknown.is_empty(), "{page}: {unknown:#?}");
}

/// Of the server and of a node, through the API.
fn profiles_are_read_by_their_tools(cluster: &Cluster) {
    for path in [
        "/debug/pprof/profile?seconds=2",
        "/debug/pprof/heap?seconds=2",
        "/api/v1/nodes/node-1/proxy/debug/pprof/profile?seconds=1",
    ] {
        let output = cluster.cox("kubectl").args(["get", "--raw", path]).output().unwrap();
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        let plain = run_with_bytes("gzip", &["-dc"], &output.stdout);
        // Every profile says what it counts, and of which program.
        let has = |text: &str| plain.windows(text.len()).any(|window| window == text.as_bytes());
        assert!(has("count") && has("/cox"), "{path}");
    }
}

fn run_with_bytes(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (output, ()) = std::thread::scope(|scope| {
        let writing = scope.spawn(move || stdin.write_all(input).unwrap());
        (child.wait_with_output().unwrap(), writing.join().unwrap())
    });
    assert!(output.status.success());
    output.stdout
}

/// Series that nothing in this cluster moves: tests of the API server do.
fn is_for_others(problem: &str) -> bool {
    // A kubelet lists a second time only after a minute.
    ["apiserver_requested_deprecated_apis ", "kubelet_pleg_relist_interval_seconds "]
        .iter()
        .any(|start| problem.starts_with(start))
}

struct Prometheus(Child);

impl Prometheus {
    const ADDRESS: &str = "127.0.0.1:9090";

    fn start(cluster: &Cluster) -> Self {
        let view =
            |path: &str| cluster.kubectl_args(&["config", "view", "--raw", "-o", &format!("jsonpath={{{path}}}")]);
        let save = |name: &str, data: &str| {
            let decoded = base64::engine::general_purpose::STANDARD.decode(data).unwrap();
            let path = cluster.path(name);
            std::fs::File::create(&path).unwrap().write_all(&decoded).unwrap();
            path.display().to_string()
        };
        let ca = save("ca.crt", &view(".clusters[0].cluster.certificate-authority-data"));
        let cert = save("client.crt", &view(".users[0].user.client-certificate-data"));
        let key = save("client.key", &view(".users[0].user.client-key-data"));
        let server = view(".clusters[0].cluster.server");
        let job = |path: &str| {
            format!(
                "- job_name: '{path}'\n  scheme: https\n  metrics_path: '{path}'\n  \
                 tls_config: {{ca_file: {ca}, cert_file: {cert}, key_file: {key}}}\n  \
                 static_configs: [{{targets: ['{}']}}]\n",
                server.trim_start_matches("https://"),
            )
        };
        let mut text = "global: {scrape_interval: 1s}\nscrape_configs:\n".to_owned();
        OF_NODES.iter().for_each(|path| text += &job(&format!("/api/v1/nodes/node-1/proxy/{path}")));
        text += &(job("/metrics") + &job("/metrics/slis"));
        cluster.kubectl("create serviceaccount collector");
        for (name, of) in [("pages", "--non-resource-url=/metrics"), ("nodes", "--resource=nodes/metrics")] {
            cluster.kubectl(&format!("create clusterrole {name} --verb=get {of}"));
            let binding = format!("create clusterrolebinding {name} --clusterrole={name}");
            cluster.kubectl(&format!("{binding} --serviceaccount=default:collector"));
        }
        let token = cluster.path("token");
        std::fs::write(&token, cluster.kubectl("create token collector").trim()).unwrap();
        for port in PORTS {
            text += &format!(
                "- job_name: '{port}'\n  scheme: https\n  authorization: {{credentials_file: {}}}\n  \
                 tls_config: {{insecure_skip_verify: true}}\n  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n",
                token.display(),
            );
        }
        // As a collector finds it that looks for the port `metrics` of the service.
        let dns = "get service kube-dns -n kube-system -o";
        let address = cluster.kubectl(&format!("{dns} jsonpath={{.spec.clusterIP}}"));
        let port = cluster.kubectl(&format!("{dns} jsonpath={{.spec.ports[?(@.name==\"metrics\")].port}}"));
        for (job, target) in
            [("10249", "127.0.0.1:10249".to_owned()), ("dns", format!("{}:{}", address.trim(), port.trim()))]
        {
            text += &format!("- job_name: '{job}'\n  static_configs: [{{targets: ['{target}']}}]\n");
        }
        let file = cluster.path("prometheus.yaml");
        std::fs::write(&file, text).unwrap();
        run(std::process::Command::new("promtool").args(["check", "config"]).arg(&file));
        let mut command = cluster.host.command("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", cluster.path("prometheus").display()));
        command.arg(format!("--web.listen-address={}", Self::ADDRESS)).arg("--web.enable-remote-write-receiver");
        Prometheus(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn ask(&self, cluster: &Cluster, question: &str) -> String {
        let mut command = cluster.host.command("curl");
        command.args(["-s", "--get", "--max-time", "20", "--data-urlencode"]).arg(format!("query={question}"));
        let output = command.arg(format!("http://{}/api/v1/query", Self::ADDRESS)).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn has(&self, cluster: &Cluster, question: &str) -> bool {
        let answer = self.ask(cluster, question);
        let found = answer.contains(r#""status":"success""#) && answer.contains(r#""value":"#);
        if !found {
            std::thread::sleep(Duration::from_millis(200));
        }
        found
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
