//! `kubectl run`: a pod as upstream makes today, and the older generators (Deployment, Job, CronJob, with a name taken
//! from the image) when the words ask for them: no NAME, `--replicas`, `--schedule`, `--generator`, or an explicit
//! `--restart=Always` with `--expose`.

use std::time::Duration;

use api::image::is_reference;
use serde_json::{Map, Value, json};
use trace::Stage;
use trace::text::{Detail, render};

use super::create::{container_name, known};
use super::expose::{apply_overrides, pairs};
use super::flags;
use crate::cli::{Command, Flag};
use crate::context::{Context, DryRun};
use crate::discovery::Mapping;
use crate::failure::{Failure, Result};
use crate::objects;

/// A walk that has been silent for so long is over.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) const COMMAND: Command = Command {
    name: "run",
    usage: "NAME --image=image [--env=\"key=value\"] [--port=port] [--dry-run=server|client] [--overrides=inline-json] [--command] -- [COMMAND] [args...]",
    about: "Run a particular image on the cluster",
    examples: "  kubectl run web --image=nginx\n  kubectl run -it --rm shell --image=busybox -- sh\n  kubectl run --image=nginx --replicas=3 --port=80 --expose",
    flags: &[
        flags::FILENAME,
        flags::OUTPUT,
        flags::DRY_RUN,
        flags::SAVE_CONFIG,
        flags::RECORD,
        flags::POD_TIMEOUT,
        &[
            Flag::array("annotations", "Annotation of the pod, as key=value; may be repeated."),
            Flag::bool("attach", "Wait until the pod runs and attach to it; the default with --stdin."),
            Flag::string("cascade", "How dependents of objects deleted by --rm go.")
                .default("background")
                .bare("background"),
            Flag::bool("command", "Take the arguments as the command instead of its arguments."),
            Flag::array("env", "Environment variable, as NAME=value; may be repeated."),
            Flag::bool("expose", "Also create a service; needs --port."),
            Flag::string("field-manager", "Name that owns the fields.").default("kubectl-run"),
            Flag::string("generator", "Older generator: run-pod/v1, deployment/apps.v1, job/v1, cronjob/v1beta1.")
                .hidden(),
            Flag::string("image", "Image to run."),
            Flag::string("image-pull-policy", "Always, IfNotPresent or Never."),
            Flag::string("labels", "Labels of the pod, as a=b,c=d.").short('l'),
            Flag::bool("leave-stdin-open", "Keep stdin open after the first attach ends."),
            Flag::string("overrides", "JSON to merge into the object."),
            Flag::string("override-type", "json, merge or strategic.").default("merge"),
            Flag::string("port", "Port that the container exposes."),
            Flag::bool("privileged", "Run the container privileged."),
            Flag::bool("quiet", "No prompts.").short('q'),
            Flag::int("replicas", "1", "Number of replicas; makes a Deployment.").short('r'),
            Flag::string("restart", "Always, OnFailure or Never.").default("Always"),
            Flag::bool("rm", "Delete the pod when it ends; only with --attach or --stdin."),
            Flag::string("schedule", "Cron schedule; makes a CronJob."),
            Flag::bool("stdin", "Keep stdin open on the container.").short('i'),
            Flag::bool("trace", "Show what the cluster makes of it, stage by stage.").hidden(),
            Flag::bool("tty", "Give the container a terminal.").short('t'),
            Flag::string("detach-keys", "Key sequence that detaches.").default("ctrl-p,ctrl-q"),
            Flag::bool("force", "With --rm: delete at once."),
            Flag::int("grace-period", "-1", "With --rm: seconds to end in."),
            Flag::duration("timeout", "0s", "With --rm: how long to wait."),
            Flag::bool("wait", "With --rm: wait until it is gone."),
        ],
    ],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

/// What the words ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shape {
    Pod,
    Deployment,
    Job,
    CronJob,
}

struct Spec {
    name: String,
    image: String,
    shape: Shape,
    args: Vec<String>,
    as_command: bool,
    labels: Map<String, Value>,
    annotations: Map<String, Value>,
    env: Vec<Value>,
    port: Option<i64>,
    restart: String,
    pull_policy: String,
    replicas: i64,
    schedule: String,
    privileged: bool,
    stdin: bool,
    tty: bool,
    once: bool,
}

async fn run(cx: &Context) -> Result<()> {
    let spec = read_spec(cx)?;
    cx.command_span.lap(Stage::Check);
    let dry_run = cx.dry_run()?;
    let attach = if cx.flags.changed("attach") { cx.flags.bool("attach") } else { spec.stdin };
    if cx.flags.bool("rm") && !attach {
        return Err(cx.usage("--rm should only be used for attached containers"));
    }
    if attach && dry_run != DryRun::None {
        return Err(cx.usage(
            "--dry-run=[server|client] can't be used with attached containers options (--attach, --stdin, or --tty)",
        ));
    }
    if spec.tty && !spec.stdin {
        return Err(cx.usage("-i/--stdin is required for containers with -t/--tty=true"));
    }
    if cx.flags.bool("expose") && spec.port.is_none() {
        return Err(cx.usage("--port must be set when exposing a service"));
    }
    let mut printer = cx.printer("created", dry_run)?.typed();
    let (mapping, mut object) = build(&spec);
    apply_overrides(cx, &mut object)?;
    cx.command_span.lap(Stage::Generate);
    let object = send(cx, &mapping, object, dry_run).await?;
    if cx.flags.bool("expose") {
        let service = send(cx, &known("v1", "services", "Service", true), build_service(&spec), dry_run).await?;
        cx.print(&printer.print(&service)?)?;
        // Upstream separates the two once more than its printer does.
        if cx.flags.string("output") == "yaml" {
            cx.println("---")?;
        }
    }
    if attach && spec.shape == Shape::Pod {
        return super::exec::run_attached(cx, &object).await;
    }
    cx.print(&printer.print(&object)?)?;
    if cx.flags.bool("trace") && dry_run == DryRun::None {
        show_walk(cx, &mapping.resource, &object).await?;
    }
    Ok(())
}

/// Waits until the walk of an object has come to rest, and prints it.
async fn show_walk(cx: &Context, plural: &str, object: &Value) -> Result<()> {
    cx.flush()?;
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (name, namespace) = (text("/metadata/name"), text("/metadata/namespace"));
    let named = format!("{plural}/{name}");
    let client = cx.client()?;
    let failed = |error: client::Error| Failure::message(error.to_string());
    let mut pieces = client.follow_walk(&named, namespace).await.map_err(failed)?;
    while let Ok(Some(piece)) = tokio::time::timeout(IDLE_TIMEOUT, pieces.next()).await {
        piece.map_err(failed)?;
    }
    let walk = client.walk(&named, namespace).await.map_err(failed)?;
    cx.print(&render(&walk, Detail::Spans))
}

async fn send(cx: &Context, mapping: &Mapping, mut object: Value, dry_run: DryRun) -> Result<Value> {
    let (namespace, explicit) = cx.namespace()?;
    if explicit {
        object["metadata"]["namespace"] = json!(namespace);
    }
    objects::record(cx, &mut object);
    if cx.flags.bool("save-config") {
        let text = objects::as_generated(&object);
        objects::set_annotation(&mut object, objects::LAST_APPLIED, text);
    }
    if dry_run == DryRun::Client {
        return Ok(object);
    }
    objects::create(cx, mapping, &namespace, &object, dry_run, &cx.flags.string("field-manager")).await
}

fn read_spec(cx: &Context) -> Result<Spec> {
    let before = cx.flags.dash.unwrap_or(cx.args().len());
    let named = before > 0;
    let image = cx.flags.string("image");
    if image.is_empty() {
        return Err(Failure::message("required flag(s) \"image\" not set"));
    }
    if !is_reference(&image) {
        return Err(Failure::message(format!("Invalid image name \"{image}\": invalid reference format")));
    }
    let name = if named { cx.args()[0].clone() } else { container_name(&image) };
    let args: Vec<String> = cx.args().get(usize::from(named)..).unwrap_or(&[]).to_vec();
    let restart = cx.flags.string("restart");
    if !["Always", "OnFailure", "Never"].contains(&restart.as_str()) {
        return Err(cx.usage(format!("invalid restart policy: {restart}")));
    }
    let pull_policy = cx.flags.string("image-pull-policy");
    if !["", "Always", "IfNotPresent", "Never"].contains(&pull_policy.as_str()) {
        return Err(cx.usage(format!("invalid image pull policy: {pull_policy}")));
    }
    let schedule = cx.flags.string("schedule");
    let generator = cx.flags.string("generator");
    let older = !named || cx.flags.changed("replicas") || !schedule.is_empty() || !generator.is_empty();
    let shape = match generator.split('/').next().unwrap_or("") {
        "run-pod" => Shape::Pod,
        "deployment" | "run" => Shape::Deployment,
        "job" => Shape::Job,
        "cronjob" => Shape::CronJob,
        "" if !schedule.is_empty() => Shape::CronJob,
        "" if older => match restart.as_str() {
            "OnFailure" => Shape::Job,
            "Never" => Shape::Pod,
            _ => Shape::Deployment,
        },
        "" if cx.flags.changed("restart") && restart == "Always" && cx.flags.bool("expose") => Shape::Deployment,
        "" => Shape::Pod,
        _ => return Err(cx.usage(format!("generator \"{generator}\" not found"))),
    };
    if cx.flags.int("replicas") != 1 && shape != Shape::Deployment {
        return Err(
            cx.usage(format!("--restart={restart} requires that --replicas=1, found {}", cx.flags.int("replicas")))
        );
    }
    let labels = match cx.flags.string("labels") {
        l if !l.is_empty() => pairs(&l)?,
        _ => Map::from_iter([("run".to_owned(), json!(name))]),
    };
    let mut annotations = Map::new();
    for a in cx.flags.list("annotations") {
        let (k, v) = a.split_once('=').ok_or_else(|| Failure::message(format!("invalid annotation: {a}")))?;
        annotations.insert(k.to_owned(), json!(v));
    }
    let mut env = Vec::new();
    for e in cx.flags.list("env") {
        let (k, v) = e
            .split_once('=')
            .filter(|(k, _)| api::validation::env_var_name(k).is_empty())
            .ok_or_else(|| Failure::message(format!("invalid env: {e}")))?;
        env.push(json!({"name": k, "value": v}));
    }
    let port = match cx.flags.string("port") {
        p if p.is_empty() => None,
        p => Some(
            p.parse::<i64>().map_err(|_| Failure::message(format!("strconv.Atoi: parsing \"{p}\": invalid syntax")))?,
        ),
    };
    let stdin = cx.flags.bool("stdin");
    Ok(Spec {
        name,
        image,
        shape,
        args,
        as_command: cx.flags.bool("command"),
        labels,
        annotations,
        env,
        port,
        restart,
        pull_policy,
        replicas: cx.flags.int("replicas"),
        schedule,
        privileged: cx.flags.bool("privileged"),
        stdin,
        tty: cx.flags.bool("tty"),
        once: stdin && !cx.flags.bool("leave-stdin-open"),
    })
}

fn build(spec: &Spec) -> (Mapping, Value) {
    let mut container = json!({"name": spec.name, "image": spec.image, "resources": {}});
    if !spec.args.is_empty() {
        container[if spec.as_command { "command" } else { "args" }] = json!(spec.args);
    }
    if !spec.env.is_empty() {
        container["env"] = json!(spec.env);
    }
    if let Some(port) = spec.port {
        container["ports"] = json!([{"containerPort": port}]);
    }
    if !spec.pull_policy.is_empty() {
        container["imagePullPolicy"] = json!(spec.pull_policy);
    }
    for (set, field) in [(spec.stdin, "stdin"), (spec.once, "stdinOnce"), (spec.tty, "tty")] {
        if set {
            container[field] = json!(true);
        }
    }
    if spec.privileged {
        container["securityContext"] = json!({"privileged": true});
    }
    let mut meta = json!({"name": spec.name, "labels": spec.labels});
    if !spec.annotations.is_empty() {
        meta["annotations"] = json!(spec.annotations);
    }
    let job_restart = if spec.restart == "Always" { "OnFailure" } else { &spec.restart };
    let job_template = json!({"metadata": {"labels": spec.labels},
        "spec": {"containers": [container], "restartPolicy": job_restart}});
    match spec.shape {
        Shape::Pod => (
            known("v1", "pods", "Pod", true),
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta,
                   "spec": {"containers": [container], "dnsPolicy": "ClusterFirst", "restartPolicy": spec.restart},
                   "status": {}}),
        ),
        Shape::Deployment => (
            known("apps/v1", "deployments", "Deployment", true),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta,
                   "spec": {"replicas": spec.replicas, "selector": {"matchLabels": spec.labels}, "strategy": {},
                            "template": {"metadata": {"labels": spec.labels}, "spec": {"containers": [container]}}},
                   "status": {}}),
        ),
        Shape::Job => (
            known("batch/v1", "jobs", "Job", true),
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": meta,
                   "spec": {"template": job_template}, "status": {}}),
        ),
        Shape::CronJob => (
            known("batch/v1", "cronjobs", "CronJob", true),
            json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": meta,
                   "spec": {"concurrencyPolicy": "Allow", "schedule": spec.schedule,
                            "jobTemplate": {"metadata": {}, "spec": {"template": job_template}}},
                   "status": {}}),
        ),
    }
}

fn build_service(spec: &Spec) -> Value {
    let port = spec.port.unwrap_or(0);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": spec.name},
           "spec": {"ports": [{"port": port, "protocol": "TCP", "targetPort": port}], "selector": spec.labels},
           "status": {"loadBalancer": {}}})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Parsed, parse};
    use crate::commands::ROOT;
    use expect_test::expect;

    fn spec(line: &str) -> Result<Spec> {
        let Parsed::Run(flags) = parse(&ROOT, line.split_whitespace().map(str::to_owned).collect())? else {
            return Err(Failure::message("not a command"));
        };
        read_spec(&Context::new(flags, Default::default()))
    }

    #[test]
    fn words_choose_the_shape() {
        for (line, name, shape) in [
            ("run web --image=nginx", "web", Shape::Pod),
            ("run web --image=nginx --port=80 --expose", "web", Shape::Pod),
            ("run --image=nginx --replicas=3 --port=80 --expose", "nginx", Shape::Deployment),
            ("run web --image=nginx --replicas=3", "web", Shape::Deployment),
            ("run web --image=nginx --restart=Always --port=80 --expose", "web", Shape::Deployment),
            ("run --image=reg.io/a/b:1", "b", Shape::Deployment),
            ("run --image=perl --restart=OnFailure", "perl", Shape::Job),
            ("run x --image=perl --restart=OnFailure", "x", Shape::Pod),
            ("run --image=perl --restart=Never", "perl", Shape::Pod),
            ("run x --image=perl --schedule=@daily", "x", Shape::CronJob),
            ("run x --image=perl --generator=job/v1", "x", Shape::Job),
        ] {
            let s = spec(line).unwrap();
            assert_eq!((s.name.as_str(), s.shape), (name, shape), "{line}");
        }
        for (line, expected) in [
            ("run x", "error: required flag(s) \"image\" not set"),
            ("run x --image=UP/CASE", "error: Invalid image name \"UP/CASE\": invalid reference format"),
            (
                "run x --image=a --restart=Sometimes",
                "error: invalid restart policy: Sometimes\nSee 'kubectl run -h' for help and examples",
            ),
        ] {
            assert_eq!(spec(line).err().map(|e| e.to_string()).as_deref(), Some(expected), "{line}");
        }
    }

    #[test]
    fn a_deployment_with_a_service_golden() {
        let s = spec("run --image=nginx --replicas=3 --port=80 --expose").unwrap();
        expect![[r#"
            apiVersion: apps/v1
            kind: Deployment
            metadata:
              labels:
                run: nginx
              name: nginx
            spec:
              replicas: 3
              selector:
                matchLabels:
                  run: nginx
              strategy: {}
              template:
                metadata:
                  labels:
                    run: nginx
                spec:
                  containers:
                  - image: nginx
                    name: nginx
                    ports:
                    - containerPort: 80
                    resources: {}
            status: {}
        "#]]
        .assert_eq(&api::yaml::to_string(&build(&s).1));
        expect![[r#"
            apiVersion: v1
            kind: Service
            metadata:
              name: nginx
            spec:
              ports:
              - port: 80
                protocol: TCP
                targetPort: 80
              selector:
                run: nginx
            status:
              loadBalancer: {}
        "#]]
        .assert_eq(&api::yaml::to_string(&build_service(&s)));
    }
}
