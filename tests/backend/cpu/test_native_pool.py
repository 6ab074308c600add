"""The thread pool: every unit done once, whoever does it, and nobody busy when there is nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from rlx.backends.cpu.runtime.support_code import compiled_support, support, support_key
from rlx.backends.cpu.runtime.thread_count import default_threads, physical_cores
from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.current import system_of
from tests.backend.cpu.models import call_marks
from tests.children import require_children
from tests.patience import PATIENCE_S, eventually


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 40])
def test_every_unit_is_done_once(threads):
    rng = np.random.default_rng(threads)
    for _ in range(100):
        units, grain = int(rng.integers(1, 3000)), int(rng.integers(1, 400))
        data = np.zeros(units + 16, np.int32)
        code, done = call_marks(data, units, grain, 5, threads)
        assert code == 0
        assert (data[:units] == 5).all()
        assert not data[units:].any()
        assert sum(done) == 5 * units
        open_or_inside = support().pool._memory[Place.STATE] & 0xFFFFFFFF
        assert open_or_inside == 0


def test_the_caller_waits_for_those_inside():
    """A chunk for each, over and over: the worker begins later, so it often ends later."""
    units, grain, rounds = 2 << 13, 1 << 13, 60
    for turn in range(100):
        data = np.zeros(units, np.int32)
        _, done = call_marks(data, units, grain, rounds, 2)
        assert (data == rounds).all(), turn
        assert sum(done) == rounds * units
        assert support().pool._memory[Place.STATE] & 0xFFFFFFFF == 0


def test_workers_take_part():
    """Chunks long enough that a worker wakes up before the caller has done them all."""
    data = np.zeros(1 << 22, np.int32)
    eventually(lambda: call_marks(data, len(data), 1 << 12, 4, 2)[1][1], "a chunk for the worker")


def test_codes_come_through():
    data = np.zeros(4096, np.int32)
    for threads in (1, 2, 4):
        code, _ = call_marks(data, 4096, 64, 3, threads, bad=3000)
        assert code == 7
        assert call_marks(data, 4096, 64, 3, threads)[0] == 0


def test_calls_side_by_side():
    """One call has the workers, the others run alone."""
    wrong: list[str] = []

    def use(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            units, grain = int(rng.integers(1, 5000)), int(rng.integers(1, 300))
            data = np.zeros(units, np.int32)
            code, done = call_marks(data, units, grain, 3, 4)
            if code or (data != 3).any() or sum(done) != 3 * units:
                wrong.append(f"{units} by {grain}")

    users = [threading.Thread(target=use, args=(i,)) for i in range(8)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert not wrong
    assert support().pool._memory[Place.LOCK] == 0


def test_idle_workers_sleep():
    """Once they have done looking for work, which is sooner or later."""
    call_marks(np.zeros(1000, np.int32), 1000, 10, 1, 4)
    eventually(lambda: _used_s(0.2) < 0.02, "a fifth of a second at rest")


def _used_s(seconds: float) -> float:
    """Of processors, by this process, meanwhile."""
    before = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before


def run_alone(text: str) -> str:
    require_children()
    made = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_a_forked_child_has_its_own_workers():
    out = run_alone("""
        import os, numpy as np
        from rlx.backends.cpu.runtime.thread_pool_layout import Place
        from rlx.backends.cpu.runtime.support_code import support
        from tests.backend.cpu.models import call_marks

        def right():
            data = np.zeros(100_000, np.int32)
            code, done = call_marks(data, 100_000, 1000, 5, 4)
            return code == 0 and (data == 5).all() and sum(done) == 500_000

        assert right()
        support().pool._memory[Place.LOCK] = 1  # as if another thread were in a call
        child = os.fork()
        if not child:
            ok = support().pool._memory[Place.COUNT] == 1 and right()
            ok = ok and support().pool._memory[Place.COUNT] == 4
            os._exit(0 if ok else 1)
        support().pool._memory[Place.LOCK] = 0
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert right()
        print("right")
    """)
    assert out == "right\n"


def test_ending_while_workers_spin_is_quiet():
    text = """
        import numpy as np
        from tests.backend.cpu.models import call_marks
        call_marks(np.zeros(1000, np.int32), 1000, 1, 100, 4)
    """
    assert all(run_alone(text) == "" for _ in range(3))


def test_workers_leave_the_callers_processor():
    out = run_alone("""
        import os, numpy as np
        from rlx.backends.cpu.runtime.support_code import support
        from tests.backend.cpu.models import call_marks
        from tests.patience import eventually

        pool, cpus = support().pool, sorted(os.sched_getaffinity(0))
        pool.grow(2)
        if len(cpus) < 2:
            print("right")
            raise SystemExit
        worker = pool._threads[0].native_id
        for cpu in cpus[:2]:
            os.sched_setaffinity(0, [cpu])
            os.sched_setaffinity(worker, [cpu])
            def has_left():
                call_marks(np.zeros(1 << 18, np.int32), 1 << 18, 64, 10, 2)
                return cpu not in os.sched_getaffinity(worker)

            eventually(has_left, "the worker elsewhere")
            assert os.sched_getaffinity(worker) == set(cpus) - {cpu}
        os.sched_setaffinity(0, cpus)
        pool.grow(len(cpus) + 1)
        assert os.sched_getaffinity(worker) == set(cpus)
        print("right")
    """)
    assert out == "right\n"


def test_cores(tmp_path):
    for cpu, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    assert physical_cores([0, 1, 2, 3], tmp_path) == 2
    assert physical_cores([0, 2], tmp_path) == 1
    assert physical_cores([0, 7, 9], tmp_path) == 3
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))


SYSTEMS = [
    ("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("darwin", "x86_64"),
    ("win32", "AMD64"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "machine"), SYSTEMS)
def test_the_text_is_the_same_every_time_and_assembles_elsewhere(name, machine):
    assert support_key() == support_key()
    system = system_of(name, machine)
    made = compiled_support(system)
    assert {"worker", "entry", "call"} <= made.exports.keys()
    assert made.arch == system.abi
