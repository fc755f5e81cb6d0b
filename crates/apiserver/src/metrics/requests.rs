//! What requests came to, how long they took and how large their answers were.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ::metrics::slis::Slis;
use ::metrics::{Counter, Gauge, Histogram, Metrics, exponential};
use http::{HeaderMap, StatusCode};
use parking_lot::RwLock;
use registry::Verb;

use super::access::Access;
use crate::request_info::RequestInfo;

pub(super) const DURATION_BOUNDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

const SLI_BOUNDS: [f64; 21] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];
static SIZE_BOUNDS: [f64; 7] = exponential(1000.0, 10.0);

/// What a request is counted as. Anything that a client may invent is left out: nobody shall fill the memory with names.
pub(crate) struct Labels {
    /// The values of [`NAMES`], each with a line of its own; none of them holds more than one.
    values: String,
    /// The scope by which it is counted while it is open: see [`scope`].
    open_scope: &'static str,
    long_running: bool,
}

const NAMES: [&str; 7] = ["dry_run", "group", "resource", "scope", "subresource", "verb", "version"];

impl Labels {
    /// Of a request before it is known whether what it names exists.
    pub(crate) fn unknown(info: &RequestInfo, headers: &HeaderMap) -> Self {
        Self::new(["", "", "", "", "", verb(info, headers), ""], "", info)
    }

    /// Of a request for something that exists. Upstream serves custom resources without routes of their own.
    pub(crate) fn of(info: &RequestInfo, headers: &HeaderMap, is_custom: bool) -> Self {
        let dry_run = if info.query.get("dryRun").is_some_and(|value| value == "All") { "All" } else { "" };
        let (group, resource, version) = (&*info.group, &*info.resource, &*info.version);
        let verb = verb(info, headers);
        let scope_of_all = if is_custom { scope(info) } else { scope_of_path(info) };
        let values = [dry_run, group, resource, scope_of_all, &info.subresource, verb, version];
        Self::new(values, scope(info), info)
    }

    fn new(values: [&str; NAMES.len()], open_scope: &'static str, info: &RequestInfo) -> Self {
        Self { values: values.join("\n"), open_scope, long_running: info.is_long_running() }
    }

    fn pairs(&self) -> Vec<(&str, &str)> {
        [("component", "apiserver")].into_iter().chain(NAMES.into_iter().zip(self.values.split('\n'))).collect()
    }

    /// Without `dry_run`, which only some series have.
    fn plain_pairs(&self) -> Vec<(&str, &str)> {
        self.pairs().into_iter().filter(|(name, _)| *name != "dry_run").collect()
    }

    /// The same for requests that stay open or are ended.
    fn open_pairs(&self) -> Vec<(&str, &str)> {
        let pairs = self.plain_pairs().into_iter();
        pairs.map(|(name, value)| (name, if name == "scope" { self.open_scope } else { value })).collect()
    }

    /// Whether the size of the answer says something: that of what is read.
    fn is_read(&self) -> bool {
        self.pairs().iter().any(|(name, value)| *name == "verb" && matches!(*value, "GET" | "LIST"))
    }
}

/// Upstream's `CleanScope`: a list that can only hold one object is one of that object.
pub(super) fn scope(info: &RequestInfo) -> &'static str {
    scope_where(info, !info.name.is_empty())
}

/// By the path alone, as upstream's routes have it.
fn scope_of_path(info: &RequestInfo) -> &'static str {
    scope_where(info, info.is_named)
}

fn scope_where(info: &RequestInfo, is_named: bool) -> &'static str {
    match (is_named || info.verb == Verb::Create, info.namespace.is_empty()) {
        _ if !info.is_resource => "",
        (true, _) => "resource",
        (false, false) => "namespace",
        (false, true) => "cluster",
    }
}

/// Subresources that lead to a node or into a pod: whatever the method is, they are connected to.
const CONNECTED: [&str; 5] = ["attach", "exec", "log", "portforward", "proxy"];

/// As upstream names what a request does (`cleanVerb`, v1.36): by its method, but for lists, watches, server-side apply and
/// connections. Deleting a collection is a DELETE.
fn verb(info: &RequestInfo, headers: &HeaderMap) -> &'static str {
    if info.is_resource && CONNECTED.contains(&info.subresource.as_str()) {
        return "CONNECT";
    }
    // Also where the path is not that of a collection.
    let watches = || info.query.flag("watch");
    match &info.verb {
        Verb::Watch => "WATCH",
        Verb::Get | Verb::List if watches() => "WATCH",
        Verb::Get | Verb::Head => "GET",
        Verb::List => "LIST",
        Verb::Create | Verb::Post => "POST",
        Verb::Update | Verb::Put => "PUT",
        Verb::Patch if crate::accept::is_apply(&info.verb, headers) => "APPLY",
        Verb::Patch => "PATCH",
        Verb::Delete | Verb::DeleteCollection => "DELETE",
        Verb::Options | Verb::Custom(_) => "other",
    }
}

/// What is counted of requests with the same labels and the same code.
struct Series {
    requests: Counter,
    /// Nothing for requests that stay open: they would drown the others.
    durations: Option<Histogram>,
    /// Without the time that was spent elsewhere; twice, where what is hidden is shown.
    own: Vec<Histogram>,
    sizes: Option<Histogram>,
}

/// How long a request took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Took {
    pub(crate) all: Duration,
    /// In queues and with webhooks.
    pub(crate) elsewhere: Duration,
}

pub(crate) struct RequestMetrics {
    all: Metrics,
    /// By the values of their labels, then by code.
    known: RwLock<HashMap<String, BTreeMap<u16, Arc<Series>>>>,
    mutating: Gauge,
    read_only: Gauge,
    pub(crate) access: Access,
    /// Of health checks.
    pub(crate) slis: Slis,
    shows_hidden: bool,
}

/// What all requests came to that did not stay open.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    pub(crate) all: f64,
    /// With 5xx.
    pub(crate) errors: f64,
    /// With 429.
    pub(crate) rejected: f64,
    /// How many took so many seconds: bounds and counts between them.
    pub(crate) durations: Vec<(f64, u64)>,
}

/// A request that is being served.
pub(crate) struct Serving(Gauge);

impl Serving {
    fn new(gauge: &Gauge) -> Self {
        gauge.add(1.0);
        Self(gauge.clone())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.add(-1.0);
    }
}

impl RequestMetrics {
    pub(crate) fn new(shows_hidden: bool) -> Self {
        let all = Metrics::new().with_process(api::version::GIT).with_features(api::features::all());
        if !shows_hidden {
            all.hide();
        }
        // Validation here is written once, so there is nothing that it could differ from.
        for name in [
            "apiserver_validation_declarative_validation_mismatch_total",
            "apiserver_validation_declarative_validation_panic_total",
        ] {
            all.counter(name, "How often generated and written validation differed, or the generated one failed", &[]);
        }
        let inflight = |kind| {
            let name = "apiserver_current_inflight_requests";
            all.gauge(name, "Requests that are served now", &[("request_kind", kind)])
        };
        Self {
            mutating: inflight("mutating"),
            read_only: inflight("readOnly"),
            access: Access::new(&all),
            slis: Slis::default(),
            known: Default::default(),
            shows_hidden,
            all,
        }
    }

    pub(crate) fn all(&self) -> &Metrics {
        &self.all
    }

    /// Counts a request as one that is served, as long as this is kept. Those that stay open are counted once it is
    /// known what they are: see [`Self::open`].
    pub(crate) fn serving(&self, info: &RequestInfo) -> Option<Serving> {
        if info.is_long_running() {
            return None;
        }
        Some(Serving::new(if info.is_mutating() { &self.mutating } else { &self.read_only }))
    }

    /// Counts a request as one that stays open, as long as this is kept.
    pub(crate) fn open(&self, labels: &Labels) -> Serving {
        let help = "Requests that stay open, by what they are.";
        Serving::new(&self.all.gauge("apiserver_longrunning_requests", help, &labels.open_pairs()))
    }

    /// Counts a request that was turned away or ended so that the server can serve others.
    pub(crate) fn terminated(&self, labels: &Labels, code: u16) {
        let code = code.to_string();
        let pairs: Vec<_> = [("code", &*code)].into_iter().chain(labels.open_pairs()).collect();
        let help = "Requests that the server ended in self-defence.";
        self.all.counter("apiserver_request_terminations_total", help, &pairs).inc();
    }

    /// Notes that a client uses an API that is deprecated.
    pub(crate) fn deprecated(&self, info: &RequestInfo, removed_in: &str) {
        let labels = [
            ("group", &*info.group),
            ("removed_release", removed_in),
            ("resource", &*info.resource),
            ("subresource", &*info.subresource),
            ("version", &*info.version),
        ];
        let help = "Deprecated APIs that clients have asked for.";
        self.all.gauge("apiserver_requested_deprecated_apis", help, &labels).set(1.0);
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for codes in self.known.read().values() {
            // Those that stay open have no durations; the others share theirs among their codes.
            let Some(durations) = codes.values().find_map(|series| series.durations.as_ref()) else { continue };
            let mut counts = durations.counts();
            if totals.durations.is_empty() {
                totals.durations = counts.collect();
            } else {
                totals.durations.iter_mut().for_each(|(_, sum)| *sum += counts.next().map_or(0, |(_, count)| count));
            }
            for (code, series) in codes {
                let count = series.requests.get();
                totals.all += count;
                totals.errors += if *code >= 500 { count } else { 0.0 };
                totals.rejected += if *code == 429 { count } else { 0.0 };
            }
        }
        totals
    }

    /// Counts one finished request. `size` is that of its answer, where it is known.
    pub(crate) fn observe(&self, labels: &Labels, status: StatusCode, took: Took, size: Option<u64>) {
        let code = status.as_u16();
        let known = self.known.read().get(&labels.values).and_then(|codes| codes.get(&code).cloned());
        let series = known.unwrap_or_else(|| {
            let series = Arc::new(self.make(labels, status));
            self.known.write().entry(labels.values.clone()).or_default().insert(code, series.clone());
            series
        });
        series.requests.inc();
        if let Some(durations) = &series.durations {
            durations.observe_duration(took.all);
        }
        series.own.iter().for_each(|own| own.observe_duration(took.all.saturating_sub(took.elsewhere)));
        if let (Some(sizes), Some(size)) = (&series.sizes, size) {
            sizes.observe(size as f64);
        }
    }

    fn make(&self, labels: &Labels, status: StatusCode) -> Series {
        let (pairs, plain) = (labels.pairs(), labels.plain_pairs());
        let with_code: Vec<_> = [("code", status.as_str())].into_iter().chain(pairs.iter().copied()).collect();
        let durations = || {
            let name = "apiserver_request_duration_seconds";
            self.all.histogram(name, "How long requests take", &DURATION_BOUNDS, &pairs)
        };
        let names = ["apiserver_request_sli_duration_seconds", "apiserver_request_slo_duration_seconds"];
        let own = names.into_iter().take(if self.shows_hidden { 2 } else { 1 }).map(|name| {
            let help = "How long requests take, without webhooks and queues";
            self.all.histogram(name, help, &SLI_BOUNDS, &plain)
        });
        let sizes = || {
            let help = "How large answers to those who read are, in bytes";
            self.all.histogram("apiserver_response_sizes", help, &SIZE_BOUNDS, &plain)
        };
        Series {
            requests: self.all.counter(
                "apiserver_request_total",
                "Requests by what they were and how they ended",
                &with_code,
            ),
            durations: (!labels.long_running).then(durations),
            own: if labels.long_running { Vec::new() } else { own.collect() },
            sizes: (!labels.long_running && labels.is_read()).then(sizes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_those_of_upstream() {
        const PODS: &str = "/api/v1/namespaces/a/pods";
        let pod = |rest: &str| format!("{PODS}/p{rest}");
        for (method, url, content_type, expected) in [
            ("GET", PODS.to_owned(), "", "LIST"),
            ("HEAD", PODS.to_owned(), "", "LIST"),
            ("GET", pod(""), "", "GET"),
            ("HEAD", pod(""), "", "GET"),
            ("GET", format!("{PODS}?watch=1"), "", "WATCH"),
            ("GET", format!("{PODS}?watch=False"), "", "LIST"),
            ("GET", pod("?watch=true"), "", "WATCH"),
            ("GET", "/api/v1/watch/pods".to_owned(), "", "WATCH"),
            ("POST", PODS.to_owned(), "application/json", "POST"),
            ("PUT", pod("/status"), "", "PUT"),
            ("PATCH", pod(""), "application/merge-patch+json", "PATCH"),
            ("PATCH", pod(""), "application/apply-patch+yaml", "APPLY"),
            ("POST", PODS.to_owned(), "application/apply-patch+yaml", "POST"),
            ("DELETE", pod(""), "", "DELETE"),
            ("DELETE", PODS.to_owned(), "", "DELETE"),
            ("GET", pod("/log?follow=true"), "", "CONNECT"),
            ("GET", pod("/exec"), "", "CONNECT"),
            ("POST", pod("/exec"), "", "CONNECT"),
            ("POST", pod("/portforward"), "", "CONNECT"),
            ("PUT", pod("/proxy/some/path"), "", "CONNECT"),
            ("POST", pod("/eviction"), "", "POST"),
            ("GET", "/healthz".to_owned(), "", "GET"),
            ("HEAD", "/healthz".to_owned(), "", "GET"),
            ("POST", "/exec".to_owned(), "", "POST"),
            ("OPTIONS", PODS.to_owned(), "", "other"),
            ("OPTIONS", "/healthz".to_owned(), "", "other"),
            ("MADEUP", "/healthz".to_owned(), "", "other"),
            ("MADEUP", pod(""), "", "other"),
        ] {
            let info = RequestInfo::new(&method.parse().unwrap(), &url.parse().unwrap());
            let content_type = content_type.parse().unwrap();
            let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, content_type)]);
            assert_eq!(verb(&info, &headers), expected, "{method} {url}");
        }
    }

    #[test]
    fn requests_are_counted_by_what_they_are() {
        let metrics = RequestMetrics::new(false);
        for (method, url, known, code) in [
            ("GET", "/api/v1/namespaces/a/pods/p", true, 200),
            ("GET", "/api/v1/namespaces/a/pods/q", true, 200),
            ("POST", "/apis/apps/v1/namespaces/a/deployments?dryRun=All", true, 201),
            ("GET", "/apis/made.up/v1/names", false, 404),
            ("GET", "/api/v1/pods?watch=1", true, 200),
            ("GET", "/api/v1/namespaces/a/pods?watch=1&fieldSelector=metadata.name%3Dx", true, 200),
            ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dx", true, 200),
        ] {
            let info = RequestInfo::new(&method.parse().unwrap(), &url.parse().unwrap());
            let headers = HeaderMap::new();
            let labels = if known { Labels::of(&info, &headers, false) } else { Labels::unknown(&info, &headers) };
            let serving = metrics.serving(&info);
            let open = info.is_long_running().then(|| metrics.open(&labels));
            let took = Took { all: Duration::from_millis(260), elsewhere: Duration::from_millis(230) };
            metrics.observe(&labels, StatusCode::from_u16(code).unwrap(), took, Some(5000));
            drop((serving, open));
        }
        let custom = "/apis/a.b/v1/namespaces/a/names?fieldSelector=metadata.name%3Dx";
        let custom = RequestInfo::new(&http::Method::GET, &custom.parse().unwrap());
        let of_custom = |is_custom| Labels::of(&custom, &HeaderMap::new(), is_custom).values;
        assert!(of_custom(true).contains("resource") && of_custom(false).contains("namespace"));
        let elsewhere = RequestInfo::new(&http::Method::GET, &"/x".parse().unwrap());
        metrics.terminated(&Labels::unknown(&elsewhere, &HeaderMap::new()), 429);
        let totals = metrics.totals();
        assert_eq!((totals.all, totals.errors, totals.rejected), (5.0, 0.0, 0.0));
        assert_eq!(totals.durations.iter().map(|(_, count)| count).sum::<u64>(), 5);
        let text = metrics.all.render();
        for line in [
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2"#,
            r#"apiserver_request_total{code="201",component="apiserver",dry_run="All",group="apps",resource="deployments",scope="resource",subresource="",verb="POST",version="v1"} 1"#,
            r#"apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1"#,
            r#"scope="cluster",subresource="",verb="WATCH",version="v1"} 1"#,
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="namespace",subresource="",verb="WATCH",version="v1"} 1"#,
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="nodes",scope="cluster",subresource="",verb="LIST",version="v1"} 1"#,
            r#"apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="WATCH",version="v1"} 0"#,
            r#"resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="0.4"} 2"#,
            r#"apiserver_request_sli_duration_seconds_bucket{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="0.05"} 2"#,
            r#"apiserver_response_sizes_bucket{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="10000"} 2"#,
            r#"apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 0"#,
            r#"apiserver_request_terminations_total{code="429",component="apiserver""#,
            r#"hidden_metrics_total 1"#,
            r#"apiserver_current_inflight_requests{request_kind="readOnly"} 0"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("made.up") && !text.contains("slo_duration"));
        assert!(!text.contains(r#"_bucket{component="apiserver",dry_run="",group="",resource="pods",scope="cluster""#));

        let shown = RequestMetrics::new(true);
        let info = RequestInfo::new(&http::Method::GET, &"/api/v1/pods".parse().unwrap());
        shown.observe(&Labels::of(&info, &HeaderMap::new(), false), StatusCode::OK, Took::default(), None);
        let text = shown.all.render();
        assert!(
            text.contains("apiserver_request_slo_duration_seconds_count{") && text.contains("hidden_metrics_total 0")
        );
    }
}
