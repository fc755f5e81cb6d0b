//! DNS packets: whatever comes, the server neither panics nor answers with something unreadable or too long.
#![no_main]

use std::sync::{Arc, LazyLock};

use dns::{Objects, Offline};
use hickory_proto::op::Message;
use libfuzzer_sys::fuzz_target;
use serde_json::json;

static SERVER: LazyLock<Offline> = LazyLock::new(|| {
    let service = |name: &str, spec: serde_json::Value| {
        let object = json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec});
        Arc::new(serde_json::from_value(object).expect("a service"))
    };
    let endpoints: Vec<_> = (2..200).map(|i| json!({"addresses": [format!("10.42.0.{i}")]})).collect();
    let slice = json!({
        "metadata": {"name": "db", "namespace": "ns", "labels": {"kubernetes.io/service-name": "db"}},
        "addressType": "IPv4", "ports": [{"name": "pg", "port": 5432}], "endpoints": endpoints,
    });
    let objects = Objects {
        namespaces: vec!["ns".into()],
        services: vec![
            service("web", json!({"clusterIP": "10.43.0.9", "ports": [{"name": "http", "port": 80}]})),
            service("db", json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]})),
            service("loop", json!({"type": "ExternalName", "externalName": "loop.ns.svc.cluster.local"})),
        ],
        slices: vec![Arc::new(serde_json::from_value(slice).expect("a slice"))],
        pods: vec![("ns".into(), [10, 42, 0, 7].into())],
    };
    Offline::new("cluster.local", objects).expect("a domain")
});

fuzz_target!(|packet: &[u8]| {
    for over_udp in [true, false] {
        if let Some(answer) = SERVER.respond(packet, over_udp) {
            assert!(!over_udp || answer.len() <= 1232);
            let read = Message::from_vec(&answer).expect("an answer can be read");
            assert_eq!(packet[..2], read.metadata.id.to_be_bytes());
            // Answers to answers would go round for ever.
            assert_eq!(SERVER.respond(&answer, over_udp), None);
        }
    }
});
