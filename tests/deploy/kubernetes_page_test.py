#!/usr/bin/env python3
"""Runs the commands of docs/kubernetes.md as a reader would, and checks that no other page has a command for kubectl.

  kubernetes_page_test.py BINARIES

Real: kubectl with its kustomize, openssl, `holdfast`, and the servers, with the commands of the pods' containers. Not
real: the API server (kubernetes_api.py), the controllers and the kubelet (kubernetes_pods.py). No scheduler, image,
network policy or container engine is tested.
Runs in the environment of kubernetes_environment.sh.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "docs"))
from kubernetes_api import Api  # noqa: E402
from kubernetes_pods import Pods  # noqa: E402
from machine import Machine, missing  # noqa: E402
import page  # noqa: E402

MANIFESTS = ROOT / "deploy" / "kubernetes"
PAGE = ROOT / "docs" / "kubernetes.md"
NODES = ("node-1", "node-2")
OLDEST = 31  # the first kubectl that runs `exec` over WebSockets
BINARIES = pathlib.Path()


class Operator(Machine):
    """A shell of this machine, whose kubectl reaches one API server of the test."""

    def __init__(self, test, machines=None):
        folder = tempfile.TemporaryDirectory(prefix="holdfast-page-")
        test.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.nodes = machines or {}
        self.api = Api(Pods(self.nodes, "10.78.0"))
        test.addCleanup(self.api.stop)
        for name in NODES:
            self.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
        self.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}})
        (self.folder / "deploy").symlink_to(ROOT / "deploy")
        (self.folder / "config").write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.api.address}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": ""}}]}))
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
            env={"HOME": folder.name, "PATH": os.environ["PATH"], "KUBECONFIG": f"{folder.name}/config"})
        test.addCleanup(self.stop)

    def put(self, one):
        return self.api.call(self.api.put, one)

    def deliver(self):
        pass

    def logs(self):
        return "".join(machine.logs() for machine in self.nodes.values())

    def stop(self):
        self._shell.stdin.close()
        self._shell.stdout.close()
        self._shell.kill()
        self._shell.wait()

    def train(self, node):
        """Makes a pod of the example's job on a node."""
        job = yaml.safe_load((MANIFESTS / "examples" / "jobset.yaml").read_text())["spec"]["replicatedJobs"][0]
        self.put({"apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"},
                  "spec": {**job["template"]["spec"]["template"]["spec"], "nodeName": node},
                  "metadata": {"name": "gpt-node-0-0", "namespace": "training", "ownerReferences": [
                      {"apiVersion": "batch/v1", "kind": "Job", "name": "gpt", "uid": "0", "controller": True}]}})


def why_not():
    """Returns why this test cannot run here, or nothing."""
    if not shutil.which("kubectl"):
        return "kubectl is missing"
    shown = subprocess.run(["kubectl", "version", "--client", "-o", "json"], capture_output=True, check=True).stdout
    minor = int(json.loads(shown)["clientVersion"]["minor"].rstrip("+"))
    return missing() if minor >= OLDEST else f"kubectl is 1.{minor}, older than 1.{OLDEST}"


class PageTest(unittest.TestCase):
    def test_each_command_of_the_page(self):
        machines = {}
        for name in NODES:
            machines[name] = Machine(name, {}, str(BINARIES))
            self.addCleanup(machines[name].stop)
        first, *others = machines.values()
        first.connect("10.78.0", others)
        for machine in machines.values():
            machine.run("echo 10.78.0.2 holdfast-coordinator.holdfast.svc >>/etc/hosts", "the start")
        operator = Operator(self, machines)
        operator.train(NODES[0])
        page.run(PAGE, {"operator": operator, "etcd": Operator(self), "io-uring": Operator(self)})
        self.assertEqual(operator.run("kubectl get pods -n training -o name", "the end").strip(), "")
        agent = "get pod -n holdfast holdfast-agent-node-1 -o jsonpath={.spec.containers[*].image}"
        self.assertEqual(operator.run(f"kubectl {agent}", "the end").strip(), "registry.example/holdfast:0.1.1")

    def test_no_command_is_outside_the_blocks_that_run(self):
        for path in sorted((ROOT / "docs").glob("*.md")):
            for block in page.read(path):
                if re.search(r"^ *kubectl ", block.text, re.MULTILINE):
                    self.assertEqual(path, PAGE)
                    self.assertRegex(block.mark, "^run")
            for command in re.findall(r"`(kubectl [^`]+)`", page.FENCE.sub("", path.read_text())):
                self.assertRegex(command, r"^kubectl \w+$", f"{path.name}: a mention that is a whole command")

    def applied(self):
        operator = Operator(self)
        operator.run("kubectl apply -k deploy/kubernetes", "the start")
        return operator

    def test_wrong_commands_fail(self):
        operator = self.applied()
        for line, message in (
                ("kubectl label nodes node-3 holdfast-agent=true", 'nodes "node-3" not found'),
                ("kubectl apply -f deploy/kubernetes/base/names.yaml", "does not exist"),
                ("kubectl -n other create secret generic holdfast-peers --from-literal=secret=x", '"other" not found'),
                ("kubectl create secret generic name --from-literals=secret=x", "unknown flag"),
                ("kubectl apply -k deploy/absent", "no such file"),
                ("kubectl -n holdfast rollout status statefulset/coordinator", '"coordinator" not found'),
                ("kubectl -n holdfast wait --for=condition=Ready pod -l app=agent", "no matching resources"),
                ("kubectl get daemons", "doesn't have a resource type"),
                ("kubectl -n holdfast set image pod/holdfast-coordinator-0 agent=x", "unable to find container"),
                ("kubectl -n holdfast exec coordinator-0 -- holdfast status", '"coordinator-0" not found'),
                ("kubectl drain node-2", "--ignore-daemonsets")):
            with self.subTest(line):
                if line == "kubectl drain node-2":
                    operator.run("kubectl label node node-2 holdfast-agent=true", line)
                with self.assertRaisesRegex(AssertionError, message):
                    operator.run(line, "wrong")

    def test_broken_manifests_fail(self):
        for file, right, wrong in (("base/agent.yaml", "livenessProbe:", "livenesProbe:"),
                                   ("base/coordinator.yaml", "minAvailable: 1", "minAvailable: [1]"),
                                   ("base/rbac.yaml", "kind: Role\n", "kind: Rule\n"),
                                   ("base/config.yaml", "name: holdfast", "name: [holdfast"),
                                   ("base/kustomization.yaml", "agent.yaml", "agents.yaml")):
            with self.subTest(wrong):
                operator = Operator(self)
                copy = operator.folder / "copy"
                shutil.copytree(MANIFESTS, copy)
                text = (copy / file).read_text()
                self.assertIn(right, text)
                (copy / file).write_text(text.replace(right, wrong, 1))
                with self.assertRaises(AssertionError):
                    operator.run("kubectl apply -k copy", wrong)

    def test_a_drain_waits_for_the_coordinators_pod(self):
        operator = self.applied()
        drain = "kubectl drain node-2 --ignore-daemonsets --delete-emptydir-data --timeout=1s"
        with self.assertRaisesRegex(AssertionError, "violate the pod's disruption budget"):
            operator.run(drain, "before")
        operator.run("kubectl -n holdfast delete pod holdfast-coordinator-0", "the deletion")
        operator.run(drain, "after")


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"SKIPPED: {reason}")
        sys.exit(77)
    BINARIES = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main()
