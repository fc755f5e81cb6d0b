//! From a packet to its answer: read, answered by the zone at once, or known to need others.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::metrics::panics;
use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
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
/// Records of a message of a zone transfer: with the longest of names they fit.
const TRANSFERRED_AT_ONCE: usize = 100;
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
    walk: Walk,
}

/// A question on its way: the names under which it is looked for, one after the other.
struct Walk {
    /// The answer without any records.
    empty: Message,
    /// What the client means, after rewrites.
    asked: Question,
    /// Names to look under, the next one last. Where a search path is walked there are several.
    rest: Vec<Name>,
    /// What was found under the first of them: it is answered if there is nothing under the others either.
    first: Option<(Message, Kept)>,
    undo: Undo,
    limit: Option<u16>,
    plan: Arc<Plan>,
    /// Whether what is answered depends on who asks, and whether a search path is walked.
    is_personal: bool,
    is_searched: bool,
}

/// What became of one name.
enum Found {
    Answer(Message, Kept),
    Elsewhere(Message, Question, Arc<Forwarder>),
}

/// All records of a zone, for somebody who may have them.
pub(crate) struct Transfer {
    head: Message,
    name: Name,
    plan: Arc<Plan>,
    index: Arc<dyn Index>,
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
    Transfer(Box<Transfer>),
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
    pub(crate) fn react(&self, packet: &[u8], over_udp: bool, client: Option<IpAddr>) -> Reaction {
        panics::catch("dns", || self.decide(packet, over_udp, client)).unwrap_or_else(|| {
            self.metrics.panics.inc();
            let id = packet.get(0..2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
            let failure = |id| Message::error_msg(id, OpCode::Query, ResponseCode::ServFail);
            id.map_or(Reaction::Ignore, |id| encode(failure(id), None, Kept::No, None))
        })
    }

    fn decide(&self, packet: &[u8], over_udp: bool, client: Option<IpAddr>) -> Reaction {
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
        if matches!(question.query_type(), RecordType::AXFR | RecordType::IXFR) {
            let (name, index) = (question.name().to_lowercase(), self.index.clone());
            // A datagram does not hold a zone, and says nothing certain about who sent it.
            if over_udp || plan.transferred(&name, client).is_none() {
                return fail(response, ResponseCode::Refused);
            }
            return Reaction::Transfer(Box::new(Transfer { head: response, name, plan, index }));
        }
        let Some(first) = plan.block(question.name()) else { return fail(response, ResponseCode::Refused) };
        let (name, kind, rewritten) = rewrite::apply(&first.rewrites, question.name(), question.query_type());
        let mut rest = first.searched(&*self.index, client, &name);
        rest.reverse();
        let (is_searched, is_personal) = (!rest.is_empty(), first.is_personal());
        if !is_searched {
            rest.push(name.clone());
        }
        self.walk(Walk {
            empty: response,
            asked: Question { name, kind, dnssec_ok, checking_disabled },
            rest,
            first: None,
            undo: rewritten.undo(),
            limit,
            plan: plan.clone(),
            is_personal,
            is_searched,
        })
    }

    /// Looks under one name after the other, until something is there or others have to be asked.
    fn walk(&self, mut walk: Walk) -> Reaction {
        while let Some(name) = walk.rest.pop() {
            let Some(block) = walk.plan.block(&name) else { continue };
            match self.find(walk.empty.clone(), block, &walk.plan, Question { name, ..walk.asked.clone() }) {
                Found::Answer(message, kept) => {
                    if let Some(found) = walk.settles(message, kept) {
                        return found;
                    }
                }
                Found::Elsewhere(response, question, forwarder) => {
                    let remembered = forwarder.remembered(&question);
                    self.metrics.cache_asked(remembered.is_some());
                    let Some(reply) = remembered else {
                        return Reaction::Forward(Box::new(Pending { response, question, forwarder, walk }));
                    };
                    if let Some(found) = walk.settles(joined(response, reply), Kept::No) {
                        return found;
                    }
                }
            }
        }
        walk.end()
    }

    /// What is known of a name, and of where its aliases lead.
    fn find(&self, mut response: Message, first: &Block, plan: &Plan, asked: Question) -> Found {
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
                    return Found::Answer(response, if takes_turns { Kept::Own } else { Kept::Fixed });
                }
                Outcome::NoData | Outcome::NoSuchName => {
                    response.metadata.authoritative = true;
                    response.authorities.extend(known.authority);
                    return Found::Answer(response, Kept::Fixed);
                }
                Outcome::Composed { answers, additionals, authorities, .. } => {
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    response.add_additionals(additionals);
                    response.add_authorities(authorities);
                    return Found::Answer(response, Kept::Fixed);
                }
                Outcome::Failed(_) => return Found::Answer(response, Kept::Fixed),
                Outcome::Alias { answers, target } => {
                    response.metadata.authoritative = true;
                    response.add_answers(answers);
                    if kind == RecordType::CNAME {
                        return Found::Answer(response, Kept::Fixed);
                    }
                    name = target;
                    // Where an alias leads is a question of its own, but for rewrites.
                    match plan.block(&name) {
                        Some(next) => block = next,
                        None => return Found::Answer(response, Kept::Fixed),
                    }
                }
                Outcome::Elsewhere => {
                    let Some(forwarder) = block.forwarder(&name).cloned() else {
                        if !response.answers.is_empty() {
                            response.metadata.response_code = ResponseCode::NoError;
                        }
                        return Found::Answer(response, Kept::No);
                    };
                    let question = Question { name, kind, dnssec_ok, checking_disabled };
                    return Found::Elsewhere(response, question, forwarder);
                }
            }
        }
        response.metadata.response_code = ResponseCode::ServFail;
        Found::Answer(response, Kept::Own)
    }

    /// Asks others, for as long as there are names to look under.
    pub(crate) async fn forward(&self, mut pending: Pending) -> Reaction {
        loop {
            let reply = match self.forwarding.try_acquire() {
                Ok(_permit) => {
                    let reply = pending.forwarder.resolve(&pending.question, &self.metrics).await;
                    self.metrics.cache_entries.set(pending.walk.plan.remembered_names() as f64);
                    reply
                }
                Err(_) => {
                    self.metrics.rejects.inc();
                    Reply::failure(ResponseCode::ServFail)
                }
            };
            let Pending { response, mut walk, .. } = pending;
            if let Some(found) = walk.settles(joined(response, reply), Kept::No) {
                return found;
            }
            match self.walk(walk) {
                Reaction::Forward(next) => pending = *next,
                reaction => return reaction,
            }
        }
    }
}

impl Walk {
    /// The answer, if there is something under the last name, or no name left. What the first one was answered with is kept:
    /// a client whose search path leads nowhere learns that.
    fn settles(&mut self, message: Message, kept: Kept) -> Option<Reaction> {
        use ResponseCode::{NXDomain, Refused, ServFail};
        let is_nothing = matches!(message.metadata.response_code, NXDomain | Refused | ServFail);
        if is_nothing && (!self.rest.is_empty() || self.first.is_some()) {
            self.first.get_or_insert((message, kept));
            return None;
        }
        Some(self.finish(message, kept))
    }

    fn end(mut self) -> Reaction {
        match self.first.take() {
            Some((message, kept)) => self.finish(message, kept),
            None => {
                let mut refused = self.empty.clone();
                refused.metadata.response_code = ResponseCode::Refused;
                encode(refused, self.limit, Kept::No, None)
            }
        }
    }

    fn finish(&self, mut message: Message, kept: Kept) -> Reaction {
        // What was found under another name is told as an alias.
        if self.is_searched
            && let Some(record) = message.answers.first()
            && record.name.to_lowercase() != self.asked.name.to_lowercase()
        {
            let alias = RData::CNAME(CNAME(record.name.clone()));
            message.answers.insert(0, Record::from_rdata(self.asked.name.clone(), record.ttl, alias));
        }
        self.undo.apply(&mut message.answers);
        let block = message.queries.first().and_then(|question| self.plan.block(question.name()));
        let kept = if self.is_personal && kept == Kept::Fixed { Kept::Own } else { kept };
        encode(message, self.limit, kept, block)
    }
}

impl Transfer {
    /// The messages, one after the other: few records each, so that no zone is held as a whole.
    pub(crate) fn messages(&self) -> impl Iterator<Item = Result<Vec<u8>, ProtoError>> + '_ {
        let zone = self.plan.zone(&self.name);
        let index = &*self.index;
        let soa = zone.map(|zone| zone.authority(index));
        let apex = zone.into_iter().flat_map(|zone| zone.apex_records(index));
        let services = if zone.is_some() { index.all_services() } else { Vec::new() };
        let of_services = services
            .into_iter()
            .flat_map(move |service| zone.map(|zone| zone.service_records(index, &service)).unwrap_or_default());
        let mut records = soa.clone().into_iter().chain(apex).chain(of_services).chain(soa).peekable();
        let mut is_first = true;
        std::iter::from_fn(move || {
            records.peek()?;
            let mut message = self.head.clone();
            message.metadata.authoritative = true;
            message.metadata.recursion_available = false;
            if !std::mem::take(&mut is_first) {
                message.queries.clear();
            }
            message.add_answers(records.by_ref().take(TRANSFERRED_AT_ONCE));
            Some(message.to_vec())
        })
    }
}

/// Joins what another resolver said to what we have said already (an alias, perhaps).
fn joined(mut response: Message, reply: Reply) -> Message {
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
    response
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
    use k8s_openapi::api::core::v1::Service;
    use k8s_openapi::api::discovery::v1::EndpointSlice;

    use super::*;
    use crate::plan::Flags;

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

        fn namespace_of_pod(&self, _: IpAddr) -> Option<String> {
            None
        }

        fn all_services(&self) -> Vec<Arc<Service>> {
            Vec::new()
        }

        fn serial(&self) -> u32 {
            1
        }
    }

    #[test]
    fn security_a_packet_that_panics_is_the_only_one_to_fail() {
        let flags = Flags {
            domain: "cluster.local",
            ttl: 30,
            upstreams: &[],
            stub_domains: &[],
            ranges: &[],
            search: &[],
            own: vec![],
        };
        let plan = Plan::of_flags(&flags).unwrap();
        let responder = Responder::new(plan, Arc::new(Fragile), ServerMetrics::new("cluster.local"));
        for (name, expected) in [
            ("poison.default.svc.cluster.local.", ResponseCode::ServFail),
            ("other.default.svc.cluster.local.", ResponseCode::NXDomain),
        ] {
            let mut question = Message::query();
            question.metadata.id = 7;
            question.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
            let Reaction::Answer(answer) = responder.react(&question.to_vec().unwrap(), true, None) else {
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

    fn responder(corefile: &str) -> Responder {
        let object = |value| serde_json::from_value(value).unwrap();
        let service = |namespace: &str, name: &str, spec: serde_json::Value| -> Arc<Service> {
            Arc::new(object(serde_json::json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})))
        };
        let address = |text: &str| {
            serde_json::json!({"clusterIP": text, "clusterIPs": [text],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]})
        };
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "ns", "name": "db", "labels": {"kubernetes.io/service-name": "db"}},
            "addressType": "IPv4", "ports": [{"name": "pg", "port": 5432, "protocol": "TCP"}],
            "endpoints": [{"addresses": ["10.42.0.2"], "hostname": "db-0"}, {"addresses": ["10.42.0.3"]}]}))
        .unwrap();
        let objects = crate::offline::Objects {
            namespaces: vec!["ns".into(), "other".into()],
            services: vec![
                service("ns", "db", serde_json::json!({"clusterIP": "None", "ports": [{"name": "pg", "port": 5432}]})),
                service("ns", "ext", serde_json::json!({"type": "ExternalName", "externalName": "foo.test"})),
                service("ns", "web", address("10.43.0.9")),
                service("other", "web", address("10.43.0.10")),
            ],
            slices: vec![Arc::new(slice)],
            pods: vec![("ns".into(), "10.42.0.7".parse().unwrap())],
        };
        let flags = Flags {
            domain: "cluster.local",
            ttl: 30,
            upstreams: &[],
            stub_domains: &[],
            ranges: &[],
            search: &["corp.test".into()],
            own: vec![],
        };
        let plan = Plan::of_corefile(corefile, &Default::default(), &flags).unwrap();
        Responder::new(plan, Arc::new(objects), ServerMetrics::new("cluster.local"))
    }

    fn react(responder: &Responder, name: &str, kind: RecordType, over_udp: bool, client: &str) -> Reaction {
        let mut question = Message::query();
        question.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
        responder.react(&question.to_vec().unwrap(), over_udp, Some(client.parse().unwrap()))
    }

    #[test]
    fn a_pods_search_path_is_walked_for_it() {
        let responder = responder(
            ". {
                autopath @kubernetes
                kubernetes cluster.local {
                    pods verified
                }
                hosts {
                    192.0.2.1 printer.corp.test
                    192.0.2.2 example.test
                    fallthrough
                }
            }",
        );
        let ask = |name: &str, client: &str| {
            let Reaction::Answer(answer) = react(&responder, name, RecordType::A, true, client) else {
                panic!("{name}")
            };
            assert!(!answer.is_fixed, "another client would be told another's answer");
            let message = Message::from_vec(&answer.bytes).unwrap();
            let records: Vec<String> =
                message.answers.iter().map(|record| format!("{} {}", record.name, record.data)).collect();
            match records.is_empty() {
                true => format!("{:?}", message.metadata.response_code),
                false => records.join(", "),
            }
        };
        let pod = "10.42.0.7";
        for (name, client, expected) in [
            ("web.ns.svc.cluster.local.", pod, "web.ns.svc.cluster.local. 10.43.0.9"),
            // In the namespace of the other, which the pod names.
            (
                "web.other.ns.svc.cluster.local.",
                pod,
                "web.other.ns.svc.cluster.local. web.other.svc.cluster.local., web.other.svc.cluster.local. 10.43.0.10",
            ),
            (
                "printer.ns.svc.cluster.local.",
                pod,
                "printer.ns.svc.cluster.local. printer.corp.test., printer.corp.test. 192.0.2.1",
            ),
            (
                "example.test.ns.svc.cluster.local.",
                pod,
                "example.test.ns.svc.cluster.local. example.test., example.test. 192.0.2.2",
            ),
            // Nothing anywhere: what is under the first name.
            ("none.ns.svc.cluster.local.", pod, "NXDomain"),
            // Not the first of its search path, or nobody's.
            ("example.test.svc.cluster.local.", pod, "NXDomain"),
            ("example.test.other.svc.cluster.local.", pod, "NXDomain"),
            ("ns.svc.cluster.local.", pod, "NoError"),
            ("example.test.ns.svc.cluster.local.", "10.42.0.8", "NXDomain"),
        ] {
            assert_eq!(ask(name, client), expected, "{name} {client}");
        }
    }

    #[test]
    fn security_nobody_changes_names_through_us() {
        let responder = responder(
            ". {
                kubernetes cluster.local {
                    pods disabled
                }
            }",
        );
        for code in [OpCode::Update, OpCode::Notify, OpCode::Status] {
            for name in ["cluster.local.", "example.test."] {
                let mut question = Message::query();
                question.metadata.op_code = code;
                question.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::SOA));
                let Reaction::Answer(answer) = responder.react(&question.to_vec().unwrap(), false, None) else {
                    panic!("{code:?} {name} was not answered here");
                };
                let answer = Message::from_vec(&answer.bytes).unwrap();
                assert_eq!(answer.metadata.response_code, ResponseCode::NotImp, "{code:?} {name}");
            }
        }
    }

    #[test]
    fn security_a_zone_goes_only_to_whom_it_may() {
        let responder = responder(
            ". {
                transfer cluster.local {
                    to 192.0.2.7
                }
                kubernetes cluster.local {
                    pods disabled
                }
            }",
        );
        let of = |name: &str, over_udp: bool, client: &str| match react(
            &responder,
            name,
            RecordType::AXFR,
            over_udp,
            client,
        ) {
            Reaction::Transfer(transfer) => {
                let messages: Vec<Message> =
                    transfer.messages().map(|bytes| Message::from_vec(&bytes.unwrap()).unwrap()).collect();
                assert!(messages.iter().all(|message| message.metadata.authoritative));
                let all = messages.iter().flat_map(|message| &message.answers);
                all.map(|record| format!("{} {} {}", record.name, record.record_type(), record.data)).collect()
            }
            Reaction::Answer(answer) => {
                vec![format!("{:?}", Message::from_vec(&answer.bytes).unwrap().metadata.response_code)]
            }
            _ => panic!("{name} {client}"),
        };
        for (name, over_udp, client) in [
            ("cluster.local.", false, "192.0.2.8"),
            ("cluster.local.", true, "192.0.2.7"),
            ("svc.cluster.local.", false, "192.0.2.7"),
            ("example.test.", false, "192.0.2.7"),
        ] {
            assert_eq!(of(name, over_udp, client), ["Refused"], "{name} {client}");
        }
        let soa = "cluster.local. SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5";
        let expected = [
            soa,
            "cluster.local. NS ns.dns.cluster.local.",
            "dns-version.cluster.local. TXT 1.1.0",
            "db.ns.svc.cluster.local. A 10.42.0.2",
            "db.ns.svc.cluster.local. A 10.42.0.3",
            "10-42-0-3.db.ns.svc.cluster.local. A 10.42.0.3",
            "db-0.db.ns.svc.cluster.local. A 10.42.0.2",
            "_pg._tcp.db.ns.svc.cluster.local. SRV 0 50 5432 db-0.db.ns.svc.cluster.local.",
            "_pg._tcp.db.ns.svc.cluster.local. SRV 0 50 5432 10-42-0-3.db.ns.svc.cluster.local.",
            "ext.ns.svc.cluster.local. CNAME foo.test.",
            "web.ns.svc.cluster.local. A 10.43.0.9",
            "_http._tcp.web.ns.svc.cluster.local. SRV 0 100 80 web.ns.svc.cluster.local.",
            "web.other.svc.cluster.local. A 10.43.0.10",
            "_http._tcp.web.other.svc.cluster.local. SRV 0 100 80 web.other.svc.cluster.local.",
            soa,
        ];
        assert_eq!(of("Cluster.local.", false, "::ffff:192.0.2.7"), expected);
    }
}
