//! CNI configurations: reading never panics, neither in the runtime nor in any plug-in, and what is accepted names programs,
//! not paths.
#![no_main]

use cni::config::NetworkConfig;
use libfuzzer_sys::fuzz_target;

/// Every plug-in may refuse it.
fn read(config: &[u8]) {
    for plugin in cni::PLUGINS {
        let _ = plugin.read_config(config);
    }
}

fuzz_target!(|text: &str| {
    read(text.as_bytes());
    for is_list in [false, true] {
        let Ok(config) = NetworkConfig::parse(text, is_list) else { continue };
        assert!(!config.name.is_empty() && !config.name.contains('/'));
        for plugin in &config.plugins {
            let kind = plugin["type"].as_str().expect("a plug-in has a type");
            assert!(!kind.is_empty() && !kind.contains('/'));
            // As the runtime passes it on.
            let mut passed = plugin.clone();
            passed.insert("name".into(), config.name.clone().into());
            passed.insert("cniVersion".into(), config.cni_version.clone().into());
            read(serde_json::Value::Object(passed).to_string().as_bytes());
        }
        let again = NetworkConfig::parse(&config.source, is_list).expect("the source reads again");
        assert_eq!(again, config);
    }
});
