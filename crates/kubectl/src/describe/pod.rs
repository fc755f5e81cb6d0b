//! Pods and pod templates.

use api::sort::CompactSort as _;
use serde_json::Value;

use super::volumes::volumes;
use super::{Writer, controller, or_none, plain, strings, time, title_bool, write_annotations, write_labels};
use crate::duration;
use crate::objects::text;

pub(super) fn describe(pod: &Value, w: &mut Writer) {
    let (meta, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    w.line(0, format!("Name:\t{}", text(meta, "/name")));
    w.line(0, format!("Namespace:\t{}", text(meta, "/namespace")));
    if !spec["priority"].is_null() {
        w.line(0, format!("Priority:\t{}", spec["priority"]));
    }
    for (title, key) in [
        ("Priority Class Name", "priorityClassName"),
        ("Runtime Class Name", "runtimeClassName"),
        ("Service Account", "serviceAccountName"),
    ] {
        if let Some(value) = spec[key].as_str().filter(|v| !v.is_empty()) {
            w.line(0, format!("{title}:\t{value}"));
        }
    }
    match text(spec, "/nodeName") {
        "" => w.line(0, "Node:\t<none>"),
        node => w.line(0, format!("Node:\t{node}/{}", text(status, "/hostIP"))),
    }
    if !status["startTime"].is_null() {
        w.line(0, format!("Start Time:\t{}", time(&status["startTime"])));
    }
    write_labels(w, "Labels", &meta["labels"]);
    write_annotations(w, "Annotations", &meta["annotations"]);
    let phase = text(status, "/phase");
    if !meta["deletionTimestamp"].is_null() && phase != "Failed" && phase != "Succeeded" {
        let lasts = duration::age(meta["deletionTimestamp"].as_str(), jiff::Timestamp::now());
        w.line(0, format!("Status:\tTerminating (lasts {lasts})"));
        w.line(0, format!("Termination Grace Period:\t{}s", plain(&meta["deletionGracePeriodSeconds"])));
    } else {
        w.line(0, format!("Status:\t{phase}"));
    }
    for (title, key) in [("Reason", "/reason"), ("Message", "/message")] {
        if !text(status, key).is_empty() {
            w.line(0, format!("{title}:\t{}", text(status, key)));
        }
    }
    seccomp(w, 0, 0, &spec["securityContext"]["seccompProfile"]);
    w.line(0, format!("IP:\t{}", text(status, "/podIP")));
    match status["podIPs"].as_array().filter(|ips| !ips.is_empty()) {
        None => w.line(0, "IPs:\t<none>"),
        Some(ips) => {
            w.line(0, "IPs:");
            for ip in ips {
                w.line(1, format!("IP:\t{}", text(ip, "/ip")));
            }
        }
    }
    if let Some(owner) = controller(pod) {
        w.line(0, format!("Controlled By:\t{owner}"));
    }
    if !text(status, "/nominatedNodeName").is_empty() {
        w.line(0, format!("NominatedNodeName:\t{}", text(status, "/nominatedNodeName")));
    }
    if spec["resources"].is_object() {
        w.line(0, "Resources:");
        resources(w, 1, &spec["resources"]);
    }
    for (title, list, statuses) in [
        ("Init Containers", "initContainers", "initContainerStatuses"),
        ("Containers", "containers", "containerStatuses"),
        ("Ephemeral Containers", "ephemeralContainers", "ephemeralContainerStatuses"),
    ] {
        if list == "containers" || spec[list].as_array().is_some_and(|c| !c.is_empty()) {
            containers(w, title, &spec[list], &status[statuses], Some(pod), "");
        }
    }
    if let Some(gates) = spec["readinessGates"].as_array().filter(|g| !g.is_empty()) {
        w.line(0, "Readiness Gates:\n  Type\tStatus");
        for gate in gates {
            let found = status["conditions"]
                .as_array()
                .and_then(|c| c.iter().find(|c| c["type"] == gate["conditionType"]))
                .map_or("<none>", |c| text(c, "/status"));
            w.line(1, format!("{} \t{found} ", text(gate, "/conditionType")));
        }
    }
    if let Some(conditions) = status["conditions"].as_array().filter(|c| !c.is_empty()) {
        w.line(0, "Conditions:\n  Type\tStatus");
        for c in conditions {
            w.line(1, format!("{} \t{} ", text(c, "/type"), text(c, "/status")));
        }
    }
    volumes(w, &spec["volumes"], "");
    w.line(0, format!("QoS Class:\t{}", text(status, "/qosClass")));
    write_labels(w, "Node-Selectors", &spec["nodeSelector"]);
    tolerations(w, "Tolerations", &spec["tolerations"]);
    spread(w, &spec["topologySpreadConstraints"], "");
}

pub(super) fn template(w: &mut Writer, template: &Value) {
    w.line(0, "Pod Template:");
    let (meta, spec) = (&template["metadata"], &template["spec"]);
    write_labels(w, "  Labels", &meta["labels"]);
    if meta["annotations"].as_object().is_some_and(|a| !a.is_empty()) {
        write_annotations(w, "  Annotations", &meta["annotations"]);
    }
    if !text(spec, "/serviceAccountName").is_empty() {
        w.line(1, format!("Service Account:\t{}", text(spec, "/serviceAccountName")));
    }
    if spec["initContainers"].as_array().is_some_and(|c| !c.is_empty()) {
        containers(w, "Init Containers", &spec["initContainers"], &Value::Null, None, "  ");
    }
    containers(w, "Containers", &spec["containers"], &Value::Null, None, "  ");
    volumes(w, &spec["volumes"], "  ");
    spread(w, &spec["topologySpreadConstraints"], "  ");
    if !text(spec, "/priorityClassName").is_empty() {
        w.line(1, format!("Priority Class Name:\t{}", text(spec, "/priorityClassName")));
    }
    write_labels(w, "  Node-Selectors", &spec["nodeSelector"]);
    tolerations(w, "  Tolerations", &spec["tolerations"]);
}

fn seccomp(w: &mut Writer, level: usize, local: usize, profile: &Value) {
    if profile.is_object() {
        w.line(level, format!("SeccompProfile:\t{}", text(profile, "/type")));
        if profile["type"] == "Localhost" {
            w.line(local, format!("LocalhostProfile:\t{}", text(profile, "/localhostProfile")));
        }
    }
}

fn containers(w: &mut Writer, title: &str, list: &Value, statuses: &Value, pod: Option<&Value>, space: &str) {
    let empty = Vec::new();
    let list = list.as_array().unwrap_or(&empty);
    w.line(0, format!("{space}{title}:{}", if list.is_empty() { " <none>" } else { "" }));
    for c in list {
        let status = statuses.as_array().and_then(|s| s.iter().find(|s| s["name"] == c["name"]));
        w.line(1, format!("{}{}:", if space.is_empty() { "" } else { " " }, text(c, "/name")));
        if let Some(s) = status {
            w.line(2, format!("Container ID:\t{}", text(s, "/containerID")));
        }
        w.line(2, format!("Image:\t{}", text(c, "/image")));
        if let Some(s) = status {
            w.line(2, format!("Image ID:\t{}", text(s, "/imageID")));
        }
        for (title, key) in [("Port", "containerPort"), ("Host Port", "hostPort")] {
            let ports: Vec<String> = c["ports"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|p| {
                    let name = text(p, "/name");
                    let name = if name.is_empty() { String::new() } else { format!(" ({name})") };
                    let protocol = p["protocol"].as_str().unwrap_or("TCP");
                    format!("{}/{protocol}{name}", p[key].as_i64().unwrap_or(0))
                })
                .collect();
            let plural = if ports.len() > 1 { "s" } else { "" };
            w.line(2, format!("{title}{plural}:\t{}", or_none(&ports.join(", "))));
        }
        seccomp(w, 2, 3, &c["securityContext"]["seccompProfile"]);
        for (title, key) in [("Command", "command"), ("Args", "args")] {
            let words = strings(&c[key]);
            if !words.is_empty() {
                w.line(2, format!("{title}:"));
                for word in words {
                    for part in word.split('\n') {
                        w.line(3, part);
                    }
                }
            }
        }
        if let Some(s) = status {
            state(w, "State", &s["state"]);
            if !s["lastState"]["terminated"].is_null() {
                state(w, "Last State", &s["lastState"]);
            }
            w.line(2, format!("Ready:\t{}", title_bool(s["ready"] == true)));
            w.line(2, format!("Restart Count:\t{}", s["restartCount"].as_i64().unwrap_or(0)));
        }
        resources(w, 2, &c["resources"]);
        for (title, key) in
            [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
        {
            if c[key].is_object() {
                w.line(2, format!("{title}:\t{}", probe(&c[key])));
            }
        }
        env_from(w, &c["envFrom"]);
        env(w, c, pod);
        mounts(w, c);
    }
}

fn state(w: &mut Writer, title: &str, state: &Value) {
    if let Some(running) = state.get("running") {
        w.line(2, format!("{title}:\tRunning"));
        w.line(3, format!("Started:\t{}", time(&running["startedAt"])));
    } else if let Some(t) = state.get("terminated") {
        w.line(2, format!("{title}:\tTerminated"));
        for (name, key) in [("Reason", "/reason"), ("Message", "/message")] {
            if !text(t, key).is_empty() {
                w.line(3, format!("{name}:\t{}", text(t, key)));
            }
        }
        w.line(3, format!("Exit Code:\t{}", t["exitCode"].as_i64().unwrap_or(0)));
        if let Some(signal) = t["signal"].as_i64().filter(|s| *s > 0) {
            w.line(3, format!("Signal:\t{signal}"));
        }
        w.line(3, format!("Started:\t{}", time(&t["startedAt"])));
        w.line(3, format!("Finished:\t{}", time(&t["finishedAt"])));
    } else {
        w.line(2, format!("{title}:\tWaiting"));
        if !text(state, "/waiting/reason").is_empty() {
            w.line(3, format!("Reason:\t{}", text(state, "/waiting/reason")));
        }
    }
}

fn probe(p: &Value) -> String {
    let number = |key: &str| p[key].as_i64().unwrap_or(0);
    let attributes = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number("initialDelaySeconds"),
        number("timeoutSeconds"),
        number("periodSeconds"),
        number("successThreshold"),
        number("failureThreshold")
    );
    if p["exec"].is_object() {
        return format!("exec [{}] {attributes}", strings(&p["exec"]["command"]).join(" "));
    }
    if p["httpGet"].is_object() {
        let get = &p["httpGet"];
        let scheme = get["scheme"].as_str().unwrap_or("HTTP").to_lowercase();
        return format!(
            "http-get {scheme}://{}:{}{} {attributes}",
            text(get, "/host"),
            plain(&get["port"]),
            text(get, "/path")
        );
    }
    if p["tcpSocket"].is_object() {
        return format!("tcp-socket {}:{} {attributes}", text(p, "/tcpSocket/host"), plain(&p["tcpSocket"]["port"]));
    }
    if p["grpc"].is_object() {
        return format!("grpc <pod>:{} {} {attributes}", plain(&p["grpc"]["port"]), text(p, "/grpc/service"));
    }
    format!("unknown {attributes}")
}

fn env_from(w: &mut Writer, list: &Value) {
    let Some(list) = list.as_array().filter(|l| !l.is_empty()) else { return };
    w.line(2, "Environment Variables from:");
    for e in list {
        let (name, kind, optional) = if e["configMapRef"].is_object() {
            (text(e, "/configMapRef/name"), "ConfigMap", e["configMapRef"]["optional"] == true)
        } else {
            (text(e, "/secretRef/name"), "Secret", e["secretRef"]["optional"] == true)
        };
        let prefix = match text(e, "/prefix") {
            "" => String::new(),
            p => format!(" with prefix '{p}'"),
        };
        w.line(3, format!("{name}\t{kind}{prefix}\tOptional: {optional}"));
    }
}

fn env(w: &mut Writer, c: &Value, pod: Option<&Value>) {
    let empty = Vec::new();
    let list = c["env"].as_array().unwrap_or(&empty);
    w.line(2, format!("Environment:{}", if list.is_empty() { "\t<none>" } else { "" }));
    for e in list {
        let (name, from) = (text(e, "/name"), &e["valueFrom"]);
        if from.is_null() {
            for (i, part) in text(e, "/value").split('\n').enumerate() {
                w.line(3, if i == 0 { format!("{name}:\t{part}") } else { format!("\t{part}") });
            }
        } else if from["fieldRef"].is_object() {
            let path = text(from, "/fieldRef/fieldPath");
            let value = pod.map(|p| field_value(p, path)).unwrap_or_default();
            let version = from["fieldRef"]["apiVersion"].as_str().unwrap_or("v1");
            w.line(3, format!("{name}:\t{value} ({version}:{path})"));
        } else if from["resourceFieldRef"].is_object() {
            let resource = text(from, "/resourceFieldRef/resource");
            let value = resource.split_once('.').map(|(kind, r)| plain(&c["resources"][kind][r])).unwrap_or_default();
            let value =
                if value.is_empty() && resource.starts_with("limits.") { "node allocatable".to_owned() } else { value };
            w.line(3, format!("{name}:\t{value} ({resource})"));
        } else if from["secretKeyRef"].is_object() {
            let r = &from["secretKeyRef"];
            w.line(
                3,
                format!(
                    "{name}:\t<set to the key '{}' in secret '{}'>\tOptional: {}",
                    text(r, "/key"),
                    text(r, "/name"),
                    r["optional"] == true
                ),
            );
        } else if from["configMapKeyRef"].is_object() {
            let r = &from["configMapKeyRef"];
            w.line(
                3,
                format!(
                    "{name}:\t<set to the key '{}' of config map '{}'>\tOptional: {}",
                    text(r, "/key"),
                    text(r, "/name"),
                    r["optional"] == true
                ),
            );
        }
    }
}

fn field_value(pod: &Value, path: &str) -> String {
    if let Some((map, rest)) = path.split_once("['")
        && let Some(key) = rest.strip_suffix("']")
    {
        let pointer = format!("/{}", map.replace('.', "/"));
        return pod.pointer(&pointer).map(|m| plain(&m[key])).unwrap_or_default();
    }
    plain(pod.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&Value::Null))
}

fn resources(w: &mut Writer, level: usize, resources: &Value) {
    for (title, key) in [("Limits", "limits"), ("Requests", "requests")] {
        if let Some(map) = resources[key].as_object().filter(|m| !m.is_empty()) {
            w.line(level, format!("{title}:"));
            for (k, v) in map {
                w.line(level + 1, format!("{k}:\t{}", plain(v)));
            }
        }
    }
}

fn mounts(w: &mut Writer, c: &Value) {
    let mut list: Vec<&Value> = c["volumeMounts"].as_array().into_iter().flatten().collect();
    w.line(2, format!("Mounts:{}", if list.is_empty() { "\t<none>" } else { "" }));
    list.compact_sort_by_key(|m| text(m, "/mountPath").to_owned());
    for m in list {
        let mut flags = vec![if m["readOnly"] == true { "ro".to_owned() } else { "rw".to_owned() }];
        if !text(m, "/subPath").is_empty() {
            flags.push(format!("path=\"{}\"", text(m, "/subPath")));
        }
        w.line(3, format!("{} from {} ({})", text(m, "/mountPath"), text(m, "/name"), flags.join(",")));
    }
    if let Some(devices) = c["volumeDevices"].as_array().filter(|d| !d.is_empty()) {
        w.line(2, "Devices:");
        for d in devices {
            w.line(3, format!("{} from {}", text(d, "/devicePath"), text(d, "/name")));
        }
    }
}

fn tolerations(w: &mut Writer, title: &str, list: &Value) {
    let mut list: Vec<&Value> = list.as_array().into_iter().flatten().collect();
    if list.is_empty() {
        return w.line(0, format!("{title}:\t<none>"));
    }
    list.compact_sort_by_key(|t| text(t, "/key").to_owned());
    for (i, t) in list.into_iter().enumerate() {
        let mut line = if i == 0 { format!("{title}:\t") } else { "\t".to_owned() };
        line.push_str(text(t, "/key"));
        if !text(t, "/value").is_empty() {
            line.push_str(&format!("={}", text(t, "/value")));
        }
        if !text(t, "/effect").is_empty() {
            line.push_str(&format!(":{}", text(t, "/effect")));
        }
        if t["operator"] == "Exists" && text(t, "/value").is_empty() {
            line.push_str(if text(t, "/key").is_empty() && text(t, "/effect").is_empty() {
                "op=Exists"
            } else {
                " op=Exists"
            });
        }
        if let Some(seconds) = t["tolerationSeconds"].as_i64() {
            line.push_str(&format!(" for {seconds}s"));
        }
        w.line(0, line);
    }
}

fn spread(w: &mut Writer, list: &Value, space: &str) {
    for (i, t) in list.as_array().into_iter().flatten().enumerate() {
        let head = if i == 0 { format!("{space}Topology Spread Constraints:\t") } else { format!("{space}\t") };
        let selector = crate::selector::from_label_selector(&t["labelSelector"]).unwrap_or_default();
        let mut line = format!(
            "{head}{}:{} when max skew {} is exceeded",
            text(t, "/topologyKey"),
            text(t, "/whenUnsatisfiable"),
            plain(&t["maxSkew"])
        );
        if !selector.is_empty() {
            line.push_str(&format!(" for selector {selector}"));
        }
        w.line(0, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn what_a_pod_has_as_a_whole_comes_before_its_containers() {
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}});
        let pod = json!({"metadata": {"name": "web"}, "spec": {"containers": [{"name": "c"}], "resources": resources}});
        let mut w = Writer::default();
        describe(&pod, &mut w);
        let written = w.finish().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(written.contains("Resources: Limits: cpu: 2 memory: 1Gi Requests: cpu: 1 Containers: c:"), "{written}");
    }

    #[test]
    fn pod_golden() {
        let pod = json!({"metadata": {"name": "web", "namespace": "d", "labels": {"run": "web"}},
            "spec": {"priority": 0, "serviceAccountName": "default", "nodeName": "n1",
                "containers": [{"name": "web", "image": "nginx", "ports": [{"containerPort": 80}],
                    "resources": {"requests": {"cpu": "100m"}},
                    "livenessProbe": {"httpGet": {"path": "/", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                    "env": [{"name": "A", "value": "1"}], "volumeMounts": [{"mountPath": "/x", "name": "v", "readOnly": true}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
            "status": {"phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.42.0.5", "podIPs": [{"ip": "10.42.0.5"}], "qosClass": "Burstable",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "web", "ready": true, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]}});
        let mut w = Writer::default();
        describe(&pod, &mut w);
        expect![[r#"
            Name:             web
            Namespace:        d
            Priority:         0
            Service Account:  default
            Node:             n1/10.0.0.1
            Labels:           run=web
            Annotations:      <none>
            Status:           Running
            IP:               10.42.0.5
            IPs:
              IP:  10.42.0.5
            Containers:
              web:
                Container ID:   
                Image:          nginx
                Image ID:       
                Port:           80/TCP
                Host Port:      0/TCP
                State:          Waiting
                  Reason:       ContainerCreating
                Ready:          True
                Restart Count:  0
                Requests:
                  cpu:     100m
                Liveness:  http-get http://:80/ delay=0s timeout=1s period=10s #success=1 #failure=3
                Environment:
                  A:  1
                Mounts:
                  /x from v (ro)
            Conditions:
              Type    Status
              Ready   True 
            Volumes:
              v:
                Type:        EmptyDir (a temporary directory that shares a pod's lifetime)
                Medium:      
                SizeLimit:   <unset>
            QoS Class:       Burstable
            Node-Selectors:  <none>
            Tolerations:     node.kubernetes.io/not-ready:NoExecute op=Exists for 300s
        "#]]
        .assert_eq(&w.finish());
    }
}
