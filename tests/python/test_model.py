"""The pool against a dict: whatever is done in whatever order, a view never has other bytes than were stored."""
import pytest

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test  # noqa: E402

import kvpool  # noqa: E402
from conftest import Daemon, attached  # noqa: E402

NAMES = st.integers(0, 400)  # more blocks than the pool holds


def content(name, length):
    return name.to_bytes(4, "little") * (length // 4)


class Pool(RuleBasedStateMachine):
    daemon = None

    def __init__(self):
        super().__init__()
        self.client = kvpool.Client(Pool.daemon.socket, connect_timeout=10)
        self.ns = self.client.namespace("m", kvpool.Descriptor.opaque("model/1", 16384, 16))
        self.queue = self.client.queue(2)
        self.stored, self.views = {}, []
        Pool.runs += 1
        self.run = Pool.runs

    runs = 0

    def key(self, name):
        return self.ns.key(f"{self.run}/{name}")

    @rule(name=NAMES, length=st.integers(1, 4096).map(lambda n: 4 * n))
    def put(self, name, length):
        if self.ns.put(self.key(name), content(name, length), timeout=10):
            self.stored.setdefault(name, length)

    @rule(names=st.lists(NAMES, min_size=1, max_size=40, unique=True), length=st.integers(1, 4096).map(lambda n: 4 * n))
    def put_many(self, names, length):
        self.queue.put(self.ns, [self.key(n) for n in names], [content(n, length) for n in names], timeout=10)
        (done,) = self.queue.poll(30)
        for name, status in zip(names, done.statuses):
            if status == kvpool.Status.DONE:
                self.stored.setdefault(name, length)

    @rule(name=NAMES)
    def get(self, name):
        view = self.ns.get(self.key(name), timeout=5)
        assert view is None or name in self.stored
        if view is not None:
            self.views.append((name, view))

    @rule(names=st.lists(NAMES, min_size=1, max_size=40))
    def get_many(self, names):
        buffers = [bytearray(16384) for _ in names]
        self.queue.get(self.ns, [self.key(n) for n in names], buffers, timeout=5)
        (done,) = self.queue.poll(30)
        for name, status, used, buffer in zip(names, done.statuses, done.used_bytes, buffers):
            if status == kvpool.Status.DONE:
                assert bytes(buffer[:used]) == content(name, self.stored[name])

    @precondition(lambda self: self.views)
    @rule(which=st.integers(0, 10 ** 6))
    def release(self, which):
        self.views.pop(which % len(self.views))

    @rule()
    def restart(self):
        Pool.daemon.kill()
        Pool.daemon.start()
        attached(self.client)

    @invariant()
    def views_are_what_was_stored(self):
        if len(self.views) > 50:
            del self.views[:25]
        for name, view in self.views[-5:]:
            assert bytes(view.data) == content(name, self.stored[name])

    def teardown(self):
        for name, view in self.views:
            assert bytes(view.data) == content(name, self.stored[name]) and not view.lost
        self.views.clear()
        self.queue.close()
        self.ns.close()
        self.client.close()


def test_the_pool_is_a_dict_that_forgets(daemon):
    Pool.daemon = daemon
    run_state_machine_as_test(Pool, settings=settings(
        max_examples=15, stateful_step_count=30, deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck)))
