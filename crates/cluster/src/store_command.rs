//! `cox store`: what `store` does with its directory, and what needs the keys of a cluster besides.

use anyhow::Result;
use futures_util::future::BoxFuture;

use crate::options::Options;
use crate::shape::Flags;

/// Check, repair, back up, restore and move an embedded store, and rotate its keys
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "store")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Command {
    #[command(flatten)]
    Store(store::cli::Command),
    /// Move the objects of the cluster on this machine to etcd, or back; the cluster is stopped meanwhile, containers keep running
    Move(crate::store_move::Args),
    /// List the backups that 'cox up' has put into an S3 bucket, or fetch one
    Fetch(crate::backups::FetchArgs),
    /// Encrypt everything with a new key and forget the old ones; the cluster may be running
    RotateKeys(Options),
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    match args.command {
        Command::Store(command) => store::cli::main(command),
        Command::Move(args) => Box::pin(crate::store_move::run(args)),
        Command::Fetch(args) => Box::pin(async move {
            let remembered = Flags::remembered(&args.options)?.backups.s3;
            crate::backups::fetch(args, remembered).await
        }),
        Command::RotateKeys(options) => Box::pin(async move {
            println!("{}", crate::key_rotation::rotate(&options).await?);
            Ok(())
        }),
    }
}
