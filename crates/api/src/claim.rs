//! What the status of a PersistentVolumeClaim says of its volume's growth.

/// Whether a condition is part of a growth, and goes when that is over (`knownResizeConditions`, v1.36).
pub fn is_growth_condition(kind: &str) -> bool {
    matches!(kind, "FileSystemResizePending" | "Resizing" | "ControllerResizeError" | "NodeResizeError")
}
