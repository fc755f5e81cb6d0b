//! Feature gates, of `--feature-gates` and of configuration files: the one list for all components.
//!
//! Nothing is switched here. A gate that asks for what is done anyway is accepted, one that asks for anything else is
//! refused, and a name that v1.36 does not have is an error, as it is upstream.

/// What is always on.
const ON: &str = "
    APIResponseCompression APIServerIdentity APIServerTracing AggregatedDiscoveryRemoveBetaType
    AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs AllowUnsafeMalformedObjectDeletion
    AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AuthorizeNodeWithSelectors
    AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors CRDObservedGenerationTracking
    CRDValidationRatcheting CSIServiceAccountTokenSecrets ClearingNominatedNodeNameAfterBinding ClusterTrustBundle
    ComponentFlagz ComponentStatusz ConsistentListFromCache ConstrainedImpersonation ContainerRestartRules
    ContainerStopSignals CustomResourceFieldSelectors DRAResourceClaimDeviceStatus
    DRAResourceClaimGranularStatusAuthorization DeploymentReplicaSetTerminatingReplicas DisableAllocatorDualWrite
    DisableNodeKubeProxyVersion EnvFiles EventedPLEG ExecProbeTimeout ExternalServiceAccountTokenSigner
    GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority HPAConfigurableTolerance HPAScaleToZero
    HostnameOverride ImageMaximumGCAge ImageVolume InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling
    InPlacePodVerticalScalingInitContainers JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy
    JobSuccessPolicy KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
    KubeletFineGrainedAuthz KubeletPSI KubeletTracing LogarithmicScaleDown MatchLabelKeysInPodAffinity
    MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet
    MultiCIDRServiceAllocator MutableCSINodeAllocatableCount MutablePodResourcesForSuspendedJobs
    MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy NFTablesProxyMode
    NodeInclusionPolicyInPodTopologySpread OpenAPIEnums OrderedNamespaceDeletion PodDeletionCost PodLevelResources
    PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodLogsQuerySplitStreams PodObservedGenerationTracking
    PodReadyToStartContainersCondition PodSchedulingReadiness PodTopologyLabelsAdmission PortForwardWebsockets
    PreferSameTrafficDistribution PreventStaticPodAPIReferences ProcMountType RecoverVolumeExpansionFailure
    RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation
    RelaxedServiceNameValidation ReloadKubeletClientCAFile ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
    RestartAllContainersOnContainerExits RetryGenerateName RotateKubeletServerCertificate SELinuxChangePolicy
    SELinuxMountReadWriteOncePod SchedulerQueueingHints SeparateTaintEvictionController
    ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
    ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo ServiceCIDRStatusFieldWiping
    SidecarContainers StatefulSetSemanticRevisionComparison StorageVersionHash StorageVersionMigrator
    StrictIPCIDRValidation StructuredAuthenticationConfiguration SupplementalGroupsPolicy SystemdWatchdog
    TokenRequestServiceAccountUIDValidation TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation
    VolumeAttributesClass VolumeLimitScaling WatchList
";

/// What is always off.
const OFF: &str = "
    AllAlpha AllBeta AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
    AllowOverwriteTerminationGracePeriodSeconds CBORServingAndStorage CPUManagerPolicyAlphaOptions
    CPUManagerPolicyBetaOptions CPUManagerPolicyOptions CRIListStreaming CSIVolumeHealth
    ChangeContainerStatusOnKubeletRestart ClusterTrustBundleProjection ContainerCheckpoint CoordinatedLeaderElection
    CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod DRAAdminAccess DRAConsumableCapacity
    DRADeviceBindingConditions DRADeviceTaintRules DRADeviceTaints DRAExtendedResource DRAListTypeAttributes
    DRANodeAllocatableResources DRAPartitionableDevices DRAPrioritizedList DRAResourcePoolStatus
    DRASchedulerFilterTimeout DRAWorkloadResourceClaims DisableCPUQuotaWithExclusiveCPUs DynamicResourceAllocation
    GangScheduling GenericWorkload GitRepoVolumeDriver ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs
    InPlacePodVerticalScalingExclusiveMemory KMSv1 KubeletInUserNamespace KubeletPodResourcesDynamicResources
    KubeletPodResourcesGet KubeletPodResourcesListUseActivePods KubeletRegistrationGetOnExistsOnly
    KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
    LocalStorageCapacityIsolationFSQuotaMonitoring ManifestBasedAdmissionControlConfig MemoryQoS
    MutablePVNodeAffinity NativeHistograms NodeDeclaredFeatures NodeLogQuery NodeSwap
    NominatedNodeNameForExpectation PersistentVolumeClaimUnusedSinceTime PodCertificateRequest
    PodLevelResourceManagers PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay ResourceHealthStatus
    ResourceHealthStatusMessage RuntimeClassInImageCriApi SELinuxMount ShardedListAndWatch StorageCapacityScoring
    StorageVersionAPI StructuredAuthenticationConfigurationEgressSelector
    StructuredAuthenticationConfigurationJWKSMetrics TaintTolerationComparisonOperators
    TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions
    TopologyManagerPolicyOptions UnknownVersionInteroperabilityProxy UserNamespacesHostNetworkSupport
    UserNamespacesSupport WorkloadAwarePreemption WorkloadWithJob
";

/// How upstream does things inside, or on other systems: nothing here could differ.
const EITHER: &str = "
    APIServingWithRoutine AtomicFIFO BtreeWatchCache ClientsAllowCARotation ClientsAllowCBOR
    ClientsAllowTLSCacheGC ClientsPreferCBOR CloudControllerManagerWatchBasedRoutesReconciliation
    CloudControllerManagerWebhook ConcurrentWatchObjectDecode ContextualLogging
    ControllerManagerReleaseLeaderElectionLockOnExit DeclarativeValidation DeclarativeValidationBeta
    DeclarativeValidationTakeover DetectCacheInconsistency ExtendWebSocketsToKubelet InOrderInformers
    InOrderInformersBatchProcess InformerResourceVersion ListFromCacheSnapshot LoggingAlphaOptions
    LoggingBetaOptions LoggingStableOptions OpportunisticBatching PLEGOnDemandRelist PodAndContainerStatsFromCRI
    ResilientWatchCacheInitialization SchedulerAsyncAPICalls SchedulerAsyncPreemption SchedulerPopFromBackoffQ
    SeparateCacheWatchRPC SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet
    StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
    StorageNamespaceIndex StreamingCollectionEncodingToJSON StreamingCollectionEncodingToProtobuf
    UnlockWhileProcessingFIFO WatchCacheInitializationPostStartHook WatchListClient WinDSR WinOverlay
    WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown WindowsHostNetwork
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
    // Upstream's control plane takes the name of a component before that of a gate; all of ours are `kube`'s.
    let name = name.trim().strip_prefix("kube:").unwrap_or(name);
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn gates_ask_for_what_is_done_or_are_refused() {
        for (pair, is_fine) in [
            ("SidecarContainers=true", true),
            ("kube:SidecarContainers=true", true),
            ("wardle:SidecarContainers=true", false),
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

    /// The gates of v1.36.
    const UPSTREAM: &str = "
        APIResponseCompression APIServerIdentity APIServerTracing APIServingWithRoutine
        AggregatedDiscoveryRemoveBetaType AllAlpha AllBeta AllowDNSOnlyNodeCSR
        AllowInsecureKubeletCertificateSigningRequests AllowOverwriteTerminationGracePeriodSeconds
        AllowParsingUserUIDFromCertAuth AllowServiceExternalIPs AllowUnsafeMalformedObjectDeletion
        AnonymousAuthConfigurableEndpoints AnyVolumeDataSource AtomicFIFO AuthorizeNodeWithSelectors
        AuthorizePodWebsocketUpgradeCreatePermission AuthorizeWithSelectors BtreeWatchCache
        CBORServingAndStorage CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CPUManagerPolicyOptions
        CRDObservedGenerationTracking CRDValidationRatcheting CRIListStreaming CSIServiceAccountTokenSecrets
        CSIVolumeHealth ChangeContainerStatusOnKubeletRestart ClearingNominatedNodeNameAfterBinding
        ClientsAllowCARotation ClientsAllowCBOR ClientsAllowTLSCacheGC ClientsPreferCBOR
        CloudControllerManagerWatchBasedRoutesReconciliation CloudControllerManagerWebhook ClusterTrustBundle
        ClusterTrustBundleProjection ComponentFlagz ComponentStatusz ConcurrentWatchObjectDecode
        ConsistentListFromCache ConstrainedImpersonation ContainerCheckpoint ContainerRestartRules
        ContainerStopSignals ContextualLogging ControllerManagerReleaseLeaderElectionLockOnExit
        CoordinatedLeaderElection CrossNamespaceVolumeDataSource CustomCPUCFSQuotaPeriod
        CustomResourceFieldSelectors DRAAdminAccess DRAConsumableCapacity DRADeviceBindingConditions
        DRADeviceTaintRules DRADeviceTaints DRAExtendedResource DRAListTypeAttributes
        DRANodeAllocatableResources DRAPartitionableDevices DRAPrioritizedList DRAResourceClaimDeviceStatus
        DRAResourceClaimGranularStatusAuthorization DRAResourcePoolStatus DRASchedulerFilterTimeout
        DRAWorkloadResourceClaims DeclarativeValidation DeclarativeValidationBeta DeclarativeValidationTakeover
        DeploymentReplicaSetTerminatingReplicas DetectCacheInconsistency DisableAllocatorDualWrite
        DisableCPUQuotaWithExclusiveCPUs DisableNodeKubeProxyVersion DynamicResourceAllocation EnvFiles
        EventedPLEG ExecProbeTimeout ExtendWebSocketsToKubelet ExternalServiceAccountTokenSigner GangScheduling
        GenericWorkload GitRepoVolumeDriver GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
        HPAConfigurableTolerance HPAScaleToZero HostnameOverride ImageMaximumGCAge ImageVolume
        ImageVolumeWithDigest InOrderInformers InOrderInformersBatchProcess
        InPlacePodLevelResourcesVerticalScaling InPlacePodVerticalScaling InPlacePodVerticalScalingExclusiveCPUs
        InPlacePodVerticalScalingExclusiveMemory InPlacePodVerticalScalingInitContainers InformerResourceVersion
        JobBackoffLimitPerIndex JobManagedBy JobPodReplacementPolicy JobSuccessPolicy KMSv1
        KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages
        KubeletFineGrainedAuthz KubeletInUserNamespace KubeletPSI KubeletPodResourcesDynamicResources
        KubeletPodResourcesGet KubeletPodResourcesListUseActivePods KubeletRegistrationGetOnExistsOnly
        KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders KubeletTracing
        ListFromCacheSnapshot LocalStorageCapacityIsolationFSQuotaMonitoring LogarithmicScaleDown
        LoggingAlphaOptions LoggingBetaOptions LoggingStableOptions ManifestBasedAdmissionControlConfig
        MatchLabelKeysInPodAffinity MatchLabelKeysInPodTopologySpread
        MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet MemoryQoS
        MultiCIDRServiceAllocator MutableCSINodeAllocatableCount MutablePVNodeAffinity
        MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs MutatingAdmissionPolicy
        NFTablesProxyMode NativeHistograms NodeDeclaredFeatures NodeInclusionPolicyInPodTopologySpread
        NodeLogQuery NodeSwap NominatedNodeNameForExpectation OpenAPIEnums OpportunisticBatching
        OrderedNamespaceDeletion PLEGOnDemandRelist PersistentVolumeClaimUnusedSinceTime
        PodAndContainerStatsFromCRI PodCertificateRequest PodDeletionCost PodLevelResourceManagers
        PodLevelResources PodLifecycleSleepAction PodLifecycleSleepActionAllowZero PodLogsQuerySplitStreams
        PodObservedGenerationTracking PodReadyToStartContainersCondition PodSchedulingReadiness
        PodTopologyLabelsAdmission PodsAPI PortForwardWebsockets PreferSameTrafficDistribution
        PreventStaticPodAPIReferences ProcMountType QOSReserved RecoverVolumeExpansionFailure
        RecursiveReadOnlyMounts ReduceDefaultCrashLoopBackOffDecay RelaxedDNSSearchValidation
        RelaxedEnvironmentVariableValidation RelaxedServiceNameValidation ReloadKubeletClientCAFile
        ReloadKubeletServerCertificateFile RemoteRequestHeaderUID ResilientWatchCacheInitialization
        ResourceHealthStatus ResourceHealthStatusMessage RestartAllContainersOnContainerExits RetryGenerateName
        RotateKubeletServerCertificate RuntimeClassInImageCriApi SELinuxChangePolicy SELinuxMount
        SELinuxMountReadWriteOncePod SchedulerAsyncAPICalls SchedulerAsyncPreemption SchedulerPopFromBackoffQ
        SchedulerQueueingHints SeparateCacheWatchRPC SeparateTaintEvictionController
        ServiceAccountNodeAudienceRestriction ServiceAccountTokenJTI ServiceAccountTokenNodeBinding
        ServiceAccountTokenNodeBindingValidation ServiceAccountTokenPodNodeInfo ServiceCIDRStatusFieldWiping
        ShardedListAndWatch SidecarContainers SizeBasedListCostEstimate StaleControllerConsistencyDaemonSet
        StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
        StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageNamespaceIndex StorageVersionAPI
        StorageVersionHash StorageVersionMigrator StreamingCollectionEncodingToJSON
        StreamingCollectionEncodingToProtobuf StrictIPCIDRValidation StructuredAuthenticationConfiguration
        StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
        SupplementalGroupsPolicy SystemdWatchdog TaintTolerationComparisonOperators
        TokenRequestServiceAccountUIDValidation
        TopologyAwareWorkloadScheduling TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions
        TopologyManagerPolicyOptions TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation
        UnknownVersionInteroperabilityProxy UnlockWhileProcessingFIFO UserNamespacesHostNetworkSupport
        UserNamespacesSupport VolumeAttributesClass VolumeLimitScaling WatchCacheInitializationPostStartHook
        WatchList WatchListClient WinDSR WinOverlay WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown
        WindowsHostNetwork WorkloadAwarePreemption WorkloadWithJob
    ";

    /// Those of them that say something here and are off by default.
    const OFF_UPSTREAM: &str = "
        AllAlpha AllBeta AllowDNSOnlyNodeCSR AllowInsecureKubeletCertificateSigningRequests
        AllowOverwriteTerminationGracePeriodSeconds AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
        CPUManagerPolicyAlphaOptions CRIListStreaming CSIVolumeHealth ChangeContainerStatusOnKubeletRestart
        ClusterTrustBundle ClusterTrustBundleProjection ContainerStopSignals CoordinatedLeaderElection
        CrossNamespaceVolumeDataSource DRADeviceTaintRules DRAListTypeAttributes DRANodeAllocatableResources
        DRAResourcePoolStatus DRAWorkloadResourceClaims EventedPLEG GangScheduling GenericWorkload
        GitRepoVolumeDriver HPAScaleToZero ImageVolumeWithDigest InPlacePodVerticalScalingExclusiveCPUs
        InPlacePodVerticalScalingExclusiveMemory KMSv1 KubeletInUserNamespace KubeletRegistrationGetOnExistsOnly
        LocalStorageCapacityIsolationFSQuotaMonitoring ManifestBasedAdmissionControlConfig MaxUnavailableStatefulSet
        MemoryQoS MutablePVNodeAffinity NativeHistograms PersistentVolumeClaimUnusedSinceTime PodCertificateRequest
        PodLevelResourceManagers PodLogsQuerySplitStreams PodsAPI QOSReserved ReduceDefaultCrashLoopBackOffDecay
        RuntimeClassInImageCriApi SELinuxMount ShardedListAndWatch StorageCapacityScoring StorageVersionAPI
        StorageVersionMigrator TaintTolerationComparisonOperators TopologyAwareWorkloadScheduling
        TopologyManagerPolicyAlphaOptions UserNamespacesHostNetworkSupport VolumeLimitScaling
        WorkloadAwarePreemption WorkloadWithJob
    ";

    /// On here and off upstream, or the other way round. Each has its reason in docs/components.md.
    const DIFFERENT: &str = "
        AllowUnsafeMalformedObjectDeletion CPUManagerPolicyBetaOptions CPUManagerPolicyOptions ClusterTrustBundle
        ContainerCheckpoint ContainerStopSignals CustomCPUCFSQuotaPeriod DRAAdminAccess DRAConsumableCapacity
        DRADeviceBindingConditions DRADeviceTaints DRAExtendedResource DRAPartitionableDevices DRAPrioritizedList
        DRASchedulerFilterTimeout DisableCPUQuotaWithExclusiveCPUs DynamicResourceAllocation EventedPLEG
        HPAScaleToZero KubeletPodResourcesDynamicResources KubeletPodResourcesGet
        KubeletPodResourcesListUseActivePods KubeletSeparateDiskGC KubeletServiceAccountTokenForCredentialProviders
        MaxUnavailableStatefulSet NodeDeclaredFeatures NodeLogQuery NodeSwap NominatedNodeNameForExpectation
        PodLogsQuerySplitStreams ResourceHealthStatus ResourceHealthStatusMessage StorageVersionMigrator
        StructuredAuthenticationConfigurationEgressSelector StructuredAuthenticationConfigurationJWKSMetrics
        TopologyManagerPolicyBetaOptions TopologyManagerPolicyOptions UnknownVersionInteroperabilityProxy
        UserNamespacesSupport VolumeLimitScaling
    ";

    #[test]
    fn defaults_differ_only_where_it_is_known() {
        let names = |list: &'static str| list.split_whitespace().collect::<BTreeSet<_>>();
        let off_upstream = names(OFF_UPSTREAM);
        assert!(off_upstream.is_subset(&names(UPSTREAM)));
        let differing = all().filter(|(name, is_on)| off_upstream.contains(name) == *is_on);
        let differing: BTreeSet<&str> = differing.map(|(name, _)| name).collect();
        assert_eq!(differing, names(DIFFERENT));
        let page = include_str!("../../../docs/components.md");
        for name in differing {
            assert!(page.contains(name), "docs/components.md does not say why {name} differs");
        }
    }

    #[test]
    fn every_gate_has_an_answer() {
        let ours: BTreeSet<&str> = [ON, OFF, EITHER].iter().flat_map(|list| list.split_whitespace()).collect();
        assert_eq!(ours, UPSTREAM.split_whitespace().collect());
    }

    #[test]
    fn no_gate_has_two_answers() {
        let mut all: Vec<&str> = [ON, OFF, EITHER].iter().flat_map(|list| list.split_whitespace()).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
