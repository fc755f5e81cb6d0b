//! What "not set" means: absent or, for text, empty. Upstream's types do not tell the two apart.

/// The text, or nothing when it is absent or empty.
pub fn text(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

/// The text, or `""`.
pub fn or_empty(field: &Option<String>) -> &str {
    field.as_deref().unwrap_or_default()
}

/// Sets a text that is absent or empty.
pub fn set_text(field: &mut Option<String>, default: &str) {
    if text(field).is_none() && !default.is_empty() {
        *field = Some(default.to_owned());
    }
}

/// Sets a number that is absent or zero, where upstream's type cannot tell them apart.
pub fn set_number(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 && default != 0 {
        *field = Some(default);
    }
}

/// The elements of a list that may be absent.
pub fn items<T>(field: &Option<Vec<T>>) -> &[T] {
    field.as_deref().unwrap_or_default()
}

pub fn items_mut<T>(field: &mut Option<Vec<T>>) -> &mut [T] {
    field.as_deref_mut().unwrap_or_default()
}
