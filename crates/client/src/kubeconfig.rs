//! Kubeconfig files: where the cluster is and who is asking.
//!
//! Flow: `--kubeconfig`, else every file of `$KUBECONFIG`, else `~/.kube/config` -> merged (the first to
//! name something wins) -> one context, changed by flags -> `Client::from_kubeconfig`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;

/// One kubeconfig file, or several merged into one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kubeconfig {
    #[serde(rename = "apiVersion", default = "v1")]
    pub api_version: String,
    #[serde(default = "config_kind")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferences: Option<serde_json::Value>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub clusters: Vec<NamedCluster>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub users: Vec<NamedAuthInfo>,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub contexts: Vec<NamedContext>,
    #[serde(rename = "current-context", default, deserialize_with = "null_is_empty")]
    pub current_context: String,
}

fn v1() -> String {
    "v1".into()
}

fn config_kind() -> String {
    "Config".into()
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

impl Default for Kubeconfig {
    fn default() -> Self {
        Self {
            api_version: v1(),
            kind: config_kind(),
            preferences: None,
            clusters: Vec::new(),
            users: Vec::new(),
            contexts: Vec::new(),
            current_context: String::new(),
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedCluster {
    pub name: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub cluster: Cluster,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedAuthInfo {
    pub name: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub user: AuthInfo,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedContext {
    pub name: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub context: Context,
}

/// Where an API server is and how to know it is the right one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Cluster {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_authority_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub insecure_skip_tls_verify: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_server_name: Option<String>,
    /// What this program does not know stays in the file when it is written back.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// Credentials.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct AuthInfo {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_certificate_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_key_data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    #[serde(rename = "tokenFile", skip_serializing_if = "Option::is_none")]
    pub token_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub impersonate: Option<String>,
    #[serde(rename = "as-uid", skip_serializing_if = "Option::is_none")]
    pub impersonate_uid: Option<String>,
    #[serde(rename = "as-groups", skip_serializing_if = "Option::is_none")]
    pub impersonate_groups: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_provider: Option<AuthProvider>,
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// The legacy `auth-provider` block; its `oidc` form carries an id token.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct AuthProvider {
    pub name: String,
    #[serde(default)]
    pub config: BTreeMap<String, String>,
}

/// A command that prints a credential.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecConfig {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_version: Option<String>,
    pub command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<ExecEnv>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_hint: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interactive_mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provide_cluster_info: Option<bool>,
    /// Who reads standard input already, which the command therefore cannot have.
    #[serde(skip)]
    pub stdin_used_by: Option<&'static str>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExecEnv {
    pub name: String,
    pub value: String,
}

/// A cluster, a user and a namespace that belong together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    pub cluster: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    pub user: String,
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

/// What flags change after the files are merged.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    pub context: Option<String>,
    pub cluster: Option<String>,
    pub user: Option<String>,
    pub namespace: Option<String>,
    pub server: Option<String>,
    pub certificate_authority: Option<String>,
    pub insecure_skip_tls_verify: Option<bool>,
    pub tls_server_name: Option<String>,
    pub client_certificate: Option<String>,
    pub client_key: Option<String>,
    pub token: Option<String>,
    pub username: Option<String>,
    pub password: Option<String>,
    pub impersonate_user: Option<String>,
    pub impersonate_uid: Option<String>,
    pub impersonate_groups: Vec<String>,
    /// Who reads standard input, in words.
    pub stdin_used_by: Option<&'static str>,
}

/// One context with its cluster and user, flags applied: all a client needs.
#[derive(Debug, Clone, Default)]
pub struct Resolved {
    pub cluster: Cluster,
    pub user: AuthInfo,
    pub namespace: String,
    pub impersonate_user: Option<String>,
    pub impersonate_uid: Option<String>,
    pub impersonate_groups: Vec<String>,
}

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl Kubeconfig {
    /// The files a program reads: the explicit one, else `$KUBECONFIG`, else `~/.kube/config`.
    pub fn paths(explicit: Option<&Path>) -> Vec<PathBuf> {
        if let Some(path) = explicit {
            return vec![path.into()];
        }
        match std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
            Some(list) => std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty()).collect(),
            None => std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config")).into_iter().collect(),
        }
    }

    /// Loads and merges. A missing explicit file is an error, missing default files are not.
    pub fn load(explicit: Option<&Path>) -> Result<Self, Error> {
        if let Some(path) = explicit {
            return Self::read(path);
        }
        let mut merged = Self::default();
        for path in Self::paths(None) {
            if path.exists() {
                merged.merge(Self::read(&path)?);
            }
        }
        Ok(merged)
    }

    /// Reads one file; relative paths in it are relative to its folder.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::config(format!("loading config file {path:?}: {error}")))?;
        let mut config =
            Self::parse(&text).map_err(|error| Error::config(format!("loading config file {path:?}: {error}")))?;
        config.resolve_paths(path.parent().unwrap_or(Path::new(".")));
        Ok(config)
    }

    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let config: Self = yaml_serde::from_str(text).map_err(Error::config)?;
        if config.api_version != v1() || config.kind != "Config" {
            return Err(Error::config(format!(
                "no kind {:?} is registered for version {:?} in scheme \"k8s.io/client-go/tools/clientcmd/api/latest/latest.go:50\"",
                config.kind, config.api_version
            )));
        }
        Ok(config)
    }

    pub fn to_yaml(&self) -> Result<String, Error> {
        yaml_serde::to_string(self).map_err(Error::config)
    }

    /// Adds what `other` names and `self` does not.
    pub fn merge(&mut self, other: Self) {
        if self.current_context.is_empty() {
            self.current_context = other.current_context;
        }
        self.preferences = self.preferences.take().or(other.preferences);
        for cluster in other.clusters {
            if !self.clusters.iter().any(|known| known.name == cluster.name) {
                self.clusters.push(cluster);
            }
        }
        for user in other.users {
            if !self.users.iter().any(|known| known.name == user.name) {
                self.users.push(user);
            }
        }
        for context in other.contexts {
            if !self.contexts.iter().any(|known| known.name == context.name) {
                self.contexts.push(context);
            }
        }
    }

    /// The configuration of a pod's service account.
    pub fn in_cluster() -> Result<Self, Error> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let (Some(host), Some(port)) = (variable("KUBERNETES_SERVICE_HOST"), variable("KUBERNETES_SERVICE_PORT"))
        else {
            return Err(Error::config(
                "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined",
            ));
        };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let namespace = std::fs::read_to_string(format!("{SERVICE_ACCOUNT}/namespace")).ok();
        let cluster = Cluster {
            server: Some(format!("https://{host}:{port}")),
            certificate_authority: Some(format!("{SERVICE_ACCOUNT}/ca.crt")),
            ..Cluster::default()
        };
        let user = AuthInfo { token_file: Some(format!("{SERVICE_ACCOUNT}/token")), ..AuthInfo::default() };
        Ok(Self::single("in-cluster", cluster, user, namespace.map(|text| text.trim().to_owned())))
    }

    /// A configuration with one cluster, user and context, all called `name`.
    pub fn single(name: &str, cluster: Cluster, user: AuthInfo, namespace: Option<String>) -> Self {
        let context = Context { cluster: name.into(), user: name.into(), namespace, ..Context::default() };
        Self {
            clusters: vec![NamedCluster { name: name.into(), cluster }],
            users: vec![NamedAuthInfo { name: name.into(), user }],
            contexts: vec![NamedContext { name: name.into(), context }],
            current_context: name.into(),
            ..Self::default()
        }
    }

    pub fn cluster(&self, name: &str) -> Option<&Cluster> {
        self.clusters.iter().find(|cluster| cluster.name == name).map(|named| &named.cluster)
    }

    pub fn user(&self, name: &str) -> Option<&AuthInfo> {
        self.users.iter().find(|user| user.name == name).map(|named| &named.user)
    }

    pub fn context(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name).map(|named| &named.context)
    }

    /// Picks the context and applies the flags. Without any cluster the server is `http://localhost:8080`, as ever.
    pub fn resolve(&self, overrides: &Overrides) -> Result<Resolved, Error> {
        let name = overrides.context.as_deref().unwrap_or(&self.current_context);
        let context = match self.context(name) {
            Some(context) => context.clone(),
            None if overrides.context.is_some() => {
                return Err(Error::config(format!("context was not found for specified context: {name}")));
            }
            None if name.is_empty() => Context::default(),
            None => return Err(Error::config(format!("context was not found for specified context: {name}"))),
        };
        let cluster_name = overrides.cluster.as_deref().unwrap_or(&context.cluster);
        let mut cluster = match self.cluster(cluster_name) {
            Some(cluster) => cluster.clone(),
            None if cluster_name.is_empty() => Cluster::default(),
            None => return Err(Error::config(format!("no server found for cluster {cluster_name:?}"))),
        };
        let user_name = overrides.user.as_deref().unwrap_or(&context.user);
        let mut user = match self.user(user_name) {
            Some(user) => user.clone(),
            None if user_name.is_empty() => AuthInfo::default(),
            None => return Err(Error::config(format!("auth info {user_name:?} does not exist"))),
        };
        overrides.change_cluster(&mut cluster);
        overrides.change_user(&mut user);
        if let Some(exec) = &user.exec
            && exec.interactive_mode.is_none()
            && exec.api_version.as_deref() == Some("client.authentication.k8s.io/v1")
        {
            return Err(Error::config(format!(
                "interactiveMode must be specified for {user_name} to use exec authentication plugin"
            )));
        }
        let server = cluster.server.get_or_insert_with(|| "http://localhost:8080".into());
        if !server.contains("://") {
            *server = format!("http://{server}");
        }
        let namespace = overrides.namespace.clone().or(context.namespace).filter(|namespace| !namespace.is_empty());
        Ok(Resolved {
            namespace: namespace.unwrap_or_else(|| "default".into()),
            impersonate_user: overrides.impersonate_user.clone().or(user.impersonate.clone()),
            impersonate_uid: overrides.impersonate_uid.clone().or(user.impersonate_uid.clone()),
            impersonate_groups: if overrides.impersonate_groups.is_empty() {
                user.impersonate_groups.clone().unwrap_or_default()
            } else {
                overrides.impersonate_groups.clone()
            },
            cluster,
            user,
        })
    }

    fn resolve_paths(&mut self, folder: &Path) {
        let absolute = |path: &mut Option<String>| {
            if let Some(path) = path.as_mut().filter(|path| !path.is_empty() && Path::new(path).is_relative()) {
                *path = folder.join(&*path).to_string_lossy().into_owned();
            }
        };
        for named in &mut self.clusters {
            absolute(&mut named.cluster.certificate_authority);
        }
        for named in &mut self.users {
            let user = &mut named.user;
            [&mut user.client_certificate, &mut user.client_key, &mut user.token_file].into_iter().for_each(absolute);
            // A command with a slash is a path; a bare name is looked up in PATH.
            if let Some(exec) = &mut user.exec
                && exec.command.contains('/')
                && Path::new(&exec.command).is_relative()
            {
                exec.command = folder.join(&exec.command).to_string_lossy().into_owned();
            }
        }
    }
}

impl Overrides {
    fn change_cluster(&self, cluster: &mut Cluster) {
        if self.server.is_some() {
            cluster.server.clone_from(&self.server);
        }
        if self.certificate_authority.is_some() {
            cluster.certificate_authority.clone_from(&self.certificate_authority);
            cluster.certificate_authority_data = None;
            cluster.insecure_skip_tls_verify = None;
        }
        if self.insecure_skip_tls_verify == Some(true) {
            cluster.insecure_skip_tls_verify = Some(true);
            cluster.certificate_authority = None;
            cluster.certificate_authority_data = None;
        }
        if self.tls_server_name.is_some() {
            cluster.tls_server_name.clone_from(&self.tls_server_name);
        }
    }

    fn change_user(&self, user: &mut AuthInfo) {
        if let Some(exec) = &mut user.exec {
            exec.stdin_used_by = self.stdin_used_by;
        }
        if self.client_certificate.is_some() {
            user.client_certificate.clone_from(&self.client_certificate);
            user.client_certificate_data = None;
        }
        if self.client_key.is_some() {
            user.client_key.clone_from(&self.client_key);
            user.client_key_data = None;
        }
        // One way of proving oneself on the command line replaces the others of the file.
        if self.token.is_some() {
            user.token.clone_from(&self.token);
            (user.token_file, user.exec, user.auth_provider, user.username, user.password) =
                (None, None, None, None, None);
        } else if self.username.is_some() || self.password.is_some() {
            user.username = self.username.clone().or(user.username.take());
            user.password = self.password.clone().or(user.password.take());
            (user.token, user.token_file, user.exec, user.auth_provider) = (None, None, None, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "
current-context: one
clusters: [{name: a, cluster: {server: 'https://a:6443', certificate-authority: ca.crt}}]
users: [{name: u, user: {token: first}}]
contexts: [{name: one, context: {cluster: a, user: u, namespace: team}}]
";
    const SECOND: &str = "
current-context: two
clusters: [{name: a, cluster: {server: 'https://other:1'}}, {name: b, cluster: {server: 'b.example:80'}}]
users: [{name: v, user: {username: admin, password: secret}}]
contexts: [{name: two, context: {cluster: b, user: v}}]
";

    #[test]
    fn the_first_file_to_name_something_wins() {
        let mut config = Kubeconfig::parse(FIRST).unwrap();
        config.merge(Kubeconfig::parse(SECOND).unwrap());
        for (context, server, namespace) in
            [(None, "https://a:6443", "team"), (Some("two"), "http://b.example:80", "default")]
        {
            let overrides = Overrides { context: context.map(Into::into), ..Overrides::default() };
            let resolved = config.resolve(&overrides).unwrap();
            assert_eq!(resolved.cluster.server.as_deref(), Some(server));
            assert_eq!(resolved.namespace, namespace);
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let config = Kubeconfig::parse(SECOND).unwrap();
        let overrides = Overrides {
            token: Some("flag".into()),
            server: Some("https://flag".into()),
            namespace: Some("other".into()),
            insecure_skip_tls_verify: Some(true),
            ..Overrides::default()
        };
        let resolved = config.resolve(&overrides).unwrap();
        assert_eq!(resolved.cluster.server.as_deref(), Some("https://flag"));
        assert_eq!(resolved.namespace, "other");
        assert_eq!((resolved.user.token.as_deref(), resolved.user.username), (Some("flag"), None));
    }

    #[test]
    fn names_that_do_not_exist_are_errors() {
        let config = Kubeconfig::parse(FIRST).unwrap();
        for (overrides, text) in [
            (
                Overrides { context: Some("x".into()), ..Overrides::default() },
                "context was not found for specified context: x",
            ),
            (Overrides { cluster: Some("x".into()), ..Overrides::default() }, "no server found for cluster \"x\""),
            (Overrides { user: Some("x".into()), ..Overrides::default() }, "auth info \"x\" does not exist"),
        ] {
            assert_eq!(config.resolve(&overrides).unwrap_err().to_string(), text);
        }
    }

    #[test]
    fn relative_paths_are_relative_to_the_file() {
        let mut config = Kubeconfig::parse(FIRST).unwrap();
        config.resolve_paths(Path::new("/etc/kube"));
        assert_eq!(config.clusters[0].cluster.certificate_authority.as_deref(), Some("/etc/kube/ca.crt"));
    }

    #[test]
    fn nothing_configured_means_localhost() {
        let resolved = Kubeconfig::default().resolve(&Overrides::default()).unwrap();
        assert_eq!(resolved.cluster.server.as_deref(), Some("http://localhost:8080"));
    }

    #[test]
    fn other_versions_and_plug_ins_that_do_not_say_how_they_run_are_refused() {
        let said = Kubeconfig::parse("apiVersion: v2\nkind: Config\n").unwrap_err().to_string();
        assert!(said.contains("no kind \"Config\" is registered for version \"v2\""), "{said}");
        let resolve = |mode: &str| {
            let exec = format!("{{apiVersion: client.authentication.k8s.io/v1, command: x{mode}}}");
            let text = format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: l, user: u}}}}]\n\
                 clusters: [{{name: l, cluster: {{server: 'https://a'}}}}]\nusers: [{{name: u, user: {{exec: {exec}}}}}]\n"
            );
            Kubeconfig::parse(&text).unwrap().resolve(&Overrides::default())
        };
        let said = resolve("").unwrap_err().to_string();
        assert!(said.contains("interactiveMode must be specified for u to use exec authentication plugin"), "{said}");
        assert!(resolve(", interactiveMode: Never").is_ok());
    }

    #[test]
    fn unknown_fields_survive_a_round_trip() {
        let text = "clusters: [{name: a, cluster: {server: x, extensions: [{name: m}]}}]\nusers: null\n";
        let config = Kubeconfig::parse(text).unwrap();
        assert!(config.to_yaml().unwrap().contains("extensions"));
    }
}
