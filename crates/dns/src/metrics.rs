//! Metrics under CoreDNS's names, so that dashboards and alerts made for it go on working.

use std::net::SocketAddr;
use std::time::Duration;

use client::metrics::{Counter, Gauge, Histogram, Metrics};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

/// 0.25 ms, doubling 15 times.
const DURATIONS: &[f64] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
];
const SIZES: &[f64] = &[0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16e3, 32e3, 48e3, 64e3];

/// Types that are counted apart; the rest is `other`.
const TYPES: [RecordType; 9] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::CNAME,
    RecordType::MX,
    RecordType::NS,
    RecordType::PTR,
    RecordType::SOA,
    RecordType::SRV,
    RecordType::TXT,
];
/// Codes that are counted apart; the rest is `OTHER`.
const CODES: [(ResponseCode, &str); 6] = [
    (ResponseCode::NoError, "NOERROR"),
    (ResponseCode::NXDomain, "NXDOMAIN"),
    (ResponseCode::ServFail, "SERVFAIL"),
    (ResponseCode::Refused, "REFUSED"),
    (ResponseCode::FormErr, "FORMERR"),
    (ResponseCode::NotImp, "NOTIMP"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Udp,
    Tcp,
}

/// A question and its answer, as far as they are counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exchange {
    pub(crate) kind: RecordType,
    pub(crate) code: ResponseCode,
    /// Answered from the cluster's zone, rather than by others.
    pub(crate) is_own: bool,
    /// The configuration asks for a line in the log.
    pub(crate) is_logged: bool,
}

/// Of the whole server.
pub(crate) struct ServerMetrics {
    registry: Metrics,
    domain: String,
    cache_requests: Counter,
    cache_hits: Counter,
    cache_misses: Counter,
    pub(crate) cache_entries: Gauge,
    pub(crate) rejects: Counter,
    pub(crate) panics: Counter,
    pub(crate) failed_reloads: Counter,
}

impl ServerMetrics {
    pub(crate) fn new(domain: &str) -> Self {
        let registry = Metrics::new().with_panics().with_process_usage();
        let version = [("version", env!("CARGO_PKG_VERSION")), ("revision", ""), ("goversion", "")];
        let help = "A metric with a constant '1' value labeled by version, revision, and goversion.";
        registry.gauge("coredns_build_info", help, &version).set(1.0);
        let zones = [("server", "dns"), ("zones", "."), ("view", "")];
        let entries = [("server", "dns"), ("type", "success"), ("zones", "."), ("view", "")];
        Self {
            cache_requests: registry.counter("coredns_cache_requests_total", "The count of cache requests.", &zones),
            cache_hits: registry.counter("coredns_cache_hits_total", "The count of cache hits.", &entries),
            cache_misses: registry.counter("coredns_cache_misses_total", "The count of cache misses.", &zones),
            cache_entries: registry.gauge("coredns_cache_entries", "The number of elements in the cache.", &entries),
            failed_reloads: registry.counter(
                "coredns_reload_failed_total",
                "Counter of the number of failed reload attempts.",
                &[],
            ),
            panics: registry.counter("coredns_panics_total", "A metrics that counts the number of panics.", &[]),
            rejects: registry.counter(
                "coredns_forward_max_concurrent_rejects_total",
                "Counter of the number of queries rejected because the concurrent queries were at maximum.",
                &[],
            ),
            domain: format!("{}.", domain.trim_matches('.')),
            registry,
        }
    }

    pub(crate) fn render(&self) -> String {
        self.registry.render()
    }

    /// Somebody asked for what others answer; `is_hit` where their answer was still remembered.
    pub(crate) fn cache_asked(&self, is_hit: bool) {
        self.cache_requests.inc();
        let outcome = if is_hit { &self.cache_hits } else { &self.cache_misses };
        outcome.inc();
    }

    /// How long a resolver took.
    pub(crate) fn forwarded(&self, to: SocketAddr, code: &str, took: Duration) {
        let (name, help) = ("coredns_proxy_request_duration_seconds", "Histogram of the time each request took.");
        let to = to.to_string();
        let labels = [("proxy_name", "forward"), ("to", to.as_str()), ("rcode", code)];
        self.registry.histogram(name, help, DURATIONS, &labels).observe_duration(took);
    }

    /// What one listener counts; looked up once, so that a packet only adds.
    pub(crate) fn listener(&self, address: SocketAddr, transport: Transport) -> ListenerMetrics {
        ListenerMetrics { own: self.zone(address, transport, &self.domain), other: self.zone(address, transport, ".") }
    }

    fn zone(&self, address: SocketAddr, transport: Transport, zone: &str) -> ZoneMetrics {
        let server = format!("dns://{address}");
        let family = if address.is_ipv6() { "2" } else { "1" };
        let proto = match transport {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        let base = [("server", server.as_str()), ("zone", zone), ("view", "")];
        let with = |more: &[(&'static str, &'static str)]| [&base[..], more].concat();
        let request = |kind: &'static str| {
            let help = "Counter of DNS requests made per zone, protocol and family.";
            let labels = with(&[("proto", proto), ("family", family), ("type", kind)]);
            self.registry.counter("coredns_dns_requests_total", help, &labels)
        };
        let response = |code: &'static str| {
            let labels = with(&[("rcode", code), ("plugin", "kubernetes")]);
            self.registry.counter("coredns_dns_responses_total", "Counter of response status codes.", &labels)
        };
        let size = |name, help| self.registry.histogram(name, help, SIZES, &with(&[("proto", proto)]));
        ZoneMetrics {
            requests: TYPES.iter().map(|kind| request((*kind).into())).chain([request("other")]).collect(),
            responses: CODES.iter().map(|(_, code)| response(code)).chain([response("OTHER")]).collect(),
            request_size: size("coredns_dns_request_size_bytes", "Size of the DNS requests in bytes."),
            response_size: size("coredns_dns_response_size_bytes", "Size of the returned response in bytes."),
            duration: self.registry.histogram(
                "coredns_dns_request_duration_seconds",
                "Histogram of the time (in seconds) each request took per zone.",
                DURATIONS,
                &base,
            ),
        }
    }
}

/// Of one address and transport.
pub(crate) struct ListenerMetrics {
    own: ZoneMetrics,
    other: ZoneMetrics,
}

struct ZoneMetrics {
    requests: Vec<Counter>,
    responses: Vec<Counter>,
    request_size: Histogram,
    response_size: Histogram,
    duration: Histogram,
}

impl ListenerMetrics {
    pub(crate) fn count(&self, exchange: Exchange, request: usize, response: usize, took: Duration) {
        let zone = if exchange.is_own { &self.own } else { &self.other };
        let kind = TYPES.iter().position(|kind| *kind == exchange.kind).unwrap_or(TYPES.len());
        let code = CODES.iter().position(|(code, _)| *code == exchange.code).unwrap_or(CODES.len());
        zone.requests[kind].inc();
        zone.responses[code].inc();
        zone.request_size.observe(request as f64);
        zone.response_size.observe(response as f64);
        zone.duration.observe_duration(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_counts_requests_hits_and_misses() {
        let metrics = ServerMetrics::new("cluster.local");
        for is_hit in [false, true, true] {
            metrics.cache_asked(is_hit);
        }
        let text = metrics.render();
        for row in [
            "coredns_cache_requests_total{server=\"dns\",view=\"\",zones=\".\"} 3\n",
            "coredns_cache_hits_total{server=\"dns\",type=\"success\",view=\"\",zones=\".\"} 2\n",
            "coredns_cache_misses_total{server=\"dns\",view=\"\",zones=\".\"} 1\n",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }
}
