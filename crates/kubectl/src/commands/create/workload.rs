//! `create deployment`, `create job`, `create cronjob`

use rand::Rng;
use serde_json::{Value, json};

use super::{GENERATOR, command_words, finish, known, name_argument, require};
use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::Request;

pub(super) const DEPLOYMENT: Command = Command {
    name: "deployment",
    aliases: &["deploy"],
    usage: "NAME --image=image -- [COMMAND] [args...]",
    about: "Create a deployment with the specified name",
    examples: "  kubectl create deployment web --image=nginx --replicas=3 --port=80\n  kubectl create deployment date --image=busybox -- date",
    flags: &[
        GENERATOR,
        &[
            Flag::slice("image", "Image names to run."),
            Flag::int("port", "-1", "Port that the container exposes."),
            Flag::int("replicas", "1", "Number of replicas.").short('r'),
        ],
    ],
    run: Some(|cx| Box::pin(deployment(cx))),
    ..Command::EMPTY
};

pub(super) const JOB: Command = Command {
    name: "job",
    usage: "NAME --image=image [--from=cronjob/name] -- [COMMAND] [args...]",
    about: "Create a job with the specified name",
    examples: "  kubectl create job pi --image=perl -- perl -Mbignum=bpi -wle 'print bpi(100)'\n  kubectl create job once --from=cronjob/nightly",
    flags: &[
        GENERATOR,
        &[
            Flag::string("image", "Image name to run."),
            Flag::string("from", "The object to create the job from (only cronjob)."),
        ],
    ],
    run: Some(|cx| Box::pin(job(cx))),
    ..Command::EMPTY
};

pub(super) const CRON_JOB: Command = Command {
    name: "cronjob",
    aliases: &["cj"],
    usage: "NAME --image=image --schedule='0/5 * * * ?' -- [COMMAND] [args...] [flags]",
    about: "Create a cron job with the specified name",
    examples: "  kubectl create cronjob date --image=busybox --schedule=\"*/1 * * * *\" -- date",
    flags: &[
        GENERATOR,
        &[
            Flag::string("image", "Image name to run."),
            Flag::string("schedule", "When to run, in cron's format."),
            Flag::string("restart", "Restart policy of the job's pods: OnFailure or Never."),
        ],
    ],
    run: Some(|cx| Box::pin(cron_job(cx))),
    ..Command::EMPTY
};

async fn deployment(cx: &Context) -> Result<()> {
    require(cx, &["image"])?;
    let name = name_argument(cx)?;
    let images = cx.flags.list("image");
    let command = command_words(cx);
    if images.len() > 1 && !command.is_empty() {
        return Err(Failure::message("cannot specify multiple --image options and command"));
    }
    let port = Some(cx.flags.int("port")).filter(|p| *p >= 0);
    let object = build_deployment(&name, &images, &command, port, cx.flags.int("replicas"));
    let mapping = known("apps/v1", "deployments", "Deployment", true);
    finish(cx, &mapping, object, "failed to create deployment:").await
}

fn build_deployment(name: &str, images: &[String], command: &[String], port: Option<i64>, replicas: i64) -> Value {
    let mut names: Vec<String> = Vec::new();
    let containers: Vec<Value> = images
        .iter()
        .map(|image| {
            let mut container_name = container_name(image);
            if names.contains(&container_name) {
                container_name = format!("{container_name}-{}", suffix());
            }
            names.push(container_name.clone());
            let mut c = json!({"name": container_name, "image": image, "resources": {}});
            if !command.is_empty() {
                c["command"] = json!(command);
            }
            // The port is the first container's.
            if let Some(port) = port.filter(|_| names.len() == 1) {
                c["ports"] = json!([{"containerPort": port}]);
            }
            c
        })
        .collect();
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": containers}},
            "strategy": {},
        },
        "status": {},
    })
}

async fn job(cx: &Context) -> Result<()> {
    let name = name_argument(cx)?;
    let (image, from) = (cx.flags.string("image"), cx.flags.string("from"));
    let command = command_words(cx);
    if image.is_empty() == from.is_empty() {
        return Err(Failure::message("either --image or --from must be specified"));
    }
    if !command.is_empty() && !from.is_empty() {
        return Err(Failure::message("cannot specify --from and command"));
    }
    let object = if image.is_empty() { job_from(cx, &name, &from).await? } else { build_job(&name, &image, &command) };
    finish(cx, &known("batch/v1", "jobs", "Job", true), object, "failed to create job:").await
}

fn build_job(name: &str, image: &str, command: &[String]) -> Value {
    let mut container = json!({"name": name, "image": image, "resources": {}});
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"template": {"metadata": {}, "spec": {"containers": [container], "restartPolicy": "Never"}}},
        "status": {},
    })
}

async fn job_from(cx: &Context, name: &str, from: &str) -> Result<Value> {
    let Some((kind, source)) = from.split_once('/') else {
        return Err(Failure::message("from must be an existing cronjob"));
    };
    let mapping = cx.discovery()?.resolve(cx, kind).await?;
    if mapping.kind != "CronJob" {
        return Err(Failure::message("from must be an existing cronjob"));
    }
    let (namespace, _) = cx.namespace()?;
    let cron = Request::get(mapping.object_path(&namespace, source)).value(cx).await?;
    let template = &cron["spec"]["jobTemplate"];
    let mut annotations = template["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.insert("cronjob.kubernetes.io/instantiate".to_owned(), json!("manual"));
    let mut object = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": name, "annotations": annotations, "ownerReferences": [{
            "apiVersion": "batch/v1", "kind": "CronJob", "name": cron["metadata"]["name"], "uid": cron["metadata"]["uid"],
            "controller": true}]},
        "spec": template["spec"], "status": {},
    });
    if template["metadata"]["labels"].is_object() {
        object["metadata"]["labels"] = template["metadata"]["labels"].clone();
    }
    Ok(object)
}

async fn cron_job(cx: &Context) -> Result<()> {
    require(cx, &["image", "schedule"])?;
    let name = name_argument(cx)?;
    let restart = match cx.flags.string("restart") {
        r if r.is_empty() => "OnFailure".to_owned(),
        r => r,
    };
    let mut spec = build_job(&name, &cx.flags.string("image"), &command_words(cx))["spec"].take();
    spec["template"]["spec"]["restartPolicy"] = json!(restart);
    let object = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": name},
        "spec": {"schedule": cx.flags.string("schedule"), "jobTemplate": {"metadata": {"name": name}, "spec": spec}},
        "status": {},
    });
    finish(cx, &known("batch/v1", "cronjobs", "CronJob", true), object, "failed to create cronjob:").await
}

/// `registry/team/nginx:1.2@sha256:…` -> `nginx`
pub(crate) fn container_name(image: &str) -> String {
    let base = image.rsplit('/').next().unwrap_or(image);
    let base = base.split([':', '@']).next().unwrap_or(base);
    // Names take letters, digits and dashes only.
    base.to_lowercase().chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

fn suffix() -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut rng = rand::rng();
    (0..5).map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())])).collect()
}

/// `80:8080` -> port, target port (number or name).
pub(crate) fn parse_ports(text: &str) -> Result<(i64, Value)> {
    let (port_text, target_text) = text.split_once(':').unwrap_or((text, text));
    let port: i64 = port_text
        .parse()
        .map_err(|_| Failure::message(format!("strconv.Atoi: parsing \"{port_text}\": invalid syntax")))?;
    if let Some(problem) = api::validation::port_number(port).first() {
        return Err(Failure::message(problem.clone()));
    }
    let target = match target_text.parse::<i64>() {
        Ok(n) => match api::validation::port_number(n).first() {
            Some(problem) => return Err(Failure::message(problem.clone())),
            None => json!(n),
        },
        Err(_) => match api::validation::port_name(target_text).as_slice() {
            [] => json!(target_text),
            problems => return Err(Failure::message(problems.join(","))),
        },
    };
    Ok((port, target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn deployment_golden() {
        let object = build_deployment("web", &["nginx:1.2".to_owned()], &["sh".to_owned()], Some(80), 3);
        expect![[r#"
            apiVersion: apps/v1
            kind: Deployment
            metadata:
              labels:
                app: web
              name: web
            spec:
              replicas: 3
              selector:
                matchLabels:
                  app: web
              strategy: {}
              template:
                metadata:
                  labels:
                    app: web
                spec:
                  containers:
                  - command:
                    - sh
                    image: nginx:1.2
                    name: nginx
                    ports:
                    - containerPort: 80
                    resources: {}
            status: {}
        "#]]
        .assert_eq(&api::yaml::to_string(&object));
    }

    #[test]
    fn job_golden() {
        expect![[r#"
            apiVersion: batch/v1
            kind: Job
            metadata:
              name: pi
            spec:
              template:
                metadata: {}
                spec:
                  containers:
                  - image: perl
                    name: pi
                    resources: {}
                  restartPolicy: Never
            status: {}
        "#]]
        .assert_eq(&api::yaml::to_string(&build_job("pi", "perl", &[])));
    }

    #[test]
    fn container_names_come_from_images() {
        for (image, expected) in [
            ("nginx", "nginx"),
            ("nginx:1.2", "nginx"),
            ("reg.io:5000/team/My_App:v1@sha256:abc", "myapp"),
            ("a/b/c-d", "c-d"),
        ] {
            assert_eq!(container_name(image), expected);
        }
    }

    #[test]
    fn ports_parse() {
        assert_eq!(parse_ports("80").unwrap(), (80, json!(80)));
        assert_eq!(parse_ports("80:8080").unwrap(), (80, json!(8080)));
        assert_eq!(parse_ports("80:http").unwrap(), (80, json!("http")));
        assert!(parse_ports("x").is_err() && parse_ports("0").is_err() && parse_ports("80:65536").is_err());
    }
}
