//! DefaultIngressClass: an ingress that names no class gets the default one, if there is one.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};

use super::default_class::newest_default;
use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

pub(super) struct DefaultIngressClass;

const DEFAULT: &[&str] = &["ingressclass.kubernetes.io/is-default-class"];
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

impl Plugin for DefaultIngressClass {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let creates = attributes.creates("networking.k8s.io", "ingresses");
        if let Some(ingress) = attributes.object_mut::<Ingress>().filter(|_| creates) {
            let annotations = ingress.metadata.annotations.as_ref();
            let annotated = annotations.is_some_and(|annotations| annotations.contains_key(CLASS_ANNOTATION));
            let spec = ingress.spec.get_or_insert_default();
            if spec.ingress_class_name.is_none() && !annotated {
                match newest_default::<IngressClass>(cluster, DEFAULT) {
                    Ok(default) => spec.ingress_class_name = default,
                    Err(unreadable) => return Err(unreadable.into()).into(),
                }
            }
        }
        admitted()
    }
}
