//! `cox image`: images of this node, with or without a running runtime beside it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use futures_util::future::BoxFuture;

use crate::image::{self, Credentials, ImageStore, Mirrors, Reference, archive};
use crate::record;

/// Flags of `cox image`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory for images and containers
    #[arg(long, default_value = "/var/lib/cox/runtime", value_name = "DIR", global = true)]
    pub root: PathBuf,
    /// Mirrors and credentials of registries, in k3s' format
    #[arg(long, default_value = "/etc/cox/registries.yaml", value_name = "FILE", global = true)]
    pub registries: PathBuf,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Pull images from their registries
    Pull {
        #[arg(required = true)]
        images: Vec<String>,
        /// User and password as USER:PASSWORD
        #[arg(long, value_name = "USER:PASSWORD")]
        creds: Option<String>,
    },
    /// Import images from docker or OCI archives
    Import {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Export images into an archive
    Export {
        /// Archive to write
        #[arg(long, short, value_name = "FILE")]
        output: PathBuf,
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// List images
    #[command(visible_alias = "ls")]
    List,
    /// Remove images
    Rm {
        #[arg(required = true)]
        images: Vec<String>,
    },
    /// Give an image another name
    Tag { image: String, name: String },
}

pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let store = Arc::new(ImageStore::open(&args.root)?);
    let find = |name: &str| store.get(name).with_context(|| format!("image {name:?} not found"));
    match args.command {
        Command::Pull { images, creds } => {
            let mirrors = Mirrors::load(Some(&args.registries), None)?;
            let credentials = match creds.as_deref().map(|c| c.split_once(':')) {
                Some(Some((username, password))) => {
                    Some(Credentials::Basic { username: username.into(), password: password.into() })
                }
                Some(None) => bail!("--creds must be USER:PASSWORD"),
                None => None,
            };
            for name in images {
                let image = image::pull(&store, &mirrors, &name, credentials.clone())
                    .await
                    .with_context(|| format!("failed to pull image {name:?}"))?;
                println!("{}", image.reference());
            }
        }
        Command::Import { files } => {
            for file in files {
                for image in archive::import(&store, &file, false).await? {
                    println!("{}", image.tags.first().unwrap_or(&image.id));
                }
            }
        }
        Command::Export { output, images } => {
            let images = images.iter().map(|name| find(name)).collect::<anyhow::Result<Vec<_>>>()?;
            archive::export(&store, &images, &output)?;
        }
        Command::List => print!("{}", table(&store)),
        Command::Rm { images } => {
            for name in images {
                if !store.untag(&name, &|| used_layers(&args.root))? {
                    bail!("image {name:?} not found");
                }
            }
        }
        Command::Tag { image, name } => {
            let reference: Reference = name.parse().with_context(|| format!("invalid image name {name:?}"))?;
            let tag = reference.tagged().context("a digest cannot be given as a name")?;
            let mut image = image::store::Image::clone(&*find(&image)?);
            image.tags.push(tag);
            store.put(image)?;
        }
    }
    Ok(())
}

fn table(store: &ImageStore) -> String {
    let mut rows = vec![["IMAGE".to_string(), "TAG".into(), "IMAGE ID".into(), "SIZE".into()]];
    for image in store.list() {
        let id = image.id.trim_start_matches("sha256:").chars().take(13).collect::<String>();
        let size = match image.size {
            n if n >= 1_000_000 => format!("{:.1}MB", n as f64 / 1e6),
            n => format!("{:.1}kB", n as f64 / 1e3),
        };
        let names = image.tags.iter().map(|t| t.rsplit_once(':').unwrap_or((t, ""))).collect::<Vec<_>>();
        for (name, tag) in if names.is_empty() { vec![("<none>", "<none>")] } else { names } {
            rows.push([name.into(), tag.into(), id.clone(), size.clone()]);
        }
    }
    let widths: Vec<usize> = (0..4).map(|i| rows.iter().map(|r| r[i].len()).max().unwrap_or(0)).collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            format!("{}\n", cells.collect::<Vec<_>>().join("   ").trim_end())
        })
        .collect()
}

/// Layers that containers of this node stand on.
fn used_layers(root: &std::path::Path) -> std::io::Result<std::collections::HashSet<String>> {
    let containers = match std::fs::read_dir(root.join("containers")) {
        // No runtime has worked here yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        entries => entries?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?,
    };
    record::used_layers(containers.iter().map(std::path::PathBuf::as_path))
}
