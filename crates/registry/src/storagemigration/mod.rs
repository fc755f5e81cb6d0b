//! storagemigration.k8s.io: writing all objects of a resource once more.

pub mod storage_version_migration;
