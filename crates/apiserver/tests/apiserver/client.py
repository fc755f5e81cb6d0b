"""Drives a server with PyPI's `kubernetes` client: every object of a manifest through its life, then typed calls.

Usage: client.py <kubeconfig> <manifest>. Prints what it did; any surprise is a traceback.
"""

import sys
import time

import yaml
from kubernetes import client, config, dynamic, utils, watch
from kubernetes.client.exceptions import ApiException

kubeconfig, manifest = sys.argv[1:]
api = config.new_client_from_config(kubeconfig)
NAMESPACE = "default"


def expect(condition, what):
    if not condition:
        raise AssertionError(what)


def life(resources, body):
    """Create, read, list, patch three ways, apply, delete."""
    kind = resources.resources.get(api_version=body["apiVersion"], kind=body["kind"])
    where = {"namespace": NAMESPACE} if kind.namespaced else {}
    name = body["metadata"]["name"]
    created = kind.create(body=body, **where)
    expect(created.metadata.uid, "an object has a uid")
    expect(kind.get(name=name, **where).metadata.uid == created.metadata.uid, "the same object is read")
    selected = kind.get(label_selector="app=sample", **where)
    if "labels" in body["metadata"]:
        expect([item.metadata.name for item in selected.items].count(name) == 1, "a selector finds it")
    for content_type, patch in [
        ("application/merge-patch+json", {"metadata": {"annotations": {"merge": "1"}}}),
        ("application/strategic-merge-patch+json", {"metadata": {"annotations": {"strategic": "1"}}}),
        ("application/json-patch+json", [{"op": "add", "path": "/metadata/annotations/json", "value": "1"}]),
    ]:
        kind.patch(name=name, body=patch, content_type=content_type, **where)
    applied = {
        "apiVersion": body["apiVersion"],
        "kind": body["kind"],
        "metadata": {"name": name, "annotations": {"apply": "1"}},
    }
    patched = kind.server_side_apply(body=applied, name=name, field_manager="test", **where)
    annotations = patched.metadata.annotations.to_dict()
    expect(set(annotations) >= {"merge", "strategic", "json", "apply"}, f"all patches hold: {annotations}")
    managers = {entry.manager for entry in patched.metadata.managedFields}
    expect("test" in managers, f"the applier owns its field: {managers}")
    kind.delete(name=name, body={"gracePeriodSeconds": 0, "propagationPolicy": "Background"}, **where)
    deadline = time.monotonic() + 10
    while True:
        try:
            kind.get(name=name, **where)
        except ApiException as error:
            expect(error.status == 404, error)
            break
        expect(time.monotonic() < deadline, f"{name} goes away")
    print("ok", body["apiVersion"], body["kind"])


def typed():
    """Calls of the generated clients, whose models are strict about types."""
    core, apps = client.CoreV1Api(api), client.AppsV1Api(api)
    expect(client.VersionApi(api).get_code().minor.startswith("36"), "the version is 1.36")
    expect(any(group.name == "apps" for group in client.ApisApi(api).get_api_versions().groups), "groups are listed")
    core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="typed")))
    utils.create_from_dict(api, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}}, namespace="typed")
    labels = {"app": "web"}
    template = client.V1PodTemplateSpec(
        metadata=client.V1ObjectMeta(labels=labels),
        spec=client.V1PodSpec(containers=[client.V1Container(name="web", image="nginx")]),
    )
    spec = client.V1DeploymentSpec(replicas=1, selector=client.V1LabelSelector(match_labels=labels), template=template)
    apps.create_namespaced_deployment("typed", client.V1Deployment(metadata=client.V1ObjectMeta(name="web"), spec=spec))
    apps.patch_namespaced_deployment_scale("web", "typed", {"spec": {"replicas": 4}})
    expect(apps.read_namespaced_deployment_scale("web", "typed").spec.replicas == 4, "the scale was patched")
    status = {"status": {"replicas": 4, "observedGeneration": 2}}
    expect(apps.patch_namespaced_deployment_status("web", "typed", status).status.replicas == 4, "the status was patched")
    try:
        apps.create_namespaced_deployment("typed", client.V1Deployment(metadata=client.V1ObjectMeta(name="Bad_Name"), spec=spec))
        raise AssertionError("a bad name is refused")
    except ApiException as error:
        expect(error.status == 422 and error.reason, error)
    follow(core)
    pages(core)
    access = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(
            resource_attributes=client.V1ResourceAttributes(verb="get", resource="pods", namespace="typed")
        )
    )
    allowed = client.AuthorizationV1Api(api).create_self_subject_access_review(access).status.allowed
    expect(allowed is True, "a master may read pods")
    core.delete_collection_namespaced_config_map("typed")
    expect(core.list_namespaced_config_map("typed").items == [], "the collection is gone")
    print("ok typed")


def follow(core):
    """A watch from a list's version sees exactly what comes after it."""
    version = core.list_namespaced_config_map("typed").metadata.resource_version
    body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="seen"), data={"n": "0"})
    core.create_namespaced_config_map("typed", body)
    core.patch_namespaced_config_map("seen", "typed", {"data": {"n": "1"}})
    core.delete_namespaced_config_map("seen", "typed")
    seen = []
    watcher = watch.Watch()
    for event in watcher.stream(
        core.list_namespaced_config_map, "typed", resource_version=version, timeout_seconds=20
    ):
        seen.append((event["type"], event["object"].metadata.name))
        if event["type"] == "DELETED":
            watcher.stop()
    expect(seen == [("ADDED", "seen"), ("MODIFIED", "seen"), ("DELETED", "seen")], seen)


def pages(core):
    """Pages of a list are one state of the world."""
    for n in range(7):
        core.create_namespaced_config_map("typed", client.V1ConfigMap(metadata=client.V1ObjectMeta(name=f"page-{n}")))
    names, token = [], None
    while token != "":
        page = core.list_namespaced_config_map("typed", limit=3, _continue=token)
        names += [item.metadata.name for item in page.items]
        token = page.metadata._continue or ""
    expect([name for name in names if name.startswith("page-")] == [f"page-{n}" for n in range(7)], names)


resources = dynamic.DynamicClient(api)
with open(manifest, encoding="utf-8") as file:
    documents = [document for document in yaml.safe_load_all(file) if document]
account = documents.pop(0)
resources.resources.get(api_version="v1", kind="ServiceAccount").create(body=account, namespace=NAMESPACE)
for document in documents:
    life(resources, document)
typed()
