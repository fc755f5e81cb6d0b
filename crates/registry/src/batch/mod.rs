//! Strategies of the batch group: work that ends.

pub mod cron_job;
pub mod job;
mod job_policies;
mod job_status;
