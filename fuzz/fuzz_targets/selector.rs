//! Label and field selectors, and quantities: parsing never panics, and what is printed reads the same.
#![no_main]

use api::quantity::Quantity;
use api::selector::{FieldSelector, Selector};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(selector) = Selector::parse(text) {
        let printed = selector.to_string();
        let again = Selector::parse(&printed).expect("a printed selector parses");
        assert_eq!(again.to_string(), printed);
        let labels = [("a", "b"), ("app", "web")].map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        assert_eq!(selector.matches(Some(&labels)), again.matches(Some(&labels)), "{printed}");
    }
    if let Ok(selector) = FieldSelector::parse(text) {
        let printed = selector.to_string();
        let again = FieldSelector::parse(&printed).expect("a printed selector parses");
        // Terms are sorted as they were written (`==` before `=`), so only printing twice settles their order.
        let settled = again.to_string();
        assert_eq!(FieldSelector::parse(&settled).expect("so does the next").to_string(), settled);
        assert_eq!(again.terms().len(), selector.terms().len(), "{printed}");
    }
    if let Ok(quantity) = Quantity::parse(text) {
        let printed = quantity.to_string();
        let again = Quantity::parse(&printed).expect("a printed quantity parses");
        assert_eq!(again, quantity, "{printed}");
        let _ = (quantity.value(), quantity.milli_value());
    }
});
