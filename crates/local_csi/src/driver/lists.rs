//! What is on this node, page by page.

use csi::tonic::Status;
use csi::v1;

use super::{Driver, failed, shown};
use crate::store::{Snapshot, Volume};

/// What tokens of pages begin with; the id that a page ended with comes after it. That may be gone when the next one is asked for.
const AFTER: &str = "after/";

impl Driver {
    pub(super) fn volumes_listed(&self, request: &v1::ListVolumesRequest) -> Result<v1::ListVolumesResponse, Status> {
        let all = self.volumes.list_readable::<Volume>().map_err(failed)?;
        let (volumes, next_token) = page(all, request.max_entries, &request.starting_token)?;
        let entries = volumes.into_iter().map(|(id, volume)| v1::VolumeEntry {
            volume: Some(v1::Volume {
                volume_id: id,
                capacity_bytes: volume.capacity,
                accessible_topology: vec![v1::Topology { segments: self.topology() }],
                ..Default::default()
            }),
            status: None,
        });
        Ok(v1::ListVolumesResponse { entries: entries.collect(), next_token })
    }

    pub(super) fn snapshots_listed(
        &self,
        request: &v1::ListSnapshotsRequest,
    ) -> Result<v1::ListSnapshotsResponse, Status> {
        let mut all = match request.snapshot_id.as_str() {
            "" => self.snapshots.list_readable::<Snapshot>().map_err(failed)?,
            id if api::node_volumes::is_id(id) => {
                let found: Option<Snapshot> = self.snapshots.get(id).map_err(failed)?;
                found.map(|snapshot| (id.to_owned(), snapshot)).into_iter().collect()
            }
            // No snapshot has such a name.
            _ => Vec::new(),
        };
        let of = &request.source_volume_id;
        all.retain(|(_, snapshot)| of.is_empty() || *of == snapshot.volume);
        let (snapshots, next_token) = page(all, request.max_entries, &request.starting_token)?;
        let entries =
            snapshots.into_iter().map(|(id, snapshot)| v1::SnapshotEntry { snapshot: Some(shown(id, &snapshot)) });
        Ok(v1::ListSnapshotsResponse { entries: entries.collect(), next_token })
    }
}

/// A page of what is sorted by id, and the token of the next one; empty if that was the last.
fn page<T>(mut all: Vec<(String, T)>, max_entries: i32, token: &str) -> Result<(Vec<(String, T)>, String), Status> {
    let Ok(most) = usize::try_from(max_entries) else {
        return Err(Status::invalid_argument(format!("invalid number of entries {max_entries}")));
    };
    if !token.is_empty() {
        // The code that CSI has for it; whoever asked begins anew.
        let invalid = || Status::aborted(format!("invalid starting token {token:?}"));
        let after = token.strip_prefix(AFTER).ok_or_else(invalid)?;
        all.retain(|(id, _)| id.as_str() > after);
    }
    let is_cut = most > 0 && all.len() > most;
    if is_cut {
        all.truncate(most);
    }
    let next = all.last().filter(|_| is_cut).map(|(id, _)| format!("{AFTER}{id}"));
    Ok((all, next.unwrap_or_default()))
}
