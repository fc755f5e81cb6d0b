//! CronJob: jobs by the clock.

use api::cron::{BadSchedule, Schedule};
use api::field::{FieldErrors, Path};
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use super::job;
use crate::column::{self, Column};
use crate::core::pod_spec::validation::one_of;
use crate::core::pod_spec::{template, template_warnings};
use crate::unset::{items, set_text, text};
use crate::{Strategy, cells};

pub struct CronJobStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Schedule", "When the job runs."),
    Column::string("Timezone", "Whose clock the schedule means."),
    Column { r#type: "boolean", ..Column::string("Suspend", "Whether it rests.") },
    Column::integer("Active", "How many jobs run now."),
    Column::string("Last Schedule", "When a job was last started."),
    Column::AGE,
    cells::CONTAINERS,
    cells::IMAGES,
    cells::SELECTOR,
];

/// The controller adds a dash and ten digits to make the name of a job.
const MAX_NAME: usize = 52;

impl Strategy for CronJobStrategy {
    type Object = CronJob;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, cron: &mut CronJob) {
        let spec = &mut cron.spec;
        set_text(&mut spec.concurrency_policy, "Allow");
        spec.suspend.get_or_insert(false);
        spec.successful_jobs_history_limit.get_or_insert(3);
        spec.failed_jobs_history_limit.get_or_insert(1);
        spec.job_template.metadata.get_or_insert_default();
        let job = spec.job_template.spec.get_or_insert_default();
        // Only what the template of a job gets; the job itself gets the rest when it is made.
        crate::core::pod_spec::defaults::pod_template(&mut job.template);
    }

    fn validate_create(&self, cron: &CronJob) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let name = cron.metadata.name();
        if name.len() > MAX_NAME {
            errors.invalid("metadata.name", name, "must be no more than 52 characters");
        }
        validate_spec(&mut errors, &Path::new("spec"), &cron.spec, None);
        errors
    }

    fn validate_update(&self, new: &CronJob, old: &CronJob) -> FieldErrors {
        let found = |spec| {
            let mut errors = FieldErrors::default();
            validate_spec(&mut errors, &Path::new("spec"), spec, Some(&old.spec));
            errors
        };
        template::forgive(found(&new.spec), || found(&old.spec))
    }

    fn warnings(&self, new: &CronJob, old: Option<&CronJob>) -> Vec<String> {
        fn template(object: &CronJob) -> Option<&PodTemplateSpec> {
            object.spec.job_template.spec.as_ref().map(|spec| &spec.template)
        }
        let Some(new) = template(new) else { return Vec::new() };
        template_warnings("spec.jobTemplate.spec.template", new, old.and_then(template))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, cron: &CronJob, now: Timestamp) -> Vec<Value> {
        let spec = &cron.spec;
        let status = cron.status.clone().unwrap_or_default();
        let job = spec.job_template.spec.clone().unwrap_or_default();
        let [containers, images] = cells::template(Some(&job.template));
        let last = status.last_schedule_time.as_ref();
        vec![
            cells::name(&cron.metadata),
            json!(spec.schedule),
            cells::or_none(&spec.time_zone),
            json!(if spec.suspend == Some(true) { "True" } else { "False" }),
            json!(items(&status.active).len()),
            last.map_or(json!("<none>"), |last| column::age(Some(last), now)),
            cells::age(&cron.metadata, now),
            containers,
            images,
            cells::selector(job.selector.as_ref()),
        ]
    }
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &CronJobSpec, old: Option<&CronJobSpec>) {
    let schedule_path = path.child("schedule");
    if spec.schedule.is_empty() {
        errors.required(schedule_path, "");
    } else {
        let known = |schedule: Schedule| match schedule.zone {
            Some(zone) if jiff::tz::TimeZone::get(&zone).is_err() => Err(BadSchedule::Zone(zone)),
            _ => Ok(()),
        };
        if let Err(error) = Schedule::parse(&spec.schedule).and_then(known) {
            errors.invalid(schedule_path, &spec.schedule, error.to_string());
        }
        let kept = old.is_some_and(|old| old.schedule.contains("TZ"));
        if spec.schedule.contains("TZ") {
            if !kept {
                let detail = "cannot use TZ or CRON_TZ in schedule, use timeZone field instead";
                errors.invalid(schedule_path, &spec.schedule, detail);
            } else if spec.time_zone.is_some() {
                let detail = "cannot use both timeZone field and TZ or CRON_TZ in schedule";
                errors.invalid(schedule_path, &spec.schedule, detail);
            }
        }
    }
    for (name, value) in [
        ("startingDeadlineSeconds", spec.starting_deadline_seconds),
        ("successfulJobsHistoryLimit", spec.successful_jobs_history_limit.map(i64::from)),
        ("failedJobsHistoryLimit", spec.failed_jobs_history_limit.map(i64::from)),
    ] {
        if let Some(value) = value.filter(|&value| value < 0) {
            errors.invalid(path.child(name), value, "must be greater than or equal to 0");
        }
    }
    if let Some(zone) = &spec.time_zone {
        let path = path.child("timeZone");
        match text(&spec.time_zone) {
            None => errors.invalid(path, zone, "timeZone must be nil or non-empty string"),
            Some(zone) if zone.eq_ignore_ascii_case("local") => errors.invalid(
                path,
                zone,
                "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones",
            ),
            Some(zone) if jiff::tz::TimeZone::get(zone).is_err() => {
                errors.invalid(path, zone, format!("unknown time zone {zone}"));
            }
            Some(_) => {}
        }
    }
    one_of(errors, &path.child("concurrencyPolicy"), &spec.concurrency_policy, &["Allow", "Forbid", "Replace"]);
    let template = path.child("jobTemplate");
    let path = template.child("spec");
    let job = spec.job_template.spec.clone().unwrap_or_default();
    job::validate_spec(errors, &path, &job);
    if let Some(selector) = &job.selector {
        errors.invalid(path.child("selector"), selector, "`selector` will be auto-generated");
    }
    if job.manual_selector == Some(true) {
        errors.not_supported(path.child("manualSelector"), "true", &["nil", "false"]);
    }
}
