//! `kubectl certificate approve|deny`

use serde_json::json;

use super::create::known;
use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::request::Request;

pub(crate) const COMMAND: Command = Command {
    name: "certificate",
    about: "Modify certificate resources",
    subcommands: &[&APPROVE, &DENY],
    ..Command::EMPTY
};
const FORCE: &[Flag] = &[Flag::bool("force", "Say it again although it was said.")];
const APPROVE: Command = Command {
    name: "approve",
    usage: "(-f FILENAME | NAME)",
    about: "Approve a certificate signing request",
    flags: &[flags::OUTPUT, flags::FILENAME, FORCE],
    words: Words::Named("certificatesigningrequests"),
    run: Some(|cx| Box::pin(decide(cx, "Approved", "Denied", "approved"))),
    ..Command::EMPTY
};
const DENY: Command = Command {
    name: "deny",
    usage: "(-f FILENAME | NAME)",
    about: "Deny a certificate signing request",
    flags: &[flags::OUTPUT, flags::FILENAME, FORCE],
    words: Words::Named("certificatesigningrequests"),
    run: Some(|cx| Box::pin(decide(cx, "Denied", "Approved", "denied"))),
    ..Command::EMPTY
};

async fn decide(cx: &Context, condition: &str, opposite: &str, done: &str) -> Result<()> {
    let mut names = cx.args().to_vec();
    for manifest in crate::files::read_manifests(cx).await? {
        names.push(text(&manifest.object, "/metadata/name").to_owned());
    }
    if names.is_empty() {
        return Err(Failure::message("one or more CSRs must be specified as <name> or -f <filename>"));
    }
    let mut printer = cx.printer(done, crate::context::DryRun::None)?;
    let mapping = known("certificates.k8s.io/v1", "certificatesigningrequests", "CertificateSigningRequest", false);
    for name in &names {
        let path = mapping.object_path("", name.trim_start_matches("csr/"));
        let mut csr = Request::get(path.clone()).value(cx).await?;
        let mut conditions = csr["status"]["conditions"].as_array().cloned().unwrap_or_default();
        if conditions.iter().any(|c| c["type"] == opposite) {
            return Err(Failure::message(format!("certificate signing request \"{name}\" is already {opposite}")));
        }
        if !conditions.iter().any(|c| c["type"] == condition) || cx.flags.bool("force") {
            conditions.retain(|c| c["type"] != condition);
            let now = api::time::rfc3339(jiff::Timestamp::now());
            conditions.push(json!({"type": condition, "status": "True", "reason": format!("Kubectl{}", if condition == "Approved" { "Approve" } else { "Deny" }),
                "message": format!("This CSR was {} by kubectl certificate {}.", done, if condition == "Approved" { "approve" } else { "deny" }), "lastUpdateTime": now}));
            csr["status"]["conditions"] = json!(conditions);
            csr = Request::put(format!("{path}/approval"), &csr).value(cx).await?;
        }
        cx.print(&printer.print(&csr)?)?;
    }
    Ok(())
}
