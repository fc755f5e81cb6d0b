//! `kubectl describe`

use super::flags;
use crate::cli::{Command, Flag, Words};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::resources::{self, Options};

pub(crate) const COMMAND: Command = Command {
    name: "describe",
    usage: "(-f FILENAME | TYPE [NAME_PREFIX | -l label] | TYPE/NAME)",
    about: "Show details of a specific resource or group of resources",
    examples: "  kubectl describe pod web\n  kubectl describe nodes\n  kubectl describe pods -l app=web",
    flags: &[
        flags::FILENAME,
        flags::SELECTOR,
        flags::ALL_NAMESPACES,
        flags::CHUNK_SIZE,
        &[Flag::bool("show-events", "Also list the object's events.").default("true")],
    ],
    words: Words::Objects,
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    let options = Options {
        types_alone: true,
        latest: true,
        missing: Some(Failure::message(
            "You must specify the type of resource to describe. Use \"kubectl api-resources\" for a complete list of supported resources.\n",
        )),
        ..Options::default()
    };
    let (mut infos, mut failures) = resources::infos(cx, &options).await?;
    let mut by_prefix = false;
    // A name that is not found may be the beginning of several.
    if infos.is_empty()
        && cx.args().len() == 2
        && failures.len() == 1
        && failures[0].is_not_found()
        && !cx.args()[0].contains('/')
    {
        let words = Options { args: Some(vec![cx.args()[0].clone()]), ..options };
        let (all, _) = resources::infos(cx, &words).await?;
        infos = all.into_iter().filter(|i| i.name.starts_with(&cx.args()[1])).collect();
        if !infos.is_empty() {
            failures.clear();
            by_prefix = true;
        }
    }
    for (i, info) in infos.iter().enumerate() {
        if i > 0 && !by_prefix {
            cx.print("\n\n")?;
        }
        // Of several objects only the objects, unless events are asked for.
        let events =
            cx.flags.bool("show-events") && ((infos.len() == 1 && !by_prefix) || cx.flags.changed("show-events"));
        let text = crate::describe::describe(cx, info, events).await?;
        cx.print(&text)?;
        if by_prefix {
            cx.print("\n")?;
        }
    }
    if infos.is_empty() && failures.is_empty() {
        if cx.flags.bool("all-namespaces") {
            cx.eprintln("No resources found");
        } else {
            cx.eprintln(format!("No resources found in {} namespace.", cx.namespace()?.0));
        }
    }
    Failure::all(failures)
}
