//! `kubectl api-resources`, `api-versions`, `cluster-info`

use std::path::PathBuf;

use api::sort::CompactSort as _;

use super::flags;
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::printers::TabWriter;
use crate::request::{Request, name_segment};
use crate::resources::items;

pub(crate) const RESOURCES: Command = Command {
    name: "api-resources",
    usage: "[flags]",
    about: "Print the supported API resources on the server",
    flags: &[&[
        Flag::string("api-group", "Only this group."),
        Flag::bool("cached", "Use the cache if there is one."),
        Flag::slice("categories", "Only types in all these categories."),
        Flag::bool("namespaced", "Only types with (or, with =false, without) namespaces.").default("true"),
        Flag::bool("no-headers", "Leave the header line out."),
        Flag::string("output", "json, kyaml, name, wide or yaml.").short('o'),
        Flag::bool("show-managed-fields", "Keep managedFields in JSON and YAML."),
        Flag::string("sort-by", "name or kind."),
        Flag::slice("verbs", "Only types with all these verbs."),
    ]],
    run: Some(|cx| Box::pin(resources(cx))),
    ..Command::EMPTY
};
pub(crate) const VERSIONS: Command = Command {
    name: "api-versions",
    about: "Print the supported API versions on the server, in the form of \"group/version\"",
    run: Some(|cx| Box::pin(versions(cx))),
    ..Command::EMPTY
};
pub(crate) const CLUSTER_INFO: Command = Command {
    name: "cluster-info",
    usage: "[flags]",
    about: "Display cluster information",
    subcommands: &[&DUMP],
    run: Some(|cx| Box::pin(cluster_info(cx))),
    ..Command::EMPTY
};
const DUMP: Command = Command {
    name: "dump",
    usage: "[flags]",
    about: "Dump relevant information for debugging and diagnosis",
    flags: &[
        flags::ALL_NAMESPACES,
        &[
            Flag::slice("namespaces", "Namespaces to dump; the current and kube-system unless given."),
            Flag::string("output-directory", "Directory to write files to; - or nothing is standard output."),
            Flag::string("output", "json or yaml.").short('o').default("json"),
            Flag::string("template", "Template text or file for the template formats."),
            Flag::bool("allow-missing-template-keys", "Print nothing for missing fields.").default("true"),
            Flag::bool("show-managed-fields", "Keep managedFields in JSON and YAML."),
            Flag::duration("pod-running-timeout", "20s", "How long to wait until a pod runs."),
        ],
    ],
    run: Some(|cx| Box::pin(dump(cx))),
    ..Command::EMPTY
};

async fn resources(cx: &Context) -> Result<()> {
    let output = cx.flags.string("output");
    if !cx.args().is_empty() {
        return Err(cx.usage(format!("unexpected arguments: [{}]", cx.args().join(" "))));
    }
    if !["", "wide", "name", "json", "yaml", "kyaml"].contains(&output.as_str()) {
        return Err(Failure::message(format!(
            "unable to match a printer suitable for the output format \"{output}\", allowed formats are: json,kyaml,name,wide,yaml"
        )));
    }
    let discovery = cx.discovery()?;
    if !cx.flags.bool("cached") {
        discovery.refresh(cx).await?;
    }
    let (verbs, categories) = (cx.flags.list("verbs"), cx.flags.list("categories"));
    let mut list = discovery.preferred(cx).await?;
    list.retain(|m| {
        (!cx.flags.changed("api-group") || m.group == cx.flags.string("api-group"))
            && (!cx.flags.changed("namespaced") || m.namespaced == cx.flags.bool("namespaced"))
            && verbs.iter().all(|v| m.supports(v))
            && categories.iter().all(|c| m.categories.contains(c))
            && !m.verbs.is_empty()
    });
    match cx.flags.string("sort-by").as_str() {
        "name" => list.compact_sort_by(|a, b| a.resource.cmp(&b.resource)),
        "kind" => list.compact_sort_by(|a, b| a.kind.cmp(&b.kind)),
        "" => list.compact_sort_by(|a, b| a.group.cmp(&b.group).then_with(|| a.resource.cmp(&b.resource))),
        _ => return Err(Failure::message("--sort-by accepts only name or kind")),
    }
    if output == "name" {
        for m in list {
            cx.println(m.group_resource())?;
        }
        return Ok(());
    }
    if ["json", "yaml", "kyaml"].contains(&output.as_str()) {
        let mut printer = crate::printers::Printer::new(&cx.flags, "")?.typed();
        return cx.print(&printer.print(&resource_lists(&list))?);
    }
    let wide = output == "wide";
    let mut text = String::new();
    if !cx.flags.bool("no-headers") {
        text.push_str("NAME\tSHORTNAMES\tAPIVERSION\tNAMESPACED\tKIND");
        text.push_str(if wide { "\tVERBS\tCATEGORIES\n" } else { "\n" });
    }
    for m in list {
        text.push_str(&format!(
            "{}\t{}\t{}\t{}\t{}",
            m.resource,
            m.short_names.join(","),
            m.api_version(),
            m.namespaced,
            m.kind
        ));
        if wide {
            text.push_str(&format!("\t{}\t{}", m.verbs.join(","), m.categories.join(",")));
        }
        text.push('\n');
    }
    cx.print(&TabWriter::table().format(&text))
}

/// The types as one APIResourceList, each with its group and version.
fn resource_lists(list: &[crate::discovery::Mapping]) -> serde_json::Value {
    let rows: Vec<serde_json::Value> = list
        .iter()
        .map(|m| {
            let mut row = serde_json::json!({
                "name": m.resource, "singularName": m.singular, "namespaced": m.namespaced, "kind": m.kind,
                "verbs": m.verbs, "version": m.version,
            });
            if !m.group.is_empty() {
                row["group"] = serde_json::json!(m.group);
            }
            for (key, words) in [("shortNames", &m.short_names), ("categories", &m.categories)] {
                if !words.is_empty() {
                    row[key] = serde_json::json!(words);
                }
            }
            row
        })
        .collect();
    serde_json::json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "", "resources": rows})
}

async fn versions(cx: &Context) -> Result<()> {
    if !cx.args().is_empty() {
        return Err(cx.usage(format!("unexpected arguments: [{}]", cx.args().join(" "))));
    }
    let discovery = cx.discovery()?;
    discovery.refresh(cx).await?;
    let mut list = discovery.group_versions(cx).await?;
    list.compact_sort();
    for gv in list {
        cx.println(gv)?;
    }
    Ok(())
}

async fn cluster_info(cx: &Context) -> Result<()> {
    let server = cx.server()?;
    let services = Request::get("/api/v1/namespaces/kube-system/services")
        .query("labelSelector", "kubernetes.io/cluster-service=true")
        .value(cx)
        .await?;
    let colour = std::io::IsTerminal::is_terminal(&std::io::stdout());
    let line = |name: &str, url: &str| {
        if colour {
            format!("\x1b[0;32m{name}\x1b[0m is running at \x1b[0;33m{url}\x1b[0m")
        } else {
            format!("{name} is running at {url}")
        }
    };
    cx.println(line("Kubernetes control plane", &server))?;
    for s in items(&services) {
        let labels = &s["metadata"]["labels"];
        let name = labels["kubernetes.io/name"].as_str().unwrap_or(text(&s, "/metadata/name"));
        let port = &s["spec"]["ports"][0];
        let (scheme, suffix) = match text(port, "/name") {
            "" => ("", String::new()),
            n => (if n == "https" { "https:" } else { "" }, format!(":{n}")),
        };
        let link = format!(
            "{}/api/v1/namespaces/{}/services/{scheme}{}{suffix}/proxy",
            server.trim_end_matches('/'),
            text(&s, "/metadata/namespace"),
            text(&s, "/metadata/name"),
        );
        cx.println(line(name, &link))?;
    }
    cx.println("\nTo further debug and diagnose cluster problems, use 'kubectl cluster-info dump'.")
}

async fn dump(cx: &Context) -> Result<()> {
    let dir = cx.flags.string("output-directory");
    let yaml = cx.flags.string("output") == "yaml";
    let write = |names: &[&str], file: &str, text: &str| -> Result<()> {
        if dir.is_empty() || dir == "-" {
            return cx.print(text);
        }
        let folder = folder(&dir, names)?;
        std::fs::create_dir_all(&folder)?;
        Ok(std::fs::write(folder.join(file), text)?)
    };
    let emit = |names: &[&str], name: &str, value: &serde_json::Value| -> Result<()> {
        let text = if yaml { api::yaml::to_string(value) } else { crate::printers::json::pretty(value) };
        write(names, &format!("{name}.{}", if yaml { "yaml" } else { "json" }), &text)
    };
    emit(&[], "nodes", &Request::get("/api/v1/nodes").value(cx).await?)?;
    let mut namespaces = cx.flags.list("namespaces");
    if cx.flags.bool("all-namespaces") {
        let all = Request::get("/api/v1/namespaces").value(cx).await?;
        namespaces = items(&all).iter().map(|n| text(n, "/metadata/name").to_owned()).collect();
    } else if namespaces.is_empty() {
        namespaces = vec!["kube-system".to_owned(), cx.namespace()?.0];
    }
    for ns in namespaces {
        for (path, name) in [
            ("api/v1", "events"),
            ("api/v1", "replicationcontrollers"),
            ("api/v1", "services"),
            ("apis/apps/v1", "daemonsets"),
            ("apis/apps/v1", "deployments"),
            ("apis/apps/v1", "replicasets"),
            ("api/v1", "pods"),
        ] {
            let list = Request::get(format!("/{path}/namespaces/{ns}/{name}")).value(cx).await?;
            emit(&[ns.as_str()], name, &list)?;
            if name != "pods" {
                continue;
            }
            for pod in items(&list) {
                let pod_name = text(&pod, "/metadata/name").to_owned();
                let mut logs = String::new();
                for container in crate::pods::container_names(&pod) {
                    let log = Request::get(format!("/api/v1/namespaces/{ns}/pods/{pod_name}/log"))
                        .query("container", container.clone())
                        .send(cx)
                        .await;
                    let log = log
                        .map(|a| String::from_utf8_lossy(&a.body).into_owned())
                        .unwrap_or_else(|e| format!("Request log error: {}\n", e.inner()));
                    let of = format!("logs for container {container} of pod {ns}/{pod_name}");
                    logs.push_str(&format!("==== START {of} ====\n{log}==== END {of} ====\n"));
                }
                write(&[ns.as_str(), pod_name.as_str()], "logs.txt", &logs)?;
            }
        }
    }
    Ok(())
}

/// Where what belongs to an object is written. The names are the server's: they lead nowhere but below the directory.
fn folder(dir: &str, names: &[&str]) -> Result<PathBuf> {
    let mut path = PathBuf::from(dir);
    for name in names {
        name_segment(name)?;
        path.push(name);
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_dump_stays_in_its_directory() {
        assert_eq!(folder("out", &["shop", "web-0"]).unwrap(), PathBuf::from("out/shop/web-0"));
        for names in [["..", "x"], ["shop", "../../x"], ["/root", "x"], ["shop", ""], [".", "x"]] {
            assert!(folder("out", &names).is_err(), "{names:?}");
        }
    }
}
