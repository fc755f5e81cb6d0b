//! Calling plug-ins: one network, its plug-ins run in order for ADD and CHECK and in reverse for DEL, results cached so
//! that DEL and CHECK work after a restart of the runtime.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use api::sort::CompactCollect as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

use crate::config::{NetworkConfig, PortMapping, is_valid_name};
use crate::error::{CniError, Error, code};
use crate::result::{AddResult, MAX_OUTPUT, version_at_least};

/// Where libcni keeps results too, so that runtimes can be swapped under running pods.
const CACHE_DIR: &str = "/var/lib/cni";
/// The end of the name of a note whose attachment could not be undone whole.
const LEFT: &str = "left";
/// How long a plug-in may take. The kubelet gives a sandbox four minutes; after that it tries again, beside what still hangs.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(180);

/// A network as configured on this node.
#[derive(Clone, Debug)]
pub struct Network {
    config: NetworkConfig,
    bin_dirs: Vec<PathBuf>,
    cache_dir: PathBuf,
}

/// What the runtime knows about one attachment beyond its identity.
#[derive(Clone, Debug, Default)]
pub struct AttachmentArgs {
    /// `CNI_ARGS`, in order.
    pub cni_args: Vec<(String, String)>,
    /// Values by capability name (`portMappings`, `bandwidth`, `ipRanges`, `mac`, `aliases`…). Each reaches only the
    /// plug-ins that declare the capability.
    pub capabilities: Map<String, Value>,
}

impl AttachmentArgs {
    /// The arguments every Kubernetes runtime passes.
    pub fn for_pod(namespace: &str, name: &str, uid: &str, sandbox: &str) -> Self {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        Self {
            cni_args: vec![
                pair("IgnoreUnknown", "1"),
                pair("K8S_POD_NAMESPACE", namespace),
                pair("K8S_POD_NAME", name),
                pair("K8S_POD_INFRA_CONTAINER_ID", sandbox),
                pair("K8S_POD_UID", uid),
            ],
            capabilities: Map::new(),
        }
    }

    pub fn port_mappings(mut self, mappings: &[PortMapping]) -> Self {
        if !mappings.is_empty() {
            self.capabilities.insert("portMappings".into(), json!(mappings));
        }
        self
    }
}

/// What STATUS says about a network.
#[derive(Clone, Debug, PartialEq)]
pub enum Status {
    Ready,
    NotReady(String),
}

/// The attachment a call is about; for STATUS and GC there is none.
#[derive(Clone, Copy)]
struct Attachment<'a> {
    container_id: &'a str,
    netns: &'a str,
    ifname: &'a str,
    args: &'a AttachmentArgs,
}

impl Network {
    /// The first configuration in `conf_dir`. Plug-ins are looked for in `bin_dirs`, in order; those of ours that are not
    /// installed there run from this very executable.
    pub async fn load(
        conf_dir: impl Into<PathBuf>,
        bin_dirs: impl IntoIterator<Item = PathBuf>,
    ) -> Result<Self, Error> {
        let conf_dir = conf_dir.into();
        let dir = conf_dir.clone();
        let config = tokio::task::spawn_blocking(move || NetworkConfig::first_in(&dir))
            .await
            .map_err(|error| Error::InvalidConfig { path: conf_dir, cause: error.to_string() })??;
        Ok(Self::new(config, bin_dirs))
    }

    /// The network that an attachment was made with, as ADD noted it in `cache_dir` (or in the usual place); none if nothing is noted.
    /// What the node is configured with may be another one by now, or nothing.
    pub async fn of_attachment(
        cache_dir: Option<&Path>,
        bin_dirs: impl IntoIterator<Item = PathBuf>,
        container_id: &str,
        ifname: &str,
    ) -> Result<Option<Self>, Error> {
        let args = AttachmentArgs::default();
        validate(&Attachment { container_id, netns: "", ifname, args: &args })?;
        let cache_dir = cache_dir.unwrap_or(Path::new(CACHE_DIR));
        let results = cache_dir.join("results");
        let failed = |error: std::io::Error| Error::Cache { path: results.clone(), cause: error.to_string() };
        let mut entries = match tokio::fs::read_dir(&results).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            entries => entries.map_err(failed)?,
        };
        let suffix = format!("-{container_id}-{ifname}");
        while let Some(entry) = entries.next_entry().await.map_err(failed)? {
            if !entry.file_name().to_str().is_some_and(|name| name.ends_with(&suffix)) {
                continue;
            }
            let Some(cached) = read_cached(&entry.path()).await? else { continue };
            // The name of another network may end like the identity of this attachment.
            if cached["containerId"] != container_id || cached["ifName"] != ifname {
                continue;
            }
            return Self::noted(&cached, &entry.path(), bin_dirs).map(|network| Some(network.cache_dir(cache_dir)));
        }
        Ok(None)
    }

    /// The network that the note of an attachment is about.
    fn noted(cached: &Value, path: &Path, bin_dirs: impl IntoIterator<Item = PathBuf>) -> Result<Self, Error> {
        let torn = |cause: String| Error::Cache { path: path.to_owned(), cause };
        let source = cached["config"].as_str().and_then(|text| STANDARD.decode(text).ok());
        let source = source.and_then(|bytes| String::from_utf8(bytes).ok());
        let source = source.ok_or_else(|| torn("it holds no configuration".into()))?;
        let config = NetworkConfig::parse(&source, false).map_err(torn)?;
        Ok(Self::new(config, bin_dirs))
    }

    /// DEL for attachments that were left without some of their plug-ins, now that the programs are there again. Failures do not
    /// keep others from being released; the first is returned.
    pub async fn release_left(cache_dir: Option<&Path>, bin_dirs: &[PathBuf]) -> Result<(), Error> {
        let results = cache_dir.unwrap_or(Path::new(CACHE_DIR)).join("results");
        let failed = |error: std::io::Error| Error::Cache { path: results.clone(), cause: error.to_string() };
        let mut entries = match tokio::fs::read_dir(&results).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed)?,
        };
        let mut outcome = Ok(());
        while let Some(entry) = entries.next_entry().await.map_err(failed)? {
            if entry.path().extension().is_some_and(|extension| extension == LEFT) {
                outcome = outcome.and(Self::release(&entry.path(), bin_dirs).await);
            }
        }
        outcome
    }

    async fn release(note: &Path, bin_dirs: &[PathBuf]) -> Result<(), Error> {
        let Some(cached) = read_cached(note).await? else { return Ok(()) };
        let network = Self::noted(&cached, note, bin_dirs.iter().cloned())?;
        if network.config.plugins.iter().any(|plugin| network.command(plugin_type(plugin)).is_err()) {
            return Ok(());
        }
        let (container_id, ifname, args) = identity(&cached);
        let attachment = Attachment { container_id: &container_id, netns: "", ifname: &ifname, args: &args };
        validate(&attachment)?;
        let gone = network.delete(attachment, note).await?;
        if gone.is_empty() {
            tracing::info!(container = container_id, network = network.name(), "released what a pod had left behind");
        }
        Ok(())
    }

    pub fn new(config: NetworkConfig, bin_dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { config, bin_dirs: bin_dirs.into_iter().collect(), cache_dir: CACHE_DIR.into() }
    }

    /// The network every pod has besides its own: `lo`.
    pub fn loopback(bin_dirs: impl IntoIterator<Item = PathBuf>) -> Self {
        let text = r#"{"cniVersion":"1.0.0","name":"cni-loopback","plugins":[{"type":"loopback"}]}"#;
        let config = NetworkConfig::parse(text, true).expect("a valid literal");
        Self::new(config, bin_dirs)
    }

    pub fn cache_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cache_dir = dir.into();
        self
    }

    pub fn name(&self) -> &str {
        &self.config.name
    }

    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// ADD: every plug-in in order, each seeing the result of the one before. What a failure leaves behind is for the
    /// caller to `del`, as the specification asks.
    pub async fn add(
        &self,
        container_id: &str,
        netns: &str,
        ifname: &str,
        args: &AttachmentArgs,
    ) -> Result<AddResult, Error> {
        let attachment = Attachment { container_id, netns, ifname, args };
        validate(&attachment)?;
        let mut previous: Option<Value> = None;
        for plugin in &self.config.plugins {
            let output = self.run(plugin, "ADD", Some(attachment), previous.as_ref(), None).await?;
            let result: Value = serde_json::from_slice(&output).map_err(|error| Error::Plugin {
                plugin: plugin_type(plugin).to_owned(),
                command: "add",
                error: CniError::new(code::DECODING_FAILURE, "failed to decode result", error.to_string()),
            })?;
            previous = Some(result);
            trace::lap_named(trace::Stage::Cni, trace::Name::new(plugin_type(plugin)));
        }
        let raw = previous.unwrap_or(Value::Null);
        let result = AddResult::parse(&raw).map_err(|error| Error::Plugin {
            plugin: self.config.plugins.last().map(plugin_type).unwrap_or_default().to_owned(),
            command: "add",
            error,
        })?;
        self.write_cache(attachment, &raw).await?;
        Ok(result)
    }

    /// CHECK: is the attachment still as ADD left it?
    pub async fn check(
        &self,
        container_id: &str,
        netns: &str,
        ifname: &str,
        args: &AttachmentArgs,
    ) -> Result<(), Error> {
        let attachment = Attachment { container_id, netns, ifname, args };
        validate(&attachment)?;
        if !version_at_least(&self.config.cni_version, "0.4.0") {
            return Err(Error::Unsupported(self.config.cni_version.clone(), "CHECK"));
        }
        if self.config.disable_check {
            return Ok(());
        }
        let previous = self.read_cache(attachment).await?;
        for plugin in &self.config.plugins {
            self.run(plugin, "CHECK", Some(attachment), previous.as_ref(), None).await?;
        }
        Ok(())
    }

    /// DEL: in reverse, with the cached result where the version has that. Succeeds when there is nothing to delete.
    ///
    /// Plug-ins whose program is gone are passed over, and what is said of them is returned: a pod must not stay because somebody
    /// uninstalled one. The note of the attachment is kept aside, and [`Self::release_left`] asks again when they are back.
    pub async fn del(
        &self,
        container_id: &str,
        netns: &str,
        ifname: &str,
        args: &AttachmentArgs,
    ) -> Result<Vec<Error>, Error> {
        let attachment = Attachment { container_id, netns, ifname, args };
        validate(&attachment)?;
        self.delete(attachment, &self.cache_path(attachment)).await
    }

    async fn delete(&self, attachment: Attachment<'_>, note: &Path) -> Result<Vec<Error>, Error> {
        let previous = match version_at_least(&self.config.cni_version, "0.4.0") {
            // A torn file must not make a pod undeletable: plug-ins are asked to do without a previous result.
            true => read_result(note).await.unwrap_or_else(|error| {
                tracing::warn!(container = attachment.container_id, %error, "deleting without the result of ADD");
                None
            }),
            false => None,
        };
        let mut gone = Vec::new();
        for plugin in self.config.plugins.iter().rev() {
            match self.run(plugin, "DEL", Some(attachment), previous.as_ref(), None).await {
                Ok(_) => {}
                Err(error) if error.is_of_a_missing_program() => gone.push(error),
                Err(error) => return Err(error),
            }
        }
        let forgotten = match gone.is_empty() {
            true => tokio::fs::remove_file(note).await,
            false => tokio::fs::rename(note, aside(note)).await,
        };
        match forgotten {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Cache { path: note.to_owned(), cause: error.to_string() })
            }
            _ => Ok(gone),
        }
    }

    /// The result of an earlier ADD of this attachment, if it is still there.
    pub async fn cached(&self, container_id: &str, ifname: &str) -> Result<Option<AddResult>, Error> {
        let args = AttachmentArgs::default();
        let attachment = Attachment { container_id, netns: "", ifname, args: &args };
        let invalid = |error: CniError| Error::Cache { path: self.cache_path(attachment), cause: error.to_string() };
        self.read_cache(attachment).await?.map(|value| AddResult::parse(&value).map_err(invalid)).transpose()
    }

    /// GC (1.1): everything but `keep` (container id, interface) may be released. Older configurations get a DEL for each
    /// attachment in our cache that is not kept.
    pub async fn gc(&self, keep: &[(String, String)]) -> Result<(), Error> {
        let kept = |id: &str, ifname: &str| keep.iter().any(|(k, i)| k == id && i == ifname);
        let mut failures = Vec::new();
        for (id, ifname, args) in self.cached_attachments(&mut failures).await {
            if !kept(&id, &ifname)
                && let Err(error) = self.del(&id, "", &ifname, &args).await
            {
                failures.push(error);
            }
        }
        if version_at_least(&self.config.cni_version, "1.1.0") && !self.config.disable_gc {
            let valid: Vec<Value> =
                keep.iter().map(|(id, ifname)| json!({"containerID": id, "ifname": ifname})).collect();
            for plugin in &self.config.plugins {
                if let Err(error) =
                    self.run(plugin, "GC", None, None, Some(("cni.dev/valid-attachments", &json!(valid)))).await
                {
                    failures.push(error);
                }
            }
        }
        failures.into_iter().next().map_or(Ok(()), Err)
    }

    /// STATUS (1.1): would an ADD work now? Older configurations are ready once they are loaded.
    pub async fn status(&self) -> Status {
        if !version_at_least(&self.config.cni_version, "1.1.0") {
            return Status::Ready;
        }
        for plugin in &self.config.plugins {
            if let Err(error) = self.run(plugin, "STATUS", None, None, None).await {
                return Status::NotReady(error.to_string());
            }
        }
        Status::Ready
    }

    /// VERSION: what a plug-in says it supports.
    pub async fn supported_versions(&self, plugin: &str) -> Result<Vec<String>, Error> {
        let mut config = Map::new();
        config.insert("type".into(), json!(plugin));
        let output = self.run(&config, "VERSION", None, None, None).await?;
        let value: Value = serde_json::from_slice(&output).unwrap_or_default();
        let listed = value["supportedVersions"].as_array().into_iter().flatten();
        Ok(listed.filter_map(Value::as_str).map(str::to_owned).collect())
    }

    async fn run(
        &self,
        plugin: &Map<String, Value>,
        command: &'static str,
        attachment: Option<Attachment<'_>>,
        previous: Option<&Value>,
        extra: Option<(&str, &Value)>,
    ) -> Result<Vec<u8>, Error> {
        let kind = plugin_type(plugin);
        let stdin = self.plugin_config(plugin, attachment.map(|a| a.args), previous, extra).to_string();
        let mut process = self.command(kind)?;
        let path = std::env::join_paths(&self.bin_dirs).unwrap_or_default();
        process.env("CNI_COMMAND", command).env("CNI_PATH", path);
        if let Some(Attachment { container_id, netns, ifname, args }) = attachment {
            let cni_args: Vec<String> = args.cni_args.iter().map(|(key, value)| format!("{key}={value}")).collect();
            process
                .env("CNI_CONTAINERID", container_id)
                .env("CNI_NETNS", netns)
                .env("CNI_IFNAME", ifname)
                .env("CNI_ARGS", cni_args.join(";"));
        }
        let failed = |cause: String| Error::Exec {
            plugin: kind.to_owned(),
            network: self.config.name.clone(),
            command: lower(command),
            cause,
        };
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = process.spawn().map_err(|error| failed(error.to_string()))?;
        let mut input = child.stdin.take().ok_or_else(|| failed("no stdin".into()))?;
        // A plug-in may answer without reading: a broken pipe is not an error, its answer is.
        let feed = async move {
            let _ = input.write_all(stdin.as_bytes()).await;
            drop(input);
            Ok::<(), std::io::Error>(())
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let answer = async { tokio::try_join!(feed, read_bounded(stdout), read_bounded(stderr), child.wait()) };
        // One that does not answer, or does not end, is killed.
        let output = tokio::time::timeout(PLUGIN_TIMEOUT, answer).await;
        let output = output.map_err(|_| failed(format!("no answer within {PLUGIN_TIMEOUT:?}")))?;
        let ((), stdout, stderr, status) = output.map_err(|error| failed(error.to_string()))?;
        if !stderr.is_empty() {
            tracing::debug!(plugin = kind, command, stderr = %String::from_utf8_lossy(&stderr), "plug-in said");
        }
        if status.success() {
            return Ok(stdout);
        }
        let error = serde_json::from_slice(&stdout).unwrap_or_else(|_| {
            let said = if stdout.is_empty() { &stderr } else { &stdout };
            let said = String::from_utf8_lossy(said).trim().to_owned();
            match said.is_empty() {
                true => CniError::internal(format!("netplugin failed with no error message: {status}")),
                false => CniError::internal(format!("netplugin failed: {said:?}")),
            }
        });
        Err(Error::Plugin { plugin: kind.to_owned(), command: lower(command), error })
    }

    fn command(&self, kind: &str) -> Result<tokio::process::Command, Error> {
        if let Some(path) = self.bin_dirs.iter().map(|dir| dir.join(kind)).find(|path| path.is_file()) {
            return Ok(tokio::process::Command::new(path));
        }
        if crate::plugin(kind).is_some() {
            let mut process = tokio::process::Command::new("/proc/self/exe");
            process.arg0(kind);
            return Ok(process);
        }
        Err(Error::PluginNotFound { plugin: kind.to_owned(), dirs: self.bin_dirs.clone() })
    }

    /// The plug-in's object with what the list and the runtime add to it.
    fn plugin_config(
        &self,
        plugin: &Map<String, Value>,
        args: Option<&AttachmentArgs>,
        previous: Option<&Value>,
        extra: Option<(&str, &Value)>,
    ) -> Value {
        let mut config = plugin.clone();
        config.insert("name".into(), json!(self.config.name));
        config.insert("cniVersion".into(), json!(self.config.cni_version));
        if let Some(previous) = previous {
            config.insert("prevResult".into(), previous.clone());
        }
        if let Some((key, value)) = extra {
            config.insert(key.into(), value.clone());
        }
        let declared = config.remove("capabilities");
        if let (Some(Value::Object(declared)), Some(args)) = (declared, args) {
            let wanted = |name: &String| declared.get(name) == Some(&Value::Bool(true));
            let runtime: Map<String, Value> = args
                .capabilities
                .iter()
                .filter(|(k, _)| wanted(k))
                .map(|(k, v)| (k.clone(), v.clone()))
                .compact_collect();
            if !runtime.is_empty() {
                config.insert("runtimeConfig".into(), Value::Object(runtime));
            }
        }
        Value::Object(config)
    }

    fn cache_path(&self, attachment: Attachment<'_>) -> PathBuf {
        let name = format!("{}-{}-{}", self.config.name, attachment.container_id, attachment.ifname);
        self.cache_dir.join("results").join(name)
    }

    /// libcni's `cniCacheV1` object, written aside and renamed: a crash leaves the old one or the new one.
    async fn write_cache(&self, attachment: Attachment<'_>, result: &Value) -> Result<(), Error> {
        let path = self.cache_path(attachment);
        let cached = json!({
            "kind": "cniCacheV1",
            "containerId": attachment.container_id,
            "config": STANDARD.encode(&self.config.source),
            "ifName": attachment.ifname,
            "networkName": self.config.name,
            "netns": attachment.netns,
            "cniArgs": attachment.args.cni_args,
            "capabilityArgs": attachment.args.capabilities,
            "result": result,
        });
        let target = path.clone();
        let write = move || -> std::io::Result<()> {
            let dir = target.parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(dir)?;
            let draft = draft(&target);
            std::fs::write(&draft, cached.to_string())?;
            std::fs::rename(draft, target)
        };
        match tokio::task::spawn_blocking(write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::Cache { path, cause: error.to_string() }),
            Err(error) => Err(Error::Cache { path, cause: error.to_string() }),
        }
    }

    async fn read_cache(&self, attachment: Attachment<'_>) -> Result<Option<Value>, Error> {
        read_result(&self.cache_path(attachment)).await
    }

    /// Those that can be read; why others cannot is added to `failures`.
    async fn cached_attachments(&self, failures: &mut Vec<Error>) -> Vec<(String, String, AttachmentArgs)> {
        let mut attachments = Vec::new();
        let results = self.cache_dir.join("results");
        let failed = |error: std::io::Error| Error::Cache { path: results.clone(), cause: error.to_string() };
        let mut entries = match tokio::fs::read_dir(&results).await {
            Ok(entries) => entries,
            Err(error) => {
                failures.extend((error.kind() != std::io::ErrorKind::NotFound).then(|| failed(error)));
                return attachments;
            }
        };
        loop {
            let entry = match entries.next_entry().await {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) => {
                    failures.push(failed(error));
                    break;
                }
            };
            let value = match read_cached(&entry.path()).await {
                Ok(Some(value)) => value,
                Ok(None) => continue,
                Err(error) => {
                    failures.push(error);
                    continue;
                }
            };
            let (container_id, ifname, args) = identity(&value);
            if value["networkName"] == self.config.name.as_str() && !container_id.is_empty() {
                attachments.push((container_id, ifname, args));
            }
        }
        attachments
    }
}

/// What a plug-in says, to its end; an error where it says too much.
async fn read_bounded(pipe: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut said = Vec::new();
    let Some(pipe) = pipe else { return Ok(said) };
    pipe.take(MAX_OUTPUT + 1).read_to_end(&mut said).await?;
    match said.len() as u64 > MAX_OUTPUT {
        true => Err(std::io::Error::other(format!("more than {MAX_OUTPUT} bytes of output"))),
        false => Ok(said),
    }
}

/// What ADD noted in this file; none if there is no such file.
async fn read_cached(path: &Path) -> Result<Option<Value>, Error> {
    let failed = |cause: String| Error::Cache { path: path.to_owned(), cause };
    match tokio::fs::read(path).await {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}

async fn read_result(path: &Path) -> Result<Option<Value>, Error> {
    let Some(mut cached) = read_cached(path).await? else { return Ok(None) };
    match cached["result"].take() {
        Value::Null => Err(Error::Cache { path: path.to_owned(), cause: "it holds no result".into() }),
        result => Ok(Some(result)),
    }
}

/// Whose attachment a note is about, and with which arguments.
fn identity(cached: &Value) -> (String, String, AttachmentArgs) {
    let text = |key: &str| cached[key].as_str().unwrap_or_default().to_owned();
    let cni_args = serde_json::from_value(cached["cniArgs"].clone()).unwrap_or_default();
    let capabilities = cached["capabilityArgs"].as_object().cloned().unwrap_or_default();
    (text("containerId"), text("ifName"), AttachmentArgs { cni_args, capabilities })
}

/// Where a note is written before it has its name. That may have dots, as those of networks and links may.
fn draft(note: &Path) -> PathBuf {
    PathBuf::from([note.as_os_str(), ".new".as_ref()].into_iter().collect::<OsString>())
}

/// Where the note of an attachment is kept that was left without all of its plug-ins.
fn aside(note: &Path) -> PathBuf {
    match note.extension().is_some_and(|extension| extension == LEFT) {
        true => note.to_owned(),
        false => PathBuf::from([note.as_os_str(), ".".as_ref(), LEFT.as_ref()].into_iter().collect::<OsString>()),
    }
}

fn plugin_type(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

fn lower(command: &'static str) -> &'static str {
    match command {
        "ADD" => "add",
        "CHECK" => "check",
        "DEL" => "delete",
        "GC" => "gc",
        "STATUS" => "status",
        _ => "version",
    }
}

fn validate(attachment: &Attachment<'_>) -> Result<(), Error> {
    if !is_valid_name(attachment.container_id) {
        return Err(Error::InvalidArgument(format!("invalid container ID {:?}", attachment.container_id)));
    }
    if !netlink::is_valid_ifname(attachment.ifname) {
        return Err(Error::InvalidArgument(format!("invalid interface name {:?}", attachment.ifname)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_config_reaches_only_who_declares_the_capability() {
        let text = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [
            {"type": "bridge"}, {"type": "portmap", "capabilities": {"portMappings": true, "mac": false}}]}"#;
        let network = Network::new(NetworkConfig::parse(text, true).unwrap(), []);
        let mapping =
            PortMapping { host_port: 80, container_port: 8080, protocol: "tcp".into(), host_ip: String::new() };
        let mut args = AttachmentArgs::for_pod("ns", "pod", "uid", "id").port_mappings(&[mapping]);
        args.capabilities.insert("mac".into(), json!("00:00:00:00:00:01"));
        let configs: Vec<Value> =
            network.config.plugins.iter().map(|p| network.plugin_config(p, Some(&args), None, None)).collect();
        assert_eq!(configs[0], json!({"type": "bridge", "name": "n", "cniVersion": "1.0.0"}));
        assert_eq!(
            configs[1]["runtimeConfig"],
            json!({"portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}]})
        );
        assert!(configs[1].get("capabilities").is_none());
    }

    #[tokio::test]
    async fn a_plug_in_that_is_gone_keeps_no_pod() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        let install = |name: &str, program: &str| std::os::unix::fs::symlink(program, bin.join(name)).unwrap();
        install("there", "/bin/true");
        let text = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "gone"}, {"type": "there"}]}"#;
        let config = NetworkConfig::parse(text, true).unwrap();
        let network = Network::new(config, [bin.clone()]).cache_dir(dir.path());
        let args = AttachmentArgs::default();
        let attachment = Attachment { container_id: "c1", netns: "", ifname: "eth0", args: &args };
        network.write_cache(attachment, &json!({"cniVersion": "1.0.0"})).await.unwrap();
        let left = || std::fs::read_dir(dir.path().join("results")).unwrap().count();
        let del = async || network.del("c1", "", "eth0", &args).await.map(|gone| gone.len());
        assert_eq!(del().await.unwrap(), 1);
        let noted = Network::of_attachment(Some(dir.path()), [bin.clone()], "c1", "eth0").await.unwrap();
        assert!(noted.is_none(), "the attachment is no more");
        // Again, and while the program is away: what is left stays noted.
        assert_eq!(del().await.unwrap(), 1);
        let bins = [bin.clone()];
        let release = async || Network::release_left(Some(dir.path()), &bins).await;
        release().await.unwrap();
        assert_eq!(left(), 1);
        // There again, and failing: it is asked, and its answer counts.
        install("gone", "/bin/false");
        assert!(matches!(release().await, Err(Error::Plugin { .. })));
        assert!(matches!(del().await, Err(Error::Plugin { .. })));
        assert_eq!(left(), 1);
        std::fs::remove_file(bin.join("gone")).unwrap();
        install("gone", "/bin/true");
        release().await.unwrap();
        assert_eq!((left(), del().await.unwrap()), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn security_a_plug_in_that_never_answers_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (draft, process) = (dir.path().join("draft"), dir.path().join("process"));
        std::fs::write(&draft, format!("#!/bin/sh\necho $$ >{}\nexec sleep 600\n", process.display())).unwrap();
        // By another process: a program that is open for writing in this one could not be run.
        let installed =
            std::process::Command::new("install").arg(&draft).arg(dir.path().join("hangs")).status().unwrap();
        assert!(installed.success());
        let text = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "hangs"}]}"#;
        let network =
            Network::new(NetworkConfig::parse(text, true).unwrap(), [dir.path().into()]).cache_dir(dir.path());
        let args = AttachmentArgs::default();
        let error = network.add("c1", "/ns", "eth0", &args).await.unwrap_err().to_string();
        assert!(error.contains("failed (add): no answer within 180s"), "{error}");
        // It may not have come to its first line.
        if let Ok(id) = std::fs::read_to_string(&process) {
            let is_there = || std::path::Path::new("/proc").join(id.trim()).join("exe").read_link().is_ok();
            let begun = std::time::Instant::now();
            while is_there() && begun.elapsed() < Duration::from_secs(60) {
                std::thread::yield_now();
            }
            assert!(!is_there(), "it is still there");
        }
    }

    #[tokio::test]
    async fn security_a_plug_in_that_answers_without_end_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/usr/bin/yes", dir.path().join("endless")).unwrap();
        let text = r#"{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "endless"}]}"#;
        let network =
            Network::new(NetworkConfig::parse(text, true).unwrap(), [dir.path().into()]).cache_dir(dir.path());
        let error = network.add("c1", "/ns", "eth0", &AttachmentArgs::default()).await.unwrap_err().to_string();
        assert!(error.contains("failed (add): more than 4194304 bytes"), "{error}");
    }

    #[tokio::test]
    async fn security_what_was_noted_of_an_attachment_is_read_or_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let noted = async |id: &str| Network::of_attachment(Some(dir.path()), [], id, "eth0").await;
        assert!(noted("c1").await.unwrap().is_none());
        let text = r#"{"cniVersion": "1.0.0", "name": "old", "plugins": [{"type": "no-such-plug-in"}]}"#;
        let network = Network::new(NetworkConfig::parse(text, true).unwrap(), []).cache_dir(dir.path());
        let args = AttachmentArgs::default();
        let attachment = Attachment { container_id: "c1", netns: "/ns", ifname: "eth0", args: &args };
        network.write_cache(attachment, &json!({"cniVersion": "1.0.0"})).await.unwrap();
        assert_eq!(noted("c1").await.unwrap().unwrap().config, network.config);
        assert!(noted("1").await.unwrap().is_none(), "another that ends alike");
        assert!(network.cached("c1", "eth0").await.unwrap().is_some());
        std::fs::write(network.cache_path(attachment), "{").unwrap();
        assert!(matches!(noted("c1").await, Err(Error::Cache { .. })));
        assert!(matches!(network.cached("c1", "eth0").await, Err(Error::Cache { .. })));
        assert!(matches!(network.gc(&[]).await, Err(Error::Cache { .. })));
    }

    /// Names of networks may have dots, and pods are connected side by side.
    #[test]
    fn no_two_attachments_write_one_draft() {
        let drafts = ["a.b-c1-eth0", "a.b-c2-eth0", "a.b-c1-eth0.5"].map(|note| draft(Path::new(note)));
        assert_eq!(drafts, ["a.b-c1-eth0.new", "a.b-c2-eth0.new", "a.b-c1-eth0.5.new"].map(PathBuf::from));
    }
}
