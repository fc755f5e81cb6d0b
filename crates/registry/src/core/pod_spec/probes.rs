//! Validation of probes and lifecycle hooks.

use api::field::{FieldErrors, Path};
use api::validation as rules;
use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Lifecycle, Probe, SleepAction, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::validation::one_of;
use crate::unset::{items, text};

pub fn validate(errors: &mut FieldErrors, path: &Path<'_>, container: &Container) {
    for (name, probe) in [
        ("livenessProbe", &container.liveness_probe),
        ("readinessProbe", &container.readiness_probe),
        ("startupProbe", &container.startup_probe),
    ] {
        let Some(probe) = probe else { continue };
        let path = path.child(name);
        self::probe(errors, &path, probe);
        if name == "readinessProbe" {
            if let Some(grace) = probe.termination_grace_period_seconds {
                errors.invalid(
                    path.child("terminationGracePeriodSeconds"),
                    grace,
                    "must not be set for readinessProbes",
                );
            }
        } else if probe.success_threshold.unwrap_or(1) != 1 {
            errors.invalid(path.child("successThreshold"), probe.success_threshold, "must be 1");
        }
    }
}

fn probe(errors: &mut FieldErrors, path: &Path<'_>, probe: &Probe) {
    handler(
        errors,
        path,
        &Handler {
            exec: probe.exec.as_ref(),
            http: probe.http_get.as_ref(),
            tcp: probe.tcp_socket.as_ref(),
            grpc: probe.grpc.as_ref(),
            sleep: None,
        },
        None,
    );
    for (name, value) in [
        ("initialDelaySeconds", probe.initial_delay_seconds),
        ("timeoutSeconds", probe.timeout_seconds),
        ("periodSeconds", probe.period_seconds),
        ("successThreshold", probe.success_threshold),
        ("failureThreshold", probe.failure_threshold),
    ] {
        if let Some(value) = value.filter(|&value| value < 0) {
            errors.invalid(path.child(name), value, "must be greater than or equal to 0");
        }
    }
    if let Some(grace) = probe.termination_grace_period_seconds.filter(|&grace| grace <= 0) {
        errors.invalid(path.child("terminationGracePeriodSeconds"), grace, "must be greater than 0");
    }
}

pub fn lifecycle(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    lifecycle: &Lifecycle,
    grace: Option<i64>,
    os: Option<&str>,
) {
    if let Some(signal) = &lifecycle.stop_signal {
        super::os::stop_signal(errors, &path.child("stopSignal"), signal, os);
    }
    for (name, hook) in [("postStart", &lifecycle.post_start), ("preStop", &lifecycle.pre_stop)] {
        let Some(hook) = hook else { continue };
        let parts = Handler {
            exec: hook.exec.as_ref(),
            http: hook.http_get.as_ref(),
            tcp: hook.tcp_socket.as_ref(),
            grpc: None,
            sleep: hook.sleep.as_ref(),
        };
        handler(errors, &path.child(name), &parts, grace);
    }
}

struct Handler<'a> {
    exec: Option<&'a ExecAction>,
    http: Option<&'a HTTPGetAction>,
    tcp: Option<&'a TCPSocketAction>,
    grpc: Option<&'a GRPCAction>,
    sleep: Option<&'a SleepAction>,
}

fn handler(errors: &mut FieldErrors, path: &Path<'_>, handler: &Handler<'_>, grace: Option<i64>) {
    let mut found = 0;
    let mut only = |errors: &mut FieldErrors, name: &str, present: bool| {
        if !present {
            return false;
        }
        if found > 0 {
            errors.forbidden(path.child(name), "may not specify more than 1 handler type");
            return false;
        }
        found += 1;
        true
    };
    if only(errors, "exec", handler.exec.is_some())
        && let Some(exec) = handler.exec
        && items(&exec.command).is_empty()
    {
        errors.required(path.child("exec.command"), "");
    }
    if only(errors, "httpGet", handler.http.is_some())
        && let Some(http) = handler.http
    {
        http_get(errors, &path.child("httpGet"), http);
    }
    if only(errors, "tcpSocket", handler.tcp.is_some())
        && let Some(tcp) = handler.tcp
    {
        port(errors, &path.child("tcpSocket.port"), &tcp.port);
    }
    if only(errors, "grpc", handler.grpc.is_some())
        && let Some(grpc) = handler.grpc
    {
        errors.invalid_each(path.child("grpc.port"), grpc.port, rules::port_number(i64::from(grpc.port)));
    }
    if only(errors, "sleep", handler.sleep.is_some())
        && let Some(sleep) = handler.sleep
        && let Some(grace) = grace
        && !(0..=grace).contains(&sleep.seconds)
    {
        let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.invalid(path.child("sleep"), sleep.seconds, detail);
    }
    if found == 0 {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(errors: &mut FieldErrors, path: &Path<'_>, http: &HTTPGetAction) {
    if text(&http.path).is_none() {
        errors.required(path.child("path"), "");
    }
    port(errors, &path.child("port"), &http.port);
    one_of(errors, &path.child("scheme"), &http.scheme, &["HTTP", "HTTPS"]);
    for header in items(&http.http_headers) {
        errors.invalid_each(path.child("httpHeaders"), &header.name, rules::http_header_name(&header.name));
    }
}

/// A port by number or by name.
pub fn port(errors: &mut FieldErrors, path: &Path<'_>, port: &IntOrString) {
    match port {
        IntOrString::Int(number) => errors.invalid_each(path, number, rules::port_number(i64::from(*number))),
        IntOrString::String(name) => errors.invalid_each(path, name, rules::port_name(name)),
    }
}
