//! Containers from start to end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use cri::v1;

use crate::node::World;

fn http_get(address: &str) -> String {
    for _ in 0..500 {
        if let Ok(mut stream) = TcpStream::connect(address) {
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{address} does not answer");
}

pub async fn nginx_answers(world: Arc<World>) {
    let node = world.node().await;
    let id = node.pull("nginx").await;
    assert_eq!(id, world.nginx.id());
    let (sandbox, container) = node.run("web", "nginx", &[]).await;
    let ip = node.ip(&sandbox).await;
    assert!(http_get(&format!("{ip}:80")).contains("Welcome to nginx!"));
    assert_eq!(node.status(&container).await.state(), v1::ContainerState::ContainerRunning);
    node.stop_container(&container, 10).await;
    let status = node.exited(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"), "SIGQUIT ends nginx gracefully");
    assert!(node.log("web").iter().any(|(stream, _, text)| stream == "stdout" && text.contains("GET /")));
    node.remove_sandbox(&sandbox).await;
}

pub async fn exec_sees_the_container(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let (sandbox, container) = node.run("shell", "busybox", &["sleep", "1000"]).await;
    for (script, expected) in [
        ("hostname", "shell\n"),
        ("cat /etc/hostname", "shell\n"),
        ("id -u", "0\n"),
        ("cat /proc/1/comm", "sleep\n"),
        ("cat /etc/resolv.conf", "search default.svc.cluster.local\nnameserver 10.43.0.10\noptions ndots:5\n"),
        ("echo hello > /x && cat /x", "hello\n"),
        ("ls /proc/self/fd | wc -l", "4\n"),
        ("cat /proc/self/oom_score_adj | wc -l", "1\n"),
        ("(echo x > /proc/sys/kernel/hostname) 2>/dev/null || echo read-only", "read-only\n"),
        ("mount | grep -c ' / '", "1\n"),
    ] {
        assert_eq!(node.sh(&container, script).await, expected, "{script}");
    }
    let failed = node.try_exec(&container, &["sh", "-c", "echo oops >&2; exit 3"], 0).await.unwrap();
    assert_eq!((failed.exit_code, failed.stderr.as_slice()), (3, &b"oops\n"[..]));
    let missing = node.try_exec(&container, &["no-such-program"], 0).await.unwrap_err();
    assert!(missing.message().contains("executable file not found in $PATH"), "{missing}");
    let slow = node.try_exec(&container, &["sleep", "100"], 1).await.unwrap_err();
    assert_eq!(slow.code(), cri::tonic::Code::DeadlineExceeded);
    assert_eq!(
        node.sh(&container, "ps | grep -c '[s]leep 100$' || true").await,
        "0\n",
        "a timed-out command is killed"
    );
    node.remove_sandbox(&sandbox).await;
}

pub async fn logs_and_exit_codes(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let script =
        "echo one; echo two >&2; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; printf tail; exit 42";
    let (sandbox, container) = node.run("talk", "busybox", &["sh", "-c", script]).await;
    let status = node.exited(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (42, "Error"));
    assert!(status.finished_at >= status.started_at && status.started_at >= status.created_at);
    let log = node.log("talk");
    assert_eq!(log.len(), 2003);
    assert!(log.contains(&("stderr".into(), "F".into(), "two".into())));
    let out: Vec<&str> = log.iter().filter(|l| l.0 == "stdout").map(|l| l.2.as_str()).collect();
    assert_eq!((out[0], out[1], out[2000], out[2001]), ("one", "line 0", "line 1999", "tail"));
    assert_eq!(log.last().map(|l| l.1.as_str()), Some("P"), "no newline at the end");
    let pod = node.pod_config("talk");
    let config = node.container_config("bad", "busybox", &["/nope"]);
    let bad = node.create(&sandbox, &pod, config).await.unwrap();
    let error = node.start_container(&bad).await.unwrap_err();
    assert!(error.message().contains("stat /nope: no such file or directory"), "{error}");
    let status = node.exited(&bad).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    node.remove_sandbox(&sandbox).await;
}
