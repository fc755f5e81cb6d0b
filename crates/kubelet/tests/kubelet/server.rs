//! The kubelet's own API.

use serde_json::{Value, json};

use crate::node::{Node, is_ready, shell};

/// Walk 7.4.
pub(crate) async fn server_answers_logs_exec_and_stats(node: &mut Node) {
    node.create(
        "talks",
        json!({"containers": [{"name": "c", "command": shell("echo one; echo two; exec sleep 1000")}]}),
    )
    .await;
    let pod = node.wait("talks", "ready", is_ready).await;
    node.wait_log(&pod, "c", |log| log.lines().count() == 2).await;
    let port = node.port().await;
    for (path, expected) in [
        ("containerLogs/default/talks/c", "one\ntwo\n"),
        ("containerLogs/default/talks/c?tailLines=1", "two\n"),
        ("containerLogs/default/talks/c?limitBytes=3", "one"),
        ("healthz", "ok"),
    ] {
        assert_eq!(get(port, path).await, expected, "{path}");
    }
    assert!(
        get(port, "containerLogs/default/talks/c?previous=true")
            .await
            .contains("previous terminated container \"c\" in pod \"talks\" not found")
    );
    assert!(get(port, "pods").await.contains("\"talks\""));
    // Not every kernel measures it.
    let has_pressure = std::fs::read_to_string("/sys/fs/cgroup/cpu.pressure").is_ok();
    for (query, has, pressures) in [
        ("", [true, true], [true, true, true]),
        ("?without_files=true", [true, false], [false, false, false]),
        ("?only_cpu_and_memory=true", [false, false], [true, true, false]),
        ("?only_cpu_and_memory=true&without_pressure=true", [false, false], [false, false, false]),
    ] {
        let summary: Value = serde_json::from_str(&get(port, &format!("stats/summary{query}")).await).unwrap();
        let pods = summary["pods"].as_array().unwrap();
        let pod = pods.iter().find(|pod| pod["podRef"]["name"] == "talks").unwrap_or_else(|| panic!("{summary}"));
        let container = &pod["containers"][0];
        assert!(container["cpu"]["usageCoreNanoSeconds"].is_u64(), "{query}: {summary}");
        assert!(container["memory"]["workingSetBytes"].is_u64(), "{query}: {summary}");
        for of in [&summary["node"], pod, container] {
            assert!(
                of["cpu"]["usageCoreNanoSeconds"].is_u64() && of["cpu"]["usageNanoCores"].is_u64(),
                "{query}: {of}"
            );
        }
        let system: Vec<&Value> = summary["node"]["systemContainers"].as_array().into_iter().flatten().collect();
        let is_upstreams = !query.contains("without");
        assert_eq!(system.iter().any(|of| of["name"] == "pods"), is_upstreams, "{query}: {summary}");
        assert!(system.iter().all(|of| of["cpu"]["usageCoreNanoSeconds"].is_u64()), "{query}: {summary}");
        assert_eq!(summary["node"]["rlimit"]["maxpid"].is_u64(), query.is_empty(), "{query}: {summary}");
        let found = [summary["node"]["fs"].is_object(), container["logs"].is_object()];
        assert_eq!(found, has, "{query}: {summary}");
        for of in [&summary["node"], pod, container] {
            let told = ["cpu", "memory", "io"].map(|resource| of[resource]["psi"]["some"]["total"].is_u64());
            assert_eq!(told, pressures.map(|told| told && has_pressure), "{query}: {summary}");
        }
    }
    assert!(get(port, "metrics/resource").await.contains("container_memory_working_set_bytes{container=\"c\""));
    let run = curl(&["-X", "POST", &format!("https://127.0.0.1:{port}/run/default/talks/c?cmd=echo%20hi")]).await;
    assert_eq!(run, "hi\n");
}

/// More than there are places.
const SILENT: usize = 1200;

pub(crate) async fn security_silent_connections_take_nothing_from_the_kubelet(node: &mut Node) {
    node.create("quiet", json!({"containers": [{"name": "c", "command": shell("exec sleep 1000")}]})).await;
    node.wait("quiet", "ready", is_ready).await;
    let port = node.port().await;
    let mut silent = Vec::new();
    for _ in 0..SILENT {
        silent.push(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap());
    }
    assert_eq!(get(port, "healthz").await, "ok");
    assert!(get(port, "pods").await.contains("\"quiet\""));
}

pub(crate) async fn get(port: u16, path: &str) -> String {
    curl(&[&format!("https://127.0.0.1:{port}/{path}")]).await
}

async fn curl(arguments: &[&str]) -> String {
    let output =
        tokio::process::Command::new("curl").args(["-sk", "--max-time", "20"]).args(arguments).output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}
