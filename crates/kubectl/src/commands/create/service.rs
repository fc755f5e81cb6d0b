//! `create service clusterip|nodeport|loadbalancer|externalname`

use serde_json::{Value, json};

use super::{GENERATOR, finish, known, name_argument, parse_ports};
use crate::cli::{Alone, Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};

pub(super) const COMMAND: Command = Command {
    name: "service",
    usage: "[flags]",
    aliases: &["svc"],
    about: "Create a service using a specified subcommand",
    subcommands: &[&CLUSTER_IP, &EXTERNAL_NAME, &LOAD_BALANCER, &NODE_PORT],
    alone: Alone::FailWithHelp,
    ..Command::EMPTY
};

const TCP: Flag = Flag::slice("tcp", "Port pairs as '<port>:<targetPort>'.");

const CLUSTER_IP: Command = Command {
    name: "clusterip",
    usage: "NAME [--tcp=<port>:<targetPort>] [--dry-run=server|client|none]",
    about: "Create a ClusterIP service",
    flags: &[GENERATOR, &[TCP, Flag::string("clusterip", "The cluster IP; 'None' makes the service headless.")]],
    run: Some(|cx| Box::pin(run(cx, "ClusterIP"))),
    ..Command::EMPTY
};
const NODE_PORT: Command = Command {
    name: "nodeport",
    usage: "NAME [--tcp=port:targetPort] [--dry-run=server|client|none]",
    about: "Create a NodePort service",
    flags: &[GENERATOR, &[TCP, Flag::int("node-port", "0", "Port on every node.")]],
    run: Some(|cx| Box::pin(run(cx, "NodePort"))),
    ..Command::EMPTY
};
const LOAD_BALANCER: Command = Command {
    name: "loadbalancer",
    usage: "NAME [--tcp=port:targetPort] [--dry-run=server|client|none]",
    about: "Create a LoadBalancer service",
    flags: &[GENERATOR, &[TCP]],
    run: Some(|cx| Box::pin(run(cx, "LoadBalancer"))),
    ..Command::EMPTY
};
const EXTERNAL_NAME: Command = Command {
    name: "externalname",
    usage: "NAME --external-name external.name [--dry-run=server|client|none]",
    about: "Create an ExternalName service",
    flags: &[GENERATOR, &[TCP, Flag::string("external-name", "Name that the service stands for.")]],
    run: Some(|cx| Box::pin(run(cx, "ExternalName"))),
    ..Command::EMPTY
};

async fn run(cx: &Context, kind: &str) -> Result<()> {
    let name = name_argument(cx)?;
    let flag = |n: &str| if cx.flags.has_flag(n) { cx.flags.string(n) } else { String::new() };
    if kind == "ExternalName" {
        super::require(cx, &["external-name"])?;
    }
    let node_port = if cx.flags.has_flag("node-port") { cx.flags.int("node-port") } else { 0 };
    let object = build(&name, kind, &cx.flags.list("tcp"), &flag("clusterip"), &flag("external-name"), node_port)?;
    finish(cx, &known("v1", "services", "Service", true), object, &format!("failed to create {kind} service:")).await
}

fn build(name: &str, kind: &str, tcp: &[String], cluster_ip: &str, external: &str, node_port: i64) -> Result<Value> {
    if tcp.is_empty() && cluster_ip != "None" && kind != "ExternalName" {
        return Err(Failure::message("at least one tcp port specifier must be provided"));
    }
    let mut ports = Vec::new();
    for spec in tcp {
        let (port, target) = parse_ports(spec)?;
        let mut entry = json!({"name": spec.replace(':', "-"), "port": port, "targetPort": target, "protocol": "TCP"});
        if node_port != 0 {
            entry["nodePort"] = json!(node_port);
        }
        ports.push(entry);
    }
    let mut spec = json!({"type": kind, "selector": {"app": name}});
    if !ports.is_empty() {
        spec["ports"] = json!(ports);
    }
    if !cluster_ip.is_empty() {
        spec["clusterIP"] = json!(cluster_ip);
    }
    if !external.is_empty() {
        spec["externalName"] = json!(external);
    }
    Ok(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "labels": {"app": name}},
        "spec": spec, "status": {"loadBalancer": {}},
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn cluster_ip_golden() {
        let object = build("web", "ClusterIP", &["80:8080".to_owned()], "", "", 0).unwrap();
        expect![[r#"
            apiVersion: v1
            kind: Service
            metadata:
              labels:
                app: web
              name: web
            spec:
              ports:
              - name: 80-8080
                port: 80
                protocol: TCP
                targetPort: 8080
              selector:
                app: web
              type: ClusterIP
            status:
              loadBalancer: {}
        "#]]
        .assert_eq(&api::yaml::to_string(&object));
    }

    #[test]
    fn forms() {
        assert_eq!(build("a", "ClusterIP", &[], "None", "", 0).unwrap()["spec"]["clusterIP"], "None");
        assert_eq!(build("a", "ExternalName", &[], "", "x.y", 0).unwrap()["spec"]["externalName"], "x.y");
        assert_eq!(
            build("a", "NodePort", &["1".to_owned()], "", "", 30000).unwrap()["spec"]["ports"][0]["nodePort"],
            30000
        );
        assert!(build("a", "LoadBalancer", &[], "", "", 0).is_err());
    }
}
