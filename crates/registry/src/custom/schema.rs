//! A schema, compiled: the form that validation, pruning, defaulting and merging walk over.

use api::schema::ListType;
use api::sort::CompactSort as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use super::formats::{self, Format};
use super::pattern::Pattern;
use super::{cost, expressions};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Array,
    Boolean,
    Integer,
    Number,
    Object,
    String,
}

impl Kind {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kind::Array => "array",
            Kind::Boolean => "boolean",
            Kind::Integer => "integer",
            Kind::Number => "number",
            Kind::Object => "object",
            Kind::String => "string",
        }
    }
}

/// What may stand in an object besides its properties.
#[derive(Debug, Default)]
pub(super) enum Additional {
    /// The schema does not say: nothing is known to stand there.
    #[default]
    Unsaid,
    Anything,
    Nothing,
    Like(Box<Schema>),
}

#[derive(Debug, Default)]
pub(super) struct Schema {
    pub(super) kind: Option<Kind>,
    pub(super) nullable: bool,
    pub(super) int_or_string: bool,
    pub(super) keeps_unknown: bool,
    pub(super) is_embedded: bool,
    /// Sorted by name.
    pub(super) properties: Box<[(Box<str>, Schema)]>,
    pub(super) additional: Additional,
    pub(super) items: Option<Box<Schema>>,
    pub(super) required: Box<[Box<str>]>,
    pub(super) default: Option<Value>,
    pub(super) list: Option<ListType>,
    /// A map or structure that is owned and replaced as a whole.
    pub(super) is_atomic: bool,
    /// What values must fulfil beyond their type; most schemas say nothing of the kind.
    pub(super) rules: Option<Box<Rules>>,
    /// Rules in CEL.
    pub(super) expressions: Box<[expressions::Rule]>,
    /// Whether there are any, here or below.
    pub(super) has_expressions: bool,
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) choices: Vec<Value>,
    pub(super) pattern: Option<Pattern>,
    pub(super) format: Option<Format>,
    pub(super) minimum: Option<(f64, bool)>,
    pub(super) maximum: Option<(f64, bool)>,
    pub(super) multiple_of: Option<f64>,
    pub(super) length: (Option<i64>, Option<i64>),
    pub(super) count: (Option<i64>, Option<i64>),
    pub(super) properties: (Option<i64>, Option<i64>),
    pub(super) all_of: Vec<Schema>,
    pub(super) any_of: Vec<Schema>,
    pub(super) one_of: Vec<Schema>,
    pub(super) not: Option<Box<Schema>>,
}

/// The fields every object has; their types are not the schema's to say.
pub(super) const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Schema {
    /// Compiles the schema of a version. A definition whose schema does not compile was refused when it was written.
    pub(super) fn root(schema: &JSONSchemaProps) -> Self {
        let mut root = Self::new(schema);
        root.forget_object_fields();
        // At the root, expressions see more than elsewhere.
        root.compile_expressions(schema, true);
        root
    }

    fn compile_expressions(&mut self, schema: &JSONSchemaProps, is_root: bool) {
        let rules = schema.x_kubernetes_validations.as_deref().unwrap_or_default();
        if let Some(of) =
            Some(rules).filter(|rules| !rules.is_empty()).and_then(|_| expressions::type_of(self, is_root, "object"))
        {
            let sizes = cost::Bounds { schema: self, is_root };
            self.expressions = rules.iter().map(|rule| expressions::Rule::new(rule, &of, &sizes)).collect();
        }
        let below = self.properties.iter().map(|(_, child)| child).chain(self.items.as_deref());
        let below = below.chain(match &self.additional {
            Additional::Like(child) => Some(&**child),
            _ => None,
        });
        self.has_expressions = !self.expressions.is_empty() || below.into_iter().any(|child| child.has_expressions);
    }

    /// Compiles a schema with all that it says.
    pub(super) fn new(schema: &JSONSchemaProps) -> Self {
        let kind = match schema.type_.as_deref() {
            Some("array") => Some(Kind::Array),
            Some("boolean") => Some(Kind::Boolean),
            Some("integer") => Some(Kind::Integer),
            Some("number") => Some(Kind::Number),
            Some("object") => Some(Kind::Object),
            Some("string") => Some(Kind::String),
            _ => None,
        };
        let properties = schema.properties.iter().flatten();
        let mut properties: Vec<_> = properties.map(|(name, child)| (name.as_str().into(), Self::new(child))).collect();
        properties.compact_sort_by(|(a, _): &(Box<str>, Schema), (b, _)| a.cmp(b));
        let additional = match &schema.additional_properties {
            None => Additional::Unsaid,
            Some(JSONSchemaPropsOrBool::Bool(true)) => Additional::Anything,
            Some(JSONSchemaPropsOrBool::Bool(false)) => Additional::Nothing,
            Some(JSONSchemaPropsOrBool::Schema(child)) => Additional::Like(Box::new(Self::new(child))),
        };
        let items = match &schema.items {
            Some(JSONSchemaPropsOrArray::Schema(child)) => Some(Box::new(Self::new(child))),
            _ => None,
        };
        let list = match schema.x_kubernetes_list_type.as_deref() {
            Some("set") => Some(ListType::Set),
            Some("map") => {
                let keys = schema.x_kubernetes_list_map_keys.iter().flatten().map(String::as_str);
                Some(ListType::Map(api::schema::interned_keys(keys)))
            }
            _ => None,
        };
        let mut compiled = Self {
            kind,
            nullable: schema.nullable == Some(true),
            int_or_string: schema.x_kubernetes_int_or_string == Some(true),
            keeps_unknown: schema.x_kubernetes_preserve_unknown_fields == Some(true),
            is_embedded: schema.x_kubernetes_embedded_resource == Some(true),
            properties: properties.into(),
            additional,
            items,
            required: schema.required.iter().flatten().map(|name| name.as_str().into()).collect(),
            default: schema.default.as_ref().map(|JSON(value)| value.clone()),
            list,
            is_atomic: schema.x_kubernetes_map_type.as_deref() == Some("atomic"),
            rules: Rules::new(schema).map(Box::new),
            expressions: Box::default(),
            has_expressions: false,
        };
        if compiled.is_embedded {
            compiled.forget_object_fields();
        }
        compiled.compile_expressions(schema, false);
        compiled
    }

    fn forget_object_fields(&mut self) {
        let others = std::mem::take(&mut self.properties).into_vec().into_iter();
        self.properties = others.filter(|(name, _)| !OBJECT_FIELDS.contains(&&**name)).collect();
        let required = std::mem::take(&mut self.required).into_vec().into_iter();
        self.required = required.filter(|name| !OBJECT_FIELDS.contains(&&**name)).collect();
    }

    pub(super) fn property(&self, name: &str) -> Option<&Schema> {
        let at = self.properties.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
        Some(&self.properties[at].1)
    }

    /// The schema of a member of an object, if the schema knows of one.
    pub(super) fn member(&self, name: &str) -> Option<&Schema> {
        self.property(name).or(match &self.additional {
            Additional::Like(schema) => Some(schema),
            _ => None,
        })
    }
}

impl Rules {
    fn new(schema: &JSONSchemaProps) -> Option<Self> {
        let each = |list: &Option<Vec<JSONSchemaProps>>| list.iter().flatten().map(Schema::new).collect::<Vec<_>>();
        let rules = Self {
            choices: schema.enum_.iter().flatten().map(|JSON(value)| value.clone()).collect(),
            pattern: schema.pattern.as_deref().filter(|text| !text.is_empty()).map(Pattern::new),
            format: schema.format.as_deref().and_then(formats::find),
            minimum: schema.minimum.map(|limit| (limit, schema.exclusive_minimum == Some(true))),
            maximum: schema.maximum.map(|limit| (limit, schema.exclusive_maximum == Some(true))),
            multiple_of: schema.multiple_of,
            length: (schema.min_length, schema.max_length),
            count: (schema.min_items, schema.max_items),
            properties: (schema.min_properties, schema.max_properties),
            all_of: each(&schema.all_of),
            any_of: each(&schema.any_of),
            one_of: each(&schema.one_of),
            not: schema.not.as_ref().map(|not| Box::new(Schema::new(not))),
        };
        let says_nothing = rules.choices.is_empty()
            && rules.pattern.is_none()
            && rules.format.is_none()
            && rules.minimum.is_none()
            && rules.maximum.is_none()
            && rules.multiple_of.is_none()
            && [rules.length, rules.count, rules.properties].iter().all(|range| *range == (None, None))
            && rules.all_of.is_empty()
            && rules.any_of.is_empty()
            && rules.one_of.is_empty()
            && rules.not.is_none();
        (!says_nothing).then_some(rules)
    }
}
