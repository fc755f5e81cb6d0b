//! What each directive says. Texts of errors are CoreDNS's where it has one.

use std::net::{IpAddr, SocketAddr};

use super::syntax::{Directive, Line, ServerBlock};
use super::{Refusal, Server, Surroundings, name, zone};
use crate::forward::is_own;
use crate::hosts::Hosts;
use crate::rewrite::Rule;
use crate::settings::{Cache, Fallthrough, Forward, Kubernetes, Log, NameOptions, Pods, Policy, Transfer};
use crate::template::Template;

const PORT: u16 = 53;
/// Where the ConfigMap is mounted in a pod of CoreDNS.
const DIRECTORY: &str = "/etc/coredns/";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const MAX_RESOLVERS: usize = 15;
/// As long as CoreDNS believes others unless it is told.
const DEFAULT_CACHE: (u32, u32) = (3600, 1800);

/// Directives about what this server does anyway, or in its own place: errors are logged, health, readiness and metrics
/// answer where flags say, a changed Corefile is read at once, and what leads back here is never asked.
pub(super) const WITHOUT_EFFECT: [&str; 7] = ["errors", "health", "ready", "prometheus", "loop", "reload", "bufsize"];

pub(super) fn read(block: ServerBlock, surroundings: Surroundings<'_>) -> Result<Server, Refusal> {
    let mut zones = Vec::new();
    for key in &block.keys {
        zones.push(server_zone(key, block.line)?);
    }
    let mut server = Server { zones, ..Server::default() };
    let mut seen: Vec<String> = Vec::new();
    for directive in &block.directives {
        let (line, name) = (directive.line, directive.name.as_str());
        let is_repeatable = ["forward", "rewrite", "template", "log"].contains(&name);
        if !is_repeatable && seen.iter().any(|seen| seen == name) {
            return Err(Refusal::at(
                line,
                format!("plugin/{name}: this plugin can only be used once per Server Block"),
            ));
        }
        seen.push(name.to_owned());
        // The zones of the block are those of a directive without any.
        let zones = server.zones.clone();
        match name {
            _ if WITHOUT_EFFECT.contains(&name) => {}
            "hosts" => server.hosts = Some(hosts(directive, zones, surroundings)?),
            "rewrite" => server.rewrites.push(rewrite(directive)?),
            "template" => server.templates.push(template(directive, zones)?),
            "kubernetes" => server.kubernetes = Some(kubernetes(directive, zones)?),
            "forward" => server.forwards.push(forward(directive, surroundings)?),
            "cache" => server.cache = Some(cache(directive, zones)?),
            "log" => server.log = Some(log(directive, zones)?),
            "loadbalance" => server.rotates = loadbalance(directive)?,
            "autopath" => server.autopath = Some(autopath(directive, zones)?),
            "transfer" => server.transfer = Some(transfer(directive, zones)?),
            _ => return Err(Refusal::at(line, format!("Unknown directive '{name}'"))),
        }
    }
    if let Some(directive) = block.directives.iter().find(|directive| directive.name == "autopath")
        && server.kubernetes.as_ref().is_none_or(|kubernetes| kubernetes.names.pods != Pods::Verified)
    {
        return directive.refuse("@kubernetes needs the plugin kubernetes with 'pods verified' in this server block");
    }
    Ok(server)
}

/// `example.org`, `.:53`, `dns://example.org:53`.
fn server_zone(key: &str, line: usize) -> Result<hickory_proto::rr::Name, Refusal> {
    let refuse = |why: &str| Err(Refusal::at(line, format!("{key}: {why}")));
    let rest = match key.split_once("://") {
        Some(("dns", rest)) => rest,
        Some(_) => return refuse("only plain DNS is served"),
        None => key,
    };
    let text = match rest.rsplit_once(':') {
        Some((text, port)) if port.parse() == Ok(PORT) => text,
        Some(_) => return refuse("only port 53 is served"),
        None => rest,
    };
    zone(if text.is_empty() { "." } else { text }).map_or_else(|| refuse("this is no zone"), Ok)
}

impl Directive {
    fn refuse<T>(&self, why: impl std::fmt::Display) -> Result<T, Refusal> {
        Err(Refusal::at(self.line, format!("plugin/{}: {why}", self.name)))
    }

    fn refuse_line<T>(&self, line: &Line, why: impl std::fmt::Display) -> Result<T, Refusal> {
        Err(Refusal::at(line.line, format!("plugin/{}: {why}", self.name)))
    }

    fn unknown<T>(&self, line: &Line) -> Result<T, Refusal> {
        let word = line.words.first().map_or("", String::as_str);
        self.refuse_line(line, format!("unknown property '{word}'"))
    }

    /// Zones by their names; `usual` without any.
    fn zones(
        &self,
        line: usize,
        words: &[String],
        usual: &[hickory_proto::rr::Name],
    ) -> Result<Vec<hickory_proto::rr::Name>, Refusal> {
        if words.is_empty() {
            return Ok(usual.to_vec());
        }
        let read = |word: &String| {
            zone(word).ok_or_else(|| Refusal::at(line, format!("plugin/{}: {word} is no zone", self.name)))
        };
        words.iter().map(read).collect()
    }

    fn fallthrough(&self, line: &Line) -> Result<Fallthrough, Refusal> {
        let all = [hickory_proto::rr::Name::root()];
        Ok(Fallthrough(self.zones(line.line, &line.words[1..], &all)?))
    }

    fn seconds(&self, line: &Line, word: Option<&String>) -> Result<u32, Refusal> {
        let seconds = word.and_then(|word| word.parse().ok()).filter(|seconds| *seconds <= 3600);
        seconds.map_or_else(|| self.refuse_line(line, "ttl must be in range [0, 3600]"), Ok)
    }
}

fn hosts(
    directive: &Directive,
    zones: Vec<hickory_proto::rr::Name>,
    surroundings: Surroundings<'_>,
) -> Result<Hosts, Refusal> {
    let mut hosts = Hosts::default();
    let mut args = directive.args.as_slice();
    if let Some(file) = args.first() {
        args = &args[1..];
        match file.strip_prefix(DIRECTORY).and_then(|name| surroundings.files.get(name)) {
            Some(text) => text.lines().for_each(|line| hosts.add_line(line)),
            // That of a container, which has nothing but itself in it.
            None if file == "/etc/hosts" => {}
            None => return directive.refuse(format!("{file} is not in the ConfigMap")),
        }
    }
    hosts.zones = directive.zones(directive.line, args, &zones)?;
    for line in &directive.body {
        let word = line.words.first().map_or("", String::as_str);
        match word {
            "ttl" => hosts.ttl = directive.seconds(line, line.words.get(1))?,
            "no_reverse" => hosts.without_reverse = true,
            "fallthrough" => hosts.fallthrough = directive.fallthrough(line)?,
            // Files are part of the ConfigMap, and that is followed.
            "reload" => {}
            _ if word.parse::<IpAddr>().is_ok() => hosts.add_line(&line.words.join(" ")),
            _ => return directive.unknown(line),
        }
    }
    Ok(hosts)
}

fn rewrite(directive: &Directive) -> Result<Rule, Refusal> {
    let mut words: Vec<String> = directive.args.clone();
    words.extend(directive.body.iter().flat_map(|line| line.words.iter().cloned()));
    Rule::read(&words).or_else(|why| directive.refuse(why))
}

fn template(directive: &Directive, zones: Vec<hickory_proto::rr::Name>) -> Result<Template, Refusal> {
    let [class, kind, of @ ..] = directive.args.as_slice() else {
        return directive.refuse("Wrong argument count or unexpected line ending");
    };
    if !["IN", "ANY"].contains(&class.to_ascii_uppercase().as_str()) {
        return directive.refuse(format!("invalid query class {class}"));
    }
    let mut template = Template::new(kind).or_else(|why| directive.refuse(why))?;
    template.zones = directive.zones(directive.line, of, &zones)?;
    for line in &directive.body {
        let (property, values) = line.words.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        if property == "fallthrough" {
            template.fallthrough = directive.fallthrough(line)?;
            continue;
        }
        if values.is_empty() {
            return directive.refuse_line(line, "Wrong argument count or unexpected line ending");
        }
        for value in values {
            let added = match property {
                "match" => template.add_match(value),
                "answer" => template.add_answer(value),
                "additional" => template.add_additional(value),
                "authority" => template.add_authority(value),
                "rcode" => template.set_code(value),
                _ => return directive.unknown(line),
            };
            added.or_else(|why| directive.refuse_line(line, why))?;
        }
    }
    Ok(template)
}

fn kubernetes(directive: &Directive, zones: Vec<hickory_proto::rr::Name>) -> Result<Kubernetes, Refusal> {
    let mut kubernetes =
        Kubernetes { zones: directive.zones(directive.line, &directive.args, &zones)?, ..Kubernetes::default() };
    let names: &mut NameOptions = &mut kubernetes.names;
    for line in &directive.body {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["pods", "disabled"] => names.pods = Pods::Disabled,
            ["pods", "insecure"] => names.pods = Pods::Insecure,
            ["pods", "verified"] => names.pods = Pods::Verified,
            ["pods", other] => {
                let modes = "must be one of disabled, insecure, verified";
                return directive.refuse_line(line, format!("wrong value for pods: {other},  pods {modes}"));
            }
            ["ttl", _] => names.ttl = directive.seconds(line, line.words.get(1))?,
            ["namespaces", some, more @ ..] => {
                names.namespaces = [some].into_iter().chain(more).map(|name| (*name).to_owned()).collect();
            }
            ["noendpoints"] => names.without_endpoints = true,
            ["ignore", "empty_service"] => names.ignores_empty_services = true,
            ["endpoint_pod_names"] => names.endpoint_pod_names = true,
            ["fallthrough", ..] => kubernetes.fallthrough = directive.fallthrough(line)?,
            // How a pod of CoreDNS waits for the API server.
            ["startup_timeout", _] => {}
            _ => return directive.unknown(line),
        }
    }
    Ok(kubernetes)
}

fn forward(directive: &Directive, surroundings: Surroundings<'_>) -> Result<Forward, Refusal> {
    let [from, to @ ..] = directive.args.as_slice() else {
        return directive.refuse("Wrong argument count or unexpected line ending");
    };
    let Some(from) = zone(from) else { return directive.refuse(format!("unable to normalize '{from}'")) };
    let mut forward = Forward { from, except: Vec::new(), to: Vec::new(), policy: Policy::Random, over_tcp: false };
    for word in to {
        match word.as_str() {
            // A machine may well ask us first.
            RESOLV_CONF => {
                forward.to.extend(surroundings.resolvers.iter().filter(|address| !is_own(**address, surroundings.own)))
            }
            _ if word.starts_with("tls://") => return directive.refuse(format!("{word}: only plain DNS is spoken")),
            _ => match address(word.strip_prefix("dns://").unwrap_or(word)) {
                Some(address) if is_own(address, surroundings.own) => {
                    return directive
                        .refuse(format!("Loop ({word} -> this server) detected for zone \"{}\"", forward.from));
                }
                Some(address) => forward.to.push(address),
                None => return directive.refuse(format!("not an IP address or file: {word:?}")),
            },
        }
    }
    if to.is_empty() || forward.to.len() > MAX_RESOLVERS {
        return directive.refuse(format!("between 1 and {MAX_RESOLVERS} TOs are allowed: {}", forward.to.len()));
    }
    for line in &directive.body {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["except", _, ..] => {
                let names: Option<Vec<_>> = words[1..].iter().map(|word| name(word)).collect();
                match names {
                    Some(names) => forward.except.extend(names),
                    None => return directive.refuse_line(line, "unable to normalize a name"),
                }
            }
            ["policy", "random"] => forward.policy = Policy::Random,
            ["policy", "round_robin"] => forward.policy = Policy::RoundRobin,
            ["policy", "sequential"] => forward.policy = Policy::Sequential,
            ["policy", other] => return directive.refuse_line(line, format!("unknown policy '{other}'")),
            ["force_tcp"] => forward.over_tcp = true,
            // Datagrams come first anyway; connections are not kept, and who does not answer is asked last each time.
            ["prefer_udp"] | ["expire", _] | ["max_fails", _] | ["health_check", ..] | ["max_concurrent", _] => {}
            _ => return directive.unknown(line),
        }
    }
    Ok(forward)
}

/// With or without a port.
fn address(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    text.parse().ok().or_else(|| Some(SocketAddr::new(bare.parse().ok()?, PORT)))
}

fn cache(directive: &Directive, zones: Vec<hickory_proto::rr::Name>) -> Result<Cache, Refusal> {
    let ttl = directive.args.first().and_then(|word| word.parse::<u32>().ok());
    let (success, denial) = ttl.map_or(DEFAULT_CACHE, |ttl| (ttl, ttl));
    let mut cache = Cache::new(success, denial);
    cache.zones = directive.zones(directive.line, &directive.args[usize::from(ttl.is_some())..], &zones)?;
    // Without any zone it is all of them.
    let everything = [hickory_proto::rr::Name::root()];
    for line in &directive.body {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        let ttl = |word: &str| match word.parse() {
            Ok(ttl) => Ok(ttl),
            Err(_) => directive.refuse_line(line, format!("{word} is no number of seconds")),
        };
        match words.as_slice() {
            ["success", _] | ["denial", _] => {}
            ["success", _, most, ..] => cache.success = ttl(most)?,
            ["denial", _, most, ..] => cache.denial = ttl(most)?,
            ["disable", "success", ..] => {
                cache.without_success = directive.zones(line.line, &line.words[2..], &everything)?;
            }
            ["disable", "denial", ..] => {
                cache.without_denial = directive.zones(line.line, &line.words[2..], &everything)?;
            }
            // What is refused is not kept; names that are asked for often are asked for again in time.
            ["prefetch", ..] | ["servfail", _] => {}
            _ => return directive.unknown(line),
        }
    }
    Ok(cache)
}

fn log(directive: &Directive, zones: Vec<hickory_proto::rr::Name>) -> Result<Log, Refusal> {
    let mut names = directive.args.clone();
    if let Some(format) = names.last().filter(|word| word.contains('{')) {
        if !["{common}", "{combined}"].contains(&format.as_str()) {
            return directive.refuse(format!("the format {format:?} is not supported"));
        }
        names.pop();
    }
    let mut log = Log { zones: directive.zones(directive.line, &names, &zones)?, ..Log::default() };
    for line in &directive.body {
        let (Some("class"), classes) = (line.words.first().map(String::as_str), &line.words[1..]) else {
            return directive.unknown(line);
        };
        for class in classes {
            let (success, denial, error) = match class.as_str() {
                "all" => (true, true, true),
                "success" => (true, false, false),
                "denial" => (false, true, false),
                "error" => (false, false, true),
                _ => return directive.refuse_line(line, format!("invalid class {class}")),
            };
            (log.success, log.denial, log.error) = (log.success | success, log.denial | denial, log.error | error);
        }
    }
    if !(log.success || log.denial || log.error) {
        (log.success, log.denial, log.error) = (true, true, true);
    }
    Ok(log)
}

/// `autopath [ZONE...] @kubernetes`
fn autopath(
    directive: &Directive,
    zones: Vec<hickory_proto::rr::Name>,
) -> Result<Vec<hickory_proto::rr::Name>, Refusal> {
    match directive.args.split_last() {
        Some((source, of)) if source == "@kubernetes" => directive.zones(directive.line, of, &zones),
        Some((source, _)) => directive.refuse(format!("{source}: search paths are those of pods, @kubernetes")),
        None => directive.refuse("no resolv-conf specified"),
    }
}

fn transfer(directive: &Directive, zones: Vec<hickory_proto::rr::Name>) -> Result<Transfer, Refusal> {
    let zones = directive.zones(directive.line, &directive.args, &zones)?;
    let mut transfer = Transfer { zones, ..Transfer::default() };
    for line in &directive.body {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        let ["to", to @ ..] = words.as_slice() else { return directive.unknown(line) };
        for word in to {
            match (*word, address(word)) {
                ("*", _) => transfer.to_everyone = true,
                (_, Some(address)) => transfer.to.push(address.ip().to_canonical()),
                (_, None) => return directive.refuse_line(line, format!("not an IP address: {word:?}")),
            }
        }
    }
    match transfer.to.is_empty() && !transfer.to_everyone {
        true => directive.refuse("'to' is required"),
        false => Ok(transfer),
    }
}

fn loadbalance(directive: &Directive) -> Result<bool, Refusal> {
    match directive.args.first().map(String::as_str) {
        None | Some("round_robin") if directive.body.is_empty() => Ok(true),
        _ => directive.refuse("unknown policy: only round_robin is known"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::corefile::parse;

    /// As kubeadm writes it.
    const USUAL: &str = ".:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30
    loop
    reload
    loadbalance
}
";

    fn read(text: &str) -> Result<Vec<Server>, Refusal> {
        let files = BTreeMap::from([("NodeHosts".to_owned(), "192.0.2.9 node-9 # comment\n".to_owned())]);
        let own = ["10.42.0.1:53", "10.43.0.10:53"].map(|address| address.parse().unwrap());
        let resolvers = ["10.42.0.1:53", "192.0.2.53:53"].map(|address| address.parse().unwrap());
        parse(text, Surroundings { resolvers: &resolvers, own: &own, files: &files })
    }

    fn names(texts: &[&str]) -> Vec<hickory_proto::rr::Name> {
        texts.iter().map(|text| name(text).unwrap()).collect()
    }

    #[test]
    fn the_usual_corefile_is_understood() {
        let servers = read(USUAL).unwrap();
        let [server] = servers.as_slice() else { panic!("{servers:?}") };
        let kubernetes = Kubernetes {
            zones: names(&["cluster.local", "in-addr.arpa", "ip6.arpa"]),
            names: NameOptions { ttl: 30, pods: Pods::Insecure, ..NameOptions::default() },
            fallthrough: Fallthrough(names(&["in-addr.arpa", "ip6.arpa"])),
        };
        assert_eq!((&server.zones, server.kubernetes.as_ref()), (&names(&["."]), Some(&kubernetes)));
        let forward = Forward {
            from: name(".").unwrap(),
            except: Vec::new(),
            to: vec!["192.0.2.53:53".parse().unwrap()],
            policy: Policy::Random,
            over_tcp: false,
        };
        assert_eq!(server.forwards, [forward]);
        assert_eq!((server.cache.as_ref(), server.rotates), (Some(&Cache::new(30, 30)), true));
        assert_eq!((server.log.as_ref(), server.hosts.is_some()), (None, false));
    }

    #[test]
    fn options_are_understood() {
        let text = "corp.test:53 10.1.0.0/16 {
            forward corp.test 192.0.2.1 [2001:db8::1]:5353 2001:db8::2 {
                except a.corp.test b.corp.test
                policy sequential
                force_tcp
            }
            cache {
                success 9984 60
                denial 9984 10
            }
            log . {
                class denial error
            }
            kubernetes {
                namespaces one two
                pods verified
                endpoint_pod_names
                ignore empty_service
                noendpoints
                fallthrough
            }
        }";
        let servers = read(text).unwrap();
        let server = &servers[0];
        assert_eq!(server.zones, names(&["corp.test", "1.10.in-addr.arpa"]));
        let forward = &server.forwards[0];
        let to: Vec<String> = forward.to.iter().map(SocketAddr::to_string).collect();
        assert_eq!(to, ["192.0.2.1:53", "[2001:db8::1]:5353", "[2001:db8::2]:53"]);
        assert_eq!((forward.except.len(), forward.policy, forward.over_tcp), (2, Policy::Sequential, true));
        assert_eq!(server.cache, Some(Cache { zones: server.zones.clone(), ..Cache::new(60, 10) }));
        assert_eq!(server.log, Some(Log { zones: names(&["."]), success: false, denial: true, error: true }));
        let kubernetes = server.kubernetes.as_ref().unwrap();
        assert_eq!((&kubernetes.zones, &kubernetes.fallthrough), (&server.zones, &Fallthrough(names(&["."]))));
        let expected = NameOptions {
            ttl: 5,
            pods: Pods::Verified,
            namespaces: vec!["one".into(), "two".into()],
            without_endpoints: true,
            ignores_empty_services: true,
            endpoint_pod_names: true,
        };
        assert_eq!(kubernetes.names, expected);
    }

    #[test]
    fn others_are_believed_about_the_names_that_a_cache_is_for() {
        // Kubeadm's, whose own zone changes at any time.
        let kubeadm = "cache 30 {\n disable success cluster.local\n disable denial cluster.local\n}";
        for (text, name, success, denial) in [
            (kubeadm, "www.example.com.", 30, 30),
            (kubeadm, "web.default.svc.CLUSTER.local.", 0, 0),
            ("cache 60 example.com", "www.example.com.", 60, 60),
            ("cache 60 example.com", "www.example.net.", 0, 0),
            ("cache example.com", "www.example.com.", 3600, 1800),
            ("cache {\n disable denial\n}", "www.example.com.", 3600, 0),
        ] {
            let servers = read(&format!(". {{\n {text}\n}}")).unwrap();
            let cache = servers[0].cache.as_ref().unwrap();
            let name = hickory_proto::rr::Name::from_ascii(name).unwrap();
            assert_eq!((cache.seconds(&name, false), cache.seconds(&name, true)), (success, denial), "{text}: {name}");
        }
    }

    #[test]
    fn what_is_not_known_is_refused_with_its_line() {
        for (text, expected) in [
            (". {\n errors\n whoami\n}", "Corefile:3 - Error during parsing: Unknown directive 'whoami'"),
            (
                ". {\n autopath /etc/resolv.conf\n}",
                "Corefile:2 - Error during parsing: plugin/autopath: /etc/resolv.conf: search paths are those of pods, @kubernetes",
            ),
            (
                ". {\n autopath @kubernetes\n kubernetes cluster.local {\n  pods insecure\n }\n}",
                "Corefile:2 - Error during parsing: plugin/autopath: @kubernetes needs the plugin kubernetes with 'pods verified' in this server block",
            ),
            (". {\n transfer\n}", "Corefile:2 - Error during parsing: plugin/transfer: 'to' is required"),
            (
                ". {\n transfer {\n  to somewhere\n }\n}",
                "Corefile:3 - Error during parsing: plugin/transfer: not an IP address: \"somewhere\"",
            ),
            (
                ". {\n cache 30\n cache 40\n}",
                "Corefile:3 - Error during parsing: plugin/cache: this plugin can only be used once per Server Block",
            ),
            (
                ". {\n kubernetes cluster.local {\n  labels a=b\n }\n}",
                "Corefile:3 - Error during parsing: plugin/kubernetes: unknown property 'labels'",
            ),
            (
                ". {\n kubernetes cluster.local {\n  pods some\n }\n}",
                "Corefile:3 - Error during parsing: plugin/kubernetes: wrong value for pods: some,  pods must be one of disabled, insecure, verified",
            ),
            (
                ". {\n forward . tls://192.0.2.1\n}",
                "Corefile:2 - Error during parsing: plugin/forward: tls://192.0.2.1: only plain DNS is spoken",
            ),
            (
                ". {\n forward . resolver\n}",
                "Corefile:2 - Error during parsing: plugin/forward: not an IP address or file: \"resolver\"",
            ),
            (
                ". {\n errors\n forward corp.test 192.0.2.1 10.43.0.10\n}",
                "Corefile:3 - Error during parsing: plugin/forward: Loop (10.43.0.10 -> this server) detected for zone \"corp.test.\"",
            ),
            (
                ". {\n forward . dns://10.42.0.1:53\n}",
                "Corefile:2 - Error during parsing: plugin/forward: Loop (dns://10.42.0.1:53 -> this server) detected for zone \".\"",
            ),
            (
                ". {\n forward .\n}",
                "Corefile:2 - Error during parsing: plugin/forward: between 1 and 15 TOs are allowed: 0",
            ),
            (". {\n hosts {\n  x y\n }\n}", "Corefile:3 - Error during parsing: plugin/hosts: unknown property 'x'"),
            (
                ". {\n hosts /etc/passwd\n}",
                "Corefile:2 - Error during parsing: plugin/hosts: /etc/passwd is not in the ConfigMap",
            ),
            (
                ". {\n template IN A {\n  answer \"{{ .Meta }}\"\n }\n}",
                "Corefile:3 - Error during parsing: plugin/template: {{ .Meta }} is not supported",
            ),
            (
                ". {\n template IN A {\n  match \"(\"\n }\n}",
                "Corefile:3 - Error during parsing: plugin/template: could not parse regex: (",
            ),
            (
                ". {\n rewrite name regex ( b\n}",
                "Corefile:2 - Error during parsing: plugin/rewrite: invalid regular expression (",
            ),
            (".:5353 {\n}", "Corefile:1 - Error during parsing: .:5353: only port 53 is served"),
            ("tls://. {\n}", "Corefile:1 - Error during parsing: tls://.: only plain DNS is served"),
            (
                ". {\n}\na.test {\n}\n. {\n}",
                "Corefile:5 - Error during parsing: cannot serve dns://.:53 - it is already defined",
            ),
            ("", "Corefile:1 - Error during parsing: there is no server block"),
        ] {
            assert_eq!(read(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn files_are_those_of_the_config_map() {
        let servers =
            read(". {\n hosts /etc/coredns/NodeHosts a.test {\n  ttl 60\n  192.0.2.1 one two\n  fallthrough\n }\n}")
                .unwrap();
        let hosts = servers[0].hosts.as_ref().unwrap();
        assert_eq!((hosts.zones.clone(), hosts.ttl), (names(&["a.test"]), 60));
        let found = |text: &str| hosts.addresses(&name(text).unwrap()).to_vec();
        assert_eq!(found("node-9"), ["192.0.2.9".parse::<IpAddr>().unwrap()]);
        assert_eq!(found("two"), ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(found("comment").is_empty());
    }
}
