"""A host under fire: one kvpoold, engines of several tenants (prog_worker), and what they counted.

What tests/system/kills and tests/system/chaos have in common.  Standard library only.
"""
import json
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("BUILD", os.path.join(HERE, "..", "..", "build")))
# struct totals of prog_worker.c
TOTALS = ["reads", "wrong", "lost", "stored", "exists", "rejected", "private_blocks", "hits_ram", "hits_spill", "errors",
          "late_us", "publish_us", "broken", "slow", "engines"]
ENGINES = 64  # and then slow calls at a change, of so many engines
REFUSED = 75  # exit status of a worker that got no namespace


class Failed(Exception):
    pass


def tool(name):
    return os.path.join(BUILD, name)


class Host:
    def __init__(self, name, seed):
        self.random = random.Random(seed)
        self.directory = tempfile.mkdtemp(prefix="kvpool-%s-" % name)
        os.chmod(self.directory, 0o755)  # engines of other users come here
        self.name = "%s-%d" % (name, os.getpid())
        self.socket = os.path.join(self.directory, "s")
        self.log = open(os.path.join(self.directory, "log"), "a+", encoding="utf-8", errors="replace")
        self.totals = os.path.join(self.directory, "totals")
        with open(self.totals, "wb") as file:
            file.write(b"\0" * 4096)
        os.chmod(self.totals, 0o666)
        self.daemon = None
        self.workers = []
        self.back_ms = []

    def spawn(self, argv, uid=None, env=None):
        """Run a program as @uid (None: ours); it ends when we do."""
        wrap = ["setpriv", "--pdeathsig", "KILL"]
        if uid is not None and uid != os.geteuid():
            wrap += ["--reuid=%d" % uid, "--regid=%d" % uid, "--clear-groups"]
        program = os.open(argv[0], os.O_PATH)  # by descriptor: others need not reach where we built
        try:
            return subprocess.Popen(wrap + ["/proc/self/fd/%d" % program] + argv[1:], stderr=self.log, stdout=self.log,
                                    pass_fds=[program], env=dict(os.environ, **(env or {})))
        finally:
            os.close(program)

    def kvctl(self, *words):
        return subprocess.run([tool("kvctl"), *words, "--socket", self.socket], capture_output=True, text=True, check=False)

    def spawn_daemon(self, options, binary=None, uid=None, env=None):
        self.daemon = self.spawn([binary or tool("kvpoold"), "--socket", self.socket, "--name", self.name, *options], uid, env)

    def launch(self, options, binary=None, uid=None, env=None):
        """Start the daemon and wait until it serves. Return: did it?"""
        self.spawn_daemon(options, binary, uid, env)
        end = time.monotonic() + 60
        while self.kvctl("ping").returncode:
            if self.daemon.poll() is not None:
                return False
            self.undo_due()  # a ping is a client too: where there is no room, it gets no session
            if time.monotonic() > end:
                raise Failed("kvpoold does not serve after 60 s")
            time.sleep(0.005)
        return True

    def undo_due(self):
        """What was done to the host for a while only."""

    def start_worker(self, namespace, options=(), uid=None):
        process = self.spawn([tool("test/prog_worker"), *options, self.socket, namespace, str(self.random.getrandbits(60)),
                              self.totals], uid)
        self.workers.append(process)
        return process

    def how_it_is(self):
        """Does the daemon run? Else how it ended, and where: what asked it in vain may be the first to notice."""
        with open("/proc/net/unix", encoding="utf-8") as file:
            sockets = "".join(line for line in file if self.socket in line)
        try:
            status = self.daemon.wait(1)
        except subprocess.TimeoutExpired:
            return "kvpoold runs; its sockets:\n%s" % sockets
        return "kvpoold ended by itself with status %d\n%s" % (status, self.kvctl("stats", "--post-mortem").stdout)

    def counts(self):
        with open(self.totals, "rb") as file:
            return dict(zip(TOTALS, struct.unpack("<%dQ" % len(TOTALS), file.read(8 * len(TOTALS)))))

    def slow_calls(self):
        """Of each engine: its slow calls while the daemon went, was away or came."""
        with open(self.totals, "rb") as file:
            file.seek(8 * len(TOTALS))
            return struct.unpack("<%dQ" % ENGINES, file.read(8 * ENGINES))

    def check(self, what):
        if self.counts()["wrong"]:
            raise Failed("wrong bytes were read after %s" % what)
        done = self.kvctl("check")
        if done.returncode:
            raise Failed("kvctl check after %s:\n%s%s%s%s" % (
                what, done.stdout, done.stderr, self.namespaces(), self.how_it_is()))

    def namespaces(self):
        """Which name has which id in check's lines."""
        try:
            rows = json.loads(self.kvctl("stats", "--json").stdout)["namespaces"]
            return "".join("  %s is %s of uid %s\n" % (row.get("ns_id", row.get("id")), row.get("name"), row.get("owner_uid")) for row in rows)
        except (ValueError, KeyError, AttributeError):
            return ""

    def wait_for_hit(self, began, seconds=20):
        """The first hit after a restart; how long it took since @began goes to back_ms."""
        before = self.counts()["hits_ram"]
        end = time.monotonic() + seconds
        while self.counts()["hits_ram"] == before:
            if time.monotonic() > end:
                raise Failed("no hit within %g s of the daemon's return" % seconds)
            time.sleep(0.001)
        self.back_ms.append((time.monotonic() - began) * 1000)

    def descriptors(self):
        """What the daemon has open: session objects and sockets, counted."""
        directory = "/proc/%d/fd" % self.daemon.pid
        links = []
        for name in os.listdir(directory):
            try:
                links.append(os.readlink(os.path.join(directory, name)))
            except FileNotFoundError:
                pass
        return sum("-sess-" in link for link in links), sum(link.startswith("socket:") for link in links)

    def kill_workers(self):
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers = []

    def quiet(self, nobody):
        """All clients go: within seconds nothing is held, granted or left behind, nor open as it was not with @nobody there."""
        self.kill_workers()
        end = time.monotonic() + 10
        while True:
            left = {}
            for ns in json.loads(self.kvctl("stats", "--json").stdout)["namespaces"]:
                for gauge in ("held", "granted", "restoring", "taken"):
                    value = ns.get("counters", ns)[gauge]
                    left[gauge] = left.get(gauge, 0) + (value["value"] if isinstance(value, dict) else value)
            if not any(left.values()):
                break
            if time.monotonic() > end:
                raise Failed("left behind 10 s after all clients had gone: %s" % left)
            time.sleep(0.1)
        self.check("all clients had gone")
        sessions = [name for name in os.listdir("/dev/shm") if "-sess-" in name and self.uuid() in name]
        if sessions:
            raise Failed("session objects left behind: %s" % sessions)
        time.sleep(0.5)
        if self.descriptors() != nobody:
            raise Failed("left open (session objects, sockets): %s, at the start %s" % (self.descriptors(), nobody))

    def uuid(self):
        with open("/dev/shm/kvpool." + self.name, encoding="utf-8") as file:
            return file.read(36)

    def stop(self):
        self.kill_workers()
        if self.daemon and self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait()
        # a killed daemon's last write may hold its lock for a moment longer
        for _ in range(100):
            if not subprocess.run([tool("kvctl"), "purge", "--name", self.name], capture_output=True, check=False).returncode:
                break
            time.sleep(0.1)
        shutil.rmtree(self.directory, ignore_errors=True)

    def tail(self, lines=20):
        self.log.flush()
        self.log.seek(0)
        return "".join(self.log.readlines()[-lines:])
