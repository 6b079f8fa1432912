import itertools

import pytest

from cluster import Cluster

_jobs = itertools.count()


@pytest.fixture(scope="module")
def cluster():
    cluster = Cluster().start()
    yield cluster
    cluster.stop()


@pytest.fixture
def job():
    """A job name that no other test uses."""
    return f"job-{next(_jobs)}"


@pytest.fixture(autouse=True)
def _socket(request, monkeypatch):
    """Points clients to the module's agent, if the test has one."""
    if "cluster" in request.fixturenames:
        monkeypatch.setenv("HOLDFAST_SOCKET", request.getfixturevalue("cluster").socket())
    monkeypatch.delenv("HOLDFAST_RUN_ID", raising=False)
