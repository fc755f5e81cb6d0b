//! Which servers to ask for an image: `registries.yaml` (k3s's format) and `hosts.toml` files (containerd's).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use api::image::{host_name, is_loopback};
use serde::Deserialize;

use super::Reference;

/// One server to try.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Endpoint {
    /// `https://registry-1.docker.io`, without a final slash.
    pub(crate) url: String,
    pub(crate) skip_verify: bool,
    pub(crate) ca_file: Option<PathBuf>,
    /// Credentials from the configuration, used when the request brings none.
    pub(crate) auth: Option<(String, String)>,
    pub(crate) repository: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Mirrors {
    registries: Registries,
    hosts_directory: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Registries {
    mirrors: BTreeMap<String, Mirror>,
    configs: BTreeMap<String, HostConfig>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Mirror {
    endpoint: Vec<String>,
    rewrite: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct HostConfig {
    auth: Option<Auth>,
    tls: Option<Tls>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Auth {
    username: String,
    password: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Tls {
    ca_file: Option<PathBuf>,
    insecure_skip_verify: bool,
}

impl Mirrors {
    /// Reads `registries.yaml` (missing is fine) and remembers where `<host>/hosts.toml` files may be.
    pub(crate) fn load(registries: Option<&Path>, hosts_directory: Option<&Path>) -> std::io::Result<Self> {
        let named = |path: &Path, error: std::io::Error| {
            std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        };
        let registries = match registries.map(|path| (path, std::fs::read_to_string(path))) {
            Some((path, Ok(text))) => {
                yaml_serde::from_str(&text).map_err(|error| named(path, std::io::Error::other(error)))?
            }
            Some((_, Err(error))) if error.kind() == std::io::ErrorKind::NotFound => Registries::default(),
            Some((path, Err(error))) => return Err(named(path, error)),
            None => Registries::default(),
        };
        Ok(Self { registries, hosts_directory: hosts_directory.map(Path::to_path_buf) })
    }

    /// Servers for `image`, best first; the registry's own is always the last.
    pub(crate) fn endpoints(&self, image: &Reference) -> std::io::Result<Vec<Endpoint>> {
        let mut endpoints = self.hosts_file_endpoints(image)?;
        for key in [image.host.as_str(), "*"] {
            if let Some(mirror) = self.registries.mirrors.get(key) {
                for url in &mirror.endpoint {
                    let repository = rewrite(&image.repository, &mirror.rewrite);
                    endpoints.push(self.endpoint(url, repository));
                }
                break;
            }
        }
        let own = self.endpoint(&own_url(&image.host), image.repository.clone());
        if !endpoints.iter().any(|e| e.url == own.url) {
            endpoints.push(own);
        }
        Ok(endpoints)
    }

    fn endpoint(&self, url: &str, repository: String) -> Endpoint {
        let url = if url.contains("://") { url.to_string() } else { format!("https://{url}") };
        let url = url.trim_end_matches('/').trim_end_matches("/v2").to_string();
        let host = url.split("://").nth(1).unwrap_or_default().split('/').next().unwrap_or_default().to_string();
        let config =
            self.registries.configs.get(&host).or_else(|| {
                (host == "registry-1.docker.io").then(|| self.registries.configs.get("docker.io")).flatten()
            });
        let tls = config.and_then(|c| c.tls.clone()).unwrap_or_default();
        Endpoint {
            url,
            skip_verify: tls.insecure_skip_verify,
            ca_file: tls.ca_file,
            auth: config.and_then(|c| c.auth.as_ref()).map(|a| (a.username.clone(), a.password.clone())),
            repository,
        }
    }

    /// A file that is there but cannot be read must not send the pull past the mirror.
    fn hosts_file_endpoints(&self, image: &Reference) -> std::io::Result<Vec<Endpoint>> {
        let Some(directory) = &self.hosts_directory else { return Ok(Vec::new()) };
        for name in [image.host.as_str(), "_default"] {
            let text = match std::fs::read_to_string(directory.join(name).join("hosts.toml")) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                read => read?,
            };
            let endpoints = parse_hosts(&text).into_iter().map(|host| Endpoint {
                skip_verify: host.skip_verify,
                ca_file: host.ca.map(|ca| directory.join(name).join(ca)),
                ..self.endpoint(&host.url, image.repository.clone())
            });
            return Ok(endpoints.collect());
        }
        Ok(Vec::new())
    }
}

/// Registries on this machine speak plain HTTP unless said otherwise; Docker Hub's API has its own name.
fn own_url(host: &str) -> String {
    match host_name(host) {
        "docker.io" => "https://registry-1.docker.io".into(),
        name if is_loopback(name) => format!("http://{host}"),
        _ => format!("https://{host}"),
    }
}

/// k3s writes rewrites as regular expressions; the common whole-prefix form (`^library/(.*)` -> `x/$1`) is understood.
fn rewrite(repository: &str, rules: &BTreeMap<String, String>) -> String {
    for (pattern, replacement) in rules {
        let pattern = pattern.trim_start_matches('^').trim_end_matches('$');
        let (prefix, tail) = match pattern.strip_suffix("(.*)") {
            Some(prefix) => (prefix, true),
            None => (pattern, false),
        };
        if let Some(rest) = repository.strip_prefix(prefix)
            && (tail || rest.is_empty())
        {
            return replacement.replace("$1", rest);
        }
    }
    repository.to_string()
}

#[derive(Debug, Default, PartialEq)]
struct Host {
    url: String,
    skip_verify: bool,
    ca: Option<String>,
}

/// The part of hosts.toml that names servers: `[host."url"]` tables with `skip_verify` and `ca`, and `server = "url"`.
fn parse_hosts(text: &str) -> Vec<Host> {
    let unquote = |value: &str| value.trim().trim_matches('"').to_string();
    let mut hosts: Vec<Host> = Vec::new();
    let mut server = None;
    let mut in_host = false;
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(table) = line.strip_prefix('[') {
            let url = table.trim_end_matches(']').strip_prefix("host.").map(unquote);
            // Sub-tables such as [host."url".header] belong to no host of their own.
            in_host = url.as_ref().is_some_and(|u| !u.contains('"'));
            if let (true, Some(url)) = (in_host, url) {
                hosts.push(Host { url, ..Host::default() });
            }
        } else if let Some((key, value)) = line.split_once('=') {
            match (key.trim(), in_host, hosts.last_mut()) {
                ("server", false, _) => server = Some(unquote(value)),
                ("skip_verify", true, Some(host)) => host.skip_verify = value.trim() == "true",
                ("ca", true, Some(host)) => host.ca = Some(unquote(value)),
                _ => {}
            }
        }
    }
    hosts.extend(server.map(|url| Host { url, ..Host::default() }));
    hosts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_come_before_the_registry_itself() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("registries.yaml");
        std::fs::write(
            &file,
            "mirrors:\n  docker.io:\n    endpoint: [\"http://127.0.0.1:5000\"]\n    rewrite:\n      \"^library/(.*)\": \"m/$1\"\n\
             configs:\n  \"127.0.0.1:5000\":\n    auth: {username: u, password: p}\n",
        )
        .unwrap();
        let mirrors = Mirrors::load(Some(&file), None).unwrap();
        let endpoints = mirrors.endpoints(&"nginx".parse().unwrap()).unwrap();
        assert_eq!(endpoints.len(), 2);
        assert_eq!((endpoints[0].url.as_str(), endpoints[0].repository.as_str()), ("http://127.0.0.1:5000", "m/nginx"));
        assert_eq!(endpoints[0].auth, Some(("u".into(), "p".into())));
        assert_eq!(endpoints[1].url, "https://registry-1.docker.io");
    }

    #[test]
    fn hosts_files_name_servers_in_order() {
        let hosts = parse_hosts(
            "server = \"https://b\"\n[host.\"http://a:5000\"]\n  capabilities = [\"pull\"]\n  skip_verify = true\n[host.\"http://a:5000\".header]\n x = 1\n",
        );
        let urls: Vec<&str> = hosts.iter().map(|h| h.url.as_str()).collect();
        assert_eq!(urls, ["http://a:5000", "https://b"]);
        assert!(hosts[0].skip_verify);
    }
}
