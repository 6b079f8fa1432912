#!/usr/bin/env python3
"""Checks the manifests of deploy/kubernetes, their configuration and the Containerfile, without a cluster.

  kubernetes_test.py BINARIES

Runs in the environment of kubernetes_environment.sh.
"""

import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import jsonpatch
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ["1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37"]
PROGRAMS = ["holdfast", "holdfast-agent", "holdfast-coordinator", "holdfast-fault", "holdfast-keeper",
            "holdfast-shim"]
BINARIES = pathlib.Path()


def run(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests():
    """Returns every object of the base and of the additions, by (kind, name)."""
    found = {}
    for file in [*(FOLDER / "base").glob("*.yaml"), FOLDER / "io-uring" / "profile.yaml",
                 FOLDER / "etcd" / "etcd.yaml", FOLDER / "etcd" / "etcd-network.yaml"]:
        if file.name != "kustomization.yaml":
            for one in documents(file):
                found[one["kind"], one["metadata"]["name"]] = one
    return found


def with_etcd():
    """Returns the objects of deploy/kubernetes/etcd with its patches applied, by (kind, name)."""
    objects = manifests()
    for patch in yaml.safe_load((FOLDER / "etcd" / "kustomization.yaml").read_text())["patches"]:
        text = patch["patch"] if "patch" in patch else (FOLDER / "etcd" / patch["path"]).read_text()
        key = patch["target"]["kind"], patch["target"]["name"]
        objects[key] = jsonpatch.apply_patch(objects[key], yaml.safe_load(text))
    return objects


def pod_templates():
    """Returns (name, pod spec) of each manifest and example that makes pods."""
    specs = [(name, one["spec"]["template"]["spec"]) for (kind, name), one in manifests().items()
             if kind in ("DaemonSet", "StatefulSet")]
    jobset = documents(FOLDER / "examples" / "jobset.yaml")[0]
    for job in jobset["spec"]["replicatedJobs"]:
        specs.append(("jobset", job["template"]["spec"]["template"]["spec"]))
    pytorch = documents(FOLDER / "examples" / "pytorchjob.yaml")[0]
    for name, replica in pytorch["spec"]["pytorchReplicaSpecs"].items():
        specs.append((f"pytorchjob {name}", replica["template"]["spec"]))
    return specs


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


class ManifestsTest(unittest.TestCase):
    def test_every_object_follows_the_schemas(self):
        for one in [*manifests().values(), *with_etcd().values()]:
            for version in VERSIONS:
                with self.subTest(kind=one["kind"], name=one["metadata"]["name"], version=version):
                    kubernetes_validate.validate(one, version, strict=True)

    def test_the_pods_of_the_examples_follow_the_schemas(self):
        for name, spec in pod_templates():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, "spec": spec}
            with self.subTest(name=name):
                kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)

    def test_a_wrong_field_is_found(self):
        agent = json.loads(json.dumps(manifests()["DaemonSet", "holdfast-agent"]))
        agent["spec"]["template"]["spec"]["containers"][0]["livenesProbe"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(agent, VERSIONS[-1], strict=True)

    def test_kustomize_builds_base_and_addition(self):
        if not shutil.which("kubectl"):
            self.skipTest("kubectl is missing")
        for folder in (FOLDER, FOLDER / "io-uring", FOLDER / "etcd"):
            result = run("kubectl", "kustomize", folder)
            self.assertEqual(result.returncode, 0, result.stderr)
            built = [one for one in yaml.safe_load_all(result.stdout) if one]
            kinds = [one["kind"] for one in built]
            for kind in ("Namespace", "DaemonSet", "StatefulSet", "Role", "NetworkPolicy", "PodDisruptionBudget"):
                self.assertIn(kind, kinds)
            for one in built:
                kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
            self.assertNotIn("image: holdfast", result.stdout)
            self.assertNotIn("image: etcd", result.stdout)
            if folder.name == "etcd":
                patched = with_etcd()
                for one in built:
                    key = one["kind"], one["metadata"]["name"]
                    if one["kind"] in ("NetworkPolicy", "PodDisruptionBudget"):
                        self.assertEqual(one["spec"], patched[key]["spec"])

    def test_kustomizations_list_every_file(self):
        listed = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text())["resources"]
        there = [file.name for file in (FOLDER / "base").glob("*.yaml") if file.name != "kustomization.yaml"]
        self.assertEqual(sorted(listed), sorted(there))

    def test_no_container_has_more_rights_than_it_needs(self):
        for name, spec in pod_templates():
            for one in containers(spec):
                with self.subTest(pod=name, container=one["name"]):
                    rights = one["securityContext"]
                    self.assertFalse(rights["allowPrivilegeEscalation"])
                    self.assertEqual(rights["capabilities"]["drop"], ["ALL"])
                    self.assertIn("seccompProfile", spec["securityContext"])
                    self.assertIn("memory", one["resources"]["limits"])
                    self.assertFalse(spec.get("automountServiceAccountToken", True))
                    if name.startswith("holdfast"):
                        self.assertTrue(rights["readOnlyRootFilesystem"])
                    if one["name"] not in ("folders", "copy"):
                        self.assertNotEqual(rights.get("runAsUser", spec["securityContext"]["runAsUser"]), 0)


class KeeperTest(unittest.TestCase):
    def setUp(self):
        self.set = manifests()["DaemonSet", "holdfast-agent"]["spec"]
        self.spec = self.set["template"]["spec"]
        self.keeper = next(one for one in self.spec["initContainers"] if one["name"] == "keeper")

    def test_the_keeper_is_a_container_that_outlives_the_agents(self):
        self.assertEqual(self.keeper["restartPolicy"], "Always")
        self.assertNotIn("livenessProbe", self.keeper)
        self.assertEqual(self.set["updateStrategy"]["type"], "OnDelete")

    def test_agent_and_keeper_share_the_run_folder_and_nothing_else(self):
        mounts = {mount["name"] for mount in self.keeper["volumeMounts"]}
        self.assertEqual(mounts, {"run"})
        agent = {mount["name"]: mount["mountPath"] for mount in self.spec["containers"][0]["volumeMounts"]}
        self.assertEqual(agent["run"], self.keeper["command"][2])
        for name, spec in pod_templates():
            if not name.startswith("holdfast"):
                paths = [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume]
                self.assertEqual(paths, ["/run/holdfast"], name)

    def test_the_agent_sees_the_processes_of_trainers(self):
        self.assertTrue(self.spec["hostPID"])

    def test_the_arena_fits_into_the_agents_memory(self):
        text = manifests()["ConfigMap", "holdfast"]["data"]["agent.toml"]
        arena = int(re.search(r'bytes = "(\d+)GiB"', text)[1])
        limit = self.spec["containers"][0]["resources"]["limits"]["memory"]
        self.assertGreaterEqual(int(limit.removesuffix("Gi")), arena + 1)


class ConfigurationTest(unittest.TestCase):
    """The servers accept the configuration, with certificates of the script in the same object."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.data = manifests()["ConfigMap", "holdfast"]["data"]
        ca = self.path / "ca"
        (self.path / "tls").mkdir()
        ca.mkdir()
        made = run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj",
                   "/CN=test", "-keyout", ca / "tls.key", "-out", ca / "tls.crt")
        self.assertEqual(made.returncode, 0, made.stderr)
        script = self.path / "certificate.sh"
        script.write_text(self.data["certificate.sh"])
        made = run("sh", script, ca, self.path / "tls", "IP:10.0.0.7", "DNS:coordinator.test")
        self.assertEqual(made.returncode, 0, made.stderr)
        (self.path / "peers").mkdir()
        (self.path / "peers" / "secret").write_text("0123456789abcdef" * 4)
        (self.path / "peers" / "secret").chmod(0o440)

    def test_a_certificate_has_the_names_and_both_uses(self):
        for purpose in ("sslserver", "sslclient"):
            checked = run("openssl", "verify", "-CAfile", self.path / "tls" / "ca.crt", "-purpose", purpose,
                          self.path / "tls" / "tls.crt")
            self.assertEqual(checked.returncode, 0, checked.stderr)
        names = run("openssl", "x509", "-in", self.path / "tls" / "tls.crt", "-noout", "-ext", "subjectAltName")
        self.assertIn("IP Address:10.0.0.7, DNS:coordinator.test", names.stdout)
        self.assertEqual((self.path / "tls" / "tls.key").stat().st_mode & 0o077, 0)

    def check(self, server, extra):
        file = self.path / f"{server}.toml"
        file.write_text(self.data[f"{server}.toml"].replace("/etc/holdfast/", f"{self.path}/"))
        result = run(BINARIES / f"holdfast-{server}", "--config", file, *extra, "--check-config")
        self.assertEqual((result.returncode, result.stdout), (0, "configuration ok\n"), result.stderr)

    def test_the_agent_accepts_its_configuration(self):
        agent = manifests()["DaemonSet", "holdfast-agent"]["spec"]["template"]["spec"]["containers"][0]
        values = {"$(NODE_NAME)": "node-1.example", "$(POD_IP)": "10.0.0.7"}
        extra = []
        for word in agent["args"]:
            for name, value in values.items():
                word = word.replace(name, value)
            extra.append(word)
        self.check("agent", extra)

    def test_the_coordinator_accepts_its_configuration(self):
        self.check("coordinator", [])


class EtcdTest(unittest.TestCase):
    """Three members and three coordinators run with the arguments and certificates of deploy/kubernetes/etcd."""

    def setUp(self):
        if not shutil.which("etcd"):
            self.skipTest("etcd is missing (Debian: etcd-server)")
        folder = tempfile.TemporaryDirectory(prefix="hfk", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name)
        self.objects = with_etcd()
        self.addresses = {}  # the name and port of a pod → a free port of loopback
        ca = self.path / "ca"
        ca.mkdir()
        made = run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-subj",
                   "/CN=test", "-keyout", ca / "tls.key", "-out", ca / "tls.crt")
        self.assertEqual(made.returncode, 0, made.stderr)
        script = self.path / "certificate.sh"
        script.write_text(self.objects["ConfigMap", "holdfast"]["data"]["certificate.sh"])

    def address(self, name):
        if name not in self.addresses:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.addresses[name] = f"127.0.0.1:{probe.getsockname()[1]}"
        return self.addresses[name]

    def replace(self, word, pod, folder):
        """Replaces what Kubernetes provides in an argument: names of pods, their addresses and their folders."""
        word = word.replace("$(POD_NAME)", pod)
        word = re.sub(r"[a-z0-9-]+\.holdfast-[a-z]+\.holdfast\.svc:\d+", lambda name: self.address(name[0]), word)
        service = pod.rsplit("-", 1)[0]
        word = re.sub(r"0\.0\.0\.0:(\d+)", lambda port: self.address(f"{pod}.{service}.holdfast.svc:{port[1]}"), word)
        return re.sub(r"/etc/holdfast/tls|/etc/etcd/tls|/var/lib/etcd|/var/lib/holdfast", f"{folder}", word)

    def start(self, name, pod):
        """Starts the first container of the StatefulSet `name` as its pod `pod`."""
        spec = self.objects["StatefulSet", name]["spec"]["template"]["spec"]
        folder = self.path / pod
        folder.mkdir()
        names = [self.replace(word, pod, folder) for word in spec["initContainers"][0]["args"]]
        made = run("sh", self.path / "certificate.sh", self.path / "ca", folder, *names)
        self.assertEqual(made.returncode, 0, made.stderr)
        container = spec["containers"][0]
        command = [self.replace(word, pod, folder) for word in container["command"] + container.get("args", [])]
        command[0] = shutil.which(command[0], path=f"{BINARIES}:{os.environ['PATH']}")
        log = open(folder / "log", "wb")
        self.addCleanup(log.close)
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def status(self, pod):
        folder = self.path / pod
        return run(BINARIES / "holdfast", "--endpoint",
                   self.address(f"{pod}.holdfast-coordinator.holdfast.svc:7070"), "--tls-ca", folder / "ca.crt",
                   "--tls-cert", folder / "tls.crt", "--tls-key", folder / "tls.key", "-o", "json", "status")

    def leader(self):
        """Returns the coordinator that serves, once one does."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for pod in self.coordinators:
                if '"nodes"' in self.status(pod).stdout:
                    return pod
            time.sleep(0.2)
        logs = "".join(path.read_text()[-2000:] for path in self.path.glob("*/log"))
        self.fail(f"no coordinator leads: {self.status('holdfast-coordinator-0').stderr}\n{logs}")

    def test_another_coordinator_leads_when_the_leader_is_lost(self):
        for number in range(self.objects["StatefulSet", "holdfast-etcd"]["spec"]["replicas"]):
            self.start("holdfast-etcd", f"holdfast-etcd-{number}")
        data = self.objects["ConfigMap", "holdfast"]["data"]["coordinator.toml"]
        self.coordinators = {}
        began = time.monotonic()
        for number in range(self.objects["StatefulSet", "holdfast-coordinator"]["spec"]["replicas"]):
            pod = f"holdfast-coordinator-{number}"
            file = self.path / f"{pod}.toml"
            file.write_text(self.replace(data, pod, self.path / pod))
            self.objects["StatefulSet", "holdfast-coordinator"]["spec"]["template"]["spec"]["containers"][0][
                "command"] = ["holdfast-coordinator", "--config", str(file)]
            self.coordinators[pod] = self.start("holdfast-coordinator", pod)
        first = self.leader()
        self.coordinators.pop(first).kill()
        second = self.leader()
        self.assertNotEqual(second, first)
        # Each coordinator logs a new leader once, and other causes every 5 s at most.
        most = 3 + (time.monotonic() - began) / 5
        for pod in self.coordinators:
            text = (self.path / pod / "log").read_text()
            self.assertIn("CoordinatorStandsBy", text)
            self.assertLessEqual(text.count("CoordinatorStandsBy"), most, f"{pod}\n{text}")

    def test_agents_know_every_coordinator(self):
        agent = self.objects["DaemonSet", "holdfast-agent"]["spec"]["template"]["spec"]["containers"][0]
        endpoints = next(word for word in agent["args"] if word.startswith("--set=coordinator=")).split("=")[2].split(",")
        replicas = self.objects["StatefulSet", "holdfast-coordinator"]["spec"]["replicas"]
        self.assertEqual(endpoints, [f"holdfast-coordinator-{number}.holdfast-coordinator.holdfast.svc:7070"
                                     for number in range(replicas)])


class ContainerfileTest(unittest.TestCase):
    def setUp(self):
        self.text = (ROOT / "deploy" / "Containerfile").read_text()

    def test_instructions_are_known_and_the_user_is_not_root(self):
        joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", self.text, flags=re.M))
        words = [line.split()[0] for line in joined.splitlines() if line.strip()]
        self.assertLessEqual(set(words), {"FROM", "WORKDIR", "COPY", "RUN", "USER", "CMD"})
        self.assertEqual(re.findall(r"^USER (.+)$", self.text, flags=re.M), ["65532:65532"])
        stages = re.findall(r"^FROM \S+ AS (\S+)", self.text, flags=re.M)
        for image in re.findall(r"^FROM (\S+)", self.text, flags=re.M):
            self.assertTrue(image in stages or image.startswith("debian:12"), image)
        user = manifests()["DaemonSet", "holdfast-agent"]["spec"]["template"]["spec"]["securityContext"]
        self.assertEqual((user["runAsUser"], user["runAsGroup"]), (65532, 65532))

    def test_the_linter_finds_nothing(self):
        linter = pathlib.Path(sys.executable).parent / "hadolint"
        result = run(linter, ROOT / "deploy" / "Containerfile")
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_every_program_is_copied(self):
        for program in PROGRAMS:
            self.assertIn(f"/source/build/release/bin/{program} ", self.text)

    def test_every_library_is_installed(self):
        if not shutil.which("dpkg") or not shutil.which("readelf"):
            self.skipTest("dpkg or readelf is missing")
        installed = set(re.findall(r"^ {6}(\S+) \\$", self.text, flags=re.M))
        paths = dict(re.findall(r"^\t(\S+) \(.*x86-64.*\) => (\S+)$", run("ldconfig", "-p").stdout, flags=re.M))
        for program in PROGRAMS:
            needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", BINARIES / program).stdout)
            self.assertTrue(needed, program)
            if any(library.startswith(("libasan.", "libtsan.")) for library in needed):
                self.skipTest("a build with a sanitizer needs a library that no image has")
            for library in needed:
                if library not in paths or library.startswith(("libc.", "libm.", "libgcc_s.", "libstdc++.")):
                    continue
                owner = run("dpkg", "-S", pathlib.Path(paths[library]).resolve()).stdout.split(":")[0]
                if owner:
                    self.assertIn(owner, installed, f"{program} needs {library}")


if __name__ == "__main__":
    BINARIES = pathlib.Path(sys.argv.pop())
    unittest.main()
