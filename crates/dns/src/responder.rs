//! From a packet to its answer: read, answered by the zone at once, or known to need others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::metrics::panics;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use tokio::sync::Semaphore;

use crate::forward::{Forwarder, Reply};
use crate::index::Index;
use crate::metrics::{Exchange, ServerMetrics};
use crate::zone::{Outcome, Zone};

/// What a client without EDNS can take, and what we offer and send at most: no fragments on any path.
const PLAIN_PAYLOAD: u16 = 512;
const PAYLOAD: u16 = 1232;
/// Questions waiting for other resolvers; beyond it clients are told to try again.
const MAX_FORWARDED: usize = 1000;
/// Aliases followed from one service to another.
const MAX_ALIASES: usize = 8;

pub(crate) struct Responder {
    zone: Zone,
    index: Arc<dyn Index>,
    forwarder: Forwarder,
    forwarding: Semaphore,
    /// Rotates the addresses of an answer, so that clients that take the first spread.
    turn: AtomicUsize,
    pub(crate) metrics: ServerMetrics,
}

/// A question that cannot be answered on the spot.
pub(crate) struct Pending {
    response: Message,
    question: Query,
    /// The name to ask for: the question's, or where an alias leads.
    name: Name,
    limit: Option<u16>,
}

/// An answer, ready to send.
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) exchange: Exchange,
    /// The same question has this answer until the cluster changes.
    pub(crate) is_fixed: bool,
}

pub(crate) enum Reaction {
    Answer(Answer),
    Forward(Box<Pending>),
    Ignore,
}

impl Responder {
    pub(crate) fn new(zone: Zone, index: Arc<dyn Index>, forwarder: Forwarder, metrics: ServerMetrics) -> Self {
        let forwarding = Semaphore::new(MAX_FORWARDED);
        Self { zone, index, forwarder, forwarding, turn: AtomicUsize::new(0), metrics }
    }

    /// What a packet is answered with. One that nobody foresaw costs its sender the answer, and nobody else anything.
    pub(crate) fn react(&self, packet: &[u8], over_udp: bool) -> Reaction {
        panics::catch("dns", || self.decide(packet, over_udp)).unwrap_or_else(|| {
            self.metrics.panics.inc();
            let id = packet.get(0..2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
            let failure = |id| Message::error_msg(id, OpCode::Query, ResponseCode::ServFail);
            id.map_or(Reaction::Ignore, |id| encode(failure(id), None, Kept::No))
        })
    }

    fn decide(&self, packet: &[u8], over_udp: bool) -> Reaction {
        let request = match Message::from_vec(packet) {
            Ok(request) => request,
            // Without a readable question only the id can be answered; without an id, nothing.
            Err(_) => {
                let Some(id) = packet.get(0..2).map(|b| u16::from_be_bytes([b[0], b[1]])) else {
                    return Reaction::Ignore;
                };
                // An answer to an answer would go on for ever.
                if packet.get(2).is_none_or(|flags| flags & 0x80 != 0) {
                    return Reaction::Ignore;
                }
                let response = Message::error_msg(id, OpCode::Query, ResponseCode::FormErr);
                return encode(response, None, Kept::No);
            }
        };
        if request.metadata.message_type != MessageType::Query {
            return Reaction::Ignore;
        }
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        let mut limit = over_udp.then_some(PLAIN_PAYLOAD);
        if let Some(edns) = &request.edns {
            let mut own = Edns::new();
            own.set_max_payload(PAYLOAD);
            if over_udp {
                limit = Some(edns.max_payload().clamp(PLAIN_PAYLOAD, PAYLOAD));
            }
            response.set_edns(own);
            if edns.version() > 0 {
                response.metadata.response_code = ResponseCode::BADVERS;
                return encode(response, limit, Kept::No);
            }
        }
        response.add_queries(request.queries.iter().cloned());
        let fail = |mut response: Message, code| {
            response.metadata.response_code = code;
            encode(response, limit, Kept::No)
        };
        if request.metadata.op_code != OpCode::Query {
            return fail(response, ResponseCode::NotImp);
        }
        let [question] = request.queries.as_slice() else { return fail(response, ResponseCode::FormErr) };
        if question.query_class() != DNSClass::IN {
            return fail(response, ResponseCode::Refused);
        }
        self.answer(response, question.clone(), limit)
    }

    fn answer(&self, mut response: Message, question: Query, limit: Option<u16>) -> Reaction {
        let mut name = question.name().clone();
        for _ in 0..MAX_ALIASES {
            let outcome = self.zone.answer(&*self.index, &name, question.query_type());
            response.metadata.response_code = outcome.code();
            match outcome {
                Outcome::Records { mut answers, additionals } => {
                    let turn = self.turn.fetch_add(1, Ordering::Relaxed) % answers.len().max(1);
                    answers.rotate_left(turn);
                    // Several take turns, so no answer is like the one before.
                    let kept = if answers.len() > 1 { Kept::Own } else { Kept::Fixed };
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    response.add_additionals(additionals);
                    return encode(response, limit, kept);
                }
                Outcome::NoData | Outcome::NoSuchName => {
                    response.metadata.authoritative = true;
                    response.add_authority(self.zone.authority());
                    return encode(response, limit, Kept::Fixed);
                }
                Outcome::Alias { answers, target } => {
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    if question.query_type() == RecordType::CNAME {
                        return encode(response, limit, Kept::Fixed);
                    }
                    name = target;
                }
                Outcome::Elsewhere => {
                    let kind = question.query_type();
                    let pending = Pending { response, question, name, limit };
                    return match self.forwarder.remembered(&pending.name, kind) {
                        Some(reply) => {
                            self.metrics.cache_hits.inc();
                            complete(pending, reply)
                        }
                        None => {
                            self.metrics.cache_misses.inc();
                            Reaction::Forward(Box::new(pending))
                        }
                    };
                }
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        encode(response, limit, Kept::Own)
    }

    pub(crate) async fn forward(&self, pending: Pending) -> Reaction {
        let reply = match self.forwarding.try_acquire() {
            Ok(_permit) => {
                let reply = self.forwarder.resolve(&pending.name, pending.question.query_type(), &self.metrics).await;
                self.metrics.cache_entries.set(self.forwarder.remembered_names() as f64);
                reply
            }
            Err(_) => {
                self.metrics.rejects.inc();
                Reply { code: ResponseCode::ServFail, answers: Vec::new(), authorities: Vec::new() }
            }
        };
        complete(pending, reply)
    }
}

/// Joins what another resolver said to what we have said already (an alias, perhaps).
fn complete(pending: Pending, reply: Reply) -> Reaction {
    let Pending { mut response, limit, .. } = pending;
    // An alias that leads nowhere is still an alias.
    let has_alias = !response.answers.is_empty();
    response.metadata.response_code = match reply.code {
        ResponseCode::Refused | ResponseCode::ServFail if has_alias => ResponseCode::NoError,
        code => code,
    };
    response.metadata.authoritative &= has_alias;
    response.add_answers(reply.answers);
    response.add_authorities(reply.authorities);
    encode(response, limit, Kept::No)
}

/// Where an answer comes from, and whether it will be the same next time.
#[derive(Clone, Copy, PartialEq)]
enum Kept {
    /// Others said so, or nothing was asked properly.
    No,
    /// The zone's, but the next one differs.
    Own,
    /// The zone's, until the cluster changes.
    Fixed,
}

/// What does not fit is left out and marked so: additional records first, silently, then everything.
fn encode(mut response: Message, limit: Option<u16>, kept: Kept) -> Reaction {
    let exchange = Exchange {
        kind: response.queries.first().map_or(RecordType::ZERO, Query::query_type),
        code: response.metadata.response_code,
        is_own: kept != Kept::No,
    };
    let answer = |bytes| Reaction::Answer(Answer { bytes, exchange, is_fixed: kept == Kept::Fixed });
    let limit = usize::from(limit.unwrap_or(u16::MAX));
    let fits = |bytes: &Vec<u8>| bytes.len() <= limit;
    if let Some(bytes) = response.to_vec().ok().filter(fits) {
        return answer(bytes);
    }
    response.additionals.clear();
    if let Some(bytes) = response.to_vec().ok().filter(fits) {
        return answer(bytes);
    }
    response.metadata.truncation = true;
    let all: Vec<Record> = std::mem::take(&mut response.answers);
    response.authorities.clear();
    // Half of them, and half again, until they fit.
    let mut count = all.len() / 2;
    loop {
        response.answers = all[..count].to_vec();
        match response.to_vec() {
            Ok(bytes) if bytes.len() <= limit => return answer(bytes),
            Ok(_) if count > 0 => count /= 2,
            _ => return Reaction::Ignore,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;

    use super::*;

    /// An index that cannot take one name.
    struct Fragile;

    impl Index for Fragile {
        fn has_namespace(&self, _: &str) -> bool {
            true
        }

        fn service(&self, _: &str, name: &str) -> Option<Arc<Service>> {
            assert!(name != "poison", "on purpose");
            None
        }

        fn slices(&self, _: &str, _: &str) -> Vec<Arc<EndpointSlice>> {
            Vec::new()
        }

        fn services_at(&self, _: IpAddr) -> Vec<Arc<Service>> {
            Vec::new()
        }

        fn slices_at(&self, _: IpAddr) -> Vec<Arc<EndpointSlice>> {
            Vec::new()
        }
    }

    #[test]
    fn security_a_packet_that_panics_is_the_only_one_to_fail() {
        let zone = Zone::new("cluster.local", 30, &[]).unwrap();
        let forwarder = Forwarder::new(&[], &[], &[]);
        let responder = Responder::new(zone, Arc::new(Fragile), forwarder, ServerMetrics::new("cluster.local"));
        for (name, expected) in [
            ("poison.default.svc.cluster.local.", ResponseCode::ServFail),
            ("other.default.svc.cluster.local.", ResponseCode::NXDomain),
        ] {
            let mut question = Message::query();
            question.metadata.id = 7;
            question.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
            let Reaction::Answer(answer) = responder.react(&question.to_vec().unwrap(), true) else {
                panic!("{name} was not answered");
            };
            let answer = Message::from_vec(&answer.bytes).unwrap();
            assert_eq!((answer.metadata.id, answer.metadata.response_code), (7, expected), "{name}");
        }
        responder.metrics.listener(([127, 0, 0, 1], 53).into(), crate::metrics::Transport::Udp);
        let text = responder.metrics.render();
        assert!(text.contains("coredns_panics_total 1\n"), "{text}");
        let component = client::metrics::upstream::Component::Dns;
        assert_eq!(client::metrics::upstream::problems(component, &text), Vec::<String>::new());
    }
}
