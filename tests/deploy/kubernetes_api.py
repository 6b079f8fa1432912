"""A small API server of Kubernetes on loopback, for kubectl in tests.

It keeps objects in memory, checks them against the schemas of Kubernetes, and answers what the commands of
docs/kubernetes.md need: discovery, get, list, watch, create, merge patches, delete, eviction and exec. There are no
users, rights, admission or versions of groups other than v1, and almost no defaults.
"""

import asyncio
import json
import re
import threading
import time
import uuid

import kubernetes_validate
from aiohttp import web

import kubernetes_discovery
import kubernetes_protobuf

SCHEMAS = "1.37"
PATH = re.compile(r"/(?:api|apis)/(?P<version>v1|[^/]+/v1)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
                  r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[^/]+))?")


class Refused(Exception):
    def __init__(self, code, reason, message, **details):
        super().__init__(message)
        self.code = code
        self.status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason,
                       "message": message, "details": details}


def without_nulls(value):
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def patched(old, patch, by_name):
    """Returns `old` with a merge patch. `by_name`: a strategic one, which merges lists of objects by their names."""
    if by_name and isinstance(patch, list) and isinstance(old, list):
        if all(isinstance(one, dict) and "name" in one and "$patch" not in one for one in [*old, *patch]):
            named = {one["name"]: one for one in old}
            for one in patch:
                named[one["name"]] = patched(named.get(one["name"]), one, by_name)
            return list(named.values())
    if not isinstance(patch, dict):
        return patch
    new = dict(old or {})
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        elif not key.startswith("$setElementOrder/"):
            new[key] = patched(new.get(key), value, by_name)
    return new


def field(one, path):
    for key in path.split("."):
        one = one.get(key, {})
    return one or ""


def selects(labels, one):
    return labels.items() <= one["metadata"].get("labels", {}).items()


def is_running(pod):
    return field(pod, "status.phase") == "Running"


def words(text):
    """Returns the pairs of a selector such as a=b,c=d."""
    return dict(pair.replace("==", "=").split("=", 1) for pair in text.split(",") if pair)


class Api:
    """`pods`: what acts on objects, as controllers and kubelets do (kubernetes_pods.py)."""

    def __init__(self, pods):
        self.pods = pods
        self.objects = {}  # (kind, namespace, name) → object
        self.events = []  # (type, object); the version of an object is the number of events before it
        self.loop = asyncio.new_event_loop()
        self.address = ""
        ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self.thread.start()
        ready.wait()

    def _run(self, ready):
        server = web.Application()
        server.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(server, handler_cancellation=True, access_log=None, shutdown_timeout=0)
        self.loop.run_until_complete(runner.setup())
        self.loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        self.loop.run_forever()
        self.loop.run_until_complete(runner.cleanup())
        self.loop.close()

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def call(self, function, *arguments):
        """Calls a function in the thread of the server, which alone uses the objects, and returns its result."""
        async def inside():
            return function(*arguments)
        return asyncio.run_coroutine_threadsafe(inside(), self.loop).result()

    def of_kind(self, kind):
        return [one for key, one in sorted(self.objects.items()) if key[0] == kind]

    def put(self, new):
        """Checks and keeps an object, and lets the controllers act."""
        new = without_nulls(new)
        meta = new["metadata"]
        key = new["kind"], meta.get("namespace", ""), meta["name"]
        if key[1] and ("Namespace", "", key[1]) not in self.objects:
            raise Refused(404, "NotFound", f'namespaces "{key[1]}" not found')
        try:
            kubernetes_validate.validate(new, SCHEMAS, strict=True)
        except (kubernetes_validate.ValidationError, kubernetes_validate.InvalidSchemaError) as error:
            raise Refused(422, "Invalid", f"{key}: {error}") from error
        if new["kind"] == "StatefulSet":
            new["spec"].setdefault("updateStrategy", {"type": "RollingUpdate"})
        old = self.objects.get(key)
        if old and {**old, "metadata": 0} == {**new, "metadata": 0} and old["metadata"] == meta:
            return old
        meta.setdefault("uid", str(uuid.uuid4()))
        meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        meta["generation"] = old["metadata"]["generation"] + (old.get("spec") != new.get("spec")) if old else 1
        self.objects[key] = new
        self._event("MODIFIED" if old else "ADDED", new)
        return new

    def delete(self, old):
        self.objects.pop((old["kind"], old["metadata"].get("namespace", ""), old["metadata"]["name"]))
        self._event("DELETED", old)

    def _event(self, kind, one):
        self.events.append((kind, one))
        one["metadata"]["resourceVersion"] = str(len(self.events))
        self.loop.call_soon(self.pods.act, self)

    def evict(self, pod):
        """Removes a pod unless a PodDisruptionBudget forbids it."""
        for budget in self.of_kind("PodDisruptionBudget"):
            labels = budget["spec"]["selector"]["matchLabels"]
            if budget["metadata"]["namespace"] == pod["metadata"]["namespace"] and selects(labels, pod):
                running = [one for one in self.of_kind("Pod") if selects(labels, one) and is_running(one)]
                if len(running) <= budget["spec"]["minAvailable"]:
                    raise Refused(429, "TooManyRequests",
                                  "Cannot evict pod as it would violate the pod's disruption budget.")
        self.delete(pod)

    async def _answer(self, request):
        try:
            if self.pods.failure:  # kubectl would wait for minutes
                raise Refused(500, "InternalError", self.pods.failure)
            known = kubernetes_discovery.answer(request.path)
            if known:
                return web.json_response(known)
            found = PATH.fullmatch(request.path)
            kind = found and kubernetes_discovery.RESOURCES.get((found["version"], found["resource"]))
            if not kind:
                raise Refused(404, "NotFound", "the server could not find the requested resource")
            return await self._of_a_resource(request, kind, found)
        except Refused as refused:
            return web.json_response(refused.status, status=refused.code)

    async def _of_a_resource(self, request, kind, path):
        namespace, name, part = path["namespace"] or "", path["name"], path["part"]
        old = self.objects.get((kind, namespace, name))
        body = await request.read()
        if request.method == "POST" and part is None:
            body = kubernetes_protobuf.read(body) if body.startswith(kubernetes_protobuf.PREFIX) else json.loads(body)
            if (kind, namespace, body["metadata"]["name"]) in self.objects:
                raise Refused(409, "AlreadyExists", f'{path["resource"]} "{body["metadata"]["name"]}" already exists')
            if namespace:
                body["metadata"].setdefault("namespace", namespace)
            return web.json_response(self.put(body), status=201)
        if name is None:
            return await self._list(request, kind, namespace)
        if old is None:
            raise Refused(404, "NotFound", f'{path["resource"]} "{name}" not found', name=name, kind=path["resource"])
        match request.method, part:
            case "GET", None:
                return web.json_response(old)
            case "PATCH", None:
                by_name = request.content_type == "application/strategic-merge-patch+json"
                if not by_name and request.content_type != "application/merge-patch+json":
                    raise Refused(415, "UnsupportedMediaType", request.content_type)
                return web.json_response(self.put(patched(old, json.loads(body), by_name)))
            case "DELETE", None:
                self.delete(old)
                return web.json_response(old)
            case "POST", "eviction":
                self.evict(old)
                return web.json_response({"apiVersion": "v1", "kind": "Status", "status": "Success"}, status=201)
            case "GET", "exec":
                return await self._exec(request, old)
        raise Refused(405, "MethodNotAllowed", f"{request.method} {request.path}")

    async def _list(self, request, kind, namespace):
        labels, fields = (words(request.query.get(key, "")) for key in ("labelSelector", "fieldSelector"))

        def chosen(one):
            return (one["kind"] == kind and (not namespace or one["metadata"]["namespace"] == namespace) and
                    selects(labels, one) and all(field(one, path) == value for path, value in fields.items()))

        if request.query.get("watch") not in ("1", "true"):
            return web.json_response({
                "apiVersion": kubernetes_discovery.version_of(kind), "kind": f"{kind}List",
                "metadata": {"resourceVersion": str(len(self.events))},
                "items": [one for one in self.of_kind(kind) if chosen(one)]})
        answer = web.StreamResponse(headers={"Content-Type": "application/json"})
        await answer.prepare(request)
        seen = int(request.query.get("resourceVersion") or 0)
        while not self.pods.failure:
            new = self.events[seen:]
            seen += len(new)
            for event, one in new:
                if chosen(one):
                    await answer.write(json.dumps({"type": event, "object": one}).encode() + b"\n")
            await asyncio.sleep(0.05)
        return answer

    async def _exec(self, request, pod):
        """Runs a command in a pod. A message's first byte is its channel: 1 and 2 for the outputs, 3 for the result."""
        container = request.query.get("container", pod["spec"]["containers"][0]["name"])
        if container not in [one["name"] for one in pod["spec"]["containers"]]:
            raise Refused(400, "BadRequest", f"container {container} is not valid for pod {pod['metadata']['name']}")
        if not is_running(pod):
            raise Refused(400, "BadRequest", f"pod {pod['metadata']['name']} does not have a host assigned")
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"))
        await socket.prepare(request)
        done = await asyncio.to_thread(self.pods.execute, pod, request.query.getall("command"))
        result = {"status": "Success"}
        if done.returncode != 0:
            result = {"status": "Failure", "reason": "NonZeroExitCode", "message": f"exit code {done.returncode}",
                      "details": {"causes": [{"reason": "ExitCode", "message": str(done.returncode)}]}}
        for channel, data in ((1, done.stdout), (2, done.stderr), (3, json.dumps(result).encode())):
            if data:
                await socket.send_bytes(bytes([channel]) + data)
        await socket.close()
        return socket
