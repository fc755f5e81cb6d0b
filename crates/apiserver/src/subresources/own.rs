//! Requests that the server makes of itself.

use std::sync::{Arc, Weak};

use api::Status;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderValue, header};
use registry::{AnyObject, Resource, Verb};

use super::connect::ask_kubelet;
use crate::cluster::{Change, OwnRequests};
use crate::state::{State, own_operation};
use crate::verbs::{Target, create_object, delete_object, modify};

pub(crate) struct Own(pub(crate) Weak<State>);

impl Own {
    fn state(&self) -> Result<Arc<State>, Status> {
        self.0.upgrade().ok_or_else(|| Status::internal("the server stops"))
    }
}

impl OwnRequests for Own {
    fn create<'a>(&'a self, resource: &'a Arc<Resource>, object: AnyObject) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let operation = own_operation(&self.state()?, Verb::Create, resource, "", "", "");
            create_object(&operation, object).await.map(drop)
        })
    }

    fn delete<'a>(
        &'a self,
        resource: &'a Arc<Resource>,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let operation = own_operation(&self.state()?, Verb::Delete, resource, namespace, name, "");
            delete_object(&operation, namespace, name, &Default::default()).await.map(drop)
        })
    }

    fn modify_status<'a>(
        &'a self,
        resource: &'a Arc<Resource>,
        namespace: &'a str,
        name: &'a str,
        manager: Option<&'static str>,
        change: &'a Change<'a>,
    ) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let mut operation = own_operation(&self.state()?, Verb::Patch, resource, namespace, name, "status");
            if let Some(manager) = manager {
                operation.headers.insert(header::USER_AGENT, HeaderValue::from_static(manager));
            }
            modify(&operation, Target::Status, |_, old| change(old)).await.map(drop)
        })
    }

    fn ask_kubelet<'a>(&'a self, node: &'a str, path: &'a str) -> BoxFuture<'a, Result<Bytes, Status>> {
        Box::pin(async move {
            let state = self.state()?;
            ask_kubelet(&state, node, path).await
        })
    }
}
