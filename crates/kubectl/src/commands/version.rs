//! `kubectl version`

use serde_json::{Value, json};

use crate::cli::{Command, Flag};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::printers::go_order::Typed;
use crate::printers::json as json_text;
use crate::request::Request;

pub(crate) const COMMAND: Command = Command {
    name: "version",
    usage: "[flags]",
    about: "Print the client and server version information",
    examples: "  kubectl version\n  kubectl version --client -o json",
    flags: &[&[
        Flag::bool("client", "Only the client's version; no server is asked."),
        Flag::string("output", "yaml or json.").short('o'),
    ]],
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

pub(crate) fn client_version() -> Value {
    let version = crate::VERSION;
    let mut numbers = version.trim_start_matches('v').split('.');
    json!({
        "major": numbers.next().unwrap_or(""), "minor": numbers.next().unwrap_or(""), "gitVersion": version,
        "gitCommit": "", "gitTreeState": "clean", "buildDate": "", "goVersion": "", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, crate::go_arch()),
    })
}

async fn run(cx: &Context) -> Result<()> {
    if !cx.args().is_empty() {
        return Err(Failure::message(format!("extra arguments: [{}]", cx.args().join(" "))));
    }
    let output = cx.flags.string("output");
    if !["", "yaml", "json"].contains(&output.as_str()) {
        return Err(Failure::message("--output must be 'yaml' or 'json'"));
    }
    let mut info = json!({"clientVersion": client_version(), "kustomizeVersion": "v5.8.1"});
    let mut failure = None;
    if !cx.flags.bool("client") {
        match Request::get("/version").value(cx).await {
            Ok(server) => info["serverVersion"] = server,
            Err(e) => failure = Some(e),
        }
    }
    match output.as_str() {
        "json" => cx.print(&(json_text::two_spaces(&Typed::of("Versions", &info)) + "\n"))?,
        "yaml" => cx.println(api::yaml::to_string(&info))?,
        _ => {
            cx.println(format!("Client Version: {}", crate::VERSION))?;
            cx.println("Kustomize Version: v5.8.1")?;
            if let Some(server) = info["serverVersion"]["gitVersion"].as_str() {
                cx.println(format!("Server Version: {server}"))?;
            }
        }
    }
    if let Some(warning) = info.get("serverVersion").and_then(skew) {
        cx.eprintln(warning);
    }
    failure.map_or(Ok(()), Err)
}

/// `--match-server-version`: refuses to work with a server of another version.
pub(crate) async fn require_same(cx: &Context) -> Result<()> {
    let server = Request::get("/version").value(cx).await?;
    let theirs = server["gitVersion"].as_str().unwrap_or("");
    if theirs == crate::VERSION {
        return Ok(());
    }
    Err(Failure::message(format!("server version ({theirs}) differs from client version ({})!", crate::VERSION)))
}

fn skew(server: &Value) -> Option<String> {
    let minor = |v: &Value| -> Option<i64> {
        v["minor"].as_str()?.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok()
    };
    let client = client_version();
    let (ours, theirs) = (minor(&client)?, minor(server)?);
    (client["major"] != server["major"] || (ours - theirs).abs() > 1).then(|| {
        format!(
            "Warning: version difference between client ({}.{ours}) and server ({}.{theirs}) exceeds the supported minor version skew of +/-1",
            client["major"].as_str().unwrap_or(""),
            server["major"].as_str().unwrap_or("")
        )
    })
}
