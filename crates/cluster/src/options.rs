//! Where a cluster lives and what it is called: shared by every command of this crate.

use std::path::PathBuf;

/// Everything that distinguishes one cluster of this machine from another.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Directory for persistent data: keys, objects, images, logs
    #[arg(long, default_value = "/var/lib/cox", env = "COX_DATA_DIR")]
    pub data_dir: PathBuf,
    /// Directory for sockets and other files that do not survive a reboot
    #[arg(long, default_value = "/run/cox", env = "COX_RUN_DIR")]
    pub run_dir: PathBuf,
    /// Name of the cluster, its user and its context in the kubeconfig
    #[arg(long, default_value = "cox", env = "COX_NAME")]
    pub name: String,
}

impl Options {
    pub fn pki_dir(&self) -> PathBuf {
        self.data_dir.join("pki")
    }

    /// Everything the cluster knows.
    pub fn store_dir(&self) -> PathBuf {
        self.data_dir.join("store")
    }

    /// The last hours of figures.
    pub fn history_file(&self) -> PathBuf {
        self.data_dir.join("history")
    }

    /// What is encrypted in the store, and the key.
    pub fn encryption_file(&self) -> PathBuf {
        self.pki_dir().join("encryption.yaml")
    }

    /// Manifests in here are applied, and kept so.
    pub fn manifests_dir(&self) -> PathBuf {
        self.data_dir.join("manifests")
    }

    /// What was applied from there.
    pub fn manifests_record(&self) -> PathBuf {
        self.data_dir.join("manifests.json")
    }

    /// Programs that machines of the cluster may fetch, each named by its SHA-256.
    pub fn programs_dir(&self) -> PathBuf {
        self.data_dir.join("programs")
    }

    pub fn log_file(&self) -> PathBuf {
        self.data_dir.join("logs/cox.log")
    }

    /// Held, with the pid inside, by the process that runs the cluster.
    pub fn lock_file(&self) -> PathBuf {
        self.data_dir.join("lock")
    }

    /// Held, likewise, by a command that changes the cluster on this machine.
    pub fn change_lock_file(&self) -> PathBuf {
        self.data_dir.join("change.lock")
    }

    /// The administrator's credentials; also merged into the user's kubeconfig.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.data_dir.join("admin.kubeconfig")
    }

    /// The cgroup below which all pods are.
    pub fn cgroup(&self) -> String {
        format!("/{}", self.name)
    }

    pub fn cri_socket(&self) -> PathBuf {
        self.run_dir.join("cri.sock")
    }

    /// Archives in here are imported when a node's runtime starts.
    pub fn images_dir(&self) -> PathBuf {
        self.data_dir.join("images")
    }

    pub fn cni_conf_dir(&self) -> PathBuf {
        self.data_dir.join("cni/net.d")
    }

    pub fn cni_bin_dir(&self) -> PathBuf {
        self.data_dir.join("cni/bin")
    }
}
