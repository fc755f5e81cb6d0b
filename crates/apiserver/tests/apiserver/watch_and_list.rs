//! Conformance area 2: watches that resume and select, lists in pages.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::{Events, MERGE};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const TEMPLATES: &str = "/api/v1/namespaces/default/podtemplates";

fn map(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"watch-this": label}}})
}

async fn relabel(cluster: &Cluster, name: &str, label: &str, data: &str) {
    let patch = json!({"metadata": {"labels": {"watch-this": label}}, "data": {"n": data}});
    assert_eq!(cluster.send_raw("PATCH", &format!("{MAPS}/{name}"), MERGE, patch).await.0, 200);
}

#[tokio::test]
async fn watchers_see_what_their_selector_shows() {
    let cluster = Cluster::start().await;
    let open = |selector: &'static str| Events::open(&cluster, selector);
    let mut a = open("/api/v1/namespaces/default/configmaps?watch=true&labelSelector=watch-this%3Da").await;
    let mut b = open("/api/v1/namespaces/default/configmaps?watch=true&labelSelector=watch-this%3Db").await;
    let mut both = open("/api/v1/namespaces/default/configmaps?watch=true&labelSelector=watch-this+in+(a,b)").await;
    cluster.send("POST", MAPS, map("m", "a")).await;
    for (watcher, kind) in [(&mut a, "ADDED"), (&mut both, "ADDED")] {
        assert_eq!(watcher.next().await["type"], kind);
    }
    relabel(&cluster, "m", "b", "1").await;
    for (watcher, kind) in [(&mut a, "DELETED"), (&mut b, "ADDED"), (&mut both, "MODIFIED")] {
        let event = watcher.next().await;
        assert_eq!(event["type"], kind, "{event}");
    }
    // Changes out of view are silent: the next thing the first watcher hears is the return.
    relabel(&cluster, "m", "b", "2").await;
    relabel(&cluster, "m", "a", "3").await;
    let event = a.next().await;
    assert_eq!((&event["type"], &event["object"]["data"]["n"]), (&json!("ADDED"), &json!("3")));
    let (_, before) = cluster.send("GET", &format!("{MAPS}/m"), Value::Null).await;
    cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await;
    let gone = a.next().await;
    assert_eq!(gone["type"], "DELETED");
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&gone["object"]) > version(&before), "a deletion has a version of its own");
}

#[tokio::test]
async fn a_watch_goes_on_from_the_last_version_seen() {
    let cluster = Cluster::start().await;
    let mut first = Events::open(&cluster, &format!("{MAPS}?watch=true&labelSelector=watch-this")).await;
    cluster.send("POST", MAPS, map("m", "a")).await;
    relabel(&cluster, "m", "a", "1").await;
    first.next().await;
    let seen = first.next().await["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    drop(first);
    relabel(&cluster, "m", "a", "2").await;
    cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await;
    let mut again = Events::open(&cluster, &format!("{MAPS}?watch=true&resourceVersion={seen}")).await;
    let kinds = [again.next().await["type"].clone(), again.next().await["type"].clone()];
    assert_eq!(kinds, ["MODIFIED", "DELETED"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_watchers_see_one_order() {
    let cluster = Cluster::start().await;
    let (_, list) = cluster.send("GET", MAPS, Value::Null).await;
    let mut version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let writes = async {
        for n in 0..120 {
            cluster.send("POST", MAPS, map(&format!("m{n}"), "a")).await;
            relabel(&cluster, &format!("m{n}"), "a", "1").await;
        }
    };
    let watches = async {
        let mut watchers: Vec<Events> = Vec::new();
        for _ in 0..60 {
            watchers.push(Events::open(&cluster, &format!("{MAPS}?watch=true&resourceVersion={version}")).await);
            let mut seen = Vec::new();
            for watcher in &mut watchers {
                let event = watcher.next().await;
                seen.push(event["object"]["metadata"]["resourceVersion"].as_str().unwrap().to_owned());
            }
            seen.dedup();
            assert_eq!(seen.len(), 1, "{seen:?}");
            version = seen.remove(0);
        }
    };
    tokio::join!(writes, watches);
}

fn template(name: &str) -> Value {
    json!({"metadata": {"name": name}, "template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}})
}

async fn names(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn chunks_are_pages_of_one_state() {
    let cluster = Cluster::start().await;
    const COUNT: usize = 40;
    for n in 0..COUNT {
        let (code, answer) = cluster.send("POST", TEMPLATES, template(&format!("t{n:03}"))).await;
        assert_eq!(code, 201, "{answer}");
    }
    let (mut token, mut seen, mut version) = (String::new(), Vec::new(), None);
    loop {
        let (code, page) = cluster.send("GET", &format!("{TEMPLATES}?limit=17&continue={token}"), Value::Null).await;
        assert_eq!(code, 200, "{page}");
        seen.extend(names(&page).await);
        let metadata = &page["metadata"];
        assert_eq!(version.get_or_insert_with(|| metadata["resourceVersion"].clone()), &metadata["resourceVersion"]);
        match metadata["continue"].as_str() {
            Some(next) => {
                assert_eq!(metadata["remainingItemCount"], COUNT - seen.len());
                token = next.to_owned();
            }
            None => {
                assert_eq!(metadata.get("remainingItemCount"), None);
                break;
            }
        }
    }
    assert_eq!(seen.len(), COUNT);
    assert!(seen.is_sorted());
    let (_, all) = cluster.send("GET", &format!("{TEMPLATES}?limit=1000"), Value::Null).await;
    assert_eq!(names(&all).await, seen);
    assert_eq!(all["metadata"].get("continue"), None);
}

#[tokio::test]
async fn an_expired_token_says_how_to_go_on() {
    let cluster = Cluster::with(|config| config.compaction_interval = std::time::Duration::from_millis(50)).await;
    for n in 0..9 {
        cluster.send("POST", TEMPLATES, template(&format!("t{n}"))).await;
    }
    let (_, first) = cluster.send("GET", &format!("{TEMPLATES}?limit=3"), Value::Null).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let expired = loop {
        // Something to compact.
        cluster
            .send_raw("PATCH", &format!("{TEMPLATES}/t8"), MERGE, json!({"metadata": {"labels": {"n": next_text()}}}))
            .await;
        let (code, answer) = cluster.send("GET", &format!("{TEMPLATES}?limit=3&continue={token}"), Value::Null).await;
        if code != 200 {
            assert_eq!((code, answer["reason"].as_str()), (410, Some("Expired")), "{answer}");
            break answer;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let token = expired["metadata"]["continue"].as_str().unwrap();
    let (code, next) = cluster.send("GET", &format!("{TEMPLATES}?limit=3&continue={token}"), Value::Null).await;
    assert_eq!((code, names(&next).await), (200, vec!["t3".to_owned(), "t4".to_owned(), "t5".to_owned()]));
    assert_ne!(next["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

fn next_text() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static N: AtomicU32 = AtomicU32::new(0);
    N.fetch_add(1, Ordering::Relaxed).to_string()
}
