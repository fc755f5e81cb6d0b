//! `/metrics` in the Prometheus text format, under upstream's names: what requests came to, and what other rooms count.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Metrics};
use http::StatusCode;
use parking_lot::RwLock;
use registry::Verb;

use crate::request_info::RequestInfo;

const DURATION_BOUNDS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];

/// What a request is counted as. Anything that a client may invent is left out: nobody shall fill the memory with names.
pub(crate) struct Labels {
    /// The values of [`NAMES`], each with a line of its own; none of them holds more than one.
    values: String,
    long_running: bool,
}

const NAMES: [&str; 7] = ["dry_run", "group", "resource", "scope", "subresource", "verb", "version"];

impl Labels {
    /// Of a request before it is known whether what it names exists.
    pub(crate) fn unknown(info: &RequestInfo) -> Self {
        Self::new(["", "", "", "", "", upper(&info.verb), ""], info)
    }

    /// Of a request for something that exists.
    pub(crate) fn of(info: &RequestInfo) -> Self {
        let dry_run = if info.query.get("dryRun").is_some_and(|value| value == "All") { "All" } else { "" };
        let (group, resource, version) = (&*info.group, &*info.resource, &*info.version);
        Self::new([dry_run, group, resource, scope(info), &info.subresource, upper(&info.verb), version], info)
    }

    fn new(values: [&str; NAMES.len()], info: &RequestInfo) -> Self {
        Self { values: values.join("\n"), long_running: info.is_long_running() }
    }

    fn pairs(&self) -> Vec<(&str, &str)> {
        [("component", "apiserver")].into_iter().chain(NAMES.into_iter().zip(self.values.split('\n'))).collect()
    }
}

fn scope(info: &RequestInfo) -> &'static str {
    match (info.name.is_empty() && info.verb != Verb::Create, info.namespace.is_empty()) {
        _ if !info.is_resource => "",
        (false, _) => "resource",
        (true, false) => "namespace",
        (true, true) => "cluster",
    }
}

fn upper(verb: &Verb) -> &'static str {
    match verb {
        Verb::Get => "GET",
        Verb::List => "LIST",
        Verb::Watch => "WATCH",
        Verb::Create | Verb::Post => "POST",
        Verb::Update | Verb::Put => "PUT",
        Verb::Patch => "PATCH",
        Verb::Delete => "DELETE",
        Verb::DeleteCollection => "DELETECOLLECTION",
        Verb::Head => "HEAD",
        Verb::Options => "OPTIONS",
        _ => "CONNECT",
    }
}

/// What is counted of requests with the same labels and the same code.
#[derive(Clone)]
struct Series {
    requests: Counter,
    /// Nothing for requests that stay open: they would drown the others.
    durations: Option<Histogram>,
}

pub(crate) struct RequestMetrics {
    all: Metrics,
    /// By the values of their labels, then by code.
    known: RwLock<HashMap<String, BTreeMap<u16, Series>>>,
    mutating: Gauge,
    read_only: Gauge,
    open: Gauge,
}

/// A request that is being served.
pub(crate) struct Serving(Gauge);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.add(-1.0);
    }
}

impl RequestMetrics {
    pub(crate) fn new() -> Self {
        let all = Metrics::new().with_process(api::version::GIT);
        let inflight = |kind| {
            let name = "apiserver_current_inflight_requests";
            all.gauge(name, "Requests that are served now", &[("request_kind", kind)])
        };
        Self {
            mutating: inflight("mutating"),
            read_only: inflight("readOnly"),
            open: all.gauge("apiserver_longrunning_requests", "Requests that stay open", &[]),
            known: Default::default(),
            all,
        }
    }

    pub(crate) fn all(&self) -> &Metrics {
        &self.all
    }

    /// Counts a request as one that is served, as long as this is kept.
    pub(crate) fn serving(&self, info: &RequestInfo) -> Serving {
        let gauge = match (info.is_long_running(), info.is_mutating()) {
            (true, _) => &self.open,
            (false, true) => &self.mutating,
            (false, false) => &self.read_only,
        };
        gauge.add(1.0);
        Serving(gauge.clone())
    }

    /// Counts one finished request.
    pub(crate) fn observe(&self, labels: &Labels, status: StatusCode, took: Duration) {
        let code = status.as_u16();
        let known = self.known.read().get(&labels.values).and_then(|codes| codes.get(&code).cloned());
        let series = known.unwrap_or_else(|| {
            let series = self.make(labels, status);
            self.known.write().entry(labels.values.clone()).or_default().insert(code, series.clone());
            series
        });
        series.requests.inc();
        if let Some(durations) = series.durations {
            durations.observe_duration(took);
        }
    }

    fn make(&self, labels: &Labels, status: StatusCode) -> Series {
        let pairs = labels.pairs();
        let with_code: Vec<_> = [("code", status.as_str())].into_iter().chain(pairs.iter().copied()).collect();
        let durations = || {
            let name = "apiserver_request_duration_seconds";
            self.all.histogram(name, "How long requests take", &DURATION_BOUNDS, &pairs)
        };
        Series {
            requests: self.all.counter(
                "apiserver_request_total",
                "Requests by what they were and how they ended",
                &with_code,
            ),
            durations: (!labels.long_running).then(durations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_what_they_are() {
        let metrics = RequestMetrics::new();
        for (method, url, known, code) in [
            ("GET", "/api/v1/namespaces/a/pods/p", true, 200),
            ("GET", "/api/v1/namespaces/a/pods/q", true, 200),
            ("POST", "/apis/apps/v1/namespaces/a/deployments?dryRun=All", true, 201),
            ("GET", "/apis/made.up/v1/names", false, 404),
            ("GET", "/api/v1/pods?watch=1", true, 200),
        ] {
            let info = RequestInfo::new(&method.parse().unwrap(), &url.parse().unwrap());
            let labels = if known { Labels::of(&info) } else { Labels::unknown(&info) };
            let serving = metrics.serving(&info);
            metrics.observe(&labels, StatusCode::from_u16(code).unwrap(), Duration::from_millis(30));
            drop(serving);
        }
        let text = metrics.all.render();
        for line in [
            r#"apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2"#,
            r#"apiserver_request_total{code="201",component="apiserver",dry_run="All",group="apps",resource="deployments",scope="resource",subresource="",verb="POST",version="v1"} 1"#,
            r#"apiserver_request_total{code="404",component="apiserver",dry_run="",group="",resource="",scope="",subresource="",verb="LIST",version=""} 1"#,
            r#"scope="cluster",subresource="",verb="WATCH",version="v1"} 1"#,
            r#"resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="0.05"} 2"#,
            r#"apiserver_current_inflight_requests{request_kind="readOnly"} 0"#,
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("made.up"));
        assert!(!text.contains(r#"_bucket{component="apiserver",dry_run="",group="",resource="pods",scope="cluster""#));
    }
}
