//! `cox trace`: the walk of an object, stage by stage, as the API server recorded it.

use std::io::Write;

use anyhow::Result;
use futures_util::future::BoxFuture;
use trace::Walk;
use trace::otlp::Export;
use trace::text::{Detail, line, render};

use crate::connection::Target;

/// Show what the cluster did for an object, step by step
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  cox trace deploy/nginx\n  cox trace pod/nginx-5d9c -f\n  cox trace deploy/nginx -o json\n\n  # To a collector of OpenTelemetry\n  cox trace deploy/nginx -o otlp | curl -H 'Content-Type: application/json' -d @- http://localhost:4318/v1/traces"
)]
pub struct Args {
    /// KIND/NAME, such as deploy/nginx
    object: String,
    #[command(flatten)]
    target: Target,
    /// Keep following the walk
    #[arg(short, long)]
    follow: bool,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Show every filter and plug-in on its own line
    #[arg(short, long)]
    all: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Text,
    Json,
    /// An export request of OpenTelemetry, in JSON
    Otlp,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(show(args))
}

async fn show(args: Args) -> Result<()> {
    let client = args.target.connect()?;
    let namespace = client.default_namespace().to_owned();
    if !args.follow {
        return print(&client.walk(&args.object, &namespace).await?, args.output, args.all);
    }
    let mut pieces = client.follow_walk(&args.object, &namespace).await?;
    let mut export = Export::default();
    loop {
        let piece = tokio::select! {
            piece = pieces.next() => piece,
            _ = tokio::signal::ctrl_c() => return Ok(()),
        };
        match piece {
            Some(piece) => print_piece(&piece?, args.output, args.all, &mut export)?,
            None => return Ok(()),
        }
    }
}

fn print(walk: &Walk, output: Output, all: bool) -> Result<()> {
    let text = match output {
        Output::Json => serde_json::to_string_pretty(walk)? + "\n",
        Output::Otlp => Export::default().request(walk).to_string() + "\n",
        Output::Text => render(walk, if all { Detail::Steps } else { Detail::Spans }),
    };
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

/// What is new: as lines in the order of time, because the tree is not yet known; or as JSON, a walk or a request a line.
fn print_piece(piece: &Walk, output: Output, all: bool, export: &mut Export) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        Output::Json => writeln!(out, "{}", serde_json::to_string(piece)?)?,
        Output::Otlp => writeln!(out, "{}", export.request(piece))?,
        Output::Text => {
            for step in piece.spans.iter().filter(|step| all || !step.inner) {
                out.write_all(line(step).as_bytes())?;
            }
        }
    }
    Ok(out.flush()?)
}
