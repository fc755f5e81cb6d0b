//! Feature gates, of `--feature-gates` and of configuration files: the one list for all components.
//!
//! Nothing is switched here. A gate that asks for what is done anyway is accepted, one that asks for anything else is
//! refused, and a name that v1.36 does not have is an error, as it is upstream.

/// What is always on.
const ON: &str = "
    APIResponseCompression APIServerTracing AggregatedDiscoveryRemoveBetaType AllowParsingUserUIDFromCertAuth
    AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors
    AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors CRDValidationRatcheting
    CSIServiceAccountTokenSecrets
    ClearingNominatedNodeNameAfterBinding ComponentFlagz ComponentStatusz ConsistentListFromCache ConstrainedImpersonation
    ContainerRestartRules ContainerStopSignals
    CustomResourceFieldSelectors DeploymentReplicaSetTerminatingReplicas DisableAllocatorDualWrite
    DisableNodeKubeProxyVersion EventedPLEG ExecProbeTimeout GracefulNodeShutdown
    GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance HPAScaleToZero HonorPVReclaimPolicy HostnameOverride
    ImageMaximumGCAge ImageVolume
    InPlacePodVerticalScaling InPlacePodVerticalScalingInitContainers JobBackoffLimitPerIndex JobManagedBy
    JobPodReplacementPolicy JobSuccessPolicy
    KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz
    KubeletTracing
    LogarithmicScaleDown MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge
    MaxUnavailableStatefulSet MultiCIDRServiceAllocator MutableCSINodeAllocatableCount MutatingAdmissionPolicy
    NFTablesProxyMode
    NodeInclusionPolicyInPodTopologySpread OpenAPIEnums OrderedNamespaceDeletion PodDeletionCost PodLevelResources
    PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodObservedGenerationTracking
    PodReadyToStartContainersCondition PodSchedulingReadiness PodTopologyLabelsAdmission PortForwardWebsockets
    PreferSameTrafficDistribution PreventStaticPodAPIReferences ProcMountType RecoverVolumeExpansionFailure
    RecursiveReadOnlyMounts
    RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation RelaxedServiceNameValidation
    ReloadKubeletServerCertificateFile RemoteRequestHeaderUID RetryGenerateName RotateKubeletServerCertificate
    SELinuxChangePolicy SchedulerQueueingHints SeparateTaintEvictionController ServiceAccountNodeAudienceRestriction
    ServiceAccountTokenJTI ServiceAccountTokenNodeBinding ServiceAccountTokenNodeBindingValidation
    ServiceAccountTokenPodNodeInfo SidecarContainers StatefulSetSemanticRevisionComparison StorageVersionHash
    SupplementalGroupsPolicy TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests
    UnauthenticatedHTTP2DOSMitigation VolumeAttributesClass WatchList
";

/// What is always off.
const OFF: &str = "
    APIServerIdentity AllAlpha AllBeta AllowDNSOnlyNodeCSR
    AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
    AllowUnsafeMalformedObjectDeletion CBORServingAndStorage CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions
    CPUManagerPolicyOptions CRDObservedGenerationTracking CRIListStreaming
    CSIVolumeHealth ChangeContainerStatusOnKubeletRestart ClusterTrustBundle ClusterTrustBundleProjection
    ContainerCheckpoint CoordinatedLeaderElection
    CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod DRAAdminAccess DRAConsumableCapacity
    DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints DRAExtendedResource DRAPartitionableDevices
    DRAPrioritizedList DRAResourceClaimDeviceStatus DRAResourcePoolStatus DRASchedulerFilterTimeout
    DisableCPUQuotaWithExclusiveCPUs DynamicResourceAllocation EnvFiles ExternalServiceAccountTokenSigner
    GangScheduling GenericWorkload GitRepoVolumeDriver ImageVolumeWithDigest
    InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScalingAllocatedStatus
    InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory KMSv1 KubeletInUserNamespace
    KubeletPSI KubeletPodResourcesDynamicResources KubeletPodResourcesGet KubeletPodResourcesListUseActivePods
    KubeletRegistrationGetOnExistsOnly KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
    LocalStorageCapacityIsolationFSQuotaMonitoring MatchLabelKeysInPodAffinity MemoryQoS
    MutablePVNodeAffinity MutablePodResourcesForSuspendedJobs
    MutableSchedulingDirectivesForSuspendedJobs NodeDeclaredFeatures NodeLogQuery NodeSwap
    NominatedNodeNameForExpectation PodCertificateRequest PodLogsQuerySplitStreams QOSReserved
    ReduceDefaultCrashLoopBackOffDecay ResourceHealthStatus ResourceHealthStatusMessage
    RestartAllContainersOnContainerExits RuntimeClassInImageCriApi SELinuxMount SELinuxMountReadWriteOncePod
    SizeBasedListCostEstimate StorageCapacityScoring StorageVersionAPI StorageVersionMigrator StrictIPCIDRValidation
    StructuredAuthenticationConfiguration StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics SystemdWatchdog TaintTolerationComparisonOperators
    TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions TopologyManagerPolicyOptions
    UnknownVersionInteroperabilityProxy UserNamespacesHostNetworkSupport UserNamespacesSupport VolumeLimitScaling
";

/// How upstream does things inside, or on other systems: nothing here could differ.
const EITHER: &str = "
    APIServingWithRoutine AtomicFIFO BtreeWatchCache ClientsAllowCBOR ClientsPreferCBOR
    CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ConcurrentWatchObjectDecode
    DeclarativeValidation DeclarativeValidationTakeover DetectCacheInconsistency InOrderInformers
    InOrderInformersBatchProcess InformerResourceVersion ListFromCacheSnapshot OpportunisticBatching
    PodAndContainerStatsFromCRI ResilientWatchCacheInitialization SchedulerAsyncAPICalls SchedulerAsyncPreemption
    SchedulerPopFromBackoffQ SeparateCacheWatchRPC StorageNamespaceIndex StreamingCollectionEncodingToJSON
    StreamingCollectionEncodingToProtobuf UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook
    WatchListClient WinDSR WinOverlay WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork
";

/// Every gate that says something here, and whether it is on.
pub fn all() -> impl Iterator<Item = (&'static str, bool)> {
    let named = |list: &'static str, is_on| list.split_whitespace().map(move |name| (name, is_on));
    named(ON, true).chain(named(OFF, false))
}

/// Why a gate cannot be set so.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GateError {
    #[error("unrecognized feature gate: {0}")]
    Unknown(String),
    #[error("cannot set feature gate {name} to {value}: here it is always {}", !.value)]
    Fixed { name: String, value: bool },
    #[error("missing bool value for {0}")]
    NoValue(String),
    #[error("invalid value of {0}: not a boolean")]
    NotBoolean(String),
}

/// Whether a gate may be set so.
pub fn check(name: &str, value: bool) -> Result<(), GateError> {
    let has = |list: &str| list.split_whitespace().any(|known| known == name);
    let is_on = match (has(ON), has(OFF)) {
        (true, _) => true,
        (_, true) => false,
        _ if has(EITHER) => return Ok(()),
        _ => return Err(GateError::Unknown(name.to_owned())),
    };
    if value == is_on { Ok(()) } else { Err(GateError::Fixed { name: name.to_owned(), value }) }
}

/// One `Name=true` of `--feature-gates`.
pub fn check_pair(pair: &str) -> Result<(), GateError> {
    let pair = pair.trim();
    if pair.is_empty() {
        return Ok(());
    }
    let (name, value) = pair.split_once('=').ok_or_else(|| GateError::NoValue(pair.to_owned()))?;
    check(name.trim(), boolean(value.trim()).ok_or_else(|| GateError::NotBoolean(pair.to_owned()))?)
}

/// As Go reads a boolean.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_ask_for_what_is_done_or_are_refused() {
        for (pair, is_fine) in [
            ("SidecarContainers=true", true),
            ("SidecarContainers=false", false),
            ("UserNamespacesSupport=true", false),
            ("UserNamespacesSupport=false", true),
            ("BtreeWatchCache=false", true),
            ("BtreeWatchCache=true", true),
            ("AllAlpha=false", true),
            ("Unheard=true", false),
            ("SidecarContainers", false),
            ("SidecarContainers=maybe", false),
            ("", true),
        ] {
            assert_eq!(check_pair(pair).is_ok(), is_fine, "{pair}");
        }
        assert_eq!(check_pair("Unheard=true"), Err(GateError::Unknown("Unheard".to_owned())));
    }

    #[test]
    fn no_gate_has_two_answers() {
        let mut all: Vec<&str> = [ON, OFF, EITHER].iter().flat_map(|list| list.split_whitespace()).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
