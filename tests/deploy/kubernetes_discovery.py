"""What the API server of the tests answers about itself: its version, its kinds, and the part of OpenAPI that kubectl
reads before `apply`."""

VERSION = "1.32"
KINDS = {
    "v1": ["ConfigMap", "Namespace", "Node", "Pod", "Secret", "Service", "ServiceAccount"],
    "apps/v1": ["DaemonSet", "StatefulSet"],
    "networking.k8s.io/v1": ["NetworkPolicy"],
    "policy/v1": ["PodDisruptionBudget"],
    "rbac.authorization.k8s.io/v1": ["Role", "RoleBinding"],
}
OF_THE_CLUSTER = ("Namespace", "Node")  # all other kinds are in a namespace


def plural(kind):
    return kind.lower().removesuffix("y") + ("ies" if kind.endswith("y") else "s")


RESOURCES = {(version, plural(kind)): kind for version, kinds in KINDS.items() for kind in kinds}


def version_of(kind):
    return next(version for version, kinds in KINDS.items() if kind in kinds)


def _groups():
    versions = [(name.split("/")[0], {"groupVersion": name, "version": "v1"}) for name in KINDS if "/" in name]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
        {"name": name, "versions": [version], "preferredVersion": version} for name, version in versions]}


def _resources(version):
    resources = [{"name": plural(kind), "singularName": kind.lower(), "kind": kind,
                  "namespaced": kind not in OF_THE_CLUSTER,
                  "verbs": ["create", "delete", "get", "list", "patch", "watch"]} for kind in KINDS[version]]
    if version == "v1":
        resources += [
            {"name": "pods/eviction", "namespaced": True, "kind": "Eviction", "group": "policy", "version": "v1",
             "verbs": ["create"]},
            {"name": "pods/exec", "namespaced": True, "kind": "PodExecOptions", "verbs": ["create", "get"]}]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}


def _openapi(version):
    """All that kubectl looks for: that the server itself checks the fields of objects."""
    *group, number = version.split("/")
    return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": VERSION}, "paths": {
        f"/{kind}": {"patch": {
            "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
            "x-kubernetes-group-version-kind": {"group": "".join(group), "version": number, "kind": kind},
            "responses": {}}} for kind in KINDS[version]}}


def answer(path):
    """Returns the answer to a request, or None if the request is about objects."""
    major, minor = VERSION.split(".")
    answers = {"/version": {"major": major, "minor": minor, "gitVersion": f"v{VERSION}.0"},
               "/api": {"kind": "APIVersions", "versions": ["v1"]}, "/apis": _groups(), "/openapi/v3": {"paths": {}}}
    for version in KINDS:
        place = f"apis/{version}" if "/" in version else f"api/{version}"
        answers[f"/{place}"] = _resources(version)
        answers[f"/openapi/v3/{place}"] = _openapi(version)
        answers["/openapi/v3"]["paths"][place] = {"serverRelativeURL": f"/openapi/v3/{place}"}
    return answers.get(path)
