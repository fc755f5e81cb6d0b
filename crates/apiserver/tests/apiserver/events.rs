//! Conformance area 12: events, one kind in two groups.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::{Life, MERGE};

const CORE: &str = "/api/v1/namespaces/default/events";
const NEW: &str = "/apis/events.k8s.io/v1/namespaces/default/events";

#[tokio::test]
async fn events_live_in_both_groups() {
    let cluster = Cluster::start().await;
    let core = Life {
        api_version: "v1",
        plural: "events",
        namespaced: true,
        name: "e",
        body: json!({"involvedObject": {"namespace": "default"}, "reason": "Test", "message": "m", "type": "Normal"}),
        status: None,
    };
    core.run(&cluster).await;
    let new = Life {
        api_version: "events.k8s.io/v1",
        plural: "events",
        namespaced: true,
        name: "e",
        body: json!({"regarding": {"namespace": "default"}, "reason": "Test", "note": "m", "type": "Normal",
            "action": "Do", "reportingController": "c", "reportingInstance": "i",
            "eventTime": "2026-01-02T03:04:05.678901Z"}),
        status: None,
    };
    new.run(&cluster).await;
}

#[tokio::test]
async fn one_event_reads_in_both_forms() {
    let cluster = Cluster::start().await;
    let event = json!({"metadata": {"name": "e"}, "regarding": {"namespace": "default", "kind": "Pod", "name": "p"},
        "reason": "Test", "note": "said", "type": "Warning", "action": "Do", "reportingController": "example.com/c",
        "reportingInstance": "i", "eventTime": "2026-01-02T03:04:05.678901Z"});
    let (code, created) = cluster.send("POST", NEW, event).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["eventTime"], "2026-01-02T03:04:05.678901Z");
    let (_, core) = cluster.send("GET", &format!("{CORE}/e"), Value::Null).await;
    assert_eq!((&core["message"], &core["involvedObject"]["name"]), (&json!("said"), &json!("p")));
    assert_eq!((&core["reportingComponent"], &core["eventTime"]), (&json!("example.com/c"), &created["eventTime"]));
    let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:06.000001Z"}});
    let (code, patched) = cluster.send_raw("PATCH", &format!("{NEW}/e"), MERGE, series.clone()).await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&patched));
    let (_, core) = cluster.send("GET", &format!("{CORE}/e"), Value::Null).await;
    assert_eq!(core["series"], series["series"]);
    for (path, selector) in [
        (CORE, "involvedObject.name=p,involvedObject.kind=Pod,type=Warning,reason=Test"),
        (CORE, "reportingComponent=example.com/c"),
        (CORE, "source=example.com/c"),
        (NEW, "reportingController=example.com/c"),
        (NEW, "regarding.name=p"),
    ] {
        let encoded = selector.replace('=', "%3D").replace('/', "%2F");
        let (code, found) = cluster.send("GET", &format!("{path}?fieldSelector={encoded}"), Value::Null).await;
        assert_eq!((code, found["items"].as_array().map(Vec::len)), (200, Some(1)), "{selector}: {found}");
    }
}
