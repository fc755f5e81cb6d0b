//! Members of a real etcd: listed, asked, added without a vote, taken out, and followed by who uses the store.

use std::sync::Arc;
use std::time::Duration;

use store::etcd::{Members, Options};
use store::*;

use crate::peer::{Cluster, free_ports};

const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_are_told_changed_and_followed() {
    let mut cluster = Cluster::start(3);
    drop(cluster.connect().await);
    let members = Members::new(&cluster.options()).unwrap();
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    let listed = loop {
        // Each says where it is to be reached once it has started; the store needs only most of them.
        let listed = members.list().await.unwrap();
        if listed.iter().all(|member| !member.client_urls.is_empty()) {
            break listed;
        }
        assert!(tokio::time::Instant::now() < deadline, "{listed:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let mut names: Vec<&str> = listed.iter().map(|member| member.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["m0", "m1", "m2"]);
    let mut leaders = Vec::new();
    for endpoint in cluster.endpoints() {
        let one = Members::new(&Options::new([endpoint.clone()])).unwrap();
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        let status = loop {
            // A busy machine may be electing another leader just now.
            match one.status().await {
                Ok(status) if status.leader != 0 => break status,
                other => assert!(tokio::time::Instant::now() < deadline, "{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let member = listed.iter().find(|member| member.id == status.id).unwrap();
        assert_eq!(member.client_urls, [endpoint]);
        assert!(!status.is_learner && status.db_size > 0 && status.revision >= Revision(1) && status.errors.is_empty());
        one.defragment().await.unwrap();
        leaders.push(status.leader);
    }
    assert!(leaders.iter().all(|leader| listed.iter().any(|member| member.id == *leader)), "{leaders:?}");

    // One is added that never starts: it has no vote, so nobody misses it, and it cannot be given one.
    let url = format!("http://127.0.0.1:{}", free_ports(1)[0]);
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    let learner = loop {
        // Refused until the others have been together for some seconds.
        let added = members.add_learner(&url).await;
        let found = members.list().await.unwrap().into_iter().find(|member| member.peer_urls == [url.clone()]);
        match found {
            Some(learner) => break learner,
            None => assert!(tokio::time::Instant::now() < deadline, "{added:?}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    assert!(learner.is_learner && learner.name.is_empty());
    assert!(members.promote(learner.id).await.is_err());
    members.remove(learner.id).await.unwrap();
    assert_eq!(members.list().await.unwrap().len(), 3);

    // Whoever leads is asked, first or last among the endpoints.
    let endpoint_of = |id: u64| listed.iter().find(|member| member.id == id).unwrap().client_urls[0].clone();
    for _ in 0..2 {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        let leader = loop {
            let asked = cluster.connect().await.endpoint();
            let leader = members.status().await.unwrap().leader;
            // Another may have come to lead in between.
            if leader != 0 && asked == endpoint_of(leader) {
                break leader;
            }
            assert!(tokio::time::Instant::now() < deadline, "{asked} is asked, and {leader} leads");
        };
        let next = listed.iter().find(|member| member.id != leader).unwrap().id;
        let one = Members::new(&Options::new([endpoint_of(leader)])).unwrap();
        // Refused by one that does not lead any more, which is as good.
        let _ = one.hand_over_to(next).await;
    }

    // A store that was told of one member only knows the others by the time that one is gone.
    let mut options = Options::new([cluster.endpoints()[0].clone()]);
    options.follows_members = true;
    options.timeout = Duration::from_secs(3);
    let store: Arc<dyn Store> = Arc::new(cluster.connect_with(options).await);
    let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
    loop {
        tokio::time::sleep(Duration::from_secs(3)).await;
        cluster.kill(0);
        // The first request may have been for the one that is gone.
        let written = match store.put("/followed", "x").await {
            Ok(_) => true,
            Err(_) => store.put("/followed", "x").await.is_ok(),
        };
        if written {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "the members are not followed");
        cluster.run(0);
        while store.current_revision().await.is_err() {
            assert!(tokio::time::Instant::now() < deadline, "the member does not come back");
        }
    }
}
