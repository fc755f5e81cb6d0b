//! `cox token`: the tokens with which machines join this cluster.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, DeleteParams, Informer, ListParams};
use controllers::jws;
use futures_util::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::discovery::first_cluster;
use super::enrolment;
use super::server_keys::{self, SERVERS_GROUP};
use super::token::{self, DEFAULT_GROUP, NAMESPACE, Purpose, SECRET_TYPE, Token, parse_lifetime};
use crate::ca_hash::CaHash;
use crate::connection::connect;
use crate::options::Options;

/// How long the signer may take to sign for a new token.
const SIGNER_TIMEOUT: Duration = Duration::from_secs(60);

/// Manage the tokens that let machines join this cluster
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// Create a token and print it
    Create(Create),
    /// List the tokens
    #[command(alias = "ls")]
    List(Access),
    /// Delete tokens, so that nobody can join with them
    #[command(alias = "rm")]
    Delete(Delete),
    /// Print a random token and do nothing else
    Generate,
}

/// The cluster that is meant.
#[derive(Debug, Clone, clap::Args)]
struct Access {
    #[command(flatten)]
    options: Options,
    /// Kubeconfig of an administrator (default: that of the cluster on this machine)
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, clap::Args)]
struct Create {
    #[command(flatten)]
    access: Access,
    /// The token (default: a random one)
    token: Option<String>,
    /// For a machine that becomes a server: offers it the server keys, once
    #[arg(long, conflicts_with_all = ["groups", "usages"])]
    server: bool,
    /// How long it is valid; 0 for ever (default: 24h0m0s, for a server 2h0m0s)
    #[arg(long)]
    ttl: Option<String>,
    /// What it may be used for
    #[arg(long, value_delimiter = ',', default_value = "signing,authentication")]
    usages: Vec<String>,
    /// Groups of whoever authenticates with it
    #[arg(long, value_delimiter = ',', default_value = DEFAULT_GROUP)]
    groups: Vec<String>,
    /// Description for people
    #[arg(long)]
    description: Option<String>,
    /// Print the whole command that joins a machine
    #[arg(long)]
    print_join_command: bool,
}

#[derive(Debug, Clone, clap::Args)]
struct Delete {
    #[command(flatten)]
    access: Access,
    /// Tokens, or token ids (the part before the dot)
    #[arg(required = true)]
    tokens: Vec<String>,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(carry_out(args.command))
}

async fn carry_out(command: Command) -> Result<()> {
    match command {
        Command::Create(args) => create(args).await,
        Command::List(access) => list(&access.client()?).await,
        Command::Delete(args) => delete(&args.access.client()?, &args.tokens).await,
        Command::Generate => {
            println!("{}", Token::generate());
            Ok(())
        }
    }
}

/// `cox server add`: a token with the keys of servers, and the line to type on the new machine.
pub(crate) async fn offer_to_server(options: Options) -> Result<()> {
    create(Create {
        access: Access { options, kubeconfig: None },
        token: None,
        server: true,
        ttl: None,
        usages: vec!["signing".to_owned(), "authentication".to_owned()],
        groups: vec![DEFAULT_GROUP.to_owned()],
        description: None,
        print_join_command: true,
    })
    .await
}

impl Access {
    fn client(&self) -> Result<Client> {
        connect(self.kubeconfig.as_ref().unwrap_or(&self.options.admin_kubeconfig()))
    }
}

async fn create(args: Create) -> Result<()> {
    let usual = if args.server { "2h0m0s" } else { "24h0m0s" };
    let ttl = args.ttl.as_deref().unwrap_or(usual);
    let lifetime = parse_lifetime(ttl).map_err(|error| anyhow::anyhow!("--ttl={ttl}: {error}"))?;
    if args.server && lifetime.is_none() {
        bail!("--ttl=0: what is offered to servers is not offered for ever");
    }
    if let Some(unknown) = args.usages.iter().find(|usage| !["signing", "authentication"].contains(&usage.as_str())) {
        bail!("--usages={unknown}: a token is for signing or authentication");
    }
    if let Some(other) = args.groups.iter().find(|group| !group.starts_with("system:bootstrappers:")) {
        bail!("--groups={other}: groups of tokens begin with system:bootstrappers:");
    }
    let token = match &args.token {
        Some(text) => text.parse()?,
        None => Token::generate(),
    };
    let purpose = Purpose {
        usages: args.usages,
        groups: if args.server { vec![SERVERS_GROUP.to_owned()] } else { args.groups },
        description: args.description,
        expires: lifetime.map(|lifetime| Timestamp::now() + lifetime),
    };
    let client = args.access.client()?;
    let made = client.namespaced::<Secret>(NAMESPACE).create(&token::to_secret(&token, &purpose)).await;
    let made = made.context("making the token")?;
    let key = match args.server {
        true => match server_keys::offer(&client, &args.access.options, &token, &made).await {
            Ok(key) => Some(key),
            Err(error) => {
                // A token with nothing behind it is of no use to anybody.
                let secrets = client.namespaced::<Secret>(NAMESPACE);
                drop(secrets.delete(&Token::secret_name(&token.id), &DeleteParams::default()).await);
                return Err(error);
            }
        },
        false => None,
    };
    let is_signed = purpose.usages.iter().any(|usage| usage == "signing");
    let info = match is_signed {
        // Whoever is given the token may use it at once.
        true => Some(signed_info(&client, &token).await?),
        false => None,
    };
    match (args.print_join_command, info, key) {
        (true, Some(info), None) => println!("{}", join_command(&info, &token)?),
        // Of no use without its key, which is nowhere else.
        (_, Some(info), Some(key)) => println!("{} --server --key {key}", join_command(&info, &token)?),
        (true, None, _) => bail!("nobody can join with a token that is not for signing"),
        (false, _, _) => println!("{token}"),
    }
    Ok(())
}

/// Waits until `cluster-info` is signed with the token; returns its kubeconfig.
async fn signed_info(client: &Client, token: &Token) -> Result<String> {
    let named = ListParams::fields(format!("metadata.name={}", enrolment::INFO_NAME));
    let infos: Informer<ConfigMap> = Informer::new(client.namespaced(enrolment::INFO_NAMESPACE), named);
    let (sender, mut seen) = watch::channel(None);
    let key = format!("{}{}", jws::PREFIX, token.id);
    infos.subscribe(move |event| {
        let data = event.object().data.as_ref();
        if let Some(data) = data.filter(|data| data.contains_key(&key)) {
            sender.send_replace(data.get("kubeconfig").cloned());
        }
    });
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    let signed = async {
        let info = seen.wait_for(Option::is_some).await.context("the watch of cluster-info ended")?.clone();
        info.context("cluster-info is empty")
    };
    let waited = tokio::time::timeout(SIGNER_TIMEOUT, async {
        tokio::select! {
            info = signed => info,
            () = infos.run(stop) => bail!("the watch of cluster-info ended"),
        }
    });
    waited.await.context("cluster-info is not signed: does the bootstrap signer of the controller manager run?")?
}

fn join_command(info: &str, token: &Token) -> Result<String> {
    let cluster = first_cluster(info)?;
    let server = cluster.server.trim_start_matches("https://");
    let hashes = CaHash::of_all(&cluster.ca)?;
    let hashes: String = hashes.iter().map(|hash| format!(" --ca-hash {hash}")).collect();
    Ok(format!("cox join {server} --token {token}{hashes}"))
}

async fn list(client: &Client) -> Result<()> {
    let params = ListParams::fields(format!("type={SECRET_TYPE}"));
    let secrets = client.namespaced::<Secret>(NAMESPACE).list(&params).await.context("listing tokens")?;
    let now = Timestamp::now();
    println!("{:<25} {:<10} {:<22} {:<24} {:<28} EXTRA GROUPS", "TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION");
    for (token, purpose) in secrets.items.iter().filter_map(token::from_secret) {
        let (ttl, expires) = match purpose.expires {
            None => ("<forever>".to_owned(), "<never>".to_owned()),
            Some(end) => (remaining(end.duration_since(now)), api::time::rfc3339(end)),
        };
        let or_none = |text: String| if text.is_empty() { "<none>".to_owned() } else { text };
        println!(
            "{:<25} {ttl:<10} {expires:<22} {:<24} {:<28} {}",
            token.to_string(),
            or_none(purpose.usages.join(",")),
            or_none(purpose.description.unwrap_or_default()),
            or_none(purpose.groups.join(","))
        );
    }
    Ok(())
}

/// The largest unit says enough.
pub(crate) fn remaining(left: SignedDuration) -> String {
    match left.as_secs() {
        ..=0 => "<invalid>".to_owned(),
        seconds @ 1..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

async fn delete(client: &Client, tokens: &[String]) -> Result<()> {
    for text in tokens {
        let id = Token::id_of(text)?;
        let secrets = client.namespaced::<Secret>(NAMESPACE);
        let deleted = secrets.delete(&Token::secret_name(&id), &DeleteParams::default()).await;
        deleted.with_context(|| format!("deleting the token {id:?}"))?;
        println!("bootstrap token {id:?} deleted");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_short() {
        for (seconds, expected) in
            [(-5, "<invalid>"), (0, "<invalid>"), (59, "59s"), (3599, "59m"), (86_399, "23h"), (172_800, "2d")]
        {
            assert_eq!(remaining(SignedDuration::from_secs(seconds)), expected);
        }
    }
}
