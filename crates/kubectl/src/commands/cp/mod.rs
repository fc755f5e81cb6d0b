//! `kubectl cp`: files travel as a tar stream between ours (`archive`) and the container's `tar`.

mod archive;

use std::path::{Path, PathBuf};

use api::terminal::escaped;

use super::exec::{exec_path, finished, one_pod};
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::pods;
use crate::stream;

pub(crate) const COMMAND: Command = Command {
    name: "cp",
    usage: "<file-spec-src> <file-spec-dest>",
    about: "Copy files and directories to and from containers",
    examples: "  kubectl cp ./file web:/tmp/file\n  kubectl cp ns/web:/tmp/file ./file -c proxy",
    flags: &[
        flags::CONTAINER,
        &[
            Flag::bool("no-preserve", "Do not keep owner and permissions."),
            Flag::int("retries", "0", "How often to try again."),
        ],
    ],
    words: Words::Files,
    run: Some(|cx| Box::pin(copy(cx))),
    ..Command::EMPTY
};

/// `[[namespace/]pod:]path`
#[derive(Debug, PartialEq)]
struct Place {
    namespace: Option<String>,
    pod: Option<String>,
    path: String,
}

const CANONICAL: &str = "filespec must match the canonical format: [[namespace/]pod:]file/path";

fn place(spec: &str) -> Result<Place> {
    if spec.starts_with(':') {
        return Err(Failure::message(CANONICAL));
    }
    let Some((left, path)) = spec.split_once(':').filter(|(l, _)| !l.starts_with('.') && !l.starts_with('/')) else {
        return Ok(Place { namespace: None, pod: None, path: spec.to_owned() });
    };
    let (namespace, pod) = match left.split('/').collect::<Vec<_>>().as_slice() {
        [pod] => (None, (*pod).to_owned()),
        [namespace, pod] => (Some((*namespace).to_owned()), (*pod).to_owned()),
        _ => return Err(Failure::message(CANONICAL)),
    };
    Ok(Place { namespace, pod: Some(pod), path: path.to_owned() })
}

async fn copy(cx: &Context) -> Result<()> {
    let [from, to] = cx.args() else {
        return Err(Failure::message("source and destination are required"));
    };
    let (from, to) = (place(from)?, place(to)?);
    if from.pod.is_some() && to.pod.is_some() {
        return Err(Failure::message("one of src or dest must be a local file specification"));
    }
    if from.path.is_empty() || to.path.is_empty() {
        return Err(Failure::message("filepath can not be empty"));
    }
    match (&from.pod, &to.pod) {
        (None, Some(pod)) => upload(cx, Path::new(&from.path), pod, &to).await,
        (Some(pod), None) => download(cx, pod, &from, Path::new(&to.path)).await,
        _ => Err(Failure::message("one of src or dest must be a remote file specification")),
    }
}

/// Where to ask for a command in the container.
async fn remote(cx: &Context, pod: &str, place: &Place, command: &[&str], stdin: bool) -> Result<String> {
    let namespace = match &place.namespace {
        Some(ns) => ns.clone(),
        None => cx.namespace()?.0,
    };
    let object = one_pod(cx, &namespace, pod).await?;
    finished(&object)?;
    let container = pods::choose_container(cx, &object, &cx.flags.string("container"))?;
    let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
    Ok(exec_path(&namespace, pod, &container, &command, stdin, false))
}

/// Directory and name.
fn split_path(path: &str) -> (&str, &str) {
    let path = path.trim_end_matches('/');
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((dir, name)) => (dir, name),
        None => (".", path),
    }
}

async fn upload(cx: &Context, local: &Path, pod: &str, to: &Place) -> Result<()> {
    if !local.exists() {
        return Err(Failure::message(format!("{} doesn't exist in local filesystem", local.display())));
    }
    let local = local.canonicalize().unwrap_or_else(|_| local.to_owned());
    let base = local.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (mut dir, mut name) = split_path(&to.path);
    if is_remote_dir(cx, pod, to).await? {
        (dir, name) = (&to.path, &base);
    }
    let keep: &[&str] = if cx.flags.bool("no-preserve") { &["--no-same-permissions", "--no-same-owner"] } else { &[] };
    let command = [&["tar"], keep, &["-xmf", "-", "-C", dir]].concat();
    let path = remote(cx, pod, to, &command, true).await?;

    let (sender, mut chunks) = archive::pipe();
    let name = name.to_owned();
    let packed = tokio::task::spawn_blocking(move || archive::pack(&local, &name, sender));
    let (mut reader, mut writer) = stream::open(cx, &path).await?;
    let send = async move {
        while let Some(chunk) = chunks.next().await {
            writer.send(stream::STDIN, &chunk).await?;
        }
        writer.close(stream::STDIN).await
    };
    let end = async {
        while let Some((channel, data)) = reader.next().await? {
            match channel {
                stream::STDERR => cx.eprint(&escaped(&String::from_utf8_lossy(&data))),
                stream::ERROR => return stream::outcome(&data),
                _ => {}
            }
        }
        Ok(())
    };
    // What the container says about its end explains why it took no more.
    let (sent, ended) = tokio::join!(send, end);
    ended?;
    sent?;
    joined(packed.await)?.map_err(|e| Failure::message(e.to_string()))
}

async fn is_remote_dir(cx: &Context, pod: &str, place: &Place) -> Result<bool> {
    let path = remote(cx, pod, place, &["test", "-d", &place.path], false).await?;
    let (mut reader, _writer) = stream::open(cx, &path).await?;
    while let Some((channel, data)) = reader.next().await? {
        if channel == stream::ERROR {
            return Ok(stream::outcome(&data).is_ok());
        }
    }
    Ok(false)
}

async fn download(cx: &Context, pod: &str, from: &Place, local: &Path) -> Result<()> {
    let (_, name) = split_path(&from.path);
    // Into a directory that is there, as cp(1) does it.
    let target: PathBuf = if local.is_dir() { local.join(name) } else { local.to_owned() };
    let namespace = from.namespace.as_deref().unwrap_or_default();
    let advice =
        format!(" (consider using \"kubectl exec -n {namespace:?} {pod:?} -- tar cf - {:?} | tar xf -\")", from.path);
    let prefix = archived_name(&from.path);
    let (sender, receiver) = archive::pipe();
    let unpacked = tokio::task::spawn_blocking(move || archive::unpack(receiver, &prefix, &target, &advice));

    let (mut received, mut tries) = (0, 0);
    let limit = cx.flags.int("retries");
    let outcome = loop {
        let resume = format!("tar cf - '{}' | tail -c+{}", from.path.replace('\'', "'\\''"), received + 1);
        let command = if limit == 0 { vec!["tar", "cf", "-", &from.path] } else { vec!["sh", "-c", &resume] };
        let path = remote(cx, pod, from, &command, false).await?;
        match receive(cx, &path, &sender, &mut received).await {
            Err(e) if (limit < 0 || tries < limit) && !matches!(e, Failure::ExitWith(..)) => {
                tries += 1;
                cx.println(format!("Resuming copy at {received} bytes, retry {tries}/{limit}"))?;
            }
            done => break done,
        }
    };
    drop(sender);
    let unpacked = joined(unpacked.await)?;
    outcome?;
    for warning in unpacked.map_err(Failure::of)? {
        cx.eprintln(warning);
    }
    Ok(())
}

/// How a path is called in an archive: without a slash in front, and never above the root.
fn archived_name(path: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    for word in path.split('/').filter(|w| !w.is_empty() && *w != ".") {
        match word {
            ".." => _ = words.pop(),
            word => words.push(word),
        }
    }
    words.join("/")
}

/// One stream of the archive, counting what arrives.
async fn receive(cx: &Context, path: &str, to: &archive::Sender, received: &mut usize) -> Result<()> {
    let (mut reader, _writer) = stream::open(cx, path).await?;
    while let Some((channel, data)) = reader.next().await? {
        match channel {
            stream::STDOUT => {
                *received += data.len();
                if !to.send(data).await {
                    // Unpacking failed and says why.
                    return Ok(());
                }
            }
            stream::STDERR => cx.eprint(&escaped(&String::from_utf8_lossy(&data))),
            stream::ERROR => return stream::outcome(&data),
            _ => {}
        }
    }
    Ok(())
}

fn joined<T>(done: std::result::Result<T, tokio::task::JoinError>) -> Result<T> {
    done.map_err(|e| Failure::message(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_parse() {
        for (spec, namespace, pod, path) in [
            ("/tmp/x", None, None, "/tmp/x"),
            ("./a:b", None, None, "./a:b"),
            ("web:/tmp/x", None, Some("web"), "/tmp/x"),
            ("ns/web:x", Some("ns"), Some("web"), "x"),
        ] {
            let p = place(spec).unwrap();
            assert_eq!((p.namespace.as_deref(), p.pod.as_deref(), p.path.as_str()), (namespace, pod, path), "{spec}");
        }
        assert_eq!(split_path("/a"), ("/", "a"));
        assert_eq!(split_path("a/b/"), ("a", "b"));
        for (path, expected) in [("/tmp/x", "tmp/x"), ("x", "x"), ("../../etc/./x/", "etc/x"), ("/a/../b", "b")] {
            assert_eq!(archived_name(path), expected);
        }
    }
}
