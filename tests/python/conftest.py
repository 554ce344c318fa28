"""A daemon of the build tree for each test that asks for one, with a pool and a store of its own."""
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("BUILD", "build"))
BUILD = BUILD if BUILD.is_absolute() else TOP / BUILD
os.environ.setdefault("KVPOOL_LIBRARY_PATH", str(BUILD))
sys.path.insert(0, str(TOP / "client" / "python"))

import kvpool  # noqa: E402


class Daemon:
    def __init__(self, pool="4M", spill="64M"):
        self.dir = tempfile.TemporaryDirectory(prefix="kvpool-python-")
        self.socket = f"{self.dir.name}/sock"
        self.name = f"python-{uuid.uuid4().hex[:12]}"
        self.command = [str(BUILD / "kvpoold"), "--socket", self.socket, "--name", self.name, "--pool", pool, "--slab",
                        "1M", "--free-percent", "0", "--heartbeat", "200", "--spill",
                        "off" if spill == "off" else f"{self.dir.name}:{spill}"]
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=open(f"{self.dir.name}/log", "a"))
        until = time.monotonic() + 30
        while self.kvctl("ping").returncode:
            assert self.process.poll() is None, open(f"{self.dir.name}/log").read()
            assert time.monotonic() < until, "the daemon does not serve"
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def kvctl(self, *words):
        return subprocess.run([str(BUILD / "kvctl"), words[0], "--socket", self.socket, *words[1:]],
                              capture_output=True, text=True)

    def close(self):
        check = self.kvctl("check")
        self.process.terminate()
        status = self.process.wait()
        self.kvctl("purge")
        self.dir.cleanup()
        assert status == 0, status
        assert check.returncode == 0, check.stdout + check.stderr


# of a Daemon: one slab of 1M, so one block where blocks are larger than half of it
ONE_BLOCK = ("1M", "off")


@pytest.fixture
def daemon():
    daemon = Daemon()
    yield daemon
    daemon.close()


@pytest.fixture
def client(daemon):
    with kvpool.Client(daemon.socket, connect_timeout=10) as client:
        yield client


@pytest.fixture
def ns(client):
    with client.namespace("m", kvpool.Descriptor.opaque("test/1", block_bytes=4096, block_tokens=16)) as ns:
        yield ns


def attached(client, seconds=20):
    until = time.monotonic() + seconds
    while client.state != kvpool.State.ATTACHED:
        assert time.monotonic() < until, client.state
        time.sleep(0.01)


def told_apart(daemon, *engines):
    """Each of these engines, at work in one pool now, has rows of its own in kvctl's tables."""
    for table in ("clients", "ns"):
        text = daemon.kvctl(table).stdout
        rows = [line for line in text.splitlines() if ", mode " not in line]  # the table, not each one's shape
        named = [[engine for engine in engines if engine in row] for row in rows]
        assert all(len(names) <= 1 for names in named) and {name for names in named for name in names} == set(engines), text


def tell_gain(text):
    """For make check-engines to print: what was measured in this run."""
    if os.environ.get("KVPOOL_GAIN"):
        with open(os.environ["KVPOOL_GAIN"], "a") as file:
            file.write(text + "\n")
