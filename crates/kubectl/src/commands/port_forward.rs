//! `kubectl port-forward`

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::net::TcpStream;

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::request::{Request, name_segment, namespace_segment};
use crate::stream;

pub(crate) const COMMAND: Command = Command {
    name: "port-forward",
    usage: "TYPE/NAME [options] [LOCAL_PORT:]REMOTE_PORT [...[LOCAL_PORT_N:]REMOTE_PORT_N]",
    about: "Forward one or more local ports to a pod",
    examples: "  kubectl port-forward pod/web 8080:80\n  kubectl port-forward service/web :https",
    flags: &[flags::POD_TIMEOUT, &[Flag::slice("address", "Addresses to listen on.").default("localhost")]],
    words: Words::PodThenPort,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let [target, ports @ ..] = cx.args() else {
        return Err(cx.usage("TYPE/NAME and list of ports are required for port-forward"));
    };
    if ports.is_empty() {
        return Err(cx.usage("TYPE/NAME and list of ports are required for port-forward"));
    }
    let (namespace, _) = cx.namespace()?;
    let word = if target.contains('/') { target.clone() } else { format!("pod/{target}") };
    let pod = super::exec::one_pod(cx, &namespace, &word).await?;
    if text(&pod, "/status/phase") != "Running" {
        return Err(Failure::message(format!(
            "unable to forward port because pod is not running. Current status={}",
            text(&pod, "/status/phase")
        )));
    }
    let service = if word.starts_with("svc/") || word.starts_with("service") {
        let name = name_segment(word.split_once('/').map_or("", |(_, n)| n))?;
        let namespace = namespace_segment(&namespace)?;
        Some(Request::get(format!("/api/v1/namespaces/{namespace}/services/{name}")).value(cx).await?)
    } else {
        None
    };
    let mut listeners = Vec::new();
    for spec in ports {
        let (local, remote) = spec.split_once(':').unwrap_or((spec, spec));
        let target = container_port(&pod, service.as_ref(), remote)?;
        let local: u16 = match local {
            "" => 0,
            l => match l.parse() {
                Ok(n) => n,
                // `port-forward svc/web https`: the same number on both sides.
                Err(_) => target,
            },
        };
        for address in cx.flags.list("address") {
            let addresses: Vec<&str> =
                if address == "localhost" { vec!["127.0.0.1", "[::1]"] } else { vec![address.as_str()] };
            let mut bound = false;
            for a in addresses {
                match TcpListener::bind(format!("{a}:{local}")).await {
                    Ok(listener) => {
                        let actual = listener.local_addr()?;
                        cx.println(format!("Forwarding from {actual} -> {target}"))?;
                        listeners.push((listener, target));
                        bound = true;
                        if local == 0 {
                            break;
                        }
                    }
                    Err(e) if a == "[::1]" && bound => {
                        let _ = e;
                    }
                    Err(e) => cx.eprintln(format!("Unable to listen on port {local}: Listeners failed to create with the following errors: [unable to create listener: Error listen tcp4 {a}:{local}: bind: {}]", crate::go_errors::go_io_error("", "", &e).trim_start_matches(" : "))),
                }
            }
            if !bound {
                return Err(Failure::message(format!(
                    "unable to listen on any of the requested ports: [{{{local} {target}}}]"
                )));
            }
        }
    }
    cx.flush()?;
    let name = text(&pod, "/metadata/name").to_owned();
    let accept = |listener: TcpListener, port: u16| async move {
        let accepted = listener.accept().await;
        (listener, port, accepted)
    };
    let mut accepting: FuturesUnordered<_> = listeners.into_iter().map(|(l, p)| accept(l, p)).collect();
    let mut open = FuturesUnordered::new();
    loop {
        tokio::select! {
            Some((listener, port, accepted)) = accepting.next() => {
                let (socket, _) = accepted?;
                cx.println(format!("Handling connection for {}", listener.local_addr()?.port()))?;
                cx.flush()?;
                open.push(forward(cx, &namespace, &name, port, socket));
                accepting.push(accept(listener, port));
            }
            Some(result) = open.next() => {
                if let Err(e) = result {
                    cx.eprintln(format!("E: an error occurred forwarding: {}", e.inner()));
                }
            }
            _ = tokio::signal::ctrl_c() => return Ok(()),
            else => return Ok(()),
        }
    }
}

fn container_port(pod: &Value, service: Option<&Value>, word: &str) -> Result<u16> {
    let named = |name: &str| -> Option<u16> {
        pod["spec"]["containers"]
            .as_array()?
            .iter()
            .flat_map(|c| c["ports"].as_array().into_iter().flatten())
            .find(|p| p["name"] == name)
            .and_then(|p| u16::try_from(p["containerPort"].as_u64()?).ok())
    };
    let unknown =
        || Failure::message(format!("Pod '{}' does not have a named port '{word}'", text(pod, "/metadata/name")));
    let Some(service) = service else {
        return word.parse().ok().or_else(|| named(word)).ok_or_else(unknown);
    };
    let port = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|p| p["name"] == word || p["port"].as_u64().map(|n| n.to_string()).as_deref() == Some(word))
        .ok_or_else(|| {
            Failure::message(format!("Service {} does not have a service port {word}", text(service, "/metadata/name")))
        })?;
    match &port["targetPort"] {
        Value::String(name) => named(name).ok_or_else(unknown),
        Value::Number(n) => n.as_u64().and_then(|n| u16::try_from(n).ok()).ok_or_else(unknown),
        _ => word.parse().map_err(|_| unknown()),
    }
}

/// One connection, one WebSocket: channel 0 carries the data, channel 1 what went wrong. Both begin with the port.
async fn forward(cx: &Context, namespace: &str, pod: &str, port: u16, mut socket: TcpStream) -> Result<()> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/portforward?ports={port}");
    let (reader, mut writer) = stream::open(cx, &path).await?;
    let mut messages = std::pin::pin!(reader.messages());
    let mut headers = 2;
    let mut buffer = vec![0; 32 << 10];
    let (mut from, mut to) = socket.split();
    let mut sending = true;
    loop {
        tokio::select! {
            message = messages.next() => match message.transpose()? {
                None => return Ok(()),
                Some((_, data)) if headers > 0 && data.len() == 2 => headers -= 1,
                Some((0, data)) => to.write_all(&data).await?,
                Some((1, data)) if !data.is_empty() => return Err(Failure::message(String::from_utf8_lossy(&data).into_owned())),
                Some(_) => {}
            },
            read = from.read(&mut buffer), if sending => match read? {
                0 => {
                    sending = false;
                    writer.close(0).await?;
                }
                n => writer.send(0, &buffer[..n]).await?,
            },
        }
    }
}
