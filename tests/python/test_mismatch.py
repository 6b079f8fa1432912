"""A package that is older or newer than the agent: one clear error, at once."""

import socket
import struct
import threading
import time

import holdfast
import holdfast.torch as hf
import pytest
import torch

PLACE = 16  # offset of the protocol number in a Hello and in a Welcome


def changed(packet, by):
    """The packet with the protocol number of another release, and the original number."""
    number = struct.unpack_from("<I", packet, PLACE)[0]
    return packet[:PLACE] + struct.pack("<I", number + by) + packet[PLACE + 4:], number


def answer_of(agent, packet):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(agent)
        connection.send(packet)
        connection.settimeout(30)
        return connection.recv(65536)


class FakeAgent:
    """Answers each Hello with the same packet."""

    def __init__(self, path, packet):
        self.path, self.packet = str(path), packet
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.bind(self.path)
        self.socket.listen(8)
        self.taken = []
        self.hello = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.socket.accept()
                self.hello = connection.recv(65536)
                connection.send(self.packet)
            except OSError:
                return
            self.taken.append(connection)


def restore(path):
    ckpt = hf.Checkpointer("job", {"model": torch.nn.Linear(2, 2)}, socket_path=path)
    before = time.monotonic()
    with pytest.raises(holdfast.HoldfastError) as caught:
        ckpt.restore(timeout=5)
    ckpt.close()
    return caught.value, time.monotonic() - before


@pytest.fixture
def hello(tmp_path):
    """The first packet of this package."""
    fake = FakeAgent(tmp_path / "hello.sock", b"no")
    restore(fake.path)
    return fake.hello


@pytest.mark.parametrize("by", [-1, 1])
def test_the_agent_rejects_a_package_of_another_release(cluster, hello, tmp_path, by):
    packet, number = changed(hello, by)
    reply = answer_of(cluster.socket(), packet)
    assert f"the trainer uses protocol {number + by}, this agent {number}".encode() in reply
    # The client raises this error at once, without waiting for another agent.
    error, seconds = restore(FakeAgent(tmp_path / "agent.sock", reply).path)
    assert isinstance(error, holdfast.UnsupportedError) and seconds < 4
    assert "install the same Holdfast version for both" in str(error)


@pytest.mark.parametrize("by", [-1, 1])
def test_the_client_rejects_a_welcome_of_another_release(cluster, hello, tmp_path, by):
    welcome, number = changed(answer_of(cluster.socket(), hello), by)
    error, seconds = restore(FakeAgent(tmp_path / "agent.sock", welcome).path)
    assert isinstance(error, holdfast.UnsupportedError) and seconds < 4
    assert f"uses protocol {number + by}, this library {number}" in str(error)
    assert "install the same release of both" in str(error)


@pytest.mark.parametrize("packet", [b"HTTP/1.1 400 Bad Request\r\n\r\n",
                                    bytes(900)])
def test_a_socket_of_another_program_is_named(tmp_path, packet):
    error, _ = restore(FakeAgent(tmp_path / "agent.sock", packet).path)
    assert isinstance(error, holdfast.UnavailableError)
    assert "is not a Holdfast agent of this version" in str(error)
