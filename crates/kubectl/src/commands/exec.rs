//! `kubectl exec`, `kubectl attach`, `kubectl cp`

use std::io::IsTerminal;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::create::known;
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::pods;
use crate::request::{Request, query_escape};
use crate::stream::{self, Terminal};

const STREAMS: &[Flag] = &[
    Flag::bool("stdin", "Pass standard input to the container.").short('i'),
    Flag::bool("tty", "Standard input is a terminal.").short('t'),
    Flag::bool("quiet", "Only the remote output.").short('q'),
];

pub(crate) const EXEC: Command = Command {
    name: "exec",
    usage: "(POD | TYPE/NAME) [-c CONTAINER] [flags] -- COMMAND [args...]",
    about: "Execute a command in a container",
    examples: "  kubectl exec web -- date\n  kubectl exec -it web -c proxy -- sh",
    flags: &[
        STREAMS,
        flags::CONTAINER,
        flags::POD_TIMEOUT,
        &[Flag::slice("filename", "File that names the pod.").short('f')],
    ],
    words: Words::Pods,
    run: Some(|cx| Box::pin(exec(cx))),
    ..Command::EMPTY
};
pub(crate) const ATTACH: Command = Command {
    name: "attach",
    usage: "(POD | TYPE/NAME) -c CONTAINER",
    about: "Attach to a running container",
    examples: "  kubectl attach web\n  kubectl attach web -c proxy -it",
    flags: &[
        STREAMS,
        flags::CONTAINER,
        flags::POD_TIMEOUT,
        &[Flag::string("detach-keys", "Key sequence that detaches.").default("ctrl-p,ctrl-q")],
    ],
    words: Words::Pods,
    run: Some(|cx| Box::pin(attach(cx))),
    ..Command::EMPTY
};
pub(crate) const CP: Command = Command {
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

async fn one_pod(cx: &Context, namespace: &str, word: &str) -> Result<Value> {
    if !word.contains('/') {
        return Request::get(known("v1", "pods", "Pod", true).object_path(namespace, word)).value(cx).await;
    }
    let mut found = pods::of_object(cx, namespace, word).await?;
    Ok(found.remove(0))
}

fn finished(pod: &Value) -> Result<()> {
    match text(pod, "/status/phase") {
        phase @ ("Succeeded" | "Failed") => {
            Err(Failure::message(format!("cannot exec into a container in a completed pod; current phase is {phase}")))
        }
        _ => Ok(()),
    }
}

fn exec_path(namespace: &str, pod: &str, container: &str, command: &[String], stdin: bool, tty: bool) -> String {
    let mut query: Vec<String> = command.iter().map(|c| format!("command={}", query_escape(c))).collect();
    query.push(format!("container={}", query_escape(container)));
    if stdin {
        query.push("stdin=true".to_owned());
    }
    query.push("stdout=true".to_owned());
    if tty {
        query.push("tty=true".to_owned());
    } else {
        query.push("stderr=true".to_owned());
    }
    format!("/api/v1/namespaces/{namespace}/pods/{pod}/exec?{}", query.join("&"))
}

async fn exec(cx: &Context) -> Result<()> {
    let words = cx.args();
    let Some(target) = words.first().filter(|_| cx.flags.dash != Some(0)) else {
        return Err(Failure::message("pod, type/name or --filename must be specified"));
    };
    let command = match cx.flags.dash {
        Some(at) => words[at..].to_vec(),
        None if words.len() > 1 => {
            return Err(Failure::message(format!(
                "exec [POD] [COMMAND] is not supported anymore. Use exec [POD] -- [COMMAND] instead\nSee '{} -h' for help and examples",
                cx.flags.path
            )));
        }
        None => Vec::new(),
    };
    if command.is_empty() {
        return Err(Failure::message("you must specify at least one command for the container"));
    }
    let (namespace, _) = cx.namespace()?;
    let pod = one_pod(cx, &namespace, target).await?;
    finished(&pod)?;
    let container = pods::choose_container(cx, &pod, &cx.flags.string("container"))?;
    let terminal = terminal(cx);
    let path = exec_path(&namespace, text(&pod, "/metadata/name"), &container, &command, terminal.stdin, terminal.tty);
    stream::interact(cx, &path, terminal).await
}

fn terminal(cx: &Context) -> Terminal {
    let stdin = cx.flags.bool("stdin");
    let mut tty = cx.flags.bool("tty");
    if tty && !stdin {
        tty = false;
    }
    if tty && !std::io::stdin().is_terminal() {
        cx.eprintln("Unable to use a TTY - input is not a terminal or the right kind of file");
        tty = false;
    }
    Terminal { stdin, tty, detach: Vec::new() }
}

fn attach_path(namespace: &str, pod: &str, container: &str, terminal: &Terminal) -> String {
    let mut query = vec![format!("container={}", query_escape(container))];
    if terminal.stdin {
        query.push("stdin=true".to_owned());
    }
    query.push("stdout=true".to_owned());
    query.push(if terminal.tty { "tty=true".to_owned() } else { "stderr=true".to_owned() });
    format!("/api/v1/namespaces/{namespace}/pods/{pod}/attach?{}", query.join("&"))
}

async fn attach(cx: &Context) -> Result<()> {
    let [target] = cx.args() else {
        return Err(Failure::message("at least 1 argument is required for attach"));
    };
    let (namespace, _) = cx.namespace()?;
    let pod = one_pod(cx, &namespace, target).await?;
    let container = pods::choose_container(cx, &pod, &cx.flags.string("container"))?;
    attach_to(cx, &namespace, &pod, &container).await
}

pub(crate) async fn attach_to(cx: &Context, namespace: &str, pod: &Value, container: &str) -> Result<()> {
    let mut terminal = terminal(cx);
    let wants_tty = pod["spec"]["containers"]
        .as_array()
        .is_some_and(|c| c.iter().any(|c| c["name"] == container && c["tty"] == true));
    if terminal.tty && !wants_tty {
        cx.eprintln(format!("error: Unable to use a TTY - container {container} did not allocate one"));
        terminal.tty = false;
    }
    if terminal.stdin && !cx.flags.bool("quiet") {
        cx.eprintln("All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.");
        if terminal.tty {
            cx.eprintln("If you don't see a command prompt, try pressing enter.");
        }
    }
    if cx.flags.has_flag("detach-keys") {
        terminal.detach = stream::keys(&cx.flags.string("detach-keys"))?;
    }
    let path = attach_path(namespace, text(pod, "/metadata/name"), container, &terminal);
    stream::interact(cx, &path, terminal).await
}

/// The second half of `run -i`/`--attach`: wait, attach, report the exit code, remove.
pub(crate) async fn run_attached(cx: &Context, pod: &Value) -> Result<()> {
    let (namespace, name) = (text(pod, "/metadata/namespace").to_owned(), text(pod, "/metadata/name").to_owned());
    let info = crate::resources::Info {
        mapping: known("v1", "pods", "Pod", true),
        namespace: namespace.clone(),
        name: name.clone(),
        object: pod.clone(),
        source: String::new(),
    };
    let phase = |o: &Value| text(o, "/status/phase").to_owned();
    let timeout = cx.flags.duration("pod-running-timeout");
    let started =
        super::wait::until(cx, &info, timeout, |o| ["Running", "Succeeded", "Failed"].contains(&phase(o).as_str()))
            .await?;
    let container = text(pod, "/spec/containers/0/name").to_owned();
    let result = if phase(&started) == "Running" {
        attach_to(cx, &namespace, &started, &container).await
    } else {
        super::logs::whole(cx, &namespace, &started, &container).await
    };
    let mut outcome = result;
    if outcome.is_ok() && pod["spec"]["restartPolicy"] != "Always" {
        let ended =
            super::wait::until(cx, &info, timeout, |o| ["Succeeded", "Failed"].contains(&phase(o).as_str())).await?;
        if phase(&ended) == "Failed" {
            let code =
                ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_u64().unwrap_or(1) as u8;
            outcome = Err(Failure::ExitWith(format!("pod {namespace}/{name} terminated (Error)"), code.max(1)));
        }
    }
    if cx.flags.bool("rm") {
        Request::delete(info.path(), &super::delete::options(cx, false)).send(cx).await?;
        if !cx.flags.bool("quiet") {
            cx.println(format!("pod \"{name}\" deleted from {namespace} namespace"))?;
        }
    }
    outcome
}

/// `[[namespace/]pod:]path`
#[derive(Debug, PartialEq)]
struct Place {
    namespace: Option<String>,
    pod: Option<String>,
    path: String,
}

fn place(spec: &str) -> Result<Place> {
    let Some((left, path)) = spec.split_once(':').filter(|(l, _)| !l.starts_with('.') && !l.starts_with('/')) else {
        return Ok(Place { namespace: None, pod: None, path: spec.to_owned() });
    };
    let (namespace, pod) = match left.split('/').collect::<Vec<_>>().as_slice() {
        [pod] => (None, (*pod).to_owned()),
        [namespace, pod] => (Some((*namespace).to_owned()), (*pod).to_owned()),
        _ => return Err(Failure::message("filespec must match the canonical format: [[namespace/]pod:]file/path")),
    };
    Ok(Place { namespace, pod: Some(pod), path: path.to_owned() })
}

async fn copy(cx: &Context) -> Result<()> {
    let [from, to] = cx.args() else {
        return Err(Failure::message("source and destination are required"));
    };
    let (from, to) = (place(from)?, place(to)?);
    if from.path.is_empty() || to.path.is_empty() {
        return Err(Failure::message("filepath can not be empty"));
    }
    match (&from.pod, &to.pod) {
        (Some(_), Some(_)) => Err(Failure::message("one of src or dest must be a local file specification")),
        (None, None) => Err(Failure::message("one of src or dest must be a remote file specification")),
        (None, Some(pod)) => upload(cx, &from.path, pod, &to).await,
        (Some(pod), None) => download(cx, pod, &from, &to.path).await,
    }
}

async fn remote(cx: &Context, pod: &str, place: &Place, command: Vec<String>, stdin: bool) -> Result<String> {
    let namespace = match &place.namespace {
        Some(ns) => ns.clone(),
        None => cx.namespace()?.0,
    };
    let object = one_pod(cx, &namespace, pod).await?;
    finished(&object)?;
    let container = pods::choose_container(cx, &object, &cx.flags.string("container"))?;
    Ok(exec_path(&namespace, pod, &container, &command, stdin, false))
}

fn split_path(path: &str) -> (String, String) {
    let path = path.trim_end_matches('/');
    match path.rsplit_once('/') {
        Some(("", name)) => ("/".to_owned(), name.to_owned()),
        Some((dir, name)) => (dir.to_owned(), name.to_owned()),
        None => (".".to_owned(), path.to_owned()),
    }
}

/// A local tar feeds a remote one, renaming the top entry on the way.
async fn upload(cx: &Context, local: &str, pod: &str, to: &Place) -> Result<()> {
    if !std::path::Path::new(local).exists() {
        return Err(Failure::message(format!("{local} doesn't exist in local filesystem")));
    }
    let (local_dir, local_name) = split_path(local);
    let (mut remote_dir, mut remote_name) = split_path(&to.path);
    if to.path.ends_with('/') || is_remote_dir(cx, pod, to).await? {
        remote_dir = to.path.trim_end_matches('/').to_owned();
        if remote_dir.is_empty() {
            remote_dir = "/".to_owned();
        }
        remote_name.clone_from(&local_name);
    }
    let mut command = vec!["tar".to_owned()];
    if cx.flags.bool("no-preserve") {
        command.extend(["--no-same-permissions".to_owned(), "--no-same-owner".to_owned()]);
    }
    command.extend(["-xmf".to_owned(), "-".to_owned(), "-C".to_owned(), remote_dir]);
    let path = remote(cx, pod, to, command, true).await?;
    let mut tar = tokio::process::Command::new("tar")
        .args(["-cf", "-", "-C", &local_dir, "--transform"])
        .arg(format!("s|^{}|{}|", local_name.replace('.', "\\."), remote_name))
        .arg(&local_name)
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut reader, mut writer) = stream::open(cx, &path).await?;
    let mut out = tar.stdout.take().ok_or_else(|| Failure::message("no output of tar"))?;
    let mut buffer = vec![0; 32 << 10];
    loop {
        let n = out.read(&mut buffer).await?;
        if n == 0 {
            break;
        }
        writer.send(stream::STDIN, &buffer[..n]).await?;
    }
    writer.close(stream::STDIN).await?;
    tar.wait().await?;
    while let Some((channel, data)) = reader.next().await? {
        match channel {
            stream::STDERR => cx.eprint(&String::from_utf8_lossy(&data)),
            stream::ERROR => return stream::outcome(&data),
            _ => {}
        }
    }
    Ok(())
}

async fn is_remote_dir(cx: &Context, pod: &str, place: &Place) -> Result<bool> {
    let path = remote(cx, pod, place, vec!["test".to_owned(), "-d".to_owned(), place.path.clone()], false).await?;
    let (mut reader, _writer) = stream::open(cx, &path).await?;
    while let Some((channel, data)) = reader.next().await? {
        if channel == stream::ERROR {
            return Ok(stream::outcome(&data).is_ok());
        }
    }
    Ok(false)
}

async fn download(cx: &Context, pod: &str, from: &Place, local: &str) -> Result<()> {
    let (remote_dir, remote_name) = split_path(&from.path);
    let (mut local_dir, mut local_name) = split_path(local);
    if std::path::Path::new(local).is_dir() {
        local_dir = local.to_owned();
        local_name.clone_from(&remote_name);
    }
    std::fs::create_dir_all(&local_dir)?;
    // Unpacked beside the target and moved, so that links in the archive cannot write elsewhere under our name.
    let mut tar = tokio::process::Command::new("tar")
        .args(["-xf", "-", "-C", &local_dir, "--no-same-owner", "--transform"])
        .arg(format!("s|^{}|{}|", remote_name.replace('.', "\\."), local_name))
        .stdin(Stdio::piped())
        .spawn()?;
    let mut input = tar.stdin.take().ok_or_else(|| Failure::message("no input of tar"))?;
    let mut received = 0;
    let mut retries = cx.flags.int("retries");
    let outcome = loop {
        let command = if received == 0 {
            ["tar", "cf", "-", "-C", &remote_dir, &remote_name].map(str::to_owned).to_vec()
        } else {
            // What came already is not needed again.
            let quote = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
            let tar = format!("tar cf - -C {} {} | tail -c+{}", quote(&remote_dir), quote(&remote_name), received + 1);
            vec!["sh".to_owned(), "-c".to_owned(), tar]
        };
        let path = remote(cx, pod, from, command, false).await?;
        match receive(cx, &path, &mut input, &mut received).await {
            Err(e) if retries != 0 && e.exit_code() == 1 && !matches!(e, Failure::ExitWith(..)) => {
                cx.eprintln(format!("Resuming copy at {received} bytes, retry {}: {}", retries.abs(), e.inner()));
                retries -= 1;
            }
            done => break done,
        }
    };
    drop(input);
    tar.wait().await?;
    outcome
}

/// One stream of the archive, counting what arrives.
async fn receive(cx: &Context, path: &str, to: &mut tokio::process::ChildStdin, received: &mut usize) -> Result<()> {
    let (mut reader, _writer) = stream::open(cx, path).await?;
    while let Some((channel, data)) = reader.next().await? {
        match channel {
            stream::STDOUT => {
                to.write_all(&data).await?;
                *received += data.len();
            }
            stream::STDERR => cx.eprint(&String::from_utf8_lossy(&data)),
            stream::ERROR => return stream::outcome(&data),
            _ => {}
        }
    }
    Ok(())
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
        assert_eq!(split_path("/a"), ("/".to_owned(), "a".to_owned()));
        assert_eq!(split_path("a/b/"), ("a".to_owned(), "b".to_owned()));
    }
}
