//! The resolver configuration of a pod, by its DNS policy. Pure, except for reading the host's file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cri::v1::DnsConfig;
use k8s_openapi::api::core::v1::Pod;

use crate::state;

/// Limits of the C library that upstream also keeps.
const MAX_NAMESERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;
const MAX_SEARCH_LENGTH: usize = 2048;

/// The node's part: the cluster's servers and domain, and where the host's own resolver is described.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) cluster_dns: Vec<String>,
    pub(crate) cluster_domain: String,
    /// Empty for none: then pods with the host's resolver have none that answers.
    pub(crate) resolv_conf: PathBuf,
    pub(crate) host_ips: Vec<String>,
}

/// The file that describes the host's resolver cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("open {}: {}", .path.display(), plain(.source))]
pub(crate) struct ResolverError {
    pub(crate) path: PathBuf,
    pub(crate) source: std::io::Error,
}

/// As Go says it.
fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        _ => error.to_string(),
    }
}

impl Node {
    /// The host's resolver as it is now. No pod starts while its file cannot be read.
    pub(crate) async fn host(&self) -> Result<DnsConfig, ResolverError> {
        if self.resolv_conf.as_os_str().is_empty() {
            return Ok(DnsConfig::default());
        }
        match tokio::fs::read_to_string(&self.resolv_conf).await {
            Ok(text) => Ok(parse_resolv_conf(&text)),
            Err(source) => Err(ResolverError { path: self.resolv_conf.clone(), source }),
        }
    }
}

/// An empty configuration would be the runtime's to fill in: this one names servers, and nobody answers there.
fn no_resolver(host_ips: &[String]) -> DnsConfig {
    let mut servers: Vec<String> =
        host_ips.iter().map(|ip| if ip.contains(':') { "::1" } else { "127.0.0.1" }.to_owned()).collect();
    servers.dedup();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    DnsConfig { servers, searches: vec![".".into()], options: Vec::new() }
}

fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(String::from)),
            Some("search") => config.searches = words.map(|s| s.trim_end_matches('.').to_string()).collect(),
            Some("options") => config.options = words.map(String::from).collect(),
            _ => {}
        }
    }
    config
}

pub(crate) fn for_pod(pod: &Pod, node: &Node, host: &DnsConfig) -> DnsConfig {
    let spec = pod.spec.clone().unwrap_or_default();
    let host_network = spec.host_network == Some(true);
    let policy = match spec.dns_policy.as_deref() {
        Some("None") => "None",
        Some("Default") => "Default",
        Some("ClusterFirstWithHostNet") => "ClusterFirst",
        _ if host_network => "Default",
        _ => "ClusterFirst",
    };
    let mut config = match policy {
        "None" => DnsConfig::default(),
        "ClusterFirst" if !node.cluster_dns.is_empty() => {
            let mut searches = Vec::new();
            if !node.cluster_domain.is_empty() {
                let domain = &node.cluster_domain;
                searches.push(format!("{}.svc.{domain}", state::namespace(pod)));
                searches.push(format!("svc.{domain}"));
                searches.push(domain.clone());
            }
            for search in &host.searches {
                if !searches.contains(search) {
                    searches.push(search.clone());
                }
            }
            DnsConfig { servers: node.cluster_dns.clone(), searches, options: vec!["ndots:5".into()] }
        }
        _ if node.resolv_conf.as_os_str().is_empty() => no_resolver(&node.host_ips),
        _ => host.clone(),
    };
    if let Some(own) = &spec.dns_config {
        for server in own.nameservers.iter().flatten() {
            if !config.servers.contains(server) {
                config.servers.push(server.clone());
            }
        }
        for search in own.searches.iter().flatten() {
            if !config.searches.contains(search) {
                config.searches.push(search.clone());
            }
        }
        // The last of a name counts; there may be any number.
        let (mut names, mut options) = (HashSet::new(), Vec::new());
        for option in own.options.iter().flatten().rev() {
            let Some(name) = option.name.as_deref().filter(|name| !name.is_empty()) else { continue };
            if names.insert(name) {
                options.push(match option.value.as_deref().filter(|value| !value.is_empty()) {
                    Some(value) => format!("{name}:{value}"),
                    None => name.to_string(),
                });
            }
        }
        config.options.retain(|existing| existing.split(':').next().is_none_or(|name| !names.contains(name)));
        config.options.extend(options.into_iter().rev());
    }
    config.servers.truncate(MAX_NAMESERVERS);
    config.searches.truncate(MAX_SEARCHES);
    while config.searches.join(" ").len() > MAX_SEARCH_LENGTH {
        config.searches.pop();
    }
    config
}

/// Hostname and, when the pod has a subdomain, its domain.
pub(crate) fn hostname(pod: &Pod, cluster_domain: &str) -> (String, Option<String>) {
    let spec = pod.spec.clone().unwrap_or_default();
    if let Some(fixed) = spec.hostname_override.filter(|name| !name.is_empty()) {
        return (fixed, None);
    }
    let host = spec.hostname.filter(|name| !name.is_empty()).unwrap_or_else(|| {
        // A hostname may be 63 long at most, and must not end in a separator.
        let name: String = state::name(pod).chars().take(63).collect();
        name.trim_end_matches(['-', '.']).to_string()
    });
    let domain = spec
        .subdomain
        .filter(|subdomain| !subdomain.is_empty())
        .map(|subdomain| format!("{subdomain}.{}.svc.{cluster_domain}", state::namespace(pod)));
    match domain {
        Some(domain) if spec.set_hostname_as_fqdn == Some(true) => (format!("{host}.{domain}"), Some(domain)),
        domain => (host, domain),
    }
}

/// The managed `/etc/hosts`.
pub(crate) fn hosts_file(pod: &Pod, ips: &[String], hostname: &str, domain: Option<&str>) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n\
         127.0.0.1\tlocalhost\n\
         ::1\tlocalhost ip6-localhost ip6-loopback\n\
         fe00::0\tip6-localnet\n\
         fe00::0\tip6-mcastprefix\n\
         fe00::1\tip6-allnodes\n\
         fe00::2\tip6-allrouters\n",
    );
    for ip in ips {
        match domain {
            Some(domain) if !hostname.ends_with(domain) => {
                text.push_str(&format!("{ip}\t{hostname}.{domain}\t{hostname}\n"))
            }
            _ => text.push_str(&format!("{ip}\t{hostname}\n")),
        }
    }
    text + &host_aliases(pod)
}

/// `/etc/hosts` of a pod on the host's network: the host's own, plus the aliases.
pub(crate) fn host_network_hosts_file(pod: &Pod, host_file: &str) -> String {
    format!("# Kubernetes-managed hosts file (host network).\n{host_file}{}", host_aliases(pod))
}

fn host_aliases(pod: &Pod) -> String {
    let aliases = pod.spec.as_ref().and_then(|spec| spec.host_aliases.as_deref()).unwrap_or_default();
    if aliases.is_empty() {
        return String::new();
    }
    let mut text = String::from("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        text.push_str(&format!(
            "{}\t{}\n",
            alias.ip,
            alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t")
        ));
    }
    text
}

/// Every container that starts has the file written. Those that run already share it, and while it is written it is empty: it
/// is left alone unless it says something else.
pub(crate) fn write_hosts_file(path: &Path, text: &str) -> std::io::Result<()> {
    match is_said(path, text) {
        Ok(true) => Ok(()),
        _ => std::fs::write(path, text),
    }
}

/// Whether a file that containers may write to says this; no more of it is read than that takes.
fn is_said(path: &Path, text: &str) -> std::io::Result<bool> {
    use std::io::Read;
    let (mut present, limit) = (Vec::with_capacity(text.len() + 1), text.len() as u64 + 1);
    std::fs::File::open(path)?.take(limit).read_to_end(&mut present)?;
    Ok(present == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{HostAlias, PodDNSConfig, PodDNSConfigOption, PodSpec};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    fn pod(spec: PodSpec) -> Pod {
        Pod {
            metadata: ObjectMeta { name: Some("web-0".into()), namespace: Some("ns".into()), ..Default::default() },
            spec: Some(spec),
            ..Default::default()
        }
    }

    #[test]
    fn a_hosts_file_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc-hosts");
        let epoch = std::time::SystemTime::UNIX_EPOCH;
        write_hosts_file(&path, "one").unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(epoch).unwrap();
        for (text, is_left) in [("one", true), ("two", false)] {
            write_hosts_file(&path, text).unwrap();
            assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap() == epoch, is_left, "{text}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
    }

    /// Root of a container can make it any length, without any space for it: whoever reads it whole never comes back.
    #[test]
    fn security_a_hosts_file_without_an_end_is_not_read() {
        assert!(!is_said(Path::new("/dev/zero"), "one").unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etc-hosts");
        std::fs::write(&path, "one and more").unwrap();
        assert!(!is_said(&path, "one").unwrap());
        write_hosts_file(&path, "one").unwrap();
        assert!(is_said(&path, "one").unwrap());
    }

    #[tokio::test]
    async fn a_resolver_file_that_cannot_be_read_is_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("resolv.conf");
        let node = Node { resolv_conf: path.clone(), ..Default::default() };
        let missing = format!("open {}: no such file or directory", path.display());
        assert_eq!(node.host().await.unwrap_err().to_string(), missing);
        std::fs::write(&path, "nameserver 192.0.2.53\n").unwrap();
        assert_eq!(node.host().await.unwrap().servers, ["192.0.2.53"], "read again for each pod");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(node.host().await.is_err(), "a directory");
    }

    #[tokio::test]
    async fn a_host_without_a_resolver_offers_none() {
        let host_ips = vec!["192.0.2.1".into(), "2001:db8::1".into()];
        let node = Node { cluster_dns: vec!["10.43.0.10".into()], host_ips, ..Default::default() };
        let host = node.host().await.unwrap();
        let spec = |policy: &str| PodSpec { dns_policy: Some(policy.into()), ..Default::default() };
        let default = for_pod(&pod(spec("Default")), &node, &host);
        assert_eq!((default.servers, default.searches), (vec!["127.0.0.1".into(), "::1".into()], vec![".".to_owned()]));
        let cluster = for_pod(&pod(spec("ClusterFirst")), &node, &host);
        assert_eq!((cluster.servers, cluster.searches), (vec!["10.43.0.10".to_owned()], Vec::new()));
    }

    #[test]
    fn policies() {
        let node = Node {
            cluster_dns: vec!["10.43.0.10".into()],
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            ..Default::default()
        };
        let resolver = parse_resolv_conf("nameserver 192.0.2.53 # ours\nsearch example.org.\noptions edns0\n");
        let cluster = "10.43.0.10 | ns.svc.cluster.local svc.cluster.local cluster.local example.org | ndots:5";
        let host = "192.0.2.53 | example.org | edns0";
        for (policy, host_network, expected) in [
            (None, false, cluster),
            (Some("ClusterFirst"), false, cluster),
            (Some("ClusterFirst"), true, host),
            (Some("ClusterFirstWithHostNet"), true, cluster),
            (Some("Default"), false, host),
            (Some("None"), false, " |  | "),
        ] {
            let spec = PodSpec {
                dns_policy: policy.map(String::from),
                host_network: Some(host_network),
                ..Default::default()
            };
            let got = for_pod(&pod(spec), &node, &resolver);
            let told = format!("{} | {} | {}", got.servers.join(" "), got.searches.join(" "), got.options.join(" "));
            assert_eq!(told, expected, "{policy:?} {host_network}");
        }
    }

    #[test]
    fn security_many_options_of_a_resolver_are_looked_at_once() {
        let option = |at: usize| {
            let name = format!("o{}", at % 50_000);
            PodDNSConfigOption { name: Some(name), value: Some(at.to_string()) }
        };
        let options = Some((0..100_000).map(option).collect());
        let dns_config = Some(PodDNSConfig { options, ..Default::default() });
        let pod = pod(PodSpec { dns_config, ..Default::default() });
        let got = for_pod(&pod, &Node::default(), &DnsConfig::default());
        assert_eq!((got.options.len(), got.options[0].as_str()), (50_000, "o0:50000"));
    }

    #[test]
    fn own_options_replace() {
        let node = Node { cluster_dns: vec!["10.43.0.10".into()], ..Default::default() };
        let got = for_pod(
            &pod(PodSpec {
                dns_config: Some(PodDNSConfig {
                    nameservers: Some(vec!["192.0.2.1".into()]),
                    options: Some(vec![PodDNSConfigOption { name: Some("ndots".into()), value: Some("2".into()) }]),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            &node,
            &DnsConfig::default(),
        );
        assert_eq!(got.servers, ["10.43.0.10", "192.0.2.1"]);
        assert_eq!(got.options, ["ndots:2"]);
    }

    #[test]
    fn hosts() {
        let spec = PodSpec {
            subdomain: Some("sub".into()),
            host_aliases: Some(vec![HostAlias {
                ip: "123.45.67.89".into(),
                hostnames: Some(vec!["foo".into(), "bar".into()]),
            }]),
            ..Default::default()
        };
        let pod = pod(spec);
        let (host, domain) = hostname(&pod, "cluster.local");
        assert_eq!((host.as_str(), domain.as_deref()), ("web-0", Some("sub.ns.svc.cluster.local")));
        let text = hosts_file(&pod, &["10.42.0.5".into()], &host, domain.as_deref());
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        assert!(text.contains("10.42.0.5\tweb-0.sub.ns.svc.cluster.local\tweb-0\n"));
        assert!(text.ends_with("# Entries added by HostAliases.\n123.45.67.89\tfoo\tbar\n"));
    }
}
