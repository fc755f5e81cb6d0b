//! API priority and fairness: every request belongs to a flow, every flow to a level, and levels share the seats.
//!
//! Flow: [`rules`] finds the schema of a request, [`queue_set`] says whether it is served, waits or is turned away, and
//! `bootstrap::flow_control` keeps the FlowSchemas and PriorityLevelConfigurations that every cluster has and hands all of
//! them to [`FlowControl::learn`]. Requests that stay open are only counted (`in_flight::InFlight`); a watch has a seat until it begins.

mod metrics;
mod queue_set;
mod rules;

use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::metrics::Metrics;
use api::sort::CompactSort as _;
use api::{Status, UserInfo};
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PriorityLevelConfiguration};
use parking_lot::{Mutex, RwLock};
use registry::unset::or_empty;

use self::metrics::Counts;
use self::queue_set::{Arrival, Limits, Place, QueueSet};
use self::rules::{LevelOf, Table};
use crate::request_info::RequestInfo;

pub(crate) use self::rules::Flow;

/// Of the time a request may take, this part may pass in a queue.
const QUEUE_TIME_DIVISOR: u32 = 4;
/// Where people look at it.
const DEBUG: &str = "/debug/api_priority_and_fairness/";

pub(crate) struct FlowControl {
    table: RwLock<Table>,
    queue_set: Mutex<QueueSet>,
    /// All that levels share.
    seats: usize,
    queue_timeout: Duration,
    metrics: Metrics,
}

impl FlowControl {
    /// With the objects that every cluster begins with. Without seats nothing is limited.
    pub(crate) fn new(seats: usize, request_timeout: Duration, metrics: &Metrics) -> Arc<Self> {
        let control = Arc::new(Self {
            table: Default::default(),
            queue_set: Default::default(),
            seats,
            queue_timeout: request_timeout / QUEUE_TIME_DIVISOR,
            metrics: metrics.clone(),
        });
        let (schemas, levels) = registry::flowcontrol::suggested::suggested();
        control.learn(&schemas, &levels);
        let weak = Arc::downgrade(&control);
        metrics.on_render(move || {
            if let Some(control) = weak.upgrade() {
                control.show_limits();
            }
        });
        control
    }

    /// Makes these the objects that requests go by. Who sits or waits is not disturbed.
    pub(crate) fn learn(
        &self,
        schemas: &[impl Borrow<FlowSchema>],
        levels: &[impl Borrow<PriorityLevelConfiguration>],
    ) {
        if self.seats == 0 {
            return;
        }
        let levels: Vec<&PriorityLevelConfiguration> = levels.iter().map(Borrow::borrow).collect();
        let shares: f64 = levels.iter().copied().map(share).sum();
        let wanted: Vec<(String, Limits)> = levels
            .iter()
            .map(|level| (or_empty(&level.metadata.name).to_owned(), limits(level, self.seats, shares)))
            .collect();
        let ids = self.queue_set.lock().configure(&wanted);
        let known = levels.iter().zip(ids).map(|(level, id)| {
            let is_exempt = level.spec.as_ref().is_some_and(|spec| spec.type_ == "Exempt");
            let uid = rules::uid(level.metadata.uid.as_deref());
            (or_empty(&level.metadata.name).to_owned(), LevelOf { id, is_exempt, uid })
        });
        let known: HashMap<String, LevelOf> = known.collect();
        let counts = |level: &str, schema: &str| Counts::new(&self.metrics, level, schema);
        *self.table.write() = Table::new(schemas.iter().map(Borrow::borrow), &known, counts);
    }

    /// Gives a request a seat, after a while if need be. What it was found to be is told in any case.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        info: &RequestInfo,
        user: &UserInfo,
        found: &mut Option<Arc<Flow>>,
    ) -> Result<Option<Seat>, Status> {
        let Some((flow, number)) = self.table.read().classify(info, user).map(|(flow, number)| (flow.clone(), number))
        else {
            return Ok(None);
        };
        *found = Some(flow.clone());
        if flow.is_exempt {
            flow.counts.dispatched(None);
            flow.counts.executing(1.0);
            return Ok(Some(Seat { control: self.clone(), flow, held: None }));
        }
        let arrival = self.queue_set.lock().arrive(flow.level, number);
        match arrival {
            Arrival::Seated(place) => Ok(Some(self.seated(flow, place, Duration::ZERO))),
            Arrival::Refused(reason) => Err(refuse(&flow, reason, Duration::ZERO)),
            Arrival::Waits { place, ticket, woken } => {
                let began = Instant::now();
                let waiting = Waiting::new(self, &flow, place, ticket);
                if Box::pin(tokio::time::timeout(self.queue_timeout, woken)).await.is_err() {
                    return Err(refuse(&flow, "time-out", began.elapsed()));
                }
                waiting.sit_down();
                Ok(Some(self.seated(flow, place, began.elapsed())))
            }
        }
    }

    fn seated(self: &Arc<Self>, flow: Arc<Flow>, place: Place, waited: Duration) -> Seat {
        flow.counts.dispatched(Some(waited));
        flow.counts.executing(1.0);
        Seat { control: self.clone(), flow, held: Some((place, Instant::now())) }
    }

    fn show_limits(&self) {
        let queue_set = self.queue_set.lock();
        let show = |name, help, value: fn(&queue_set::Report<'_>) -> usize| {
            let rows =
                queue_set.report().map(|level| ([level.name.to_owned()], value(&level) as f64)).collect::<Vec<_>>();
            self.metrics.set_gauges(name, help, ["priority_level"], rows);
        };
        show("apiserver_flowcontrol_nominal_limit_seats", "Seats of a level's own", |level| level.limits.nominal);
        show("apiserver_flowcontrol_lower_limit_seats", "Seats that are never lent", |level| {
            level.limits.nominal - level.limits.lendable
        });
        show("apiserver_flowcontrol_upper_limit_seats", "Seats with all that may be borrowed", |level| {
            level.limits.upper
        });
        show("apiserver_flowcontrol_demand_seats", "Seats in use and asked for", |level| {
            level.executing + level.waiting
        });
    }

    /// What people are shown who look for the reason of a wait.
    pub(crate) fn dump(&self, path: &str) -> Option<String> {
        let queue_set = self.queue_set.lock();
        let mut levels: Vec<queue_set::Report<'_>> = queue_set.report().collect();
        levels.compact_sort_by_key(|level| level.name);
        let mut out = String::new();
        match path.strip_prefix(DEBUG)? {
            "dump_priority_levels" => {
                out.push_str("PriorityLevelName,\tActiveQueues,\tWaitingRequests,\tExecutingRequests\n");
                for level in levels {
                    let active = level.queues.iter().filter(|queue| queue.0 > 0).count();
                    let _ = writeln!(out, "{},\t{active},\t{},\t{}", level.name, level.waiting, level.executing);
                }
            }
            "dump_queues" => {
                out.push_str("PriorityLevelName,\tIndex,\tPendingRequests,\tExecutingRequests,\tServedMicroseconds\n");
                for level in levels {
                    for (index, (waiting, executing, served)) in level.queues.iter().enumerate() {
                        let _ = writeln!(out, "{},\t{index},\t{waiting},\t{executing},\t{served}", level.name);
                    }
                }
            }
            _ => return None,
        }
        Some(out)
    }
}

fn refuse(flow: &Flow, reason: &str, waited: Duration) -> Status {
    flow.counts.rejected(reason, waited);
    Status::too_many_requests("Too many requests, please try again later.", 1)
}

/// What a request sits on while it is served.
pub(crate) struct Seat {
    control: Arc<FlowControl>,
    flow: Arc<Flow>,
    /// Where, and since when; nothing where seats are not counted.
    held: Option<(Place, Instant)>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.flow.counts.executing(-1.0);
        if let Some((place, since)) = self.held {
            self.control.queue_set.lock().leave(place, since.elapsed());
        }
    }
}

/// A request in a queue. Dropped, it leaves the queue, or gives back a seat that it got in that moment.
struct Waiting<'a> {
    control: &'a FlowControl,
    flow: &'a Flow,
    place: Place,
    ticket: u64,
    sits: bool,
}

impl<'a> Waiting<'a> {
    fn new(control: &'a FlowControl, flow: &'a Flow, place: Place, ticket: u64) -> Self {
        flow.counts.waiting.add(1.0);
        Self { control, flow, place, ticket, sits: false }
    }

    /// Takes over the seat that it was woken for.
    fn sit_down(mut self) {
        self.sits = true;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.flow.counts.waiting.add(-1.0);
        if !self.sits {
            let mut queue_set = self.control.queue_set.lock();
            if !queue_set.give_up(self.place, self.ticket) {
                queue_set.leave(self.place, Duration::ZERO);
            }
        }
    }
}

fn share(level: &PriorityLevelConfiguration) -> f64 {
    let Some(spec) = &level.spec else { return 0.0 };
    let shares = match (&spec.limited, &spec.exempt) {
        (Some(limited), _) => limited.nominal_concurrency_shares.unwrap_or(DEFAULT_SHARES),
        (None, Some(exempt)) => exempt.nominal_concurrency_shares.unwrap_or_default(),
        (None, None) => 0,
    };
    f64::from(shares.max(0))
}

/// What a limited level has if it does not say, as upstream.
const DEFAULT_SHARES: i32 = 30;

fn limits(level: &PriorityLevelConfiguration, seats: usize, shares: f64) -> Limits {
    let Some(spec) = &level.spec else { return Limits::default() };
    let part = |whole: usize, percent: Option<i32>| {
        (whole as f64 * f64::from(percent.unwrap_or_default().max(0)) / 100.0).round() as usize
    };
    let nominal = if shares > 0.0 { (seats as f64 * share(level) / shares).ceil() as usize } else { 0 };
    let Some(limited) = &spec.limited else {
        let lendable = spec.exempt.as_ref().and_then(|exempt| exempt.lendable_percent);
        return Limits {
            nominal,
            lendable: part(nominal, lendable).min(nominal),
            upper: nominal + seats,
            ..Default::default()
        };
    };
    let borrowed = match limited.borrowing_limit_percent {
        Some(percent) => part(nominal, Some(percent)),
        None => seats,
    };
    let queuing = limited.limit_response.as_ref().filter(|response| response.type_ == "Queue");
    let queuing = queuing.and_then(|response| response.queuing.as_ref());
    let number = |value: Option<i32>| usize::try_from(value.unwrap_or_default()).unwrap_or_default();
    Limits {
        nominal,
        lendable: part(nominal, limited.lendable_percent).min(nominal),
        upper: nominal + borrowed,
        queues: queuing.map_or(0, |queuing| number(queuing.queues)),
        hand: queuing.map_or(0, |queuing| number(queuing.hand_size)),
        length: queuing.map_or(0, |queuing| number(queuing.queue_length_limit)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;
    use serde_json::json;

    fn info(method: &str, url: &str) -> RequestInfo {
        RequestInfo::new(&method.parse::<Method>().unwrap(), &url.parse().unwrap())
    }

    fn control(seats: usize) -> Arc<FlowControl> {
        FlowControl::new(seats, Duration::from_secs(60), &Metrics::new())
    }

    #[test]
    fn requests_go_where_upstream_sends_them() {
        let control = control(600);
        let masters = UserInfo::new("admin", &[api::user::MASTERS, api::user::AUTHENTICATED]);
        let node = UserInfo::new("system:node:n", &["system:nodes", api::user::AUTHENTICATED]);
        let manager = UserInfo::new("system:kube-controller-manager", &[api::user::AUTHENTICATED]);
        let system = UserInfo::new(
            "system:serviceaccount:kube-system:gc",
            &["system:serviceaccounts", "system:serviceaccounts:kube-system", api::user::AUTHENTICATED],
        );
        let account = UserInfo::new(
            "system:serviceaccount:default:app",
            &["system:serviceaccounts", "system:serviceaccounts:default", api::user::AUTHENTICATED],
        );
        let ann = UserInfo::new("ann", &["dev", api::user::AUTHENTICATED]);
        let nobody = UserInfo::new("system:anonymous", &[api::user::UNAUTHENTICATED]);
        let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x";
        for (user, method, url, expected) in [
            (&masters, "GET", "/api/v1/pods", "exempt"),
            (&nobody, "GET", "/readyz", "probes"),
            (&nobody, "GET", "/readyz/ping", "probes"),
            (&nobody, "GET", "/readyzz", "global-default"),
            (&nobody, "GET", "/version", "global-default"),
            (&node, "PUT", "/api/v1/nodes/n/status", "system-node-high"),
            (&node, "PUT", lease, "system-node-high"),
            (&node, "GET", "/api/v1/pods", "system-nodes"),
            (&manager, "PUT", lease, "system-leader-election"),
            (&manager, "DELETE", lease, "kube-controller-manager"),
            (&manager, "GET", "/api/v1/pods", "kube-controller-manager"),
            (&system, "GET", "/api/v1/pods", "kube-system-service-accounts"),
            (&account, "GET", "/api/v1/pods", "service-accounts"),
            (&ann, "GET", "/api/v1/namespaces/a/pods", "global-default"),
        ] {
            let table = control.table.read();
            let (flow, _) = table.classify(&info(method, url), user).unwrap();
            assert_eq!(flow.schema, expected, "{method} {url} of {}", user.name);
        }
        let number = |user: &UserInfo| control.table.read().classify(&info("GET", "/api/v1/pods"), user).unwrap().1;
        assert_ne!(number(&ann), number(&nobody));
        assert_eq!(number(&manager), number(&manager));
    }

    #[test]
    fn seats_are_shared_as_the_levels_say() {
        let control = control(600);
        let queue_set = control.queue_set.lock();
        let shown: HashMap<&str, (usize, usize, usize)> = queue_set
            .report()
            .map(|level| (level.name, (level.limits.nominal, level.limits.lendable, level.limits.upper)))
            .collect();
        // 245 shares; upstream shows the same for its defaults.
        assert_eq!(shown["workload-low"], (245, 221, 845));
        assert_eq!(shown["system"], (74, 24, 674));
        assert_eq!(shown["catch-all"], (13, 0, 613));
        assert_eq!(shown["exempt"], (0, 0, 600));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_too_long_is_turned_away_and_who_leaves_gives_way() {
        let control = control(1);
        let mine = |extra| {
            json!({"metadata": {"name": "one"}, "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": 1, "borrowingLimitPercent": extra, "limitResponse": {"type": "Queue",
                    "queuing": {"queues": 2, "handSize": 1, "queueLengthLimit": 2}}}}})
        };
        let level: PriorityLevelConfiguration = serde_json::from_value(mine(0)).unwrap();
        let schema: FlowSchema = serde_json::from_value(json!({"metadata": {"name": "all", "uid": "u-1"},
            "spec": {"priorityLevelConfiguration": {"name": "one"}, "rules": [{
                "subjects": [{"kind": "Group", "group": {"name": "*"}}],
                "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true}]}]}}))
        .unwrap();
        control.learn(std::slice::from_ref(&schema), &[level]);
        let (user, request) = (UserInfo::new("ann", &[]), info("GET", "/api/v1/nodes"));
        let enter = async || {
            let mut found = None;
            let seat = control.enter(&request, &user, &mut found).await;
            assert_eq!(found.unwrap().schema_uid.as_ref().unwrap(), "u-1");
            seat
        };
        let first = enter().await.unwrap();
        // Two wait: one leaves, the other gets the seat when it is free.
        let mut left = Box::pin(enter());
        assert!(futures_util::poll!(&mut left).is_pending());
        let mut stays = Box::pin(enter());
        assert!(futures_util::poll!(&mut stays).is_pending());
        let refused = enter().await.err().unwrap();
        assert_eq!((refused.code(), refused.retry_after_seconds()), (429, Some(1)));
        drop(left);
        drop(first);
        let second = stays.await.unwrap();
        // A seat given to somebody who has left by then goes on.
        let mut woken = Box::pin(enter());
        assert!(futures_util::poll!(&mut woken).is_pending());
        drop(second);
        drop(woken);
        let third = enter().await.unwrap();
        let late = enter().await.err().unwrap();
        assert_eq!(late.code(), 429);
        drop(third);
        assert_eq!(control.queue_set.lock().report().map(|level| level.executing + level.waiting).sum::<usize>(), 0);
        let text = control.metrics.render();
        for line in [
            "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"all\",priority_level=\"one\",reason=\"time-out\"} 1",
            "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"all\",priority_level=\"one\",reason=\"queue-full\"} 1",
            "apiserver_flowcontrol_current_executing_requests{flow_schema=\"all\",priority_level=\"one\"} 0",
            "apiserver_flowcontrol_nominal_limit_seats{priority_level=\"one\"} 1",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(
            control.dump("/debug/api_priority_and_fairness/dump_priority_levels").unwrap().contains("one,\t0,\t0,\t0")
        );
        // A level that is gone takes its schema with it.
        control.learn(&[schema], &[] as &[PriorityLevelConfiguration]);
        let mut found = None;
        assert!(control.enter(&request, &user, &mut found).await.unwrap().is_none());
    }
}
