//! AlwaysAdmit and AlwaysDeny: the two ends of the range, kept for old command lines and for tests.

use std::sync::Arc;

use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;
use crate::cluster::own_user;

pub(super) struct AlwaysAdmit;

impl Plugin for AlwaysAdmit {}

pub(super) struct AlwaysDeny;

impl Plugin for AlwaysDeny {
    fn validate<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        // The server could not make the first objects otherwise.
        if attributes.user().name == own_user().name {
            return admitted();
        }
        Err(attributes.forbidden("admission control is denying all modifications")).into()
    }
}
