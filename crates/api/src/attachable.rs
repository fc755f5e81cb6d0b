//! What the status of a node calls volumes that must be attached before they are used there, in `volumesAttached` and
//! `volumesInUse` (`GetUniqueVolumeName`, v1.36). The attach-detach controller and kubelets meet by these names.

/// The plug-in of CSI drivers' volumes.
pub const CSI: &str = "kubernetes.io/csi";
/// The plug-in of iSCSI disks, which nobody but the node has to attach.
pub const ISCSI: &str = "kubernetes.io/iscsi";

/// A volume of a CSI driver.
pub fn csi_name(driver: &str, handle: &str) -> String {
    format!("{CSI}/{driver}^{handle}")
}

/// An iSCSI disk, as its source names it: the portal is not given the port that it leaves out.
pub fn iscsi_name(portal: &str, iqn: &str, lun: i32) -> String {
    format!("{ISCSI}/{portal}:{iqn}:{lun}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_upstreams() {
        assert_eq!(csi_name("d.example", "h"), "kubernetes.io/csi/d.example^h");
        let name = iscsi_name("10.0.0.1", "iqn.2003-01.org.x:a", 3);
        assert_eq!(name, "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:3");
    }
}
