//! `kubectl options`

use crate::cli::Command;
use crate::context::Context;
use crate::failure::Result;

pub(crate) const COMMAND: Command = Command {
    name: "options",
    about: "Print the list of flags inherited by all commands",
    run: Some(|cx| Box::pin(run(cx))),
    ..Command::EMPTY
};

async fn run(cx: &Context) -> Result<()> {
    cx.print(&crate::cli::global_options())
}
