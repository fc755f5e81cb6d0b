//! CNI configurations: reading never panics, and what is accepted names programs, not paths.
#![no_main]

use cni::config::NetworkConfig;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for is_list in [false, true] {
        let Ok(config) = NetworkConfig::parse(text, is_list) else { continue };
        assert!(!config.name.is_empty() && !config.name.contains('/'));
        for plugin in &config.plugins {
            let kind = plugin["type"].as_str().expect("a plug-in has a type");
            assert!(!kind.is_empty() && !kind.contains('/'));
        }
        let again = NetworkConfig::parse(&config.source, is_list).expect("the source reads again");
        assert_eq!(again, config);
    }
});
