//! Who the members of an etcd cluster are, how they fare, and how that changes.

use super::connection::{Connection, Repeat, STATUS};
use super::messages as pb;
use super::{Options, revision};
use crate::{Result, Revision};
use std::sync::Arc;
use std::time::Duration;

/// Between looks at who the members are.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(10);

/// One member, as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub id: u64,
    /// Empty until it has started for the first time.
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    /// It gets everything and has no vote yet.
    pub is_learner: bool,
}

/// How one member says that it fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub id: u64,
    pub version: String,
    /// Bytes of its database, and how many of them hold something.
    pub db_size: u64,
    pub db_size_in_use: u64,
    pub revision: Revision,
    /// Zero while there is none.
    pub leader: u64,
    pub is_learner: bool,
    /// Alarms and other trouble.
    pub errors: Vec<String>,
}

/// The membership of a cluster. Requests go to whichever endpoint answers: those that are about one member need that
/// member's endpoint alone.
pub struct Members {
    connection: Arc<Connection>,
}

impl Members {
    pub fn new(options: &Options) -> Result<Members> {
        Ok(Members { connection: Arc::new(Connection::new(options)?) })
    }

    pub async fn list(&self) -> Result<Vec<Member>> {
        list(&self.connection).await
    }

    /// Adds a member without a vote, which is still to start.
    pub async fn add_learner(&self, peer_url: &str) -> Result<()> {
        let request = pb::MemberAddRequest { peer_urls: vec![peer_url.to_owned()], is_learner: true };
        let pb::Done {} = self.connection.call("/etcdserverpb.Cluster/MemberAdd", request, Repeat::IfUnsent).await?;
        Ok(())
    }

    /// Gives a learner its vote; refused until it has caught up.
    pub async fn promote(&self, id: u64) -> Result<()> {
        let path = "/etcdserverpb.Cluster/MemberPromote";
        let pb::Done {} = self.connection.call(path, pb::MemberRequest { id }, Repeat::IfUnsent).await?;
        Ok(())
    }

    pub async fn remove(&self, id: u64) -> Result<()> {
        let path = "/etcdserverpb.Cluster/MemberRemove";
        let pb::Done {} = self.connection.call(path, pb::MemberRequest { id }, Repeat::IfUnsent).await?;
        Ok(())
    }

    /// Has another member lead; only the one that leads does so.
    pub async fn hand_over_to(&self, id: u64) -> Result<()> {
        let path = "/etcdserverpb.Maintenance/MoveLeader";
        let pb::Done {} = self.connection.call(path, pb::MemberRequest { id }, Repeat::IfUnsent).await?;
        Ok(())
    }

    /// How the member at the endpoint fares.
    pub async fn status(&self) -> Result<Status> {
        let found: pb::StatusResponse = self.connection.call(STATUS, pb::Empty {}, Repeat::Freely).await?;
        let size = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
        Ok(Status {
            id: found.header.as_ref().map_or(0, |header| header.member_id),
            revision: revision(found.header.as_ref()),
            version: found.version,
            db_size: size(found.db_size),
            db_size_in_use: size(found.db_size_in_use),
            leader: found.leader,
            is_learner: found.is_learner,
            errors: found.errors,
        })
    }

    /// Gives the disk what the member at the endpoint no longer needs. It answers nobody meanwhile.
    pub async fn defragment(&self) -> Result<()> {
        let path = "/etcdserverpb.Maintenance/Defragment";
        let pb::Done {} = self.connection.call(path, pb::Empty {}, Repeat::IfUnsent).await?;
        Ok(())
    }
}

async fn list(connection: &Connection) -> Result<Vec<Member>> {
    let request = pb::MemberListRequest { linearizable: true };
    let path = "/etcdserverpb.Cluster/MemberList";
    let found: pb::MemberListResponse = connection.call(path, request, Repeat::Freely).await?;
    let member = |member: pb::Member| Member {
        id: member.id,
        name: member.name,
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
        is_learner: member.is_learner,
    };
    Ok(found.members.into_iter().map(member).collect())
}

/// Keeps a connection to the members that can serve, and to the keys that are in their files.
pub(super) async fn follow(connection: Arc<Connection>) {
    loop {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        connection.reload_keys();
        let led = match list(&connection).await {
            Ok(members) => connection.lead_to(&serving(&members)),
            Err(error) => Err(error),
        };
        if let Err(error) = led {
            tracing::debug!(%error, "the members of etcd are not known");
        }
    }
}

/// Keeps a connection to the member that leads.
pub(super) async fn follow_leader(connection: Arc<Connection>) {
    loop {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        connection.turn_to_leader().await;
    }
}

/// Where members that have started, and have a vote, take requests.
fn serving(members: &[Member]) -> Vec<String> {
    let serving = members.iter().filter(|member| !member.is_learner && !member.name.is_empty());
    let mut urls: Vec<String> = serving.flat_map(|member| member.client_urls.iter().cloned()).collect();
    urls.sort_unstable();
    urls.dedup();
    urls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learners_and_those_that_never_started_are_not_asked() {
        let member = |name: &str, url: &str, is_learner| Member {
            id: 1,
            name: name.into(),
            peer_urls: Vec::new(),
            client_urls: vec![url.into()],
            is_learner,
        };
        let members = [
            member("b", "http://b:2379", false),
            member("a", "http://a:2379", false),
            member("", "http://c:2379", false),
            member("d", "http://d:2379", true),
        ];
        assert_eq!(serving(&members), ["http://a:2379", "http://b:2379"]);
    }
}
