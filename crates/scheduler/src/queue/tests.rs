use super::*;
use crate::framework::NodeChange;
use crate::pod::Catalogue;
use serde_json::json;
use std::cmp::Ordering;

/// Gates pods named `gated`; nodes help pods that `P` rejected; higher priority first.
struct Plugins;

impl Advice for Plugins {
    fn admit(&self, pod: &PodInfo) -> Result<(), Rejection> {
        if crate::pod::has_gates(&pod.pod) { Err(Rejection::new("SchedulingGates", "gated")) } else { Ok(()) }
    }

    fn compare(&self, one: &PodInfo, other: &PodInfo) -> Ordering {
        other.priority.cmp(&one.priority)
    }

    fn may_help(&self, _pod: &PodInfo, plugin: &str, event: &Event) -> Option<bool> {
        Some(plugin == "P" && matches!(event, Event::NodeAdded(_)))
    }
}

const MAX_WAIT: Duration = Duration::from_secs(300);

fn queue() -> Queue {
    Queue::new(Arc::new(Plugins), Duration::from_secs(1), Duration::from_secs(10), MAX_WAIT, Metrics::default())
}

fn pod(uid: &str, priority: i32, gates: &[&str]) -> Arc<PodInfo> {
    let gates: Vec<_> = gates.iter().map(|name| json!({"name": name})).collect();
    let pod = json!({"metadata": {"name": uid, "uid": uid},
        "spec": {"priority": priority, "containers": [], "schedulingGates": gates}});
    Arc::new(PodInfo::pending(Arc::new(api::codec::from_value(&pod).unwrap()), &Catalogue::default()))
}

fn rejected(by: &'static str) -> Ended {
    Ended::Rejected(BTreeSet::from([by]))
}

fn node_added() -> Event {
    Event::NodeAdded(Arc::default())
}

fn fail(queue: &Queue, queued: Queued, ended: Ended) {
    let pod = queued.pod.clone();
    queue.failed(queued, pod, ended);
}

#[tokio::test(start_paused = true)]
async fn priority_first_then_age() {
    let queue = queue();
    for (uid, priority) in [("low", 0), ("old", 5), ("young", 5)] {
        queue.add(pod(uid, priority, &[]));
    }
    for expected in ["old", "young", "low"] {
        assert_eq!(*queue.pop().await.pod.uid, *expected);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unschedulable_pod_waits_for_an_event_that_may_help() {
    let queue = queue();
    let start = Instant::now();
    queue.add(pod("a", 0, &[]));
    let queued = queue.pop().await;
    fail(&queue, queued, rejected("P"));
    let unrelated = Event::NodeChanged { old: Arc::default(), new: Arc::default(), change: NodeChange::default() };
    queue.happened(&unrelated);
    assert_eq!(queue.counts(), Counts { unschedulable: 1, ..Counts::default() });
    queue.happened(&node_added());
    assert_eq!(queue.counts(), Counts { backoff: 1, ..Counts::default() });
    // Nothing else is to be done: its back-off is not waited for.
    let queued = queue.pop().await;
    assert_eq!((queued.attempts, start.elapsed()), (2, Duration::ZERO));
    fail(&queue, queued, rejected("Q"));
    queue.happened(&node_added());
    let queued = queue.pop().await;
    assert_eq!(start.elapsed(), MAX_WAIT, "tried at last although nothing happened that helps");
    assert!(queued.is_leftover);
}

#[tokio::test(start_paused = true)]
async fn an_event_during_the_attempt_is_not_missed() {
    let queue = queue();
    queue.add(pod("a", 0, &[]));
    let queued = queue.pop().await;
    queue.happened(&node_added());
    fail(&queue, queued, rejected("P"));
    assert_eq!(queue.counts(), Counts { backoff: 1, ..Counts::default() });
    assert!(queue.state.lock().events.is_empty(), "events are kept only while a pod is tried");
}

#[tokio::test(start_paused = true)]
async fn after_an_error_the_back_off_is_waited_for() {
    let queue = queue();
    let start = Instant::now();
    queue.add(pod("a", 0, &[]));
    for expected in [1, 3, 7, 15, 25, 35] {
        let queued = queue.pop().await;
        fail(&queue, queued, Ended::Failed);
        assert!(queue.try_pop().is_none());
        let queued = queue.pop().await;
        assert_eq!(start.elapsed(), Duration::from_secs(expected));
        // The same attempt goes on in the next round.
        queue.done("a");
        queue.state.lock().waiting.put(
            Queued { attempts: queued.attempts - 1, ..queued },
            BTreeSet::new(),
            Place::Active,
        );
    }
}

#[tokio::test(start_paused = true)]
async fn gated_pods_are_not_tried_until_the_gates_are_gone() {
    let queue = queue();
    queue.add(pod("a", 0, &["wait"]));
    queue.happened(&node_added());
    assert_eq!(queue.counts(), Counts { gated: 1, ..Counts::default() });
    assert!(queue.try_pop().is_none());
    let event = Event::SelfChanged { change: Default::default(), gates_gone: true };
    queue.update(pod("a", 0, &[]), &event);
    assert_eq!(*queue.pop().await.pod.uid, *"a");
}

#[tokio::test(start_paused = true)]
async fn a_removed_pod_is_not_tried() {
    let queue = queue();
    queue.add(pod("a", 9, &[]));
    queue.add(pod("b", 0, &[]));
    queue.remove("a");
    assert_eq!(*queue.pop().await.pod.uid, *"b");
    assert_eq!(queue.counts(), Counts::default());
}
