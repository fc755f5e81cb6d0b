//! Results of CNI plug-ins, which anyone may have written: reading and converting never panics, and nothing is lost between
//! versions that can say it.
#![no_main]

use cni::AddResult;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(value) = serde_json::from_str(text) else { return };
    let Ok(result) = AddResult::parse(&value) else { return };
    for version in ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0", "9.9.9", ""] {
        let written = result.to_version(version);
        if version == "9.9.9" {
            AddResult::parse(&written).expect_err("nobody knows this version");
            continue;
        }
        let read = AddResult::parse(&written).expect("what is written reads again");
        // The oldest versions have room for one address of each family.
        if !["0.1.0", "0.2.0", ""].contains(&version) {
            assert_eq!(read.ips, result.ips, "{version}: {written}");
            assert_eq!(read.pod_addresses().count(), result.pod_addresses().count(), "{version}: {written}");
        }
    }
});
