"""What acts on the objects of kubernetes_api.py: makes the pods of StatefulSets and DaemonSets, and runs their
containers on the machine of the node (tests/docs/machine.py), or runs nothing where a node has no machine.

A container is its command, its user and its volumes. There are no images, limits, capabilities or seccomp profiles, and
the pods of a node share its files and its address: one node runs at most one pod with a folder or a port.
"""

import re
import shlex
import subprocess
import threading

from machine import ENTER

PATH = "PATH=/machines:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # /machines has the binaries


class Pods:
    def __init__(self, machines, address=""):
        """`machines`: a machine for each node that has one. Machine N has the address `address`.N, from 1."""
        self.machines = machines
        self.failure = ""  # why a pod did not start
        self.addresses = {name: f"{address}.{number}" for number, name in enumerate(machines, 1)}

    def act(self, api):
        nodes = [one["metadata"]["name"] for one in api.of_kind("Node") if not one["spec"].get("unschedulable")]
        for one in api.of_kind("StatefulSet"):
            for number in range(one["spec"]["replicas"]):
                # The last nodes: tests label the first ones for agents.
                self._make(api, one, str(number), nodes[-1 - number % len(nodes)])
        for one in api.of_kind("DaemonSet"):
            for node in api.of_kind("Node"):
                labels = one["spec"]["template"]["spec"].get("nodeSelector", {})
                if labels.items() <= node["metadata"].get("labels", {}).items():
                    name = node["metadata"]["name"]
                    self._make(api, one, name, name)
        for one in api.of_kind("StatefulSet"):
            ready = [pod for pod in api.of_kind("Pod") if pod["status"]["phase"] == "Running" and
                     pod["metadata"]["ownerReferences"][0]["uid"] == one["metadata"]["uid"]]
            api.put({**one, "status": {"observedGeneration": one["metadata"]["generation"], "currentRevision": "1",
                                       "updateRevision": "1", "replicas": one["spec"]["replicas"],
                                       "readyReplicas": len(ready), "currentReplicas": len(ready)}})

    def _make(self, api, owner, suffix, node):
        meta = owner["metadata"]
        name = f"{meta['name']}-{suffix}"
        if ("Pod", meta["namespace"], name) in api.objects:
            return
        template = owner["spec"]["template"]
        parent = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"],
                  "controller": True}
        pod = api.put({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"},
                       "spec": {**template["spec"], "nodeName": node},
                       "metadata": {"name": name, "namespace": meta["namespace"],
                                    "labels": template["metadata"]["labels"], "ownerReferences": [parent]}})
        if node in self.machines:
            data = {key[::2]: one for key, one in api.objects.items() if key[0] in ("ConfigMap", "Secret")}
            threading.Thread(target=self._start, args=(api, pod, data), daemon=True).start()
        else:
            self._ready(api, pod)

    @staticmethod
    def _ready(api, pod):
        api.put({**pod, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}})

    def _start(self, api, pod, data):
        try:
            self._run(pod, data)
            api.call(self._ready, api, pod)
        except (AssertionError, LookupError) as error:
            self.failure = f"{pod['metadata']['name']} does not start: {error!r}"

    def _run(self, pod, data):
        """Starts the containers one after another, as a kubelet does."""
        spec, machine = pod["spec"], self.machines[pod["spec"]["nodeName"]]
        place = pod["metadata"]["name"]
        for one in [*spec["initContainers"], *spec["containers"]]:
            self._mount(machine, spec, one, data, place)
            command = shlex.join(self._command(pod, one))
            if one not in spec["containers"] and one.get("restartPolicy") != "Always":
                machine.run(f"{command} </dev/null", place)
                continue
            machine.run(f"mkdir -p /run/units; {command} >/run/units/{place}-{one['name']}.log 2>&1 &", place)
            for port in one.get("ports", []):
                address = f"{self.addresses[spec['nodeName']]}/{port['containerPort']}"
                self._wait(machine, f"(exec 3<>/dev/tcp/{address})", place)
            if "exec" in one.get("startupProbe", {}):
                ping = {**one, "command": one["startupProbe"]["exec"]["command"]}
                self._wait(machine, shlex.join(self._command(pod, ping)), place)

    @staticmethod
    def _wait(machine, condition, place):
        """Waits for a container's probe, or raises AssertionError when the container has ended."""
        machine.run(f"until {condition} 2>/dev/null; do kill -0 $! 2>/dev/null || break; sleep 0.1; done; {condition}",
                    place)

    def _mount(self, machine, spec, container, data, place):
        volumes = {one["name"]: one for one in spec["volumes"]}
        group = spec["securityContext"]["fsGroup"]
        for mount in container.get("volumeMounts", []):
            volume, path = volumes.get(mount["name"], {}), mount["mountPath"]
            secret = volume.get("secret")
            if "subPath" in mount:
                text = data["ConfigMap", volume["configMap"]["name"]]["data"][mount["subPath"]]
                machine.run(f"mkdir -p $(dirname {path})", place)
                machine.write(path, text, place)
                continue
            machine.run(f"mkdir -p {path}", place)
            if "hostPath" not in volume:
                machine.run(f"chgrp {group} {path} && chmod g+rwxs {path}", place)
            for name, value in data["Secret", secret["secretName"]]["data"].items() if secret else ():
                file = f"{path}/{name}"
                machine.run(f"echo {value} | base64 --decode >{file}", place)
                machine.run(f"chgrp {group} {file} && chmod {secret['defaultMode']:o} {file}", place)

    def _command(self, pod, container):
        spec = pod["spec"]
        known = {"metadata.name": pod["metadata"]["name"], "spec.nodeName": spec["nodeName"],
                 "status.podIP": self.addresses[spec["nodeName"]]}
        values = {one["name"]: known[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container.get("env", [])}
        user = container["securityContext"].get("runAsUser", spec["securityContext"]["runAsUser"])
        words = [re.sub(r"\$\((\w+)\)", lambda name: values[name[1]], word)
                 for word in [*container["command"], *container.get("args", [])]]
        return [*self._user(user, spec), *words]

    @staticmethod
    def _user(user, spec):
        groups = spec["securityContext"]
        return ["setpriv", f"--reuid={user}", f"--regid={groups['runAsGroup']}", f"--groups={groups['fsGroup']}", "env",
                PATH]

    def execute(self, pod, command):
        """Runs a command in a pod that runs."""
        target = self.machines[pod["spec"]["nodeName"]].pid
        return subprocess.run(["nsenter", f"--target={target}", *ENTER, *self._user(
            pod["spec"]["securityContext"]["runAsUser"], pod["spec"]), *command], capture_output=True, check=False)
