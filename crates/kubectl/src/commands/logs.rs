//! `kubectl logs`

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http_body_util::BodyExt;
use serde_json::Value;

use super::create::known;
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::pods;
use crate::request::Request;

pub(crate) const COMMAND: Command = Command {
    name: "logs",
    aliases: &["log"],
    usage: "[-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]",
    about: "Print the logs for a container in a pod",
    examples: "  kubectl logs web\n  kubectl logs -f -c proxy web\n  kubectl logs deployment/web --all-containers\n  kubectl logs -l app=web --tail=20 --prefix",
    flags: &[
        flags::SELECTOR,
        &[Flag::duration("pod-running-timeout", "20s", "How long to wait until a pod of the given object runs.")],
        &[
            Flag::string("container", "Container whose log to print.").short('c'),
            Flag::bool("all-containers", "The logs of all containers."),
            Flag::bool("all-pods", "The logs of all pods of the object; implies --prefix."),
            Flag::bool("follow", "Go on as the log grows.").short('f'),
            Flag::bool("previous", "The log of the container's previous run.").short('p'),
            Flag::bool("timestamps", "A timestamp on each line."),
            Flag::bool("prefix", "Each line's pod and container before it."),
            Flag::bool("ignore-errors", "With --follow: errors do not end the command."),
            Flag::int("limit-bytes", "0", "Bytes to print at most; 0 means all."),
            Flag::int("tail", "-1", "Lines to print; all without a selector, else 10."),
            Flag::string("since-time", "Only what is newer than this time (RFC 3339)."),
            Flag::duration("since", "0s", "Only what is newer than this long ago."),
            Flag::int("max-log-requests", "5", "Logs to follow at once with a selector."),
            Flag::bool("insecure-skip-tls-verify-backend", "Do not check the kubelet's certificate."),
        ],
    ],
    words: Words::PodThenContainer,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

struct Source {
    namespace: String,
    pod: String,
    container: String,
    prefix: String,
}

async fn run(cx: &Context) -> Result<()> {
    let mut container = cx.flags.string("container");
    let selector = cx.flags.string("selector");
    let words = cx.args();
    let target = match (words, selector.is_empty()) {
        ([], true) => {
            return Err(cx.usage(
                "expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command",
            ));
        }
        ([target], true) => Some(target.clone()),
        ([target, second], true) => {
            if !container.is_empty() {
                return Err(cx.usage("only one of -c or an inline [CONTAINER] arg is allowed"));
            }
            container.clone_from(second);
            Some(target.clone())
        }
        ([], false) => None,
        (_, false) => return Err(cx.usage("only a selector (-l) or a POD name is allowed")),
        _ => return Err(cx.usage("expected 'logs [-f] [-p] (POD | TYPE/NAME) [-c CONTAINER]'.\nPOD or TYPE/NAME is a required argument for the logs command")),
    };
    if cx.flags.bool("all-containers") && !container.is_empty() {
        return Err(Failure::message(
            "--all-containers=true should not be specified with container name ".to_owned() + &container,
        ));
    }
    if cx.flags.changed("since") && cx.flags.changed("since-time") {
        return Err(Failure::message("at most one of `sinceTime` or `sinceSeconds` may be specified"));
    }
    if cx.flags.int("tail") < -1 {
        return Err(Failure::message("--tail must be greater than or equal to -1"));
    }
    let (namespace, _) = cx.namespace()?;
    let all_pods = cx.flags.bool("all-pods");
    let missing = |failure: Failure| match failure.is_not_found() {
        true => {
            Failure::message(format!("error from server (NotFound): {} in namespace \"{namespace}\"", failure.inner()))
        }
        false => failure,
    };
    let found = match &target {
        None => pods::by_selector(cx, &namespace, &selector).await?,
        Some(t) if t.contains('/') => {
            let timeout = cx.flags.duration("pod-running-timeout");
            let found = pods::of_object(cx, &namespace, t, "get the logs from", timeout).await;
            let mut all = found.map_err(missing)?;
            if all.len() > 1 && !all_pods {
                cx.eprintln(format!("Found {} pods, using pod/{}", all.len(), text(&all[0], "/metadata/name")));
                all.truncate(1);
            }
            all
        }
        Some(name) => {
            let path = known("v1", "pods", "Pod", true).object_path(&namespace, name);
            vec![Request::get(path).value(cx).await.map_err(missing)?]
        }
    };
    if found.is_empty() {
        cx.eprintln(format!("No resources found in {namespace} namespace."));
    }
    let prefix = cx.flags.bool("prefix") || all_pods;
    let mut sources = Vec::new();
    for pod in &found {
        let names = if cx.flags.bool("all-containers") {
            pods::container_names(pod)
        } else {
            vec![pods::choose_container(cx, pod, &container)?]
        };
        for name in names {
            let pod_name = text(pod, "/metadata/name").to_owned();
            sources.push(Source {
                namespace: namespace.clone(),
                prefix: if prefix { format!("[pod/{pod_name}/{name}] ") } else { String::new() },
                pod: pod_name,
                container: name,
            });
        }
    }
    if cx.flags.bool("follow") && sources.len() > 1 {
        let limit = cx.flags.int("max-log-requests");
        if sources.len() as i64 > limit {
            return Err(Failure::message(format!(
                "you are attempting to follow {} log streams, but maximum allowed concurrency is {limit}, use --max-log-requests to increase the limit",
                sources.len()
            )));
        }
        let mut running: FuturesUnordered<_> = sources.iter().map(|s| stream(cx, s)).collect();
        while let Some(result) = running.next().await {
            result.or_else(|e| tolerate(cx, e))?;
        }
        return Ok(());
    }
    for source in &sources {
        stream(cx, source).await.or_else(|e| tolerate(cx, e))?;
    }
    Ok(())
}

fn tolerate(cx: &Context, failure: Failure) -> Result<()> {
    if !cx.flags.bool("ignore-errors") {
        return Err(failure);
    }
    cx.println(format!("error: {}", failure.inner()))
}

async fn stream(cx: &Context, source: &Source) -> Result<()> {
    let tail = match cx.flags.int("tail") {
        -1 if !cx.flags.changed("tail") && !cx.flags.string("selector").is_empty() => 10,
        n => n,
    };
    let since = cx.flags.duration("since");
    let since_time = cx.flags.string("since-time");
    let limit = cx.flags.int("limit-bytes");
    let path = format!("{}/log", known("v1", "pods", "Pod", true).object_path(&source.namespace, &source.pod));
    let request = Request::get(path)
        .query("container", source.container.clone())
        .query_if(cx.flags.bool("follow"), "follow", "true")
        .query_if(cx.flags.bool("previous"), "previous", "true")
        .query_if(cx.flags.bool("timestamps"), "timestamps", "true")
        .query_if(tail >= 0, "tailLines", tail.to_string())
        .query_if(limit > 0, "limitBytes", limit.to_string())
        .query_if(!since.is_zero(), "sinceSeconds", since.as_secs().max(1).to_string())
        .query_if(!since_time.is_empty(), "sinceTime", since_time)
        .query_if(cx.flags.bool("insecure-skip-tls-verify-backend"), "insecureSkipTLSVerifyBackend", "true");
    let mut body = request.stream(cx).await?;
    let mut line: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| Failure::message(e.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        if source.prefix.is_empty() {
            cx.write(data)?;
        } else {
            for &byte in data.iter() {
                line.push(byte);
                if byte == b'\n' {
                    cx.print(&source.prefix)?;
                    cx.write(&line)?;
                    line.clear();
                }
            }
        }
        if cx.flags.bool("follow") {
            cx.flush()?;
        }
    }
    if !line.is_empty() {
        cx.print(&source.prefix)?;
        cx.write(&line)?;
    }
    Ok(())
}

/// For `run --attach`: what a container has said so far.
pub(crate) async fn whole(cx: &Context, namespace: &str, pod: &Value, container: &str) -> Result<()> {
    let source = Source {
        namespace: namespace.to_owned(),
        pod: text(pod, "/metadata/name").to_owned(),
        container: container.to_owned(),
        prefix: String::new(),
    };
    let path = format!("{}/log", known("v1", "pods", "Pod", true).object_path(namespace, &source.pod));
    let answer = Request::get(path).query("container", container).send(cx).await?;
    cx.write(&answer.body)
}
