//! The stages of the walk. Numbers are those of the walk's page: 1 client, 2 API server, 3 store, 4 initializers, 5 control
//! loops, 6 scheduler, 7 kubelet, 8 runtime, 9 pod network, 10 between hosts, 11 services.

use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! stages {
    ($($name:ident $number:literal $title:literal,)*) => {
        /// One kind of step. Which numbered stage it belongs to and what it is called are in one table.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Stage {
            $($name,)*
        }

        impl Stage {
            /// In the order of the walk.
            pub const ALL: &[Stage] = &[$(Stage::$name,)*];
            const TABLE: &[(&'static str, &'static str)] = &[$(($number, $title),)*];
        }
    };
}

stages! {
    Command "1" "command",
    Check "1.1" "check",
    Generate "1.2" "generate",
    Discovery "1.3" "discovery",
    Mapping "1.4" "map kind",
    Credentials "1.5" "credentials",
    Request "2" "request",
    Authentication "2.2" "authentication",
    Audit "2.3" "audit",
    Impersonation "2.3" "impersonation",
    Limits "2.3" "limits",
    Authorization "2.4" "authorization",
    Mutate "2.5" "admission",
    Validate "2.5" "admission check",
    Decode "2.6" "decode",
    Default "2.6" "defaults",
    Validation "2.6" "validation",
    Allocate "11.1" "allocate addresses",
    Encode "2.6" "encode",
    Commit "3.1" "commit",
    Initializer "4.1" "initializers",
    Delivery "5.1" "watch delivery",
    Wait "5.1" "queue wait",
    Deployment "5.2" "reconcile",
    ReplicaSet "5.3" "reconcile",
    Garbage "5.4" "reconcile",
    Reconcile "5.5" "reconcile",
    Pending "6.1" "scheduling queue",
    Schedule "6.3" "scheduling cycle",
    Filter "6.2" "filters",
    Score "6.2" "scores",
    Bind "6.3" "bind",
    Sync "7.1" "pod sync",
    Status "7.2" "status",
    Prepare "7.3" "directories, cgroup",
    Volumes "7.3" "volumes",
    Provision "7.3" "provision volume",
    Attach "7.3" "wait for attachment",
    StageVolume "7.3" "stage volume",
    PublishVolume "7.3" "publish volume",
    ExpandVolume "7.3" "expand volume",
    Probe "7.4" "probe",
    Ready "7.4" "ready",
    Hook "7.4" "hook",
    Sandbox "8.1" "sandbox",
    Pause "8.1" "pause",
    Pull "8.2" "pull image",
    Create "8.2" "create container",
    Start "8.2" "start container",
    Cni "9.1" "CNI",
    Routes "10.1" "routes",
    Endpoints "11.1" "endpoints",
    Rules "11.2" "rules programmed",
    Dns "11.3" "DNS record live",
}

impl Stage {
    /// The number of the walk.
    pub fn number(self) -> &'static str {
        Self::TABLE[self as usize].0
    }

    pub fn title(self) -> &'static str {
        Self::TABLE[self as usize].1
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Stage> {
        Self::ALL.get(usize::from(byte)).copied()
    }

    /// Of a controller, by its name.
    pub fn of_controller(name: &str) -> Stage {
        match name {
            "deployment-controller" => Stage::Deployment,
            "replicaset-controller" => Stage::ReplicaSet,
            "garbage-collector-controller" => Stage::Garbage,
            "endpoints-controller" | "endpointslice-controller" | "endpointslice-mirroring-controller" => {
                Stage::Endpoints
            }
            _ => Stage::Reconcile,
        }
    }

    /// The variant's own name: how processes tell each other.
    fn word(self) -> String {
        format!("{self:?}")
    }
}

impl FromStr for Stage {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|stage| stage.word() == text).ok_or("not a stage")
    }
}

impl Serialize for Stage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.word())
    }
}

impl<'de> Deserialize<'de> for Stage {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<str>::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_survives_its_word_and_its_byte() {
        for stage in Stage::ALL {
            assert_eq!(stage.word().parse(), Ok(*stage));
            assert_eq!(Stage::from_byte(*stage as u8), Some(*stage));
            assert!(!stage.title().is_empty() && stage.number().starts_with(|c: char| c.is_ascii_digit()));
        }
        assert_eq!(Stage::from_byte(255), None);
        assert_eq!(Stage::Cni.number(), "9.1");
    }
}
