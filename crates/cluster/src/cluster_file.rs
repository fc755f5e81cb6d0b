//! `cox up -f cluster.yaml`: a cluster in a file, kept with other configuration.
//!
//! The fields of `spec` are the flags of `cox up`, read from the same table that the command line is; `spec.components` has the
//! configuration of single components. Flags that are given as well win.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use api::codec::{from_yaml, line_of_key, line_of_repeated_key};
use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Value};

use crate::component_configs::{ComponentConfigs, NAMES, reason, text};

const API_VERSION: &str = "cox.dev/v1";
const KIND: &str = "Cluster";
const MAX_BYTES: u64 = 1 << 20;
/// Flags that are about one call of the command, not about the cluster.
const OF_THE_CALL: [&str; 4] = ["file", "foreground", "detached", "help"];

pub(crate) struct ClusterFile {
    path: PathBuf,
    source: Vec<u8>,
    name: Option<Value>,
    spec: Map<String, Value>,
    pub(crate) components: ComponentConfigs,
}

impl ClusterFile {
    pub(crate) fn read(path: &Path) -> Result<ClusterFile> {
        let long = || format!("{} is longer than {MAX_BYTES} bytes", path.display());
        let metadata = std::fs::metadata(path).with_context(|| path.display().to_string())?;
        if metadata.len() > MAX_BYTES {
            bail!("{}", long());
        }
        ClusterFile::parse(path, std::fs::read(path).with_context(|| path.display().to_string())?)
    }

    fn parse(path: &Path, source: Vec<u8>) -> Result<ClusterFile> {
        let decoded = from_yaml(&source).with_context(|| path.display().to_string())?;
        let mut file = ClusterFile {
            path: path.to_owned(),
            source,
            name: None,
            spec: Map::new(),
            components: ComponentConfigs::default(),
        };
        if let Some(field) = decoded.duplicates.first() {
            let line = line_of_repeated_key(&file.source, field).map(|line| format!("line {line}: "));
            bail!("{}: {}{field} is there twice", path.display(), line.unwrap_or_default());
        }
        let Value::Object(mut all) = decoded.value else { bail!("{} has no {KIND}", path.display()) };
        let kind = |name: &str| all.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (version, found) = (kind("apiVersion"), kind("kind"));
        if (version.as_str(), found.as_str()) != (API_VERSION, KIND) {
            bail!("{}: apiVersion {version:?}, kind {found:?}: {API_VERSION:?}, {KIND:?} is expected", path.display());
        }
        let mut metadata = file.object(all.remove("metadata"), "metadata")?;
        file.name = metadata.remove("name");
        file.spec = file.object(all.remove("spec"), "spec")?;
        file.refuse_others("", all.keys().filter(|key| !matches!(key.as_str(), "apiVersion" | "kind")))?;
        file.refuse_others("metadata.", metadata.keys())?;
        let components = file.object(file.spec.get("components").cloned(), "spec.components")?;
        file.refuse_others("spec.components.", components.keys().filter(|key| !NAMES.contains(&key.as_str())))?;
        for name in NAMES {
            file.object(components.get(name).cloned(), &format!("spec.components.{name}"))?;
        }
        file.components = serde_json::from_value(Value::Object(components))?;
        if let Err(error) = file.components.check() {
            let message = format!("{error:#}");
            let name = NAMES.into_iter().find(|name| message.starts_with(&format!("the configuration of {name}: ")));
            return Err(file.wrong(&format!("spec.components.{}", name.unwrap_or_default()), &message));
        }
        file.spec.remove("components");
        Ok(file)
    }

    fn object(&self, value: Option<Value>, field: &str) -> Result<Map<String, Value>> {
        match value {
            None | Some(Value::Null) => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map),
            Some(_) => Err(self.wrong(field, "is no mapping")),
        }
    }

    fn refuse_others<'a>(&self, below: &str, mut names: impl Iterator<Item = &'a String>) -> Result<()> {
        match names.next() {
            Some(name) => Err(self.wrong(&format!("{below}{name}"), "there is no such field")),
            None => Ok(()),
        }
    }

    /// What is wrong with a field, and where it stands.
    fn wrong(&self, field: &str, why: &str) -> anyhow::Error {
        let line = line_of_key(&self.source, field, 1).map(|line| format!("line {line}: ")).unwrap_or_default();
        anyhow!("{}: {line}{field}: {why}", self.path.display())
    }

    /// Its fields as words for this command, each with the flag that it sets.
    fn words(&self, command: &Command) -> Result<Vec<(String, OsString)>> {
        let mut words = Vec::new();
        if let Some(name) = &self.name {
            let name = name.as_str().ok_or_else(|| self.wrong("metadata.name", "is no text"))?;
            words.push(("name".to_owned(), format!("--name={name}").into()));
        }
        for (field, value) in &self.spec {
            let flag = command.get_arguments().find(|flag| field_of(flag).as_deref() == Some(field));
            let path = format!("spec.{field}");
            let Some(flag) = flag.filter(|flag| flag.get_long() != Some("name")) else {
                return Err(self.wrong(&path, "there is no such field"));
            };
            let (id, long) = (flag.get_id().to_string(), flag.get_long().unwrap_or_default());
            match (value, flag.get_action()) {
                (Value::Null | Value::Bool(false), ArgAction::SetTrue) | (Value::Null, _) => {}
                (Value::Bool(true), ArgAction::SetTrue) => words.push((id, format!("--{long}").into())),
                (_, ArgAction::SetTrue) => return Err(self.wrong(&path, "is true or false")),
                (Value::Array(_), action) if !matches!(action, ArgAction::Append) => {
                    return Err(self.wrong(&path, "is one value, not a list"));
                }
                (value, _) => {
                    let text = text(value).ok_or_else(|| self.wrong(&path, "is no text, number or list"))?;
                    words.push((id, format!("--{long}={text}").into()));
                }
            }
        }
        Ok(words)
    }

    /// The command line with what the file says besides.
    pub(crate) fn merge(&self, command: &Command, given: &[OsString]) -> Result<ArgMatches> {
        let parse = |words: Vec<OsString>| {
            let name = command.get_bin_name().unwrap_or("cox up");
            command.clone().try_get_matches_from([OsString::from(name)].into_iter().chain(words))
        };
        let alone = parse(given.to_vec()).map_err(|error| anyhow!("{}", reason(&error)))?;
        let is_given = |id: &str| alone.value_source(id) == Some(ValueSource::CommandLine);
        let from_file = self.words(command)?.into_iter().filter(|(id, _)| !is_given(id)).map(|(_, word)| word);
        parse(from_file.chain(given.iter().cloned()).collect()).map_err(|error| {
            let flag = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::String(flag)) => flag.split([' ', '=']).next().unwrap_or_default().to_owned(),
                _ => String::new(),
            };
            let field =
                command.get_arguments().find(|arg| arg.get_long().is_some_and(|long| flag == format!("--{long}")));
            match field.and_then(field_of) {
                Some(field) => self.wrong(&format!("spec.{field}"), &reason(&error)),
                None => anyhow!("{}: {}", self.path.display(), reason(&error)),
            }
        })
    }
}

/// The name of a flag in a file: `clusterCidr` for `--cluster-cidr`. None for those that have no place there.
fn field_of(flag: &Arg) -> Option<String> {
    let long = flag.get_long().filter(|long| !OF_THE_CALL.contains(long))?;
    let mut parts = long.split('-');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let mut letters = part.chars();
        name.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        name.extend(letters);
    }
    Some(name)
}

/// The same words with a path that leads to the file from anywhere.
pub(crate) fn from_anywhere(words: Vec<OsString>, file: &Path) -> Result<Vec<OsString>> {
    let whole = std::path::absolute(file).with_context(|| file.display().to_string())?;
    let mut changed = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if text == "-f" || text == "--file" {
            words.next();
        } else if !(text.starts_with("--file=") || text.starts_with("-f")) {
            changed.push(word);
            continue;
        }
        changed.extend(["--file".into(), whole.clone().into_os_string()]);
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args as _, FromArgMatches as _};

    use crate::up::Args;

    fn command() -> Command {
        Args::augment_args(Command::new("cox").bin_name("cox up"))
    }

    fn read(text: &str, given: &[&str]) -> Result<Args> {
        let file = ClusterFile::parse(Path::new("c.yaml"), text.as_bytes().to_vec())?;
        let given: Vec<OsString> = given.iter().map(OsString::from).collect();
        let mut args = Args::from_arg_matches(&file.merge(&command(), &given)?)?;
        args.take_components(&file);
        Ok(args)
    }

    fn flags(given: &[&str]) -> Args {
        let words = ["cox up"].into_iter().chain(given.iter().copied());
        Args::from_arg_matches(&command().get_matches_from(words)).unwrap()
    }

    const HEAD: &str = "apiVersion: cox.dev/v1\nkind: Cluster\n";

    #[test]
    fn a_file_says_the_same_as_flags() {
        let text = format!(
            "{HEAD}metadata: {{name: sea}}\nspec:\n  dataDir: /d\n  nodes: 3\n  clusterCidr: 10.1.0.0/16\n  gateway: false\n  \
             nodeIp: [10.0.0.1, 'fd00::1']\n  etcdServers: [https://a:2379, https://b:2379]\n  routes: vxlan\n  noKubeconfig: true\n"
        );
        let same = [
            "--name=sea",
            "--data-dir=/d",
            "--nodes=3",
            "--cluster-cidr=10.1.0.0/16",
            "--gateway=false",
            "--node-ip=10.0.0.1,fd00::1",
            "--etcd-servers=https://a:2379,https://b:2379",
            "--routes=vxlan",
            "--no-kubeconfig",
        ];
        let debug = |args: &Args| format!("{:?}", args.without_components());
        assert_eq!(debug(&read(&text, &[]).unwrap()), debug(&flags(&same)));
        // Flags win.
        let over = read(&text, &["--nodes", "5", "--name=lake"]).unwrap();
        let mut other = same.to_vec();
        (other[0], other[2]) = ("--name=lake", "--nodes=5");
        assert_eq!(debug(&over), debug(&flags(&other)));
    }

    #[test]
    fn every_flag_has_a_field() {
        for flag in command().get_arguments().filter(|flag| flag.get_long().is_some()) {
            let long = flag.get_long().unwrap();
            assert_eq!(field_of(flag).is_none(), OF_THE_CALL.contains(&long), "{long}");
        }
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, why) in [
            ("spec: {}", "apiVersion \"\", kind \"\": \"cox.dev/v1\", \"Cluster\" is expected".to_owned()),
            (
                &format!("{HEAD}spec:\n  nodes: 2\n  noodles: 1\n"),
                "line 5: spec.noodles: there is no such field".into(),
            ),
            (&format!("{HEAD}spec: {{}}\nstatus: {{}}\n"), "line 4: status: there is no such field".into()),
            (&format!("{HEAD}spec:\n  nodes: 2\n  nodes: 3\n"), "line 5: spec.nodes is there twice".into()),
            (&format!("{HEAD}spec:\n  securePort: 70000\n"), "line 4: spec.securePort: invalid value '70000'".into()),
            (&format!("{HEAD}spec:\n  nodes: [1, 2]\n"), "line 4: spec.nodes: is one value, not a list".into()),
            (&format!("{HEAD}spec:\n  foreground: true\n"), "line 4: spec.foreground: there is no such field".into()),
            (
                &format!("{HEAD}spec:\n  components:\n    kubelet:\n      maxPodz: 1\n"),
                "line 5: spec.components.kubelet: the configuration of kubelet: ".into(),
            ),
            (
                &format!("{HEAD}spec:\n  components:\n    cook: {{}}\n"),
                "line 5: spec.components.cook: there is no such field".into(),
            ),
            (&format!("{HEAD}spec: 5\n"), "line 3: spec: is no mapping".into()),
        ] {
            let error = format!("{:#}", read(text, &[]).unwrap_err());
            assert!(error.starts_with("c.yaml: ") && error.contains(&why), "{error}\n{why}");
        }
    }

    /// The process that stays is told the whole paths of a file's files besides the file.
    #[test]
    fn a_path_may_be_given_again_without_what_it_goes_with() {
        let text = format!(
            "{HEAD}spec:\n  etcdServers: [https://a:2379]\n  etcdCafile: ca.crt\n  etcdCertfile: c.crt\n  etcdKeyfile: c.key\n  \
             backupS3Endpoint: https://h\n  backupS3Bucket: copies\n  backupS3Ca: s3.crt\n  registries: r.yaml\n"
        );
        let given = [
            "--etcd-cafile=/d/ca.crt",
            "--etcd-certfile=/d/c.crt",
            "--etcd-keyfile=/d/c.key",
            "--backup-s3-ca=/d/s3.crt",
            "--registries=/d/r.yaml",
        ];
        // Once by the program, and once more with the file.
        flags(&given);
        let others = ["--etcd-servers=https://a:2379", "--backup-s3-endpoint=https://h", "--backup-s3-bucket=copies"];
        let expected = flags(&[&others[..], &given].concat());
        let found = read(&text, &given).unwrap();
        assert_eq!(format!("{:?}", found.without_components()), format!("{:?}", expected.without_components()));
    }

    #[test]
    fn components_are_in_the_file() {
        let text = format!("{HEAD}spec:\n  components:\n    kubelet: {{maxPods: 9}}\n");
        assert_eq!(read(&text, &[]).unwrap().components().unwrap().nodes.kubelet("n").unwrap().max_pods, 9);
    }

    #[test]
    fn the_path_leads_there_from_anywhere() {
        let words = |list: &[&str]| list.iter().map(OsString::from).collect::<Vec<_>>();
        for given in [
            &["up", "-f", "/c.yaml", "--nodes=2"][..],
            &["up", "--file=/c.yaml", "--nodes=2"],
            &["up", "-f/c.yaml", "--nodes=2"],
        ] {
            let found = from_anywhere(words(given), Path::new("/c.yaml")).unwrap();
            assert_eq!(found, words(&["up", "--file", "/c.yaml", "--nodes=2"]));
        }
        let here = from_anywhere(words(&["up", "-f", "c.yaml"]), Path::new("c.yaml")).unwrap();
        assert!(Path::new(&here[2]).is_absolute());
    }
}
