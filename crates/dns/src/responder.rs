//! From a packet to its answer: read, answered by the zone at once, or known to need others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::metrics::panics;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Record, RecordType};
use parking_lot::RwLock;
use tokio::sync::Semaphore;

use crate::forward::{Forwarder, Question, Reply};
use crate::index::Index;
use crate::metrics::{Exchange, ServerMetrics};
use crate::plan::{Block, Plan};
use crate::rewrite::{self, Undo};
use crate::zone::Outcome;

/// What a client without EDNS can take, and what we offer and send at most: no fragments on any path.
const PLAIN_PAYLOAD: u16 = 512;
const PAYLOAD: u16 = 1232;
/// Questions waiting for other resolvers; beyond it clients are told to try again.
const MAX_FORWARDED: usize = 1000;
/// Aliases followed from one service to another.
const MAX_ALIASES: usize = 8;

pub(crate) struct Responder {
    plan: RwLock<Arc<Plan>>,
    index: Arc<dyn Index>,
    forwarding: Semaphore,
    /// Rotates the addresses of an answer, so that clients that take the first spread.
    turn: AtomicUsize,
    pub(crate) metrics: ServerMetrics,
}

/// A question that cannot be answered on the spot.
pub(crate) struct Pending {
    response: Message,
    /// What to ask for: the client's question, or what became of it, or where an alias leads.
    question: Question,
    forwarder: Arc<Forwarder>,
    undo: Undo,
    limit: Option<u16>,
    plan: Arc<Plan>,
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
    pub(crate) fn new(plan: Plan, index: Arc<dyn Index>, metrics: ServerMetrics) -> Self {
        let forwarding = Semaphore::new(MAX_FORWARDED);
        Self { plan: RwLock::new(Arc::new(plan)), index, forwarding, turn: AtomicUsize::new(0), metrics }
    }

    /// Answers by another plan from now on.
    pub(crate) fn exchange(&self, plan: Plan) {
        *self.plan.write() = Arc::new(plan);
    }

    /// What a packet is answered with. One that nobody foresaw costs its sender the answer, and nobody else anything.
    pub(crate) fn react(&self, packet: &[u8], over_udp: bool) -> Reaction {
        panics::catch("dns", || self.decide(packet, over_udp)).unwrap_or_else(|| {
            self.metrics.panics.inc();
            let id = packet.get(0..2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
            let failure = |id| Message::error_msg(id, OpCode::Query, ResponseCode::ServFail);
            id.map_or(Reaction::Ignore, |id| encode(failure(id), None, Kept::No, None))
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
                return encode(response, None, Kept::No, None);
            }
        };
        if request.metadata.message_type != MessageType::Query {
            return Reaction::Ignore;
        }
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata.recursion_desired = request.metadata.recursion_desired;
        response.metadata.recursion_available = true;
        let mut limit = over_udp.then_some(PLAIN_PAYLOAD);
        let dnssec_ok = request.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok);
        if let Some(edns) = &request.edns {
            let mut own = Edns::new();
            own.set_dnssec_ok(dnssec_ok);
            own.set_max_payload(PAYLOAD);
            if over_udp {
                limit = Some(edns.max_payload().clamp(PLAIN_PAYLOAD, PAYLOAD));
            }
            response.set_edns(own);
            if edns.version() > 0 {
                response.metadata.response_code = ResponseCode::BADVERS;
                return encode(response, limit, Kept::No, None);
            }
        }
        response.add_queries(request.queries.iter().cloned());
        let fail = |mut response: Message, code| {
            response.metadata.response_code = code;
            encode(response, limit, Kept::No, None)
        };
        if request.metadata.op_code != OpCode::Query {
            return fail(response, ResponseCode::NotImp);
        }
        let [question] = request.queries.as_slice() else { return fail(response, ResponseCode::FormErr) };
        if question.query_class() != DNSClass::IN {
            return fail(response, ResponseCode::Refused);
        }
        let checking_disabled = request.metadata.checking_disabled;
        response.metadata.checking_disabled = checking_disabled;
        let plan = self.plan.read().clone();
        let Some(first) = plan.block(question.name()) else { return fail(response, ResponseCode::Refused) };
        let (name, kind, rewritten) = rewrite::apply(&first.rewrites, question.name(), question.query_type());
        let asked = Question { name, kind, dnssec_ok, checking_disabled };
        let reaction = self.answer(response, first, &plan, asked, rewritten.undo(), limit);
        match reaction {
            Reaction::Forward(pending) => match pending.forwarder.remembered(&pending.question) {
                Some(reply) => {
                    self.metrics.cache_hits.inc();
                    complete(*pending, reply)
                }
                None => {
                    self.metrics.cache_misses.inc();
                    Reaction::Forward(pending)
                }
            },
            other => other,
        }
    }

    /// `first` is the block of the client's question, `asked` what became of that.
    fn answer(
        &self,
        mut response: Message,
        first: &Block,
        plan: &Arc<Plan>,
        asked: Question,
        undo: Undo,
        limit: Option<u16>,
    ) -> Reaction {
        let Question { mut name, kind, dnssec_ok, checking_disabled } = asked;
        let mut block = first;
        for _ in 0..MAX_ALIASES {
            let known = block.known(&*self.index, &name, kind);
            response.metadata.response_code = known.outcome.code();
            match known.outcome {
                Outcome::Records { mut answers, additionals } => {
                    // Several take turns, so no answer is like the one before.
                    let takes_turns = block.rotates && answers.len() > 1;
                    if takes_turns {
                        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % answers.len();
                        answers.rotate_left(turn);
                    }
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    response.add_additionals(additionals);
                    undo.apply(&mut response.answers);
                    return encode(response, limit, if takes_turns { Kept::Own } else { Kept::Fixed }, Some(first));
                }
                Outcome::NoData | Outcome::NoSuchName => {
                    response.metadata.authoritative = true;
                    response.authorities.extend(known.authority);
                    undo.apply(&mut response.answers);
                    return encode(response, limit, Kept::Fixed, Some(first));
                }
                Outcome::Composed { answers, additionals, authorities, .. } => {
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    response.add_additionals(additionals);
                    response.add_authorities(authorities);
                    undo.apply(&mut response.answers);
                    return encode(response, limit, Kept::Fixed, Some(first));
                }
                Outcome::Failed(_) => return encode(response, limit, Kept::Fixed, Some(first)),
                Outcome::Alias { answers, target } => {
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    if kind == RecordType::CNAME {
                        undo.apply(&mut response.answers);
                        return encode(response, limit, Kept::Fixed, Some(first));
                    }
                    name = target;
                    // Where an alias leads is a question of its own, but for rewrites.
                    match plan.block(&name) {
                        Some(next) => block = next,
                        None => {
                            undo.apply(&mut response.answers);
                            return encode(response, limit, Kept::Fixed, Some(first));
                        }
                    }
                }
                Outcome::Elsewhere => {
                    let Some(forwarder) = block.forwarder(&name).cloned() else {
                        if !response.answers.is_empty() {
                            response.metadata.response_code = ResponseCode::NoError;
                        }
                        undo.apply(&mut response.answers);
                        return encode(response, limit, Kept::No, Some(first));
                    };
                    let question = Question { name, kind, dnssec_ok, checking_disabled };
                    let plan = plan.clone();
                    return Reaction::Forward(Box::new(Pending { response, question, forwarder, undo, limit, plan }));
                }
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        encode(response, limit, Kept::Own, Some(first))
    }

    pub(crate) async fn forward(&self, pending: Pending) -> Reaction {
        let reply = match self.forwarding.try_acquire() {
            Ok(_permit) => {
                let reply = pending.forwarder.resolve(&pending.question, &self.metrics).await;
                self.metrics.cache_entries.set(pending.plan.remembered_names() as f64);
                reply
            }
            Err(_) => {
                self.metrics.rejects.inc();
                Reply::failure(ResponseCode::ServFail)
            }
        };
        complete(pending, reply)
    }
}

/// Joins what another resolver said to what we have said already (an alias, perhaps).
fn complete(pending: Pending, reply: Reply) -> Reaction {
    let Pending { mut response, limit, undo, plan, .. } = pending;
    // An alias that leads nowhere is still an alias.
    let has_alias = !response.answers.is_empty();
    response.metadata.response_code = match reply.code {
        ResponseCode::Refused | ResponseCode::ServFail if has_alias => ResponseCode::NoError,
        code => code,
    };
    response.metadata.authoritative &= has_alias;
    response.metadata.authentic_data = reply.is_authentic && !has_alias;
    response.add_answers(reply.answers);
    response.add_authorities(reply.authorities);
    undo.apply(&mut response.answers);
    let block = response.queries.first().and_then(|question| plan.block(question.name()));
    encode(response, limit, Kept::No, block)
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
fn encode(mut response: Message, limit: Option<u16>, kept: Kept, block: Option<&Block>) -> Reaction {
    let (code, has_answers) = (response.metadata.response_code, !response.answers.is_empty());
    let logs = |question: &Query| block.is_some_and(|block| block.logs(question.name(), code, has_answers));
    let exchange = Exchange {
        kind: response.queries.first().map_or(RecordType::ZERO, Query::query_type),
        code,
        is_own: kept != Kept::No,
        is_logged: response.queries.first().is_some_and(logs),
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
    use crate::plan::Flags;
    use hickory_proto::rr::Name;

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

        fn has_pod(&self, _: &str, _: IpAddr) -> bool {
            false
        }
    }

    #[test]
    fn security_a_packet_that_panics_is_the_only_one_to_fail() {
        let flags =
            Flags { domain: "cluster.local", ttl: 30, upstreams: &[], stub_domains: &[], ranges: &[], own: vec![] };
        let plan = Plan::of_flags(&flags).unwrap();
        let responder = Responder::new(plan, Arc::new(Fragile), ServerMetrics::new("cluster.local"));
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
