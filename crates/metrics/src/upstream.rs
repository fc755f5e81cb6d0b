//! The series that dashboards and alerts look for, as v1.36 names them: one table per component.
//!
//! A table holds what upstream promises to keep (STABLE and BETA) and what the rules of kube-prometheus ask for, that of
//! cAdvisor all that a kubelet has it measure. Help texts get their level from here, and the tests of each component hold
//! what it serves against its table.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Who serves the series of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    Apiserver,
    ControllerManager,
    Scheduler,
    Kubelet,
    /// `/metrics/cadvisor` of the kubelet.
    KubeletCadvisor,
    /// `/metrics/resource` of the kubelet.
    KubeletResources,
    /// `/metrics/probes` of the kubelet.
    KubeletProbes,
    Proxy,
    Dns,
    /// `/metrics/slis` of everyone who has checks.
    Slis,
}

impl Component {
    pub const ALL: [Self; 10] = [
        Self::Apiserver,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kubelet,
        Self::KubeletCadvisor,
        Self::KubeletResources,
        Self::KubeletProbes,
        Self::Proxy,
        Self::Dns,
        Self::Slis,
    ];

    fn table(self) -> [&'static str; 3] {
        match self {
            Self::Apiserver => [EVERYONE, PROCESS, APISERVER],
            Self::ControllerManager => [EVERYONE, PROCESS, CONTROLLER_MANAGER],
            Self::Scheduler => [EVERYONE, PROCESS, SCHEDULER],
            Self::Kubelet => [EVERYONE, PROCESS, KUBELET],
            Self::KubeletCadvisor => ["", "", KUBELET_CADVISOR],
            Self::KubeletResources => ["", "", KUBELET_RESOURCES],
            Self::KubeletProbes => ["", "", KUBELET_PROBES],
            Self::Proxy => [EVERYONE, PROCESS, PROXY],
            Self::Dns => ["", PROCESS, DNS],
            Self::Slis => ["", "", SLIS],
        }
    }

    pub fn rows(self) -> impl Iterator<Item = Row> {
        self.table().into_iter().flat_map(str::lines).filter_map(Row::parse)
    }
}

/// One line of a table: level, type, name, labels. PLAIN is what carries no level. A name that ends in `?` is shown once
/// something has happened that a component may never see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub level: &'static str,
    pub kind: &'static str,
    pub name: &'static str,
    pub labels: BTreeSet<&'static str>,
    pub is_rare: bool,
}

impl Row {
    fn parse(line: &'static str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (level, kind, name) = (words.next()?, words.next()?, words.next()?);
        let labels = words.next().into_iter().flat_map(|list| list.split(',')).collect();
        Some(Self { level, kind, name: name.trim_end_matches('?'), labels, is_rare: name.ends_with('?') })
    }
}

/// The level of a series, as help texts begin with it; nothing where no table has it or it carries none.
pub fn level(name: &str) -> Option<&'static str> {
    static LEVELS: LazyLock<BTreeMap<&'static str, &'static str>> = LazyLock::new(|| {
        let mut levels = BTreeMap::new();
        // cAdvisor has some of the same names, and promises nothing.
        let of_names = Component::ALL.into_iter().filter(|component| *component != Component::KubeletResources);
        for row in of_names.flat_map(Component::rows) {
            levels.entry(row.name).or_insert(row.level);
        }
        levels
    });
    LEVELS.get(name).copied().filter(|level| *level != "PLAIN")
}

/// What a text of `/metrics` lacks or has otherwise than the table says.
pub fn problems(component: Component, text: &str) -> Vec<String> {
    let served = Exposition::read(text);
    let mut problems = Vec::new();
    for row in component.rows() {
        match served.kinds.get(row.name) {
            None if row.is_rare => {}
            None => problems.push(format!("{} is missing", row.name)),
            Some(kind) if *kind != row.kind => problems.push(format!("{} is a {kind}, not a {}", row.name, row.kind)),
            Some(_) => {
                if let (Some(bounds), Some(own)) = (bounds(row.name), served.bounds.get(row.name))
                    && !are_the_same(own, &bounds)
                {
                    problems.push(format!("{} has the bounds {own:?}, not {bounds:?}", row.name));
                }
                let wrong = served.labels.get(row.name).into_iter().flatten().find(|labels| **labels != row.labels);
                if let Some(labels) = wrong {
                    problems.push(format!("{} has the labels {labels:?}, not {:?}", row.name, row.labels));
                }
            }
        }
    }
    problems
}

/// Types, sets of label names and bounds of buckets, by family.
#[derive(Default)]
struct Exposition<'a> {
    kinds: BTreeMap<&'a str, &'a str>,
    bounds: BTreeMap<&'a str, Vec<f64>>,
    labels: BTreeMap<&'a str, BTreeSet<BTreeSet<&'a str>>>,
}

impl<'a> Exposition<'a> {
    fn read(text: &'a str) -> Self {
        let mut read = Self::default();
        for line in text.lines() {
            if let Some(("TYPE", named)) = line.strip_prefix("# ").and_then(|line| line.split_once(' ')) {
                let (name, kind) = named.split_once(' ').unwrap_or((named, ""));
                read.kinds.insert(name, kind);
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap_or_default();
                let part = ["_bucket", "_sum", "_count"].into_iter().find_map(|part| name.strip_suffix(part));
                let family = part.filter(|part| read.kinds.contains_key(part)).unwrap_or(name);
                if let Some(bound) = bound(&line[name.len()..]) {
                    let bounds = read.bounds.entry(family).or_default();
                    if !bounds.contains(&bound) {
                        bounds.push(bound);
                    }
                }
                read.labels.entry(family).or_default().insert(label_names(&line[name.len()..]));
            }
        }
        read
    }
}

/// The names between the braces, without the bound of a bucket.
fn label_names(mut rest: &str) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    while let Some((name, value)) = rest.split_once("=\"") {
        names.insert(name.trim_start_matches(['{', ',']));
        let mut escaped = false;
        let end = value.find(|character| {
            let ends = character == '"' && !escaped;
            escaped = character == '\\' && !escaped;
            ends
        });
        rest = end.map_or("", |end| &value[end + 1..]);
    }
    names.remove("le");
    names
}

/// The bounds of a histogram that upstream promises to keep.
fn bounds(name: &str) -> Option<Vec<f64>> {
    BOUNDS.lines().map(str::split_whitespace).find_map(|mut words| {
        let is_named = words.next() == Some(name);
        is_named.then(|| words.filter_map(|word| word.parse().ok()).collect())
    })
}

/// The bound of a bucket, by what follows its name. That of all there is has none.
fn bound(rest: &str) -> Option<f64> {
    let (text, _) = rest.split(['{', ',']).find_map(|label| label.strip_prefix("le=\""))?.split_once('"')?;
    text.parse().ok().filter(|bound: &f64| bound.is_finite())
}

/// As numbers are written in different ways.
fn are_the_same(some: &[f64], others: &[f64]) -> bool {
    some.len() == others.len() && some.iter().zip(others).all(|(one, other)| (one - other).abs() <= other.abs() * 1e-9)
}

const EVERYONE: &str = "
    BETA   counter    disabled_metrics_total
    BETA   counter    hidden_metrics_total
    BETA   counter    registered_metrics_total  deprecated_version,stability_level
    BETA   gauge      kubernetes_feature_enabled  name,stage
    BETA   gauge      kubernetes_build_info  build_date,compiler,git_commit,git_tree_state,git_version,go_version,major,minor,platform
";

const PROCESS: &str = "
    PLAIN  counter    process_cpu_seconds_total
    PLAIN  gauge      process_resident_memory_bytes
    PLAIN  gauge      process_start_time_seconds
    PLAIN  gauge      process_open_fds
    PLAIN  gauge      process_max_fds
";

const APISERVER: &str = "
    STABLE histogram  apiserver_request_duration_seconds  component,dry_run,group,resource,scope,subresource,verb,version
    STABLE counter    apiserver_request_total  code,component,dry_run,group,resource,scope,subresource,verb,version
    STABLE gauge      apiserver_requested_deprecated_apis  group,removed_release,resource,subresource,version
    STABLE histogram  apiserver_response_sizes  component,group,resource,scope,subresource,verb,version
    STABLE gauge      apiserver_current_inflight_requests  request_kind
    STABLE gauge      apiserver_longrunning_requests  component,group,resource,scope,subresource,verb,version
    STABLE histogram  apiserver_admission_controller_admission_duration_seconds  name,operation,rejected,type
    STABLE histogram  apiserver_admission_step_admission_duration_seconds  operation,rejected,type
    STABLE histogram  apiserver_admission_webhook_admission_duration_seconds?  name,operation,rejected,type
    STABLE gauge      apiserver_storage_objects  resource
    STABLE gauge      apiserver_storage_size_bytes  storage_cluster_id
    BETA   counter    apiserver_storage_events_received_total  group,resource
    BETA   gauge      apiserver_flowcontrol_current_executing_requests  flow_schema,priority_level
    BETA   gauge      apiserver_flowcontrol_current_executing_seats  flow_schema,priority_level
    BETA   gauge      apiserver_flowcontrol_current_inqueue_requests  flow_schema,priority_level
    BETA   counter    apiserver_flowcontrol_dispatched_requests_total  flow_schema,priority_level
    BETA   gauge      apiserver_flowcontrol_nominal_limit_seats  priority_level
    BETA   counter    apiserver_flowcontrol_rejected_requests_total?  flow_schema,priority_level,reason
    BETA   histogram  apiserver_flowcontrol_request_wait_duration_seconds  execute,flow_schema,priority_level
    BETA   histogram  apiserver_cel_compilation_duration_seconds
    BETA   histogram  apiserver_cel_evaluation_duration_seconds
    BETA   counter    apiserver_validating_admission_policy_check_total?  enforcement_action,error_type,policy,policy_binding
    BETA   histogram  apiserver_validating_admission_policy_check_duration_seconds?  enforcement_action,error_type,policy,policy_binding
    BETA   counter    apiserver_validation_declarative_validation_mismatch_total
    BETA   counter    apiserver_validation_declarative_validation_panic_total
    BETA   histogram  apiserver_watch_list_duration_seconds?  group,resource,scope,version
    BETA   counter    apiserver_authentication_config_controller_automatic_reloads_total?  apiserver_id_hash,status
    BETA   gauge      apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds?  apiserver_id_hash,status
    BETA   counter    apiserver_authorization_config_controller_automatic_reloads_total?  apiserver_id_hash,status
    BETA   gauge      apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds?  apiserver_id_hash,status
    ALPHA  histogram  apiserver_request_sli_duration_seconds  component,group,resource,scope,subresource,verb,version
    ALPHA  histogram  apiserver_request_slo_duration_seconds?  component,group,resource,scope,subresource,verb,version
    ALPHA  counter    apiserver_request_terminations_total?  code,component,group,resource,scope,subresource,verb,version
    ALPHA  counter    apiserver_watch_events_total  group,resource,version
    ALPHA  histogram  apiserver_watch_events_sizes  group,resource,version
    ALPHA  counter    apiserver_init_events_total  group,resource
    ALPHA  counter    apiserver_terminated_watchers_total?  group,resource
    ALPHA  counter    apiserver_watch_cache_events_received_total  group,resource
    ALPHA  counter    apiserver_watch_cache_events_dispatched_total  group,resource
    ALPHA  gauge      apiserver_watch_cache_resource_version  group,resource
    ALPHA  gauge      watch_cache_capacity  group,resource
    ALPHA  gauge      apiserver_resource_objects  group,resource
    ALPHA  histogram  etcd_request_duration_seconds  group,operation,resource
    ALPHA  counter    etcd_requests_total  group,operation,resource
    ALPHA  counter    etcd_request_errors_total?  group,operation,resource
    ALPHA  counter    authenticated_user_requests  username
    ALPHA  counter    authentication_attempts  result
    ALPHA  histogram  authentication_duration_seconds  result
    ALPHA  counter    authorization_attempts_total  result
    ALPHA  histogram  authorization_duration_seconds  result
    ALPHA  counter    apiserver_authorization_decisions_total  decision,name,type
    ALPHA  histogram  apiserver_client_certificate_expiration_seconds
    ALPHA  counter    apiserver_audit_error_total  plugin
    ALPHA  gauge      aggregator_unavailable_apiservice  name
    ALPHA  counter    aggregator_unavailable_apiservice_total?  name,reason
    ALPHA  counter    rest_client_requests_total  code,host,method
    ALPHA  histogram  rest_client_request_duration_seconds  host,verb
";

const CONTROLLER_MANAGER: &str = "
    STABLE histogram  cronjob_controller_job_creation_skew_duration_seconds
    STABLE counter    job_controller_job_pods_finished_total?  completion_mode,result
    STABLE histogram  job_controller_job_sync_duration_seconds?  action,completion_mode,result
    STABLE counter    job_controller_job_syncs_total?  action,completion_mode,result
    STABLE counter    job_controller_jobs_finished_total?  completion_mode,reason,result
    STABLE counter    node_collector_evictions_total?  zone
    BETA   gauge      running_managed_controllers  manager,name
    BETA   counter    horizontal_pod_autoscaler_controller_reconciliations_total?  action,error
    BETA   histogram  horizontal_pod_autoscaler_controller_reconciliation_duration_seconds?  action,error
    BETA   counter    horizontal_pod_autoscaler_controller_metric_computation_total?  action,error,metric_type
    BETA   histogram  horizontal_pod_autoscaler_controller_metric_computation_duration_seconds?  action,error,metric_type
    BETA   gauge      endpoint_slice_controller_desired_endpoint_slices
    BETA   gauge      endpoint_slice_controller_endpoints_desired
    BETA   gauge      endpoint_slice_controller_num_endpoint_slices
    BETA   histogram  endpoint_slice_controller_endpoints_added_per_sync?
    BETA   histogram  endpoint_slice_controller_endpoints_removed_per_sync?
    BETA   gauge      endpoint_slice_controller_services_count_by_traffic_distribution?  traffic_distribution
    BETA   counter    job_controller_pod_failures_handled_by_failure_policy_total?  action
    BETA   counter    job_controller_terminated_pods_tracking_finalizer_total?  event
    ALPHA  gauge      statefulset_controller_statefulset_max_unavailable?  pod_management_policy,statefulset_name,statefulset_namespace
    ALPHA  gauge      statefulset_controller_statefulset_unavailable_replicas?  pod_management_policy,statefulset_name,statefulset_namespace
    ALPHA  gauge      horizontal_pod_autoscaler_controller_num_horizontal_pod_autoscalers
    ALPHA  gauge      horizontal_pod_autoscaler_controller_desired_replicas?  hpa_name,namespace
    ALPHA  gauge      node_collector_zone_health?  zone
    ALPHA  gauge      node_collector_zone_size?  zone
    ALPHA  gauge      node_collector_unhealthy_nodes_in_zone?  zone
    ALPHA  histogram  node_collector_update_node_health_duration_seconds
    BETA   counter    workqueue_adds_total  name
    BETA   gauge      workqueue_depth  name
    BETA   histogram  workqueue_queue_duration_seconds  name
    BETA   histogram  workqueue_work_duration_seconds  name
    BETA   counter    workqueue_retries_total  name
    BETA   gauge      workqueue_unfinished_work_seconds  name
    BETA   gauge      workqueue_longest_running_processor_seconds  name
    ALPHA  counter    rest_client_requests_total  code,host,method
    ALPHA  histogram  rest_client_request_duration_seconds  host,verb
";

const SCHEDULER: &str = "
    STABLE histogram  scheduler_framework_extension_point_duration_seconds  extension_point,profile,status
    STABLE gauge      scheduler_pending_pods  queue
    STABLE histogram  scheduler_pod_scheduling_attempts
    STABLE counter    scheduler_preemption_attempts_total?
    STABLE histogram  scheduler_preemption_victims?
    STABLE counter    scheduler_queue_incoming_pods_total  event,queue
    STABLE counter    scheduler_schedule_attempts_total  profile,result
    STABLE histogram  scheduler_scheduling_attempt_duration_seconds  profile,result
    STABLE gauge      kube_pod_resource_limit?  namespace,node,pod,priority,resource,scheduler,unit
    STABLE gauge      kube_pod_resource_request?  namespace,node,pod,priority,resource,scheduler,unit
    BETA   histogram  scheduler_pod_scheduling_sli_duration_seconds  attempts
    BETA   gauge      scheduler_unschedulable_pods?  plugin,profile
    BETA   gauge      scheduler_goroutines?  operation
    BETA   histogram  scheduler_permit_wait_duration_seconds?  result
    BETA   counter    scheduler_plugin_evaluation_total  extension_point,plugin,profile
    ALPHA  histogram  scheduler_scheduling_algorithm_duration_seconds
    ALPHA  histogram  scheduler_plugin_execution_duration_seconds?  extension_point,plugin,status
    ALPHA  gauge      scheduler_cache_size  type
    ALPHA  counter    rest_client_requests_total  code,host,method
    ALPHA  histogram  rest_client_request_duration_seconds  host,verb
";

const KUBELET: &str = "
    BETA   counter    kubelet_image_volume_requested_total
    BETA   counter    kubelet_image_volume_mounted_succeed_total
    BETA   counter    kubelet_image_volume_mounted_errors_total
    ALPHA  gauge      kubelet_node_name  node
    ALPHA  gauge      kubelet_running_pods
    ALPHA  gauge      kubelet_running_containers?  container_state
    ALPHA  histogram  kubelet_pleg_relist_duration_seconds
    ALPHA  histogram  kubelet_pleg_relist_interval_seconds
    ALPHA  histogram  kubelet_pod_worker_duration_seconds?  operation_type
    ALPHA  histogram  kubelet_pod_start_duration_seconds?
    ALPHA  counter    kubelet_runtime_operations_total  operation_type
    ALPHA  histogram  kubelet_runtime_operations_duration_seconds  operation_type
    ALPHA  counter    kubelet_runtime_operations_errors_total?  operation_type
    ALPHA  histogram  kubelet_cgroup_manager_duration_seconds?  operation_type
    ALPHA  counter    kubelet_evictions?  eviction_signal
    ALPHA  counter    kubelet_preemptions?  preemption_signal
    ALPHA  gauge      volume_manager_total_volumes  plugin_name,state
    ALPHA  histogram  storage_operation_duration_seconds?  migrated,operation_name,status,volume_plugin
    ALPHA  histogram  csi_operations_seconds?  driver_name,grpc_status_code,method_name,migrated
    ALPHA  gauge      kubelet_certificate_manager_client_ttl_seconds
    ALPHA  gauge      kubelet_certificate_manager_server_ttl_seconds
    ALPHA  counter    kubelet_certificate_manager_client_expiration_renew_errors
    ALPHA  counter    kubelet_server_expiration_renew_errors
    ALPHA  gauge      kubelet_volume_stats_available_bytes?  namespace,persistentvolumeclaim
    ALPHA  gauge      kubelet_volume_stats_capacity_bytes?  namespace,persistentvolumeclaim
    ALPHA  gauge      kubelet_volume_stats_used_bytes?  namespace,persistentvolumeclaim
    ALPHA  gauge      kubelet_volume_stats_inodes?  namespace,persistentvolumeclaim
    ALPHA  gauge      kubelet_volume_stats_inodes_free?  namespace,persistentvolumeclaim
    ALPHA  gauge      kubelet_volume_stats_inodes_used?  namespace,persistentvolumeclaim
    ALPHA  counter    rest_client_requests_total  code,host,method
    ALPHA  histogram  rest_client_request_duration_seconds  host,verb
";

const KUBELET_CADVISOR: &str = "
    PLAIN  counter    container_cpu_usage_seconds_total  container,cpu,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_user_seconds_total  container,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_system_seconds_total  container,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_cfs_periods_total  container,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_cfs_throttled_periods_total  container,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_cfs_throttled_seconds_total  container,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_cfs_burst_periods_total?  container,id,image,name,namespace,pod
    PLAIN  counter    container_cpu_cfs_burst_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_spec_cpu_shares  container,id,image,name,namespace,pod
    PLAIN  gauge      container_spec_cpu_period  container,id,image,name,namespace,pod
    PLAIN  gauge      container_spec_cpu_quota  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_usage_bytes  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_working_set_bytes  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_rss  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_cache?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_swap?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_kernel_usage?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_mapped_file?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_max_usage_bytes?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_total_active_file_bytes?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_memory_total_inactive_file_bytes?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_spec_memory_limit_bytes  container,id,image,name,namespace,pod
    PLAIN  gauge      container_spec_memory_reservation_limit_bytes?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_spec_memory_swap_limit_bytes?  container,id,image,name,namespace,pod
    PLAIN  counter    container_memory_failcnt?  container,id,image,name,namespace,pod
    PLAIN  counter    container_memory_failures_total?  container,failure_type,id,image,name,namespace,pod,scope
    PLAIN  counter    container_oom_events_total?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_processes  container,id,image,name,namespace,pod
    PLAIN  gauge      container_file_descriptors  container,id,image,name,namespace,pod
    PLAIN  gauge      container_sockets  container,id,image,name,namespace,pod
    PLAIN  gauge      container_threads?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_threads_max?  container,id,image,name,namespace,pod
    PLAIN  gauge      container_start_time_seconds  container,id,image,name,namespace,pod
    PLAIN  gauge      container_last_seen  container,id,image,name,namespace,pod
    PLAIN  gauge      container_health_state  container,id,image,name,namespace,pod
    PLAIN  gauge      container_ulimits_soft?  container,id,image,name,namespace,pod,ulimit
    PLAIN  counter    container_network_receive_bytes_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_receive_packets_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_receive_packets_dropped_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_receive_errors_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_transmit_bytes_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_transmit_packets_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_transmit_packets_dropped_total  container,id,image,interface,name,namespace,pod
    PLAIN  counter    container_network_transmit_errors_total  container,id,image,interface,name,namespace,pod
    PLAIN  gauge      container_fs_usage_bytes  container,device,id,image,name,namespace,pod
    PLAIN  gauge      container_fs_limit_bytes  container,device,id,image,name,namespace,pod
    PLAIN  gauge      container_fs_inodes_total?  container,device,id,image,name,namespace,pod
    PLAIN  gauge      container_fs_inodes_free?  container,device,id,image,name,namespace,pod
    PLAIN  gauge      container_fs_io_current?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_reads_bytes_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_reads_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_sector_reads_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_reads_merged_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_read_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_writes_bytes_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_writes_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_sector_writes_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_writes_merged_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_write_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_io_time_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_io_time_weighted_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_io_cost_usage_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_io_cost_wait_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_io_cost_indebt_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_fs_io_cost_indelay_seconds_total?  container,device,id,image,name,namespace,pod
    PLAIN  counter    container_blkio_device_usage_total?  container,device,id,image,major,minor,name,namespace,operation,pod
    PLAIN  counter    container_pressure_cpu_waiting_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  counter    container_pressure_cpu_stalled_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  counter    container_pressure_io_waiting_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  counter    container_pressure_io_stalled_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  counter    container_pressure_memory_waiting_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  counter    container_pressure_memory_stalled_seconds_total?  container,id,image,name,namespace,pod
    PLAIN  gauge      machine_cpu_cores  boot_id,machine_id,system_uuid
    PLAIN  gauge      machine_cpu_physical_cores  boot_id,machine_id,system_uuid
    PLAIN  gauge      machine_cpu_sockets  boot_id,machine_id,system_uuid
    PLAIN  gauge      machine_memory_bytes  boot_id,machine_id,system_uuid
    PLAIN  gauge      machine_swap_bytes  boot_id,machine_id,system_uuid
";

const KUBELET_RESOURCES: &str = "
    STABLE counter    container_cpu_usage_seconds_total  container,namespace,pod
    STABLE gauge      container_memory_working_set_bytes  container,namespace,pod
    STABLE gauge      container_start_time_seconds  container,namespace,pod
    STABLE counter    node_cpu_usage_seconds_total
    STABLE gauge      node_memory_working_set_bytes
    STABLE counter    pod_cpu_usage_seconds_total  namespace,pod
    STABLE gauge      pod_memory_working_set_bytes  namespace,pod
    STABLE gauge      resource_scrape_error
    ALPHA  gauge      node_swap_usage_bytes?
    ALPHA  gauge      container_swap_usage_bytes?  container,namespace,pod
    ALPHA  gauge      pod_swap_usage_bytes?  namespace,pod
";

const KUBELET_PROBES: &str = "
    BETA   counter    prober_probe_total  container,namespace,pod,pod_uid,probe_type,result
    ALPHA  histogram  prober_probe_duration_seconds  container,namespace,pod,probe_type
";

const SLIS: &str = "
    STABLE gauge      kubernetes_healthcheck  name,type
    STABLE counter    kubernetes_healthchecks_total  name,status,type
";

const PROXY: &str = "
    ALPHA  histogram  kubeproxy_sync_proxy_rules_duration_seconds  ip_family
    ALPHA  histogram  kubeproxy_network_programming_duration_seconds  ip_family
    ALPHA  gauge      kubeproxy_sync_proxy_rules_last_timestamp_seconds  ip_family
    ALPHA  gauge      kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds  ip_family
    ALPHA  counter    kubeproxy_sync_proxy_rules_service_changes_total
    ALPHA  gauge      kubeproxy_sync_proxy_rules_service_changes_pending
    ALPHA  counter    kubeproxy_sync_proxy_rules_endpoint_changes_total
    ALPHA  gauge      kubeproxy_sync_proxy_rules_endpoint_changes_pending
    ALPHA  counter    rest_client_requests_total  code,host,method
    ALPHA  histogram  rest_client_request_duration_seconds  host,verb
";

const DNS: &str = "
    PLAIN  gauge      coredns_build_info  goversion,revision,version
    PLAIN  counter    coredns_dns_requests_total  family,proto,server,type,view,zone
    PLAIN  counter    coredns_dns_responses_total  plugin,rcode,server,view,zone
    PLAIN  histogram  coredns_dns_request_duration_seconds  server,view,zone
    PLAIN  histogram  coredns_dns_request_size_bytes  proto,server,view,zone
    PLAIN  histogram  coredns_dns_response_size_bytes  proto,server,view,zone
    PLAIN  counter    coredns_cache_requests_total  server,view,zones
    PLAIN  counter    coredns_cache_hits_total  server,type,view,zones
    PLAIN  counter    coredns_cache_misses_total  server,view,zones
    PLAIN  counter    coredns_panics_total
    PLAIN  histogram  coredns_proxy_request_duration_seconds?  proxy_name,rcode,to
";

/// Of STABLE and BETA histograms: the name, and where its buckets end.
const BOUNDS: &str = "
    apiserver_cel_compilation_duration_seconds  0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10
    apiserver_cel_evaluation_duration_seconds  0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10
    apiserver_flowcontrol_request_wait_duration_seconds  0 0.005 0.02 0.05 0.1 0.2 0.5 1 2 5 10 15 30
    apiserver_validating_admission_policy_check_duration_seconds  5e-07 0.001 0.01 0.1 1
    apiserver_watch_list_duration_seconds  0.05 0.1 0.2 0.4 0.6 0.8 1 2 4 6 8 10 15 20 30 45 60
    endpoint_slice_controller_endpoints_added_per_sync  2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768
    endpoint_slice_controller_endpoints_removed_per_sync  2 4 8 16 32 64 128 256 512 1024 2048 4096 8192 16384 32768
    horizontal_pod_autoscaler_controller_metric_computation_duration_seconds  0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384
    horizontal_pod_autoscaler_controller_reconciliation_duration_seconds  0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384
    scheduler_permit_wait_duration_seconds  0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384
    scheduler_pod_scheduling_sli_duration_seconds  0.01 0.02 0.04 0.08 0.16 0.32 0.64 1.28 2.56 5.12 10.24 20.48 40.96 81.92 163.84 327.68 655.36 1310.72 2621.44 5242.88
    workqueue_queue_duration_seconds  1e-08 1e-07 1e-06 1e-05 0.0001 0.001 0.01 0.1 1 10
    workqueue_work_duration_seconds  1e-08 1e-07 1e-06 1e-05 0.0001 0.001 0.01 0.1 1 10
    apiserver_admission_controller_admission_duration_seconds  0.005 0.025 0.1 0.5 1 2.5
    apiserver_admission_step_admission_duration_seconds  0.005 0.025 0.1 0.5 1 2.5
    apiserver_admission_webhook_admission_duration_seconds  0.005 0.025 0.1 0.5 1 2.5 10 25
    apiserver_request_duration_seconds  0.005 0.025 0.05 0.1 0.2 0.4 0.6 0.8 1 1.25 1.5 2 3 4 5 6 8 10 15 20 30 45 60
    apiserver_response_sizes  1000 10000 100000 1000000 10000000 100000000 1000000000
    cronjob_controller_job_creation_skew_duration_seconds  1 2 4 8 16 32 64 128 256 512
    job_controller_job_sync_duration_seconds  0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384 32.768 65.536
    scheduler_framework_extension_point_duration_seconds  0.0001 0.0002 0.0004 0.0008 0.0016 0.0032 0.0064 0.0128 0.0256 0.0512 0.1024 0.2048
    scheduler_pod_scheduling_attempts  1 2 4 8 16
    scheduler_preemption_victims  1 2 4 8 16 32 64
    scheduler_scheduling_attempt_duration_seconds  0.001 0.002 0.004 0.008 0.016 0.032 0.064 0.128 0.256 0.512 1.024 2.048 4.096 8.192 16.384
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_well_formed() {
        for component in Component::ALL {
            let rows: Vec<Row> = component.rows().collect();
            let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
            assert_eq!(names.len(), rows.len(), "{component:?} names a series twice");
            for row in rows {
                assert!(["ALPHA", "BETA", "PLAIN", "STABLE"].contains(&row.level), "{row:?}");
                assert!(["counter", "gauge", "histogram"].contains(&row.kind), "{row:?}");
                let is_promised = row.kind == "histogram" && ["BETA", "STABLE"].contains(&row.level);
                assert_eq!(bounds(row.name).is_some(), is_promised, "{row:?}");
            }
        }
        let mut numbers = BOUNDS.lines().flat_map(|line| line.split_whitespace().skip(1));
        assert!(numbers.all(|number| number.parse::<f64>().is_ok()));
        assert_eq!(level("apiserver_request_total"), Some("STABLE"));
        assert_eq!(level("kubernetes_healthcheck"), Some("STABLE"));
        assert_eq!((level("process_open_fds"), level("made_up")), (None, None));
        assert_eq!(level("container_cpu_usage_seconds_total"), None, "cAdvisor's has none");
    }

    #[test]
    fn what_is_missing_or_otherwise_is_told() {
        let metrics = crate::Metrics::new();
        metrics.counter("workqueue_depth", "", &[("name", "q")]);
        metrics.counter("workqueue_adds_total", "", &[("name", "a\\\",b=\"c")]);
        metrics.counter("workqueue_retries_total", "", &[("queue", "q")]);
        metrics.histogram("workqueue_queue_duration_seconds", "", &[1.0], &[("name", "q")]);
        let found = problems(Component::ControllerManager, &metrics.render());
        let of = |name: &str| found.iter().find(|problem| problem.starts_with(name)).map(String::as_str);
        assert_eq!(of("workqueue_adds_total"), None);
        let bounds = "workqueue_queue_duration_seconds has the bounds [1.0], not [1e-8, 1e-7, 1e-6, 1e-5, 0.0001, ";
        assert!(of("workqueue_queue_duration_seconds").unwrap().starts_with(bounds), "{found:?}");
        assert_eq!(of("workqueue_depth"), Some("workqueue_depth is a counter, not a gauge"));
        assert_eq!(of("workqueue_work"), Some("workqueue_work_duration_seconds is missing"));
        let labels = "workqueue_retries_total has the labels {\"queue\"}, not {\"name\"}";
        assert_eq!(of("workqueue_retries"), Some(labels));
        assert_eq!(of("node_collector_evictions_total"), None, "what happens seldom may be missing");
    }
}
