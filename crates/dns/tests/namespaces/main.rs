//! The server as real clients see it: `dig`, glibc and busybox, in a network namespace of the test's own.
#![allow(clippy::unwrap_used)]

#[path = "../../../proxy/tests/namespaces/api.rs"]
mod api;

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use api::FakeApi;

const DEADLINE: Duration = Duration::from_secs(20);
/// Where the server is, in both families.
const SERVERS: [&str; 2] = ["127.0.0.1", "::1"];

fn named(kind: &str, name: &str, labels: Value) -> Value {
    let version = if kind == "EndpointSlice" { "discovery.k8s.io/v1" } else { "v1" };
    let namespace = if kind == "Namespace" { Value::Null } else { json!("ns") };
    let metadata = json!({"name": name, "namespace": namespace, "uid": name, "labels": labels});
    json!({"apiVersion": version, "kind": kind, "metadata": metadata})
}

fn service(name: &str, spec: Value) -> Value {
    let mut service = named("Service", name, json!({}));
    service["spec"] = spec;
    service
}

fn slice(service: &str, port: (&str, u16), endpoints: Value) -> Value {
    let mut slice = named("EndpointSlice", service, json!({"kubernetes.io/service-name": service}));
    let is_v6 = endpoints[0]["addresses"][0].as_str().unwrap().contains(':');
    slice["addressType"] = json!(if is_v6 { "IPv6" } else { "IPv4" });
    slice["ports"] = json!([{"name": port.0, "port": port.1, "protocol": "TCP"}]);
    slice["endpoints"] = endpoints;
    slice
}

fn cluster() -> FakeApi {
    let api = FakeApi::default();
    api.put("namespaces", named("Namespace", "ns", json!({})));
    api.put(
        "services",
        service(
            "web",
            json!({"clusterIP": "10.43.0.9", "clusterIPs": ["10.43.0.9"], "ports": [{"name": "http", "port": 80}]}),
        ),
    );
    api.put("services", service("db", json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]})));
    api.put("services", service("ext", json!({"type": "ExternalName", "externalName": "foo.example.com"})));
    api.put("services", service("many", json!({"clusterIP": "None", "ports": [{"name": "x", "port": 1}]})));
    api.put(
        "endpointslices",
        slice(
            "db",
            ("pg", 5432),
            json!([{"addresses": ["10.42.0.2"], "hostname": "db-0"}, {"addresses": ["10.42.0.3"]}]),
        ),
    );
    // The same in the other family.
    api.put(
        "services",
        service(
            "web6",
            json!({"clusterIP": "fd43::9", "clusterIPs": ["fd43::9"], "ports": [{"name": "http", "port": 80}]}),
        ),
    );
    api.put("services", service("db6", json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]})));
    api.put(
        "endpointslices",
        slice("db6", ("pg", 5432), json!([{"addresses": ["fd42::2"], "hostname": "db-0"}, {"addresses": ["fd42::3"]}])),
    );
    let many: Vec<Value> = (1..=200).map(|i| json!({"addresses": [format!("10.42.7.{i}")]})).collect();
    api.put("endpointslices", slice("many", ("x", 1), json!(many)));
    api
}

/// A resolver that knows one name, with addresses that begin like this, counting what it is asked.
fn resolver_of(known: &'static str, network: [u8; 3]) -> SocketAddr {
    resolver_at("127.0.0.2", known, network)
}

fn resolver_at(address: &str, known: &'static str, network: [u8; 3]) -> SocketAddr {
    let socket = UdpSocket::bind((address, 0)).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        let mut asked = 0u8;
        while let Ok((length, client)) = socket.recv_from(&mut buffer) {
            let request = Message::from_vec(&buffer[..length]).unwrap();
            let mut response = Message::response(request.metadata.id, request.metadata.op_code);
            response.add_queries(request.queries.iter().cloned());
            let question = &request.queries[0];
            if question.name().to_ascii().to_lowercase() == known {
                asked += 1;
                // The last byte tells how often it was asked: the cache must keep it at one.
                let [a, b, c] = network;
                let data = RData::A(A(Ipv4Addr::new(a, b, c, asked)));
                response.add_answer(Record::from_rdata(question.name().clone(), 60, data));
            } else {
                response.metadata.response_code = ResponseCode::NXDomain;
            }
            socket.send_to(&response.to_vec().unwrap(), client).unwrap();
        }
    });
    address
}

fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

thread_local! {
    static QUESTIONS: Cell<usize> = const { Cell::new(0) };
}

/// Asks over both families in turn, or in that of the address that a question is to come from.
fn dig(arguments: &str) -> String {
    let number = QUESTIONS.replace(QUESTIONS.get() + 1);
    let server = if arguments.contains("-b ") { SERVERS[0] } else { SERVERS[number % 2] };
    let at = format!("@{server}");
    let mut all = vec![at.as_str(), "+tries=1", "+time=3"];
    all.extend(arguments.split_whitespace());
    run("dig", &all)
}

fn short(arguments: &str) -> String {
    let text = dig(&format!("+short {arguments}"));
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort();
    lines.join(" | ")
}

/// Runs a test beside a server on port 53 of both loopback addresses of its own namespace.
fn with_server(test: impl FnOnce(&FakeApi) + Send + 'static) {
    let inside = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let socket = netlink::Socket::open().unwrap();
        let lo = socket.link("lo").unwrap().unwrap().index;
        socket.set_up(lo).unwrap();
        // glibc leaves out families of which the host has no address but the loopback's.
        for address in ["192.0.2.99/32", "2001:db8::53/128"] {
            socket.add_own_address(lo, address.parse().unwrap()).unwrap();
        }
        let api = cluster();
        let own = SERVERS.map(|server| SocketAddr::new(server.parse().unwrap(), 53));
        let mut config = dns::Config::new(api.client(), own.into());
        // Itself among them: it must not go round in circles.
        let upstream = resolver_of("foo.example.com.", [192, 0, 2]);
        config.upstreams = vec!["127.0.0.1:53".parse().unwrap(), upstream];
        // A domain within another has its own, and so has the other.
        let corp = resolver_of("www.corp.test.", [198, 51, 100]);
        let lab = resolver_at("2001:db8::53", "www.lab.corp.test.", [203, 0, 113]);
        config.stub_domains = vec![("corp.test".into(), vec![corp]), ("lab.corp.test".into(), vec![lab])];
        config.health_bind_address = Some("127.0.0.1:8181".parse().unwrap());
        config.metrics_bind_address = Some("127.0.0.1:9153".parse().unwrap());
        config.corefile = Some(("kube-system".into(), "coredns".into()));
        config.ranges = ["10.42.0.0/16", "10.43.0.0/16", "fd42::/56", "fd43::/112"].map(str::to_owned).into();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(dns::run(config, stopped)).unwrap();
        });
        let deadline = Instant::now() + DEADLINE;
        while short("dns-version.cluster.local TXT") != "\"1.1.0\"" {
            assert!(Instant::now() < deadline, "the server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        test(&api);
        stop.cancel();
        server.join().unwrap();
    });
    if let Err(panic) = inside.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Walk 11.3.
#[test]
fn dig_sees_the_specification() {
    with_server(|api| {
        for transport in ["+notcp", "+tcp"] {
            for (question, expected) in [
                ("web.ns.svc.cluster.local A", "10.43.0.9"),
                ("web.ns.svc.cluster.local AAAA", ""),
                ("_http._tcp.web.ns.svc.cluster.local SRV", "0 100 80 web.ns.svc.cluster.local."),
                ("db.ns.svc.cluster.local A", "10.42.0.2 | 10.42.0.3"),
                (
                    "_pg._tcp.db.ns.svc.cluster.local SRV",
                    "0 50 5432 10-42-0-3.db.ns.svc.cluster.local. | 0 50 5432 db-0.db.ns.svc.cluster.local.",
                ),
                ("db-0.db.ns.svc.cluster.local A", "10.42.0.2"),
                ("10-42-0-2.ns.pod.cluster.local A", "10.42.0.2"),
                ("web6.ns.svc.cluster.local A", ""),
                ("web6.ns.svc.cluster.local AAAA", "fd43::9"),
                ("_http._tcp.web6.ns.svc.cluster.local SRV", "0 100 80 web6.ns.svc.cluster.local."),
                ("db6.ns.svc.cluster.local AAAA", "fd42::2 | fd42::3"),
                (
                    "_pg._tcp.db6.ns.svc.cluster.local SRV",
                    "0 50 5432 db-0.db6.ns.svc.cluster.local. | 0 50 5432 fd42--3.db6.ns.svc.cluster.local.",
                ),
                ("db-0.db6.ns.svc.cluster.local AAAA", "fd42::2"),
                ("fd42--2.ns.pod.cluster.local AAAA", "fd42::2"),
                ("-x fd43::9", "web6.ns.svc.cluster.local."),
                ("-x fd42::2", "db-0.db6.ns.svc.cluster.local."),
                ("-x 10.43.0.9", "web.ns.svc.cluster.local."),
                ("-x 10.42.0.2", "db-0.db.ns.svc.cluster.local."),
                ("foo.example.com A", "192.0.2.1"),
                ("www.corp.test A", "198.51.100.1"),
                ("www.lab.corp.test A", "203.0.113.1"),
                ("ext.ns.svc.cluster.local A", "192.0.2.1 | foo.example.com."),
                ("ext.ns.svc.cluster.local CNAME", "foo.example.com."),
            ] {
                assert_eq!(short(&format!("{transport} {question}")), expected, "{transport} {question}");
            }
        }
        for (question, status) in [
            ("web.ns.svc.cluster.local AAAA", "NOERROR"),
            ("none.ns.svc.cluster.local A", "NXDOMAIN"),
            ("-x 10.42.9.9", "NXDOMAIN"),
            ("web6.ns.svc.cluster.local A", "NOERROR"),
            ("-x fd42::99", "NXDOMAIN"),
            ("bar.example.com A", "NXDOMAIN"),
            ("foo.corp.test A", "NXDOMAIN"),
            ("web.ns.svc.cluster.local A CH", "REFUSED"),
            ("+opcode=status web.ns.svc.cluster.local A", "NOTIMP"),
            ("+edns=1 +noednsnegotiation web.ns.svc.cluster.local A", "BADVERS"),
        ] {
            let answer = dig(question);
            assert!(answer.contains(&format!("status: {status}")), "{question}: {answer}");
        }
        // Negative answers say how long they hold, and positive ones too.
        assert!(dig("none.ns.svc.cluster.local A").contains("cluster.local.\t\t5\tIN\tSOA\tns.dns.cluster.local."));
        let answer = dig("+noall +answer web.ns.svc.cluster.local A");
        assert_eq!(answer.split_whitespace().skip(1).collect::<Vec<_>>(), ["30", "IN", "A", "10.43.0.9"]);
        // Two hundred addresses do not fit a packet: truncated, then whole over TCP.
        let cut = dig("+ignore +noedns many.ns.svc.cluster.local A");
        assert!(cut.contains("flags: qr aa tc rd ra"), "{cut}");
        assert_eq!(short("+noedns many.ns.svc.cluster.local A").split(" | ").count(), 200);
        // The type of a service changes, and its name with it.
        api.put(
            "services",
            service("ext", json!({"type": "ClusterIP", "clusterIP": "10.43.0.77", "clusterIPs": ["10.43.0.77"]})),
        );
        let deadline = Instant::now() + DEADLINE;
        while short("ext.ns.svc.cluster.local A") != "10.43.0.77" {
            assert!(Instant::now() < deadline, "{}", short("ext.ns.svc.cluster.local A"));
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

#[test]
fn resolvers_find_short_names() {
    with_server(|_| {
        let conf = SERVERS.map(|server| {
            let conf = tempfile::NamedTempFile::new().unwrap();
            let search = "ns.svc.cluster.local svc.cluster.local cluster.local";
            std::fs::write(conf.path(), format!("nameserver {server}\nsearch {search}\noptions ndots:5\n")).unwrap();
            conf
        });
        for (command, expected) in [
            ("getent ahostsv4 web", "10.43.0.9"),
            ("getent ahostsv4 web.ns", "10.43.0.9"),
            ("getent ahostsv4 web.ns.svc", "10.43.0.9"),
            ("getent hosts 10.43.0.9", "web.ns.svc.cluster.local"),
            ("getent ahostsv4 foo.example.com", "192.0.2.1"),
            ("getent ahostsv6 web6", "fd43::9"),
            ("getent ahostsv6 web6.ns", "fd43::9"),
            ("getent hosts fd43::9", "web6.ns.svc.cluster.local"),
            ("busybox nslookup web.ns.svc.cluster.local", "10.43.0.9"),
            ("busybox nslookup 10.43.0.9", "web.ns.svc.cluster.local"),
            ("busybox nslookup -type=srv _http._tcp.web.ns.svc.cluster.local", "web.ns.svc.cluster.local"),
            ("busybox nslookup foo.example.com", "192.0.2.1"),
            ("dig +search +short web A", "10.43.0.9"),
            ("dig +search +short web6 AAAA", "fd43::9"),
        ] {
            // Not every busybox asks servers of the other family.
            let asked = if command.starts_with("busybox") { &conf[..1] } else { &conf[..] };
            for conf in asked {
                let mount = format!("mount --bind {} /etc/resolv.conf", conf.path().display());
                let answer = run("unshare", &["--mount", "sh", "-c", &format!("{mount} && {command}")]);
                assert!(answer.contains(expected), "{command}: {answer}");
            }
        }
    });
}

/// Asks until the answer is the expected one.
fn until_short(question: &str, expected: &str) {
    let deadline = Instant::now() + DEADLINE;
    while short(question) != expected {
        assert!(Instant::now() < deadline, "{question}: {}, not {expected}", short(question));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_corefile_says_how_names_are_answered() {
    with_server(|api| {
        let put = |corefile: &str| {
            let mut map = named("ConfigMap", "coredns", json!({}));
            map["metadata"]["namespace"] = json!("kube-system");
            map["data"] = json!({"Corefile": corefile, "NodeHosts": "192.0.2.20 node-1\n"});
            api.put("configmaps", map);
        };
        let lab = resolver_at("2001:db8::53", "www.lab.test.", [203, 0, 113]);
        put(&format!(
            r#"
            .:53 {{
                errors
                log
                hosts /etc/coredns/NodeHosts {{
                    192.0.2.21 host.test
                    2001:db8::21 host.test
                    fallthrough
                }}
                rewrite name suffix .corp.example .svc.cluster.local
                rewrite name lab.example www.lab.test
                template IN A ip.test {{
                    match "^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)[.]ip[.]test[.]$"
                    answer "{{{{ .Name }}}} 60 IN A 192.0.{{{{ .Group.a }}}}.{{{{ .Group.b }}}}"
                }}
                kubernetes cluster.local in-addr.arpa ip6.arpa {{
                    pods verified
                    ttl 7
                    fallthrough in-addr.arpa ip6.arpa
                }}
                forward lab.test {lab}
                forward . /etc/resolv.conf
                cache 30
                loadbalance
            }}
            closed.test {{
                errors
            }}"#
        ));
        let mut pod = named("Pod", "p", json!({}));
        pod["status"] = json!({"podIPs": [{"ip": "10.42.0.2"}, {"ip": "fd42::2"}]});
        api.put("pods", pod);
        until_short("host.test A", "192.0.2.21");
        until_short("10-42-0-2.ns.pod.cluster.local A", "10.42.0.2");
        until_short("fd42--2.ns.pod.cluster.local AAAA", "fd42::2");
        for transport in ["+notcp", "+tcp"] {
            for (question, expected) in [
                ("node-1 A", "192.0.2.20"),
                ("host.test AAAA", "2001:db8::21"),
                ("-x 2001:db8::21", "host.test."),
                ("web6.ns.corp.example AAAA", "fd43::9"),
                ("fd42--9.ns.pod.cluster.local AAAA", ""),
                ("-x 192.0.2.20", "node-1."),
                ("ip-2-77.ip.test A", "192.0.2.77"),
                ("web.ns.corp.example A", "10.43.0.9"),
                ("lab.example A", "203.0.113.1"),
                ("web.ns.svc.cluster.local A", "10.43.0.9"),
                ("10-42-0-9.ns.pod.cluster.local A", ""),
                ("www.corp.test A", ""),
                ("foo.example.com A", "192.0.2.1"),
            ] {
                assert_eq!(short(&format!("{transport} {question}")), expected, "{transport} {question}");
            }
        }
        // Answers are told under the name that was asked for, by our own rules.
        let answer = dig("+noall +answer Lab.Example A");
        assert_eq!(answer.split_whitespace().next(), Some("Lab.Example."), "{answer}");
        let answer = dig("+noall +answer web.ns.corp.example A");
        assert_eq!(answer.split_whitespace().take(2).collect::<Vec<_>>(), ["web.ns.corp.example.", "7"], "{answer}");
        assert!(dig("x.closed.test A").contains("status: REFUSED"));
        // One that cannot be used changes nothing, and one after it is used again.
        put(". {\n whoami\n}");
        let failed = || run("curl", &["-s", "http://127.0.0.1:9153/metrics"]).contains("coredns_reload_failed_total 1");
        let deadline = Instant::now() + DEADLINE;
        while !failed() {
            assert!(Instant::now() < deadline, "nobody has told of the Corefile that cannot be used");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(short("host.test A"), "192.0.2.21");
        put(". {\n hosts {\n 192.0.2.22 host.test\n }\n}");
        until_short("host.test A", "192.0.2.22");
        assert!(dig("other.test A").contains("status: SERVFAIL"));
        // Without any, flags hold.
        api.delete("configmaps", "coredns");
        until_short("www.corp.test A", "198.51.100.1");
        assert_eq!(short("10-42-0-9.ns.pod.cluster.local A"), "10.42.0.9");
    });
}

#[test]
fn zones_are_transferred_and_search_paths_walked() {
    with_server(|api| {
        let mut map = named("ConfigMap", "coredns", json!({}));
        map["metadata"]["namespace"] = json!("kube-system");
        let corefile = ".:53 {
            autopath @kubernetes
            transfer cluster.local {
                to 192.0.2.99
            }
            kubernetes cluster.local {
                pods verified
            }
            forward . /etc/resolv.conf
            cache 30
        }";
        map["data"] = json!({"Corefile": corefile});
        // Those who ask from here are a pod of `ns`.
        let mut pod = named("Pod", "p", json!({}));
        pod["status"] = json!({"podIPs": [{"ip": "127.0.0.1"}, {"ip": "::1"}]});
        api.put("pods", pod);
        api.put("configmaps", map);
        until_short("foo.example.com.ns.svc.cluster.local A", "192.0.2.1 | foo.example.com.");
        let answer = dig("+noall +answer +nottlid web.ns.ns.svc.cluster.local A");
        let words: Vec<&str> = answer.split_whitespace().collect();
        let expected = ["web.ns.ns.svc.cluster.local.", "IN", "CNAME", "web.ns.svc.cluster.local."];
        assert_eq!(words[..4], expected, "{answer}");
        // From another address, and for another pod, nothing is walked.
        assert_eq!(short("-b 192.0.2.99 foo.example.com.ns.svc.cluster.local A"), "");
        assert_eq!(short("foo.example.com.other.svc.cluster.local A"), "");
        assert_eq!(short("foo.example.com A"), "192.0.2.1");

        let zone = dig("-b 192.0.2.99 +onesoa cluster.local AXFR");
        for record in [
            "web.ns.svc.cluster.local.",
            "db-0.db.ns.svc.cluster.local.",
            "_pg._tcp.db.ns.svc.cluster.local.",
            "10-42-7-200.many.ns.svc.cluster.local.",
        ] {
            assert!(zone.lines().any(|line| line.starts_with(record)), "{record} in\n{zone}");
        }
        // More than one message has room for.
        assert!(
            zone.contains("messages") && zone.lines().filter(|line| line.contains("many.ns")).count() >= 400,
            "{zone}"
        );
        assert!(dig("cluster.local AXFR").contains("Transfer failed"));
        assert!(dig("-b 192.0.2.99 ns.svc.cluster.local AXFR").contains("Transfer failed"));
    });
}

#[test]
fn health_and_metrics_have_corednss_names() {
    with_server(|_| {
        let ask = |url: &str| run("curl", &["-s", "-w", " %{http_code}", url]);
        assert_eq!(ask("http://127.0.0.1:8181/health"), "OK 200");
        assert_eq!(ask("http://127.0.0.1:8181/ready"), "OK 200");
        assert!(ask("http://127.0.0.1:8181/nothing").ends_with("404"));
        short("web.ns.svc.cluster.local A");
        short("none.ns.svc.cluster.local A");
        short("+tcp foo.example.com A");
        let text = ask("http://127.0.0.1:9153/metrics");
        for name in [
            "coredns_dns_requests_total{",
            "coredns_dns_responses_total{",
            "rcode=\"NXDOMAIN\"",
            "proto=\"tcp\"",
            "coredns_dns_request_duration_seconds_bucket{",
            "coredns_cache_misses_total",
            "coredns_cache_requests_total",
            "process_resident_memory_bytes",
            "coredns_proxy_request_duration_seconds",
        ] {
            assert!(text.contains(name), "{name} in\n{text}");
        }
    });
}

#[test]
fn security_one_client_does_not_take_all_connections() {
    with_server(|_| {
        let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect((SERVERS[0], 53)).unwrap()).collect();
        assert_eq!(short("-b 127.0.0.5 +tcp web.ns.svc.cluster.local A"), "10.43.0.9");
        drop(silent);
        let is_free = || short("-b 127.0.0.1 +tcp web.ns.svc.cluster.local A") == "10.43.0.9";
        let deadline = Instant::now() + DEADLINE;
        while !is_free() {
            assert!(Instant::now() < deadline, "connections that have ended are counted");
        }
    });
}

#[test]
fn garbage_is_survived() {
    with_server(|_| {
        let sockets = SERVERS.map(|server| UdpSocket::bind((server, 0)).unwrap());
        // A fixed generator: the same packets every time.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut packet = [0u8; 64];
        for i in 0..5000 {
            for byte in &mut packet {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state as u8;
            }
            packet[4..6].copy_from_slice(&[0, 1]);
            sockets[i % 2].send_to(&packet[..i / 2 % packet.len()], (SERVERS[i % 2], 53)).unwrap();
        }
        // Never an answer to an answer.
        for server in SERVERS {
            let mut answer = *b"\x12\x34\x80\x00\x00\x00\x00\x00\x00\x00\x00\x00";
            let alone = UdpSocket::bind((server, 0)).unwrap();
            alone.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            alone.send_to(&answer, (server, 53)).unwrap();
            assert!(alone.recv(&mut answer).is_err());
        }
        assert_eq!(short("web.ns.svc.cluster.local A"), "10.43.0.9");
    });
}
