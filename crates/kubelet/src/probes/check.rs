//! Carries out one check: exec, HTTP, TCP or gRPC.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::net::TcpStream;

use super::error::ProbeError;
use super::{grpc, http};
use crate::runtime::Runtime;

/// What one check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// Healthy as far as it was looked at.
    Warning(String),
    /// The container answered badly, or not at all.
    Failure(String),
    /// The check itself could not be made.
    Error(String),
}

/// Probe output is shown in events up to this length.
pub(super) const MAX_OUTPUT: usize = 10 << 10;

/// What a check needs to know of its container.
pub(crate) struct Target {
    pub(super) container_id: String,
    /// Where network checks go unless they name a host.
    pub(super) ip: String,
    pub(super) ports: Vec<(String, i32)>,
}

impl Target {
    pub(crate) fn new(pod: &Pod, container: &Container, pod_ips: &[String], container_id: String) -> Self {
        let status = pod.status.as_ref();
        let host_network = pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true));
        let ip = match pod_ips.first() {
            Some(ip) if !host_network => ip.clone(),
            _ if host_network => status.and_then(|status| status.host_ip.clone()).unwrap_or_else(|| "127.0.0.1".into()),
            _ => status.and_then(|status| status.pod_ip.clone()).unwrap_or_default(),
        };
        Target { container_id, ip, ports: named_ports(container) }
    }

    pub(super) fn port(&self, port: &IntOrString) -> Result<u16, ProbeError> {
        port_number(&self.ports, port)
    }

    pub(crate) async fn check(&self, probe: &Probe, timeout: Duration, runtime: &Runtime) -> Outcome {
        if let Some(exec) = &probe.exec {
            return self.exec(exec.command.clone().unwrap_or_default(), timeout, runtime).await;
        }
        match tokio::time::timeout(timeout, self.over_network(probe)).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Failure(self.timed_out(probe, timeout)),
        }
    }

    async fn over_network(&self, probe: &Probe) -> Outcome {
        if let Some(get) = &probe.http_get {
            return match http::http_get(get, &self.ip, |port| self.port(port)) {
                Ok(request) => http::probe(request).await,
                Err(error) => Outcome::Error(error.to_string()),
            };
        }
        if let Some(tcp) = &probe.tcp_socket {
            let host = tcp.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| self.ip.clone());
            return match self.port(&tcp.port) {
                Ok(port) => match connect(&host, port).await {
                    Ok(_) => Outcome::Success,
                    Err(error) => Outcome::Failure(error.to_string()),
                },
                Err(error) => Outcome::Error(error.to_string()),
            };
        }
        if let Some(grpc) = &probe.grpc {
            return match u16::try_from(grpc.port) {
                Ok(port) => grpc::health(&self.ip, port, grpc.service.as_deref().unwrap_or_default()).await,
                Err(_) => Outcome::Error(ProbeError::InvalidPort(grpc.port).to_string()),
            };
        }
        Outcome::Error("missing probe handler".into())
    }

    fn timed_out(&self, probe: &Probe, timeout: Duration) -> String {
        if let Some(get) = &probe.http_get {
            let url =
                http::http_get(get, &self.ip, |port| self.port(port)).map(|request| request.url()).unwrap_or_default();
            return format!(
                "Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            );
        }
        if let Some(grpc) = &probe.grpc {
            return format!(
                "timeout: failed to connect service \"{}:{}\" within {}s: context deadline exceeded",
                self.ip,
                grpc.port,
                timeout.as_secs()
            );
        }
        let port = probe.tcp_socket.as_ref().and_then(|tcp| self.port(&tcp.port).ok()).unwrap_or_default();
        format!("dial tcp {}:{port}: i/o timeout", self.ip)
    }

    async fn exec(&self, command: Vec<String>, timeout: Duration, runtime: &Runtime) -> Outcome {
        let late = format!("command timed out: \"{}\" timed out after {}s", command.join(" "), timeout.as_secs());
        // The runtime ends the command; this only guards against one that does not.
        let limit = timeout + Duration::from_secs(2);
        match tokio::time::timeout(limit, runtime.exec_sync(&self.container_id, command, timeout)).await {
            Ok(Ok(answer)) if answer.exit_code == 0 => Outcome::Success,
            Ok(Ok(answer)) => {
                let mut output = answer.stdout;
                output.extend(answer.stderr);
                output.truncate(MAX_OUTPUT);
                Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Ok(Err(error)) => {
                let message = error.0.message();
                let is_late = error.0.code() == cri::tonic::Code::DeadlineExceeded
                    || message.contains("timed out")
                    || message.contains("deadline exceeded");
                if is_late { Outcome::Failure(late) } else { Outcome::Error(error.to_string()) }
            }
            Err(_) => Outcome::Failure(late),
        }
    }
}

pub(super) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_string() }
}

pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, ProbeError> {
    let connected = TcpStream::connect((host, port)).await;
    connected.map_err(|source| ProbeError::Connect { address: format!("{}:{port}", bracketed(host)), source })
}

/// The ports of a container that can be called by name.
pub(crate) fn named_ports(container: &Container) -> Vec<(String, i32)> {
    let ports = container.ports.iter().flatten();
    ports.filter_map(|port| port.name.clone().map(|name| (name, port.container_port))).collect()
}

pub(crate) fn port_number(ports: &[(String, i32)], port: &IntOrString) -> Result<u16, ProbeError> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => match ports.iter().find(|(known, _)| known == name) {
            Some((_, number)) => *number,
            None => name.parse().map_err(|_| ProbeError::UnknownPort(name.clone()))?,
        },
    };
    u16::try_from(number).ok().filter(|port| *port > 0).ok_or(ProbeError::InvalidPort(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn refused_connections_read_as_upstream() {
        // Bound, and nobody listens.
        let nobody = tokio::net::TcpSocket::new_v4().unwrap();
        nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = nobody.local_addr().unwrap().port();
        let expected = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(connect("127.0.0.1", port).await.unwrap_err().to_string(), expected);
    }

    #[test]
    fn named_ports() {
        let target = Target { container_id: String::new(), ip: String::new(), ports: vec![("web".into(), 8080)] };
        for (port, expected) in [
            (IntOrString::Int(80), Some(80)),
            (IntOrString::String("web".into()), Some(8080)),
            (IntOrString::String("99".into()), Some(99)),
            (IntOrString::String("nope".into()), None),
            (IntOrString::Int(0), None),
        ] {
            assert_eq!(target.port(&port).ok(), expected);
        }
    }
}
