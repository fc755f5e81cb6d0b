//! Flags that several commands share.

use crate::cli::Flag;

pub(crate) const OUTPUT: &[Flag] = &[
    Flag::string("output", "Output format: json, yaml, kyaml, name, go-template, go-template-file, template, templatefile, jsonpath, jsonpath-as-json, jsonpath-file.").short('o'),
    Flag::string("template", "Template text, or the template's file for the -file formats."),
    Flag::bool("allow-missing-template-keys", "Print nothing for fields a template names and the object lacks.").default("true"),
    Flag::bool("show-managed-fields", "Keep managedFields in JSON and YAML."),
];

const FILENAME_FLAG: Flag =
    Flag::slice("filename", "File, directory or URL that holds the objects; - is standard input.").short('f');

pub(crate) const FILENAME: &[Flag] = &[
    FILENAME_FLAG,
    Flag::string("kustomize", "Kustomization directory to build; not together with -f or -R.").short('k'),
    Flag::bool("recursive", "Also read the directories below the one that -f names.").short('R'),
];

/// `-f` alone.
pub(crate) const FILES_ONLY: &[Flag] = &[FILENAME_FLAG];

/// `-f`, and directories with all that is below them.
pub(crate) const FILES_BELOW: &[Flag] =
    &[FILENAME_FLAG, Flag::bool("recursive", "Also read the directories below.").short('R').default("true")];

pub(crate) const WINDOWS_LINE_ENDINGS: Flag =
    Flag::bool("windows-line-endings", "Give the editor lines that end as on Windows.");

pub(crate) const SELECTOR: &[Flag] =
    &[Flag::string("selector", "Label query: =, ==, !=, in, notin (for example -l key1=value1,key2 in (a,b)).")
        .short('l')];

pub(crate) const FIELD_SELECTOR: &[Flag] =
    &[Flag::string("field-selector", "Field query: =, ==, != (for example --field-selector key1=value1).")];

pub(crate) const ALL_NAMESPACES: &[Flag] =
    &[Flag::bool("all-namespaces", "Objects of every namespace, whatever --namespace says.").short('A')];

pub(crate) const DRY_RUN: &[Flag] = &[Flag::string(
    "dry-run",
    "none, server or client: with client only print what would be sent, with server send it without persisting.",
)
.default("none")
.bare("unchanged")];

pub(crate) const VALIDATE: &[Flag] = &[Flag::string(
    "validate",
    "strict (or true), warn, ignore (or false): how unknown and duplicate fields are treated.",
)
.default("strict")
.bare("strict")];

pub(crate) const RECORD: &[Flag] =
    &[Flag::bool("record", "Write this command into the kubernetes.io/change-cause annotation.")
        .deprecated("--record will be removed in the future")];

pub(crate) const SAVE_CONFIG: &[Flag] =
    &[Flag::bool("save-config", "Keep the object in its last-applied annotation, for kubectl apply later.")];

pub(crate) const CHUNK_SIZE: &[Flag] =
    &[Flag::int("chunk-size", "500", "Ask for large lists in chunks of this size; 0 turns it off.")];

pub(crate) const ALL: &[Flag] = &[Flag::bool("all", "All objects of the given types in the namespace.")];

pub(crate) const LOCAL: &[Flag] = &[Flag::bool("local", "Work on the files only, without asking the server.")];

pub(crate) const CONTAINER: &[Flag] = &[Flag::string(
    "container",
    "Container; else the one of the kubectl.kubernetes.io/default-container annotation, else the first.",
)
.short('c')];

pub(crate) const POD_TIMEOUT: &[Flag] =
    &[Flag::duration("pod-running-timeout", "1m0s", "How long to wait until a pod of the given object runs.")];

pub(crate) const MANAGER_CREATE: &[Flag] =
    &[Flag::string("field-manager", "Name that owns the fields.").default("kubectl-create")];
