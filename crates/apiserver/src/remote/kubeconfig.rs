//! The parts of a kubeconfig file that say where another server is, whom to trust, and who we are to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderValue, Uri};
use rustls::ClientConfig;
use rustls::client::WantsClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde::Deserialize;

use super::Endpoint;

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub(super) struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    current_context: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: ContextNames,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContextNames {
    cluster: String,
    user: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
}

impl Kubeconfig {
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("kubeconfig file {}", path.display());
        let decoded = api::codec::from_yaml(&std::fs::read(path).with_context(named)?).with_context(named)?;
        serde_json::from_value(decoded.value).with_context(named)
    }

    /// Cluster and user of the current context; with only one of each, a context is not needed.
    fn current(&self) -> (Cluster, User) {
        let context = self.contexts.iter().find(|context| context.name == self.current_context);
        let cluster = match context {
            Some(named) => self.clusters.iter().find(|cluster| cluster.name == named.context.cluster),
            None => self.clusters.first(),
        };
        let user = match context {
            Some(named) => self.user(&named.context.user),
            None => self.users.first().map(|named| &named.user),
        };
        let cluster = cluster.map(|named| named.cluster.clone());
        (cluster.unwrap_or_default(), user.cloned().unwrap_or_default())
    }

    fn user(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name).map(|named| &named.user)
    }

    /// The file itself and every file it names.
    pub(super) fn files(&self, path: &Path) -> Vec<PathBuf> {
        let (cluster, user) = self.current();
        let named = [cluster.certificate_authority, user.client_certificate, user.client_key, user.token_file];
        std::iter::once(path.to_owned()).chain(named.into_iter().flatten().map(|file| beside(path, &file))).collect()
    }

    /// The server of the current context.
    pub(super) fn endpoint(&self, path: &Path) -> anyhow::Result<Endpoint> {
        let named = || format!("kubeconfig file {}", path.display());
        let (cluster, user) = self.current();
        anyhow::ensure!(!cluster.server.is_empty(), "{} names no server", named());
        let url: Uri = cluster.server.parse().with_context(named)?;
        let verified = if cluster.insecure_skip_tls_verify {
            let anyone = Arc::new(tls::AnyCertificate::default());
            tls::client_builder().dangerous().with_custom_certificate_verifier(anyone)
        } else {
            let authorities = bytes(path, &cluster.certificate_authority_data, &cluster.certificate_authority)?;
            let mut roots = rustls::RootCertStore::empty();
            match authorities {
                Some(pem) => {
                    for certificate in tls::certificates(&pem).with_context(named)? {
                        roots.add(certificate).with_context(named)?;
                    }
                }
                None => roots = tls::system_roots(),
            }
            tls::client_builder().with_root_certificates(roots)
        };
        let credentials = user.credentials(path).with_context(named)?;
        Ok(Endpoint {
            url,
            tls: Arc::new(credentials.complete(verified).with_context(named)?).into(),
            server_name: cluster.tls_server_name,
            authorization: credentials.authorization,
        })
    }
}

/// Who we are to another server. Nobody in particular by default.
#[derive(Default)]
pub(super) struct Credentials {
    certificate: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    pub(super) authorization: Option<HeaderValue>,
}

impl Credentials {
    /// Adds the client certificate, if there is one, to a configuration that knows whom to trust.
    pub(super) fn complete(
        &self,
        verified: rustls::ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<ClientConfig, rustls::Error> {
        let mut config = match &self.certificate {
            Some((chain, key)) => verified.with_client_auth_cert(chain.clone(), key.clone_key())?,
            None => verified.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl User {
    fn credentials(&self, path: &Path) -> anyhow::Result<Credentials> {
        let chain = bytes(path, &self.client_certificate_data, &self.client_certificate)?;
        let key = bytes(path, &self.client_key_data, &self.client_key)?;
        let certificate = match (chain, key) {
            (Some(chain), Some(key)) => Some((tls::certificates(&chain)?, PrivateKeyDer::from_pem_slice(&key)?)),
            _ => None,
        };
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => Some(std::fs::read_to_string(beside(path, file))?),
            (None, None) => None,
        };
        let basic = self.username.as_ref().map(|name| {
            let pair = format!("{name}:{}", self.password.as_deref().unwrap_or_default());
            format!("Basic {}", STANDARD.encode(pair))
        });
        let value = token.map(|token| format!("Bearer {}", token.trim())).or(basic);
        let authorization = value.map(|value| HeaderValue::from_str(&value)).transpose()?;
        Ok(Credentials { certificate, authorization })
    }
}

/// Who the server is to admission webhooks (`WebhookAdmissionConfiguration`): users of a kubeconfig file, each under
/// the name of the servers it is for.
#[derive(Default)]
pub(crate) struct Identities(Option<(PathBuf, Kubeconfig)>);

impl Identities {
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        Ok(Self(Some((path.to_owned(), Kubeconfig::load(path)?))))
    }

    /// The credentials for `host:port`.
    pub(super) fn credentials(&self, target: &str) -> anyhow::Result<Credentials> {
        let Some((path, file)) = &self.0 else { return Ok(Credentials::default()) };
        match file.user_for(target) {
            Some(user) => user.credentials(path).with_context(|| format!("kubeconfig file {}", path.display())),
            None => Ok(Credentials::default()),
        }
    }
}

impl Kubeconfig {
    /// The user under the server's name, a wildcard of it, `*`, or of the current context. The port may be left out
    /// if it is that of HTTPS.
    fn user_for(&self, target: &str) -> Option<&User> {
        let without_port = target.strip_suffix(":443");
        let by_name = |target: &str| {
            let ends = target.match_indices('.').map(|(at, _)| format!("*{}", &target[at..]));
            std::iter::once(target.to_owned()).chain(ends).find_map(|name| self.user(&name))
        };
        let current = || {
            let context = self.contexts.iter().find(|context| context.name == self.current_context)?;
            self.user(&context.context.user)
        };
        by_name(target).or_else(|| by_name(without_port?)).or_else(|| self.user("*")).or_else(current)
    }
}

/// What stands in the file itself, or in the file that it names.
fn bytes(path: &Path, data: &Option<String>, file: &Option<PathBuf>) -> anyhow::Result<Option<Vec<u8>>> {
    match (data, file) {
        (Some(data), _) => Ok(Some(STANDARD.decode(data.trim())?)),
        (None, Some(file)) => Ok(Some(std::fs::read(beside(path, file))?)),
        (None, None) => Ok(None),
    }
}

/// A file named in another: relative to it.
fn beside(path: &Path, file: &Path) -> PathBuf {
    path.parent().map_or_else(|| file.to_owned(), |directory| directory.join(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_found_by_the_name_of_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("webhooks.yaml");
        let users =
            [("exact.a.svc:8443", "1"), ("plain.a.svc", "2"), ("*.b.svc", "3"), ("*.c.svc:8443", "4"), ("*", "5")];
        let user = |(name, token): &(&str, &str)| format!("- name: '{name}'\n  user: {{token: '{token}'}}\n");
        let text = format!("users:\n{}", users.iter().map(user).collect::<String>());
        std::fs::write(&path, &text).unwrap();
        let ask = |target: &str| {
            let found = Identities::load(&path).unwrap().credentials(target).unwrap();
            found.authorization.map(|value| value.to_str().unwrap().to_owned())
        };
        for (target, token) in [
            ("exact.a.svc:8443", "1"),
            ("plain.a.svc:443", "2"),
            ("plain.a.svc:8443", "5"),
            ("any.b.svc:443", "3"),
            ("any.b.svc:8443", "5"),
            ("any.c.svc:8443", "4"),
            ("elsewhere.example.com:443", "5"),
        ] {
            assert_eq!(ask(target), Some(format!("Bearer {token}")), "{target}");
        }
        std::fs::write(&path, text.replace("'*'", "'me'")).unwrap();
        assert_eq!(ask("elsewhere.example.com:443"), None);
        std::fs::write(
            &path,
            format!(
                "{}current-context: c\ncontexts:\n- {{name: c, context: {{user: me}}}}\n",
                text.replace("'*'", "'me'")
            ),
        )
        .unwrap();
        assert_eq!(ask("elsewhere.example.com:443"), Some("Bearer 5".to_owned()));
        assert!(Identities::default().credentials("x:443").unwrap().authorization.is_none());
    }
}
