"""A machine for a page: this machine's files with a layer above that is thrown away, and separate namespaces.

Needs root, namespaces and overlayfs. There is no running systemd inside, and no ssh server: `systemctl` and `scp` are
the programs of this folder.
"""

import contextlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import uuid

FOLDER = pathlib.Path(__file__).resolve().parent
ENTER = ("--mount", "--net", "--uts", "--pid", "--root", "--wd")
SETUP = """
set -e
mount --make-rprivate /
mount -t tmpfs -o size=4g layer "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount --rbind /sys "$1/root/sys"
mount -t tmpfs tmp "$1/root/tmp" && chmod 1777 "$1/root/tmp"
mount -t tmpfs run "$1/root/run" && mkdir "$1/root/run/lock"
hostname "$2"
ip link set lo up
install -D -m 755 -t "$1/root/usr/local/bin" "$3/systemctl" "$3/scp"
if [ -n "$4" ]; then
  mkdir "$1/root/machines"
  mount --bind "$4" "$1/root/machines"
fi
touch "$1/root/machine-of-a-page"
# The first process of the PID namespace waits for the others.
exec chroot "$1/root" /bin/bash -c 'echo ready; while read -r _; do :; done'
"""


def missing() -> str:
    """Returns why no machine can be made here; empty: nothing is missing."""
    if os.geteuid() != 0:
        return "this is not root"
    for tool in ("unshare", "nsenter", "setpriv", "ip", "apt-get"):
        if shutil.which(tool) is None:
            return f"{tool} is missing"
    folder = tempfile.mkdtemp(prefix="holdfast-docs-")
    try:
        tried = subprocess.run(["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "bash", "-c", SETUP, "bash",
                                folder, "try", str(FOLDER), ""], capture_output=True, text=True, check=False,
                               stdin=subprocess.DEVNULL)
    finally:
        os.rmdir(folder)
    return "" if tried.returncode == 0 else f"namespaces or overlayfs are refused here: {tried.stderr.strip()}"


class Machine:
    """One machine and one shell on it, whose folder and variables stay from block to block."""

    def __init__(self, name: str, files: dict, shared: str = "") -> None:
        """`files`: path on the machine, below /root, → folder here that is copied there. `shared`: a folder here with
        one folder for each machine, through which `scp` passes files."""
        self._layer = tempfile.mkdtemp(prefix="holdfast-docs-")
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "bash", "-c", SETUP, "bash",
             self._layer, name, str(FOLDER), shared], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError(f"the machine {name} did not start")
        children = pathlib.Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self.pid = int(children[0])
        self.name = name
        self._shell = subprocess.Popen(
            ["nsenter", "--target", str(self.pid), *ENTER, "env", "-i", "HOME=/root", "USER=root", "LC_ALL=C.UTF-8",
             "DEBIAN_FRONTEND=noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK=1", "PIP_ROOT_USER_ACTION=ignore",
             "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        # A shell that is not in the layer must change nothing.
        self.run("test -e /machine-of-a-page || exit 1", "the start")
        self.run("cd /root && rm -rf /var/lib/holdfast /etc/holdfast", "the start")
        for target, source in files.items():
            self._copy(source, target)

    def _copy(self, source, target) -> None:
        packed = subprocess.run(["tar", "--create", "--directory", str(pathlib.Path(source).parent),
                                 pathlib.Path(source).name], check=True, capture_output=True).stdout
        subprocess.run(["nsenter", "--target", str(self.pid), *ENTER, "sh", "-c",
                        'mkdir -p "/root/$1" && tar --extract --strip-components=1 --directory "/root/$1"', "sh",
                        target], input=packed, check=True)

    def run(self, text: str, place: str) -> str:
        """Runs the lines in the shell, and returns their output. Raises AssertionError if a command fails."""
        mark = f"mark-{uuid.uuid4()}"
        self._shell.stdin.write(f"trap 'echo \"{mark}-failed $? $BASH_COMMAND\"' ERR\n{text}\n"
                                f"{{ trap - ERR; echo; echo {mark}; }} 2>/dev/null\n")
        self._shell.stdin.flush()
        rows = []
        failed = ""
        for row in self._shell.stdout:
            if row.startswith(f"{mark}-failed"):
                failed = row.removeprefix(f"{mark}-failed ")
            elif row.strip() == mark:
                break
            else:
                rows.append(row)
        else:
            failed = "the shell has ended"
        output = "".join(rows).removesuffix("\n")
        if failed:
            raise AssertionError(f"{place}: exit {failed.strip()}\n{text}{output}\n{self.logs()}")
        return output

    def deliver(self) -> None:
        """Puts files that other machines have sent where they belong."""
        subprocess.run(["nsenter", "--target", str(self.pid), *ENTER, "bash", "-ec",
                        'for box in /machines/"$1"/*/; do test -e "$box/folder" || continue; '
                        'cp -p "$box"/files/* "$(cat "$box/folder")"; rm -r "$box"; done', "bash", self.name],
                       check=True)

    def write(self, path: str, text: str, place: str) -> None:
        """Writes a file. A relative path is one of the shell's folder."""
        end = f"end-{uuid.uuid4()}"
        self.run(f"cat > '{path}' <<'{end}'\n{text}{end}", place)

    def logs(self) -> str:
        """Returns the last lines of the servers' logs."""
        shown = subprocess.run(["nsenter", "--target", str(self.pid), *ENTER, "sh", "-c",
                                "tail -n 20 /run/units/*.log"], capture_output=True, text=True, check=False)
        return shown.stdout

    def connect(self, address: str, others: list) -> None:
        """Makes a network of this machine, which has the switch, and the others: ADDRESS.1, ADDRESS.2, …"""
        def inside(machine, *command):
            subprocess.run(["nsenter", "--target", str(machine.pid), "--net", "ip", *command], check=True)
        inside(self, "link", "add", "switch", "type", "bridge")
        inside(self, "addr", "add", f"{address}.1/24", "dev", "switch")
        inside(self, "link", "set", "switch", "up")
        for number, other in enumerate(others, 2):
            port = f"port{number}"
            inside(self, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(other.pid))
            inside(self, "link", "set", port, "master", "switch", "up")
            inside(other, "addr", "add", f"{address}.{number}/24", "dev", "eth0")
            inside(other, "link", "set", "eth0", "up")
        names = "\n".join(f"{address}.{number} {machine.name}" for number, machine in enumerate([self, *others], 1))
        for machine in [self, *others]:
            machine.write("/etc/hosts", f"127.0.0.1 localhost\n{names}\n", "the start")

    def stop(self) -> None:
        """Ends every process of the machine. The layer of its files goes with the last one."""
        self._holder.stdin.close()
        self._holder.kill()
        self._holder.wait()
        self._shell.stdin.close()
        self._shell.kill()
        self._shell.wait()
        self._shell.stdout.close()
        self._holder.stdout.close()
        os.rmdir(self._layer)


def packages() -> pathlib.Path:
    """Returns the folder of packages, the program's argument. Ends the program with exit code 77 if there is none."""
    folder = pathlib.Path(sys.argv[1]).resolve()
    if not folder.exists():
        print(f"SKIPPED: there is no {folder}; the test docs_packages has the reason")
        sys.exit(77)
    return folder


def start(name: str, files: dict, shared: str = "") -> Machine:
    """Starts a machine with the packages and `files`, where pip finds numpy in the packages and not on the network."""
    machine = Machine(name, {"packages": packages(), **files}, shared)
    machine.run("export PIP_NO_INDEX=1 PIP_FIND_LINKS=/root/packages/index", "the start")
    return machine


@contextlib.contextmanager
def network(names: tuple, files: dict, boxes: tuple = ()):
    """Starts machines on one network, and gives them by name. They send each other files through folders with their
    names and `boxes`. At the end all of them are stopped."""
    machines = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-docs-") as shared:
        try:
            for box in (*names, *boxes):
                (pathlib.Path(shared) / box).mkdir()
            for name in names:
                machines[name] = start(name, files, shared)
            first, *others = machines.values()
            first.connect("10.77.0", others)
            yield machines
        finally:
            for machine in machines.values():
                machine.stop()
