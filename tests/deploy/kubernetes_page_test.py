#!/usr/bin/env python3
"""Checks each command of docs/kubernetes.md, read from the page, without a cluster: runs kustomize, openssl and
holdfast, and compares the names in all others with the manifests. A command that it does not know fails.

  kubernetes_page_test.py BINARIES

Runs in the environment of kubernetes_environment.sh.
"""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "docs"))
import page  # noqa: E402

BASE = ROOT / "deploy" / "kubernetes" / "base"
PAGE = ROOT / "docs" / "kubernetes.md"
UNREACHABLE = 5
BINARIES = pathlib.Path()


def run(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def commands(text):
    """Returns the words of each command in the lines of a shell."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(re.sub(r"\$\([^)]*\)", "VALUE", line), comments=True)
        while "&&" in words:
            found.append(words[:words.index("&&")])
            words = words[words.index("&&") + 1:]
        if words:
            found.append(words)
    return found


class Manifests:
    def __init__(self):
        objects = [one for file in BASE.glob("*.yaml") for one in yaml.safe_load_all(file.read_text()) if one]
        by_kind = {(one["kind"], one["metadata"]["name"]): one for one in objects if "metadata" in one}
        self.namespaces = {name for kind, name in by_kind if kind == "Namespace"}
        self.first_pods = {f"{name}-0" for kind, name in by_kind if kind == "StatefulSet"}
        sets = [one["spec"]["template"]["spec"] for (kind, _), one in by_kind.items()
                if kind in ("DaemonSet", "StatefulSet")]
        self.selectors = [spec["nodeSelector"] for spec in sets if "nodeSelector" in spec]
        self.containers = {one["name"] for spec in sets for one in [*spec["containers"], *spec["initContainers"]]}
        self.secrets = {volume["secret"]["secretName"]: volume["secret"] for spec in sets
                        for volume in spec.get("volumes", []) if "secret" in volume}
        self.mounts = {mount["mountPath"] for spec in sets for one in spec["containers"]
                       for mount in one.get("volumeMounts", [])}
        self.text = "".join(file.read_text() for file in BASE.glob("*.yaml"))


class PageTest(unittest.TestCase):
    def setUp(self):
        self.manifests = Manifests()
        folder = tempfile.TemporaryDirectory(prefix="holdfast-page-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.options = []

    def test_each_command_is_right(self):
        count = 0
        for block in page.read(PAGE):
            self.assertEqual(block.language, "sh", f"{block.place}: no test reads this block")
            for words in commands(block.text):
                with self.subTest(place=block.place, command=" ".join(words)):
                    self.check(words)
                    count += 1
        self.assertGreater(count, 10)

    def test_wrong_commands_are_found(self):
        for line in ("kubectl -n other exec holdfast-coordinator-0 -- holdfast status",
                     "kubectl -n holdfast exec coordinator-0 -- holdfast status",
                     "kubectl -n holdfast exec holdfast-coordinator-0 -- holdfast drains NODE",
                     "kubectl -n holdfast create secret generic peers --from-literal=secret=x",
                     "kubectl -n holdfast create secret generic holdfast-peers --from-literal=key-without-use=x",
                     "kubectl label node NODE other=true", "kubectl apply -k deploy/absent",
                     "kubectl -n holdfast set image pod/POD agents=IMAGE", "helm install holdfast"):
            with self.subTest(line), self.assertRaises(AssertionError):
                self.check(shlex.split(line))

    def check(self, words):
        program, *rest = words
        if program == "kubectl":
            if rest[0] == "-n":
                self.assertIn(rest[1], self.manifests.namespaces)
                rest = rest[2:]
            check = getattr(self, f"check_{rest[0]}", None)
            self.assertIsNotNone(check, f"no test knows kubectl {rest[0]}")
            check(rest[1:])
        elif program == "openssl":
            made = run(words, self.folder)
            self.assertEqual(made.returncode, 0, made.stderr)
        elif program == "podman":
            self.assertIn(rest[0], ("build", "push"))
            if rest[0] == "build":
                self.assertTrue((ROOT / rest[rest.index("-f") + 1]).is_file())
        else:
            self.fail(f"no test knows {program}")

    def check_label(self, words):
        self.assertEqual(words[:2], ["node", "NODE"])
        key, value = words[2].split("=")
        self.assertIn({key: value}, self.manifests.selectors)

    def check_create(self, words):
        if words[0] == "namespace":
            self.assertIn(words[1], self.manifests.namespaces)
            return
        kind, name, *options = words[1:]
        self.assertIn(name, self.manifests.secrets)
        for option in options:
            key, _, value = option.partition("=")
            if key == "--from-literal":
                self.assertIn(kind, "generic")
                name_of_key = value.split("=")[0]
                self.assertRegex(self.manifests.text, rf"(key: |/){name_of_key}\b")
            else:
                self.assertIn(key, ("--cert", "--key"))
                self.assertTrue((self.folder / value).is_file(), f"no earlier command makes {value}")

    def check_apply(self, words):
        self.assertEqual(words[0], "-k")
        self.assertTrue((ROOT / words[1] / "kustomization.yaml").is_file())
        if shutil.which("kubectl"):
            built = run(["kubectl", "kustomize", words[1]], ROOT)
            self.assertEqual(built.returncode, 0, built.stderr)

    def check_exec(self, words):
        pod, dashes, program, *arguments = words
        self.assertIn(pod, self.manifests.first_pods)
        self.assertEqual((dashes, program), ("--", "holdfast"))
        if "…" in arguments:
            arguments = [*self.options, *arguments[arguments.index("…") + 1:]]
        else:
            self.options = [word for word in arguments if word != arguments[-1]]
        here = []
        for word in arguments:
            if word.startswith("/etc/holdfast/tls/"):
                self.assertIn("/etc/holdfast/tls", self.manifests.mounts)
                word = str(self.folder / ("ca.key" if word.endswith(".key") else "ca.crt"))
            here.append("localhost:1" if word == "localhost:7070" else word)
        done = run([BINARIES / "holdfast", "--timeout", "1s", *here], self.folder)
        self.assertEqual(done.returncode, UNREACHABLE, done.stderr)

    def check_set(self, words):
        self.assertEqual(words[:2], ["image", "pod/POD"])
        self.assertIn(words[2].split("=")[0], self.manifests.containers)

    def check_cordon(self, words):
        self.assertEqual(words, ["NODE"])

    check_uncordon = check_cordon

    def check_drain(self, words):
        self.assertEqual(words, ["NODE", "--ignore-daemonsets"])


if __name__ == "__main__":
    BINARIES = pathlib.Path(sys.argv.pop()).resolve()
    unittest.main()
