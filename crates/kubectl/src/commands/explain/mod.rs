//! `kubectl explain`: fields of a type, from the server's OpenAPI documents.
//!
//! `plaintext` reads the v3 document of one group and version, `plaintext-openapiv2` the one v2 document of the server.

mod v2;
mod v3;

use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::request::Request;

pub(crate) const COMMAND: Command = Command {
    name: "explain",
    usage: "TYPE [--recursive=FALSE|TRUE] [--api-version=api-version-group] [-o|--output=plaintext|plaintext-openapiv2]",
    about: "Get documentation for a resource",
    examples: "  kubectl explain pods\n  kubectl explain pods.spec.containers",
    flags: &[&[
        Flag::bool("recursive", "All fields below, without descriptions.").short('R'),
        Flag::string("api-version", "group/version to explain."),
        Flag::string("output", "plaintext or plaintext-openapiv2.").default("plaintext").short('o'),
    ]],
    words: Words::Types,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

/// What is asked about, once its words are understood.
struct Subject<'a> {
    group: &'a str,
    version: &'a str,
    kind: &'a str,
    /// The way to a field; none for the type itself.
    fields: Vec<&'a str>,
    recursive: bool,
}

async fn run(cx: &Context) -> Result<()> {
    let [word] = cx.args() else {
        return Err(Failure::message(if cx.args().is_empty() {
            "You must specify the type of resource to explain. Use \"kubectl api-resources\" for a complete list of supported resources."
        } else {
            "We accept only this format: explain RESOURCE"
        }));
    };
    let mut parts = word.split('.');
    let resource = parts.next().unwrap_or("");
    let mut fields: Vec<&str> = parts.filter(|p| !p.is_empty()).collect();
    let discovery = cx.discovery()?;
    let mapping = match discovery.resolve(cx, word).await {
        // The whole word may be a type with its group.
        Ok(m) => {
            fields.clear();
            m
        }
        Err(_) => discovery.resolve(cx, resource).await.map_err(Failure::without_prefix)?,
    };
    let api_version = match cx.flags.string("api-version") {
        v if v.is_empty() => mapping.api_version(),
        v => v,
    };
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let subject = Subject { group, version, kind: &mapping.kind, fields, recursive: cx.flags.bool("recursive") };
    match cx.flags.string("output").as_str() {
        "plaintext-openapiv2" => {
            let document = Request::get("/openapi/v2").value(cx).await?;
            cx.print(&v2::explain(&document, &subject)?)
        }
        format => {
            let place = if group.is_empty() { "api".to_owned() } else { format!("apis/{group}") };
            let document = Request::get(format!("/openapi/v3/{place}/{version}")).value(cx).await.map_err(|e| {
                let text = format!("{group}/{version}, Resource={}", mapping.resource);
                if e.is_not_found() { Failure::message(format!("couldn't find resource for \"{text}\"")) } else { e }
            })?;
            if format != "plaintext" {
                return Err(Failure::message(format!("unrecognized format: {format}")));
            }
            let (text, missing) = v3::explain(&document, &subject);
            cx.print(&text)?;
            missing.map_or(Ok(()), Err)
        }
    }
}
