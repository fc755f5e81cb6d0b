//! A server's part in an exchange: it puts the files of the phase in place while it runs, signs anew, and tells others.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Informer, ListParams};
use k8s_openapi::api::core::v1::{ConfigMap, Node, Secret};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use super::shared;
use crate::ca_hash::CaHash;
use crate::ca_rotation::{Phase, Rotation, complete};
use crate::options::Options;
use crate::pki::Pki;
use crate::settings::ClusterSettings;
use crate::shape::Shape;
use crate::turns::Turns;
use crate::{etcd, join, nodes, server_pki};

/// While an exchange is under way, nodes may be added on this machine.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// What the authority signs for a server and for nodes beside it; others may have certificates of their own there.
const SIGNED: [&str; 6] =
    ["admin", "apiserver", "apiserver-kubelet-client", "kubelet", "kubelet-client", "proxy-client"];

/// A server that runs.
#[derive(Clone)]
pub(crate) struct Server {
    pub options: Options,
    pub shape: Shape,
    pub admin: Client,
    /// How others reach this server.
    pub url: String,
    /// Told when another authority signs, or others are trusted.
    pub changed: watch::Sender<()>,
}

impl Server {
    /// Comes to where the cluster is, before anything is signed or published: this server may have been away.
    pub(crate) async fn catch_up(&self) -> Result<()> {
        let dir = self.options.pki_dir();
        match shared::load(&self.admin, &dir).await? {
            Some((rotation, _)) => self.put_in_place(rotation).await,
            None if self.shape.etcd.is_used() => self.refuse_stranger(&dir).await,
            None => Ok(()),
        }
    }

    /// Fails if the authority was exchanged since this server was given its keys.
    async fn refuse_stranger(&self, dir: &Path) -> Result<()> {
        let settings = self.admin.namespaced::<ConfigMap>(join::SETTINGS_NAMESPACE).get(join::SETTINGS_NAME).await;
        let data = match settings {
            Ok(settings) => settings.data.unwrap_or_default(),
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => return Err(error).context("asking for the cluster's authority"),
        };
        let Some(published) = data.get(join::AUTHORITY_KEY) else { return Ok(()) };
        let (own, _) = Pki::open(dir).authority_files()?;
        let known = CaHash::of_all(published)?;
        if !CaHash::of_all(&own)?.first().is_some_and(|own| known.contains(own)) {
            bail!(
                "the cluster's authority was exchanged since this server got its keys: 'cox delete' makes room, and \
                 'cox server add' on another server says how it joins again"
            );
        }
        Ok(())
    }

    /// Takes part until `stop`.
    pub(crate) async fn take_part(self, stop: CancellationToken) -> Result<()> {
        let named = ListParams::fields(format!("metadata.name={}", shared::NAME));
        let secrets: Informer<Secret> = Informer::new(self.admin.namespaced(shared::NAMESPACE), named);
        let (changed, changes) = watch::channel(());
        secrets.subscribe(move |_| changed.send_replace(()));
        let mut turns = Turns::new(changes, stop.child_token());
        let turning = async {
            let mut done = None;
            // Nothing seen yet is not nothing there.
            secrets.synced().await;
            loop {
                turns.begin();
                let found = secrets.list().into_iter().next();
                let turn = self.turn(found.as_ref(), &mut done).await;
                if let Err(error) = &turn {
                    tracing::error!("the exchange of the authority: {error:#}");
                }
                let next = turns.next(turn.is_err());
                let next = match &found {
                    Some(_) => tokio::time::timeout(LOOK_INTERVAL, next).await.unwrap_or(Ok(true)),
                    None => next.await,
                };
                if !next? {
                    return anyhow::Ok(());
                }
            }
        };
        tokio::select! {
            () = secrets.run(stop.clone()) => Ok(()),
            ended = turning => ended,
        }
    }

    /// One look; `done` is what this process has come to, and whether others were told.
    async fn turn(&self, secret: Option<&Arc<Secret>>, done: &mut Option<(Rotation, bool)>) -> Result<()> {
        let dir = self.options.pki_dir();
        let Some(secret) = secret else {
            *done = None;
            // Over only if this server has come to its end. Otherwise the command says how it goes on.
            if Rotation::load(&dir)?.is_some_and(|rotation| rotation.phase == Phase::Drop) {
                std::fs::remove_file(Rotation::file(&dir)).context("ending the exchange")?;
                tracing::info!("the authority is exchanged");
            }
            return Ok(());
        };
        let rotation = shared::read(secret, &dir).context("the exchange that is under way")?;
        if done.as_ref().is_none_or(|(placed, _)| *placed != rotation) {
            self.put_in_place(rotation.clone()).await?;
            self.changed.send_replace(());
            *done = Some((rotation, false));
        }
        // Tried again by itself: nothing is signed anew because others cannot be told.
        if let Some((_, is_reported @ false)) = done {
            self.publish().await?;
            *is_reported = true;
        }
        self.say().await
    }

    /// Writes down the phase, then the files of it, and has everything signed by whoever signs now.
    async fn put_in_place(&self, rotation: Rotation) -> Result<()> {
        let (options, shape) = (self.options.clone(), self.shape.clone());
        let place = move || {
            let dir = options.pki_dir();
            rotation.check_own(&dir)?;
            let rotation = rotation.never_back(&dir)?;
            rotation.save(&dir)?;
            complete(&dir)?;
            server_pki::renew(&options, &shape)?;
            tracing::info!(phase = ?rotation.phase, "the exchange of the authority");
            Ok(())
        };
        tokio::task::spawn_blocking(place).await?
    }

    /// Tells those who join, nodes, and other clusters.
    async fn publish(&self) -> Result<()> {
        let (authority, _) = Pki::open(&self.options.pki_dir()).authority_files()?;
        let cluster = ClusterSettings::new(&self.shape)?;
        join::publish(&self.admin, &self.url, &authority, &cluster).await?;
        if self.shape.etcd.is_used() {
            etcd::pass_on(&*self.shape.etcd.connect().await?, &authority).await?;
        }
        Ok(())
    }

    /// Says of this machine's nodes how far they are, if they have not said it yet.
    async fn say(&self) -> Result<()> {
        let mut own = vec![(self.shape.node_name.clone(), self.options.pki_dir())];
        own.extend(nodes::all(&self.options)?.into_iter().map(|record| {
            let dir = record.options(&self.options).pki_dir();
            (record.name, dir)
        }));
        for (name, dir) in own {
            if !dir.try_exists()? {
                continue;
            }
            let progress = Progress::of_files(&dir, |name| SIGNED.contains(&name))?;
            let node = match self.admin.all::<Node>().get(&name).await {
                Ok(node) => node,
                // It says so when it is there.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error).with_context(|| format!("asking for node {name}")),
            };
            if Progress::said_by(&node) != progress {
                progress.say(&self.admin, &name).await?;
            }
        }
        Ok(())
    }
}
