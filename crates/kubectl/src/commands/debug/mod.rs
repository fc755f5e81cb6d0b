//! `kubectl debug`: a container beside a pod's own (ephemeral), a changed copy of a pod, or a pod on a node.

mod profile;

use api::image::is_reference;
use serde_json::{Value, json};

use super::create::known;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::pods;
use crate::request::Request;
use crate::resources::{self, Info, Options};
use crate::watch::Watch;
use profile::{Keep, Profile, Style};

pub(crate) const COMMAND: Command = Command {
    name: "debug",
    usage: "(POD | TYPE[[.VERSION].GROUP]/NAME) [ -- COMMAND [args...] ]",
    about: "Create debugging sessions for troubleshooting workloads and nodes",
    examples: "  kubectl debug web -it --image=busybox\n  kubectl debug web -it --image=busybox --target=nginx\n  kubectl debug web --copy-to=web-debug --set-image='*=nginx:1.26'\n  kubectl debug node/worker -it --image=busybox",
    flags: &[&[
        Flag::slice("filename", "File that names what to debug.").short('f'),
        Flag::bool("arguments-only", "What follows -- becomes the container's arguments, not its command."),
        Flag::bool("attach", "Wait until the container runs, then attach to it; the default with -i."),
        Flag::string("container", "Name of the debugging container.").short('c'),
        Flag::string("copy-to", "Make a copy of the pod with this name."),
        Flag::string("custom", "JSON or YAML file with a partial container that changes the profile."),
        Flag::slice("env", "Environment of the container (key=value)."),
        Flag::string("image", "Image of the debugging container."),
        Flag::string("image-pull-policy", "Always, IfNotPresent or Never."),
        Flag::bool("keep-annotations", "A copy keeps the pod's annotations."),
        Flag::bool("keep-init-containers", "A copy keeps the init containers.").default("true"),
        Flag::bool("keep-labels", "A copy keeps the pod's labels."),
        Flag::bool("keep-liveness", "A copy keeps liveness probes."),
        Flag::bool("keep-readiness", "A copy keeps readiness probes."),
        Flag::bool("keep-startup", "A copy keeps startup probes."),
        Flag::string("profile", "general, baseline, restricted, netadmin or sysadmin.").default("general"),
        Flag::bool("quiet", "Only what the container prints.").short('q'),
        Flag::bool("replace", "With --copy-to, delete the original pod."),
        Flag::bool("same-node", "With --copy-to, on the node of the original."),
        Flag::slice("set-image", "With --copy-to, images to change (name=image, * for all)."),
        Flag::bool("share-processes", "With --copy-to, containers see each other's processes.").default("true"),
        Flag::bool("stdin", "Keep the container's standard input open.").short('i'),
        Flag::string("target", "Container whose processes an ephemeral one sees."),
        Flag::bool("tty", "A terminal for the container.").short('t'),
    ]],
    words: Words::Pods,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let session = Session::read(cx)?;
    let args: Vec<String> =
        session.targets.iter().map(|t| if t.contains('/') { t.clone() } else { format!("pods/{t}") }).collect();
    let options = Options { latest: true, args: Some(args), ..Options::default() };
    for info in resources::all_infos(cx, &options).await? {
        let (pod, container) = match info.mapping.kind.as_str() {
            "Node" if info.mapping.group.is_empty() => session.on_node(cx, &info).await?,
            "Pod" if info.mapping.group.is_empty() && !session.copy_to.is_empty() => session.copy(cx, &info).await?,
            "Pod" if info.mapping.group.is_empty() => session.beside(cx, &info).await?,
            kind => {
                return Err(Failure::message(format!(
                    "\"{}, Kind={kind}\" not supported by debug",
                    info.mapping.api_version()
                )));
            }
        };
        if session.attach && !container.is_empty() {
            attach(cx, &pod, &container).await?;
        }
    }
    Ok(())
}

/// The words of the command line, checked.
struct Session {
    targets: Vec<String>,
    command: Vec<String>,
    attach: bool,
    copy_to: String,
    image: String,
    set_images: Vec<(String, String)>,
    profile: Profile,
    keep: Keep,
    custom: Option<Value>,
}

impl Session {
    fn read(cx: &Context) -> Result<Session> {
        let flags = &cx.flags;
        let (targets, command) = match flags.dash {
            Some(at) => (cx.args()[..at].to_vec(), cx.args()[at..].to_vec()),
            None => (cx.args().to_vec(), Vec::new()),
        };
        let profile = Profile::named(&flags.string("profile"))?;
        let custom = custom_profile(&flags.string("custom"))?;
        let session = Session {
            targets,
            command,
            attach: flags.bool("attach") || (flags.bool("stdin") && !flags.changed("attach")),
            copy_to: flags.string("copy-to"),
            image: flags.string("image"),
            set_images: pairs(&flags.list("set-image"), "set-image")?,
            profile,
            keep: Keep {
                labels: flags.bool("keep-labels"),
                annotations: flags.bool("keep-annotations"),
                liveness: flags.bool("keep-liveness"),
                readiness: flags.bool("keep-readiness"),
                startup: flags.bool("keep-startup"),
                init_containers: flags.bool("keep-init-containers"),
            },
            custom,
        };
        session.check(cx)?;
        Ok(session)
    }

    fn check(&self, cx: &Context) -> Result<()> {
        let flags = &cx.flags;
        let refuse = |text: &str| Err(Failure::message(text));
        let container = flags.string("container");
        if flags.bool("attach") && self.image.is_empty() && container.is_empty() {
            return refuse("you must specify --container or create a new container using --image in order to attach.");
        }
        if !self.copy_to.is_empty() {
            if self.image.is_empty() && self.set_images.is_empty() && self.command.is_empty() {
                return refuse("you must specify --image, --set-image or command arguments.");
            }
            if !self.command.is_empty() && container.is_empty() && self.image.is_empty() {
                return refuse("you must specify an existing container or a new image when specifying args.");
            }
        } else {
            for flag in ["replace", "same-node"] {
                if flags.bool(flag) {
                    return refuse(&format!("--{flag} may only be used with --copy-to."));
                }
            }
            if !self.set_images.is_empty() {
                return refuse("--set-image may only be used with --copy-to.");
            }
            if self.image.is_empty() {
                return refuse("you must specify --image when not using --copy-to.");
            }
        }
        if !self.image.is_empty() && !is_reference(&self.image) {
            return refuse(&format!("invalid image name \"{}\": invalid reference format", self.image));
        }
        if self.targets.is_empty() && flags.list("filename").is_empty() {
            return refuse("NAME or filename is required for debug");
        }
        let policy = flags.string("image-pull-policy");
        if !["", "Always", "IfNotPresent", "Never"].contains(&policy.as_str()) {
            return refuse(&format!("invalid image pull policy: {policy}"));
        }
        for (name, image) in &self.set_images {
            if !is_reference(image) {
                return refuse(&format!(
                    "invalid image name \"{image}\" for container \"{name}\": invalid reference format"
                ));
            }
        }
        let target = flags.string("target");
        if !target.is_empty() {
            if !self.copy_to.is_empty() {
                return refuse("--target is incompatible with --copy-to. Use --share-processes instead.");
            }
            say(
                cx,
                &format!(
                    "Targeting container \"{target}\". If you don't see processes from this container it may be because the container runtime doesn't support this feature."
                ),
            )?;
        }
        if flags.bool("tty") && !flags.bool("stdin") {
            return refuse("-i/--stdin is required for containers with -t/--tty=true");
        }
        if let Some(custom) = &self.custom
            && ["name", "command", "image", "lifecycle", "volumeDevices"].iter().any(|k| !custom[*k].is_null())
        {
            return refuse("name, command, image, lifecycle and volume devices are not modifiable via custom profile");
        }
        if self.profile == Profile::Legacy {
            cx.eprintln("--profile=legacy is deprecated and planned to be removed in v1.39. It is recommended to specify other profile, for example \"--profile=general\".");
        }
        Ok(())
    }

    /// The debugging container as the flags describe it.
    fn container(&self, cx: &Context, name: &str) -> Result<Value> {
        let mut container = json!({"name": name, "image": self.image, "terminationMessagePolicy": "File"});
        self.adjust(cx, &mut container)?;
        Ok(container)
    }

    fn adjust(&self, cx: &Context, container: &mut Value) -> Result<()> {
        if !self.command.is_empty() {
            if cx.flags.bool("arguments-only") {
                container["args"] = json!(self.command);
            } else {
                container["command"] = json!(self.command);
                if let Some(map) = container.as_object_mut() {
                    map.remove("args");
                }
            }
        }
        let env = pairs(&cx.flags.list("env"), "env")?;
        if !env.is_empty() {
            container["env"] = env.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        }
        let policy = cx.flags.string("image-pull-policy");
        if !policy.is_empty() {
            container["imagePullPolicy"] = json!(policy);
        }
        for (flag, field) in [("stdin", "stdin"), ("tty", "tty")] {
            if cx.flags.bool(flag) {
                container[field] = json!(true);
            } else if let Some(map) = container.as_object_mut() {
                map.remove(field);
            }
        }
        Ok(())
    }

    fn finish(&self, pod: &mut Value, container: &str, style: Style) -> Result<()> {
        self.profile.apply(pod, container, style, self.keep);
        let Some(custom) = &self.custom else { return Ok(()) };
        let target = profile::container_mut(pod, container)
            .ok_or_else(|| Failure::message(format!("unable to find the {container} container in the pod")))?;
        let mut patch = custom.clone();
        patch["name"] = json!(container);
        // A container merges as an element of a pod's list does.
        let mut holder = json!({"spec": {"containers": [target.take()]}});
        let schema = api::schema::of::<k8s_openapi::api::core::v1::Pod>();
        api::patch::strategic::apply(&mut holder, &json!({"spec": {"containers": [patch]}}), &schema)
            .map_err(|e| Failure::message(format!("error creating three way patch to add debug container: {e}")))?;
        *target = holder["spec"]["containers"][0].take();
        Ok(())
    }

    async fn on_node(&self, cx: &Context, node: &Info) -> Result<(Value, String)> {
        let container = match cx.flags.string("container") {
            c if c.is_empty() => "debugger".to_owned(),
            c => c,
        };
        let name = format!("node-debugger-{}-{}", node.name, random_suffix());
        say(cx, &format!("Creating debugging pod {name} with container {container} on node {}.", node.name))?;
        let mut pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "kubectl-debug"}},
            "spec": {
                "containers": [self.container(cx, &container)?],
                "nodeName": node.name,
                "restartPolicy": "Never",
                "tolerations": [{"operator": "Exists"}],
            },
        });
        self.finish(&mut pod, &container, Style::Node)?;
        let created = Request::post(pods_mapping().path(&cx.namespace()?.0), &pod).value(cx).await?;
        Ok((created, container))
    }

    async fn beside(&self, cx: &Context, target: &Info) -> Result<(Value, String)> {
        let name = container_name(cx, &target.object)?;
        let mut container = self.container(cx, &name)?;
        let process_target = cx.flags.string("target");
        if !process_target.is_empty() {
            container["targetContainerName"] = json!(process_target);
        }
        let mut changed = json!({"spec": {"ephemeralContainers": [container]}});
        self.finish(&mut changed, &name, Style::Ephemeral)?;
        warn_non_root(cx, &changed["spec"]["ephemeralContainers"][0], &target.object);
        // The new one comes last, as the server asks it to.
        let others = target.object["spec"]["ephemeralContainers"].as_array().into_iter().flatten();
        let order: Vec<Value> = others.map(|c| json!({"name": c["name"]})).chain([json!({"name": name})]).collect();
        changed["spec"]["$setElementOrder/ephemeralContainers"] = Value::Array(order);
        let path = format!("{}/ephemeralcontainers", target.path());
        let patched =
            Request::patch(path, "application/strategic-merge-patch+json", changed.to_string()).value(cx).await;
        match patched {
            Ok(pod) => Ok((pod, name)),
            // A missing subresource is a 404 without a name.
            Err(e) if e.is_not_found() && !matches!(&e, Failure::Status(s) if s["details"]["name"].is_string()) => {
                Err(Failure::message(format!(
                    "ephemeral containers are disabled for this cluster (error from server: {:?})",
                    e.inner()
                )))
            }
            Err(e) => Err(e),
        }
    }

    async fn copy(&self, cx: &Context, original: &Info) -> Result<(Value, String)> {
        let (copy, container) = self.build_copy(cx, &original.object)?;
        if let Some(container) =
            copy["spec"]["containers"].as_array().into_iter().flatten().find(|c| c["name"] == container.as_str())
        {
            warn_non_root(cx, container, &copy);
        }
        let created = Request::post(pods_mapping().path(&original.namespace), &copy).value(cx).await?;
        if cx.flags.bool("replace") {
            Request::delete(
                original.path(),
                &json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}),
            )
            .send(cx)
            .await?;
        }
        Ok((created, container))
    }

    fn build_copy(&self, cx: &Context, original: &Value) -> Result<(Value, String)> {
        let mut copy = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.copy_to, "namespace": original["metadata"]["namespace"]},
            "spec": original["spec"],
        });
        for key in ["labels", "annotations"] {
            if original["metadata"][key].is_object() {
                copy["metadata"][key] = original["metadata"][key].clone();
            }
        }
        if let Some(spec) = copy["spec"].as_object_mut() {
            spec.remove("ephemeralContainers");
            if !cx.flags.bool("same-node") {
                spec.remove("nodeName");
            }
            if cx.flags.changed("share-processes") {
                spec.insert("shareProcessNamespace".to_owned(), json!(cx.flags.bool("share-processes")));
            }
        }
        for container in copy["spec"]["containers"].as_array_mut().into_iter().flatten() {
            let image = |wanted: &str| self.set_images.iter().find(|(name, _)| name == wanted).map(|(_, image)| image);
            if let Some(image) = image(container["name"].as_str().unwrap_or("")).or_else(|| image("*")) {
                container["image"] = json!(image);
            }
        }
        let mut name = cx.flags.string("container");
        if profile::container_mut(&mut copy, &name).is_none() {
            if self.image.is_empty() {
                if !self.set_images.is_empty() {
                    return Ok((copy, String::new()));
                }
                return Err(Failure::message("you must specify image when creating new container"));
            }
            name = container_name(cx, &copy)?;
            if let Some(list) = copy["spec"]["containers"].as_array_mut() {
                list.push(json!({"name": name, "terminationMessagePolicy": "File"}));
            }
        }
        if let Some(container) = profile::container_mut(&mut copy, &name) {
            if !self.image.is_empty() {
                container["image"] = json!(self.image);
            }
            self.adjust(cx, container)?;
        }
        self.finish(&mut copy, &name, Style::Copy)?;
        Ok((copy, name))
    }
}

fn pods_mapping() -> crate::discovery::Mapping {
    known("v1", "pods", "Pod", true)
}

fn pairs(list: &[String], flag: &str) -> Result<Vec<(String, String)>> {
    list.iter()
        .map(|pair| {
            pair.split_once('=').map(|(k, v)| (k.to_owned(), v.to_owned())).ok_or_else(|| {
                Failure::message(format!(
                    "invalid argument \"{pair}\" for \"--{flag}\" flag: {pair} must be formatted as key=value"
                ))
            })
        })
        .collect()
}

fn custom_profile(file: &str) -> Result<Option<Value>> {
    if file.is_empty() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(file).map_err(|e| {
        Failure::message(format!(
            "must pass a container spec json file for custom profile: {}",
            crate::go_errors::go_io_error("open", file, &e)
        ))
    })?;
    crate::manifests::yaml(&text)
        .map(Some)
        .map_err(|e| Failure::message(format!("{file} does not contain a valid container spec: {e}")))
}

fn say(cx: &Context, line: &str) -> Result<()> {
    if cx.flags.bool("quiet") { Ok(()) } else { cx.println(line) }
}

fn container_name(cx: &Context, pod: &Value) -> Result<String> {
    let wanted = cx.flags.string("container");
    if !wanted.is_empty() {
        return Ok(wanted);
    }
    let taken = pods::container_names(pod);
    let name = loop {
        let name = format!("debugger-{}", random_suffix());
        if !taken.contains(&name) {
            break name;
        }
    };
    say(cx, &format!("Defaulting debug container name to {name}."))?;
    Ok(name)
}

/// Five letters that make no words, as names generated by the server end.
fn random_suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    (0..5).map(|_| char::from(LETTERS[rand::random_range(0..LETTERS.len())])).collect()
}

fn warn_non_root(cx: &Context, container: &Value, pod: &Value) {
    let root = |user: &Value| user.is_null() || *user == 0;
    let security = &container["securityContext"];
    let granted = security["privileged"] == true
        || security["capabilities"]["add"].as_array().is_some_and(|added| !added.is_empty());
    if !root(&pod["spec"]["securityContext"]["runAsUser"]) && security["runAsUser"] != 0 && granted {
        cx.eprintln("Warning: Non-root user is configured for the entire target Pod, and some capabilities granted by debug profile may not work. Please consider using \"--custom\" with a custom profile that specifies \"securityContext.runAsUser: 0\".");
    }
}

/// Waits without a limit until the container runs or has run, then attaches or shows what it printed.
async fn attach(cx: &Context, pod: &Value, container: &str) -> Result<()> {
    let (namespace, name) = (text(pod, "/metadata/namespace").to_owned(), text(pod, "/metadata/name").to_owned());
    let mut watch = Watch::object(cx, pods_mapping().path(&namespace), &name, "0");
    loop {
        let event = watch.next().await?;
        if event.kind == "DELETED" {
            return Err(Failure::message("pods \"\" not found"));
        }
        let Some(state) = container_state(&event.object, container) else { continue };
        if state["running"].is_object() {
            return match super::exec::attach_to(cx, &namespace, &event.object, container).await {
                Err(e @ Failure::Status(_)) => {
                    cx.eprintln(format!(
                        "warning: couldn't attach to pod/{name}, falling back to streaming logs: {}",
                        e.inner()
                    ));
                    super::logs::whole(cx, &namespace, &event.object, container).await
                }
                other => other,
            };
        }
        if state["terminated"].is_object() {
            return super::logs::whole(cx, &namespace, &event.object, container).await;
        }
        let message = text(state, "/waiting/message");
        if !message.is_empty() && !cx.flags.bool("quiet") {
            cx.warn(&format!("container {container}: {message}"));
        }
    }
}

fn container_state<'a>(pod: &'a Value, container: &str) -> Option<&'a Value> {
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"]
        .iter()
        .flat_map(|list| pod["status"][*list].as_array().into_iter().flatten())
        .find(|status| status["name"] == container)
        .map(|status| &status["state"])
}
