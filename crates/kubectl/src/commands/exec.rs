//! `kubectl exec`, `kubectl attach`

use std::io::IsTerminal;
use std::time::Duration;

use serde_json::Value;

use super::create::known;
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::escape::query_escape;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::pods;
use crate::request::Request;
use crate::resources::{self, Options, Selection};
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
pub(super) async fn one_pod(cx: &Context, namespace: &str, word: &str) -> Result<Value> {
    if !word.contains('/') {
        return Request::get(known("v1", "pods", "Pod", true).object_path(namespace, word)).value(cx).await;
    }
    let timeout = cx.flags.duration("pod-running-timeout");
    let found = pods::of_object(cx, namespace, word, "attach to", timeout).await?;
    found.into_iter().next().ok_or_else(|| Failure::message("timed out waiting for the condition"))
}

pub(super) fn finished(pod: &Value) -> Result<()> {
    match text(pod, "/status/phase") {
        phase @ ("Succeeded" | "Failed") => {
            Err(Failure::message(format!("cannot exec into a container in a completed pod; current phase is {phase}")))
        }
        _ => Ok(()),
    }
}

pub(super) fn exec_path(
    namespace: &str,
    pod: &str,
    container: &str,
    command: &[String],
    stdin: bool,
    tty: bool,
) -> String {
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
    let files = cx.flags.list("filename");
    let target = words.first().filter(|_| cx.flags.dash != Some(0));
    if target.is_none() && files.is_empty() {
        return Err(Failure::message("pod, type/name or --filename must be specified"));
    }
    let command = match cx.flags.dash {
        Some(at) => words[at..].to_vec(),
        None if words.len() > 1 || !words.is_empty() && !files.is_empty() => {
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
    let (namespace, word) = match target {
        Some(word) if files.is_empty() => (cx.namespace()?.0, word.clone()),
        _ => named_in_files(cx, target).await?,
    };
    let pod = one_pod(cx, &namespace, &word).await?;
    finished(&pod)?;
    let container = pods::choose_container(cx, &pod, &cx.flags.string("container"))?;
    let terminal = terminal(cx);
    let path = exec_path(&namespace, text(&pod, "/metadata/name"), &container, &command, terminal.stdin, terminal.tty);
    stream::interact(cx, &path, terminal).await
}

/// The one object that the files hold, as namespace and `type/name`.
async fn named_in_files(cx: &Context, word: Option<&String>) -> Result<(String, String)> {
    let options = Options { args: Some(word.into_iter().cloned().collect()), ..Options::default() };
    let found = resources::select(cx, &options).await?.complete()?;
    let [Selection::File(info)] = found.as_slice() else {
        return Err(Failure::message("cannot exec into multiple objects at a time"));
    };
    Ok((info.namespace.clone(), format!("{}/{}", info.mapping.group_resource(), info.name)))
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
    let container = pods::choose_container(cx, &pod, &cx.flags.string("container"))
        .map_err(|e| Failure::message(format!("cannot attach to the container: {}", e.inner())))?;
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
    if !cx.flags.bool("quiet") {
        cx.eprintln("All commands and output from this session will be recorded in container logs, including credentials and sensitive information passed through the command prompt.");
        cx.eprintln("If you don't see a command prompt, try pressing enter.");
    }
    if cx.flags.has_flag("detach-keys") {
        terminal.detach = stream::keys(&cx.flags.string("detach-keys"))?;
    }
    let path = attach_path(namespace, text(pod, "/metadata/name"), container, &terminal);
    stream::interact(cx, &path, terminal).await
}

/// How long logs from before an attachment may take.
const EARLY_LOGS_TIMEOUT: Duration = Duration::from_secs(5);

fn is_ready(pod: &Value) -> bool {
    pod["status"]["phase"] == "Running" && crate::pods::is_ready(pod)
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
    let ended = |o: &Value| api::pod::is_terminal_phase(&phase(o));
    let started = super::wait::until(cx, &info, timeout, |o| ended(o) || is_ready(o)).await?;
    let container = text(pod, "/spec/containers/0/name").to_owned();
    let logs = || super::logs::whole(cx, &namespace, &started, &container);
    let mut outcome = if ended(&started) {
        logs().await
    } else {
        // What was said before anybody listened.
        if let Ok(Err(e)) = tokio::time::timeout(EARLY_LOGS_TIMEOUT, logs()).await {
            cx.eprintln(format!("warning: couldn't fetch pre-attach logs: {}", e.inner()));
        }
        match attach_to(cx, &namespace, &started, &container).await {
            Err(e) if !matches!(e, Failure::ExitWith(..)) => {
                cx.eprintln(format!(
                    "warning: couldn't attach to pod/{name}, falling back to streaming logs: {}",
                    e.inner()
                ));
                logs().await
            }
            attached => attached,
        }
    };
    // With its stdin open the container may go on for as long as it likes.
    let waits = pod["spec"]["restartPolicy"] != "Always" && !cx.flags.bool("leave-stdin-open");
    if outcome.is_ok() && waits {
        let last = super::wait::until(cx, &info, timeout, ended).await?;
        if phase(&last) == "Failed" {
            let code =
                last["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"].as_u64().unwrap_or(1) as u8;
            outcome = Err(Failure::ExitWith(format!("pod {namespace}/{name} terminated (Error)"), code.max(1)));
        }
    }
    if cx.flags.bool("rm") {
        Request::delete(info.path(), &super::delete::options(cx, false, crate::context::DryRun::None)).send(cx).await?;
        if !cx.flags.bool("quiet") {
            cx.println(format!("pod \"{name}\" deleted from {namespace} namespace"))?;
        }
    }
    outcome
}
