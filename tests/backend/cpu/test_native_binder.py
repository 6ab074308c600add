"""The way in from Python: right answers, memory used again and never twice, nothing left behind."""

from __future__ import annotations

import ctypes
import functools
import gc
import sys
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from bench.leaks import growth
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.runtime import cpython_layout as objects
from rlx.backends.cpu.runtime.binding_table import Binding, Input, Output
from rlx.backends.cpu.runtime.buffer_pool import HUGE, Block, new_block
from rlx.backends.cpu.runtime.call import Entry, FailedAt
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.support_code import compiled_support, support
from rlx.core.errors import Error
from rlx.runtime.doctor import examine
from tests.backend.cpu.models import host_step, positives, scaled_sum
from tests.backend.cpu.test_native_pool import run_alone

F32 = np.dtype(np.float32)


class Model:
    """scaled_sum with a slow path that counts its calls."""

    def __init__(self, weight=2.0, threads=1):
        inputs = (Input(F32, (0,)), Input(F32, (0,)))
        binding = Binding(inputs, (Output(F32, 1),), 1, 1, threads)
        self.entry = Entry(binding, Loaded(scaled_sum()), support())
        self.slow_calls = 0
        self.set_weight(weight)
        self.fast = self.entry.callable(self.slow)

    def set_weight(self, value):
        owner = np.full(1, value, np.float32)
        param = np.ones(1, np.float32)
        self.entry.set_weights((owner, param), owner.ctypes.data, [param.ctypes.data])
        return owner

    def slow(self, *args):
        self.slow_calls += 1
        inputs = [np.require(a, F32, "CA") for a in args[:2]]
        made = self.entry.invoke(inputs, list(args[2:]) or [None])
        if isinstance(made, FailedAt):
            raise Error(f"step {made.step} code {made.code}")
        return made[0]


def arrays(n, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(n).astype(np.float32) for _ in range(2)]


def base_of(array):
    return array.ctypes.data


@pytest.fixture
def unprobed():
    """Around a test that changes what the probe sees."""
    objects.why_not_bound.cache_clear()
    objects.warn_slow_calls.cache_clear()
    yield
    objects.why_not_bound.cache_clear()
    objects.warn_slow_calls.cache_clear()


def test_probe():
    assert objects.why_not_bound() is None
    assert "calls are bound by native code" in str(examine(False))


@pytest.mark.parametrize("borrowed", [0, 1], ids=["counted", "borrowed"])
@pytest.mark.usefixtures("unprobed")
def test_the_probe_holds_whether_local_variables_count(monkeypatch, borrowed):
    """CPython up to 3.13 counts the references of local variables and arguments, 3.14 does not
    where they outlive their use: `sys.getrefcount` gives one less."""
    counted = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda o: counted(o) - borrowed)
    assert objects.why_not_bound() is None
    model = Model()
    for _ in range(3):
        x, y = arrays(5000)
        np.testing.assert_array_equal(model.fast(x, y), x * np.float32(2) + y)
    assert model.slow_calls <= 2


@pytest.mark.parametrize("rule", [lambda n: n + 1, lambda n: 2 * n, lambda _: 1 << 30])
@pytest.mark.usefixtures("unprobed")
def test_another_count_of_references_is_noticed(monkeypatch, rule):
    """Counts that are biased, scaled or immortal: blocks would never be free, or always."""
    found = objects.references
    monkeypatch.setattr(objects, "references", lambda at: rule(found(at)))
    assert "counts references in another way" in objects.why_not_bound()


@pytest.mark.parametrize(
    ("patched", "value", "reason"),
    [
        ("sys.implementation", SimpleNamespace(name="pypy"), "is not CPython"),
        ("sysconfig.get_config_var", lambda _: 1, "free-threaded build"),
        ("ctypes.sizeof", lambda _: 4, "no 64-bit pointers"),
        (f"{objects.__name__}._has_table", lambda: False, "no table of C functions"),
        (f"{objects.__name__}._is_as_expected", lambda _: False, "another memory layout"),
    ],
)
@pytest.mark.usefixtures("unprobed")
def test_a_call_path_that_is_slow_is_told(monkeypatch, patched, value, reason):
    monkeypatch.setattr(patched, value)
    assert reason in objects.why_not_bound()
    assert reason in CpuBackend().call_path()
    with pytest.warns(UserWarning, match=f"bound in Python.*{reason}"):
        model = Model()
    Model()  # the warning is given once: another would be an error
    assert model.fast == model.slow


@pytest.mark.parametrize("n", [0, 1, 7, 1000, 5000, 300_000, 1_000_000])
def test_right_and_soon_fast(n):
    model = Model()
    x, y = arrays(n)
    for _ in range(4):
        got = model.fast(x, y)
        np.testing.assert_array_equal(got, x * np.float32(2) + y)
        assert got.flags.c_contiguous
        assert got.flags.aligned
        assert got.flags.writeable
    assert model.slow_calls <= 2


def test_sizes_may_change():
    model = Model()
    rng = np.random.default_rng(0)
    for n in rng.integers(0, 40_000, 200):
        x, y = arrays(int(n))
        np.testing.assert_array_equal(model.fast(x, y), x * np.float32(2) + y)
    assert model.slow_calls < 60


def test_outputs_given():
    model = Model()
    x, y = arrays(3000)
    want = x * np.float32(2) + y
    out = np.empty(3000, np.float32)
    model.fast(x, y)
    model.slow_calls = 0
    assert model.fast(x, y, out) is out
    assert model.slow_calls == 0
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x, y: (x.astype(np.float64), y),
        lambda x, y: (x.astype(">f4"), y),
        lambda x, y: (np.repeat(x, 2)[::2], y),
        lambda x, y: (x[::-1][::-1].tolist(), y),
        lambda x, y: (np.ma.masked_array(x), y),
        lambda x, y: (misaligned(x), y),
    ],
)
def test_what_does_not_fit_goes_the_slow_way(spoil):
    model = Model()
    x, y = arrays(500)
    model.fast(x, y)
    model.slow_calls = 0
    np.testing.assert_array_equal(model.fast(*spoil(x, y)), x * np.float32(2) + y)
    assert model.slow_calls == 1


def misaligned(array):
    raw = np.zeros(array.nbytes + 1, np.uint8)
    made = raw[1:].view(array.dtype)
    made[:] = array
    return made


@pytest.mark.parametrize("case", ["count", "dims", "rank", "range", "none", "out", "read-only"])
def test_wrong_calls_reach_slow(case):
    model = Model()
    x, y = arrays(500)
    model.fast(x, y)
    model.slow_calls = 0
    given = {
        "count": (x,),
        "dims": (x, y[:400]),
        "rank": (x, y[None]),
        "range": (np.zeros(10_000_001, np.float32),) * 2,
        "none": (x, None),
        "out": (x, y, np.empty(1000, np.float32)[::2]),
        "read-only": (x, y, np.frombuffer(bytes(2000), np.float32)),
    }[case]
    with pytest.raises((Error, ValueError, TypeError)):
        model.fast(*given)
    assert model.slow_calls == 1


def test_outputs_that_overlap_reach_slow():
    model = Model()
    memory = np.zeros(3000, np.float32)
    model.fast(*arrays(1000))
    for out in (memory[:1000], memory[500:1500], memory[1500:2500]):
        model.slow_calls = 0
        model.fast(memory[:1000], memory[2000:], out)
        assert model.slow_calls == 1
    model.slow_calls = 0
    model.fast(memory[:1000], memory[2000:], memory[1000:2000])
    assert model.slow_calls == 0


def test_codes_come_through():
    model = Model()
    x, y = arrays(2000)
    x[0] = -77
    for _ in range(3):
        with pytest.raises(Error, match="step 5 code 3"):
            model.fast(x, y)
    x[0] = 1
    np.testing.assert_array_equal(model.fast(x, y), x * np.float32(2) + y)


def test_no_weights_reach_slow():
    binding = Binding((Input(F32, (0,)),) * 2, (Output(F32, 1),), 1, 1)
    entry = Entry(binding, Loaded(scaled_sum()), support())
    fast = entry.callable(lambda *args: entry.invoke(args, [None]))
    with pytest.raises(Error, match="no weights"):
        fast(*arrays(3))


def test_blocks_are_used_again():
    model = Model()
    x, y = arrays(10_000)
    places = {base_of(model.fast(x, y)) for _ in range(50)}
    assert len(places) == 1
    assert model.slow_calls == 1
    first = model.fast(x, y)
    second = model.fast(x, y)
    assert base_of(first) != base_of(second)
    for _ in range(3):
        model.fast(x, y)
    assert model.slow_calls == 3


def test_what_is_held_is_never_handed_out_again():
    """Results, views of them and exported buffers, dropped in any order."""
    model = Model()
    rng = np.random.default_rng(1)
    held: list[tuple[object, np.ndarray]] = []
    for _ in range(600):
        n = int(rng.choice([1500, 2000, 40_000]))
        x, y = arrays(n, int(rng.integers(1 << 30)))
        out = model.fast(x, y)
        view = rng.choice(4)
        keep = [out, out[n // 2 :], memoryview(out), out.reshape(2, -1).T][view]
        held.append((keep, np.array(keep)))
        del out, keep
        rng.shuffle(held)
        del held[8:]
        for kept, want in held:
            np.testing.assert_array_equal(np.asarray(kept), want)


def test_a_small_result_does_not_hold_a_large_block():
    model = Model()
    model.fast(*arrays(1_000_000))
    small = model.fast(*arrays(2000))
    assert small.base is None or small.base.nbytes < 200_000


def test_large_blocks_are_aligned_to_large_pages():
    assert new_block(5 << 20).data % HUGE == 0
    for often in (0, 1, HUGE, 3 << 20, 5 << 20, 1 << 40):
        block = new_block(5 << 20, often)
        assert block.data % HUGE == 0
        assert block.data + block.size <= block.base.ctypes.data + len(block.base)
    assert new_block(100).data % 64 == 0


def test_references_balance():
    model = Model()
    x, y = arrays(2000)
    z, w = arrays(8)
    out = np.empty(2000, np.float32)
    bad = x.copy()
    bad[0] = -77

    def work(count):
        for _ in range(count):
            model.fast(x, y)
            model.fast(z, w)
            model.fast(x, y, out)
        for _ in range(count // 50):
            with pytest.raises(Error):
                model.fast(bad, y, out)

    work(50)
    gc.collect()
    watched = [x, y, z, w, out, F32, model.entry._weights, np.ndarray]
    watched += [b for k in (model.entry._arenas, *model.entry._keepers) for b in k._kept if b]
    watched += [b.base for b in watched if isinstance(b, Block)]
    before, blocks = [sys.getrefcount(o) for o in watched], sys.getallocatedblocks()
    work(10_000)
    gc.collect()
    after = [sys.getrefcount(o) for o in watched]
    mortal = [a - b for a, b in zip(after, before) if b < 1 << 30]  # CPython 3.14 has others
    assert len(mortal) >= 7
    assert mortal == [0] * len(mortal)
    assert sys.getallocatedblocks() - blocks < 200


def test_callable_owns_what_it_needs_and_lets_go():
    class Slow:
        def __call__(self, *args):
            raise AssertionError(args)

    slow = Slow()
    model = Model()
    model.fast(*arrays(8))
    fast = model.entry.callable(slow)
    gone = weakref.ref(slow), weakref.ref(model.entry)
    del slow, model
    gc.collect()
    x, y = arrays(8)
    np.testing.assert_array_equal(fast(x, y), x * np.float32(2) + y)
    assert all(g() is not None for g in gone)
    del fast
    assert gone[0]() is None
    gc.collect()
    assert gone[1]() is None


def test_weights_swap_between_calls():
    model = Model(weight=2.0)
    x, y = arrays(3000)
    old = weakref.ref(model.set_weight(3.0))
    np.testing.assert_array_equal(model.fast(x, y), x * np.float32(3) + y)
    model.set_weight(4.0)
    assert old() is None
    np.testing.assert_array_equal(model.fast(x, y), x * np.float32(4) + y)


def test_eight_threads_on_one_entry():
    model = Model(threads=4)
    wrong: list[int] = []

    def use(seed):
        rng = np.random.default_rng(seed)
        held = []
        for _ in range(150):
            n = int(rng.choice([3, 1500, 2000, 50_000]))
            x, y = arrays(n, int(rng.integers(1 << 30)))
            got = model.fast(x, y)
            factors = [np.array_equal(got, x * np.float32(w) + y) for w in (2.0, 3.0)]
            held = [*held[-3:], (got, got.copy())]
            same = all(np.array_equal(a, b) for a, b in held)
            if not any(factors) or not same:
                wrong.append(seed)

    users = [threading.Thread(target=use, args=(i,)) for i in range(8)]
    for user in users:
        user.start()
    for turn in range(200):
        model.set_weight(2.0 + turn % 2)
    for user in users:
        user.join()
    assert not wrong


def test_measured_outputs():
    binding = Binding((Input(F32, (0,)),), (Output(F32, 1, is_measured=True), Output(F32, 0)), 0, 1)
    entry = Entry(binding, Loaded(positives()), support())
    entry.set_weights(None, 0)
    slow_calls = []

    def slow(*args):
        slow_calls.append(args)
        return tuple(entry.invoke(args[:1], [None, None]))

    fast = entry.callable(slow)
    for n in (0, 5, 100, 5000):
        x = arrays(n)[0]
        for _ in range(3):
            some, count = fast(x)
            np.testing.assert_array_equal(some, x[x > 0])
            assert count.shape == ()
            assert count == (x > 0).sum()
    assert len(slow_calls) <= 6


def test_without_the_probe_slow_serves(monkeypatch):
    model = Model()
    monkeypatch.setattr("rlx.backends.cpu.runtime.call.can_bind", lambda: False)
    monkeypatch.setattr("rlx.backends.cpu.runtime.call.warn_slow_calls", lambda: None)
    monkeypatch.setattr("rlx.backends.cpu.runtime.buffer_pool.can_bind", lambda: False)
    other = Model()
    assert other.entry.callable(other.slow) == other.slow
    for n in (4, 5000):
        x, y = arrays(n)
        np.testing.assert_array_equal(other.fast(x, y), model.fast(x, y))


HOST = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)


def test_host_steps_run_once():
    binding = Binding((Input(F32, (0,)),), (Output(F32, 1),), 0, 1, has_host_steps=True)
    entry = Entry(binding, Loaded(host_step()), support())
    entry.set_weights(None, 0)
    seen = []

    def host(context, step, buffers):
        x, out = (ctypes.c_void_p * 2).from_address(buffers)
        seen.append(step)
        ctypes.c_float.from_address(out).value = 3 * ctypes.c_float.from_address(x).value
        return 0 if len(seen) < 3 else 9

    address = HOST(host)
    slow = functools.partial(plain_host, entry, ctypes.cast(address, ctypes.c_void_p).value)
    fast = entry.callable(slow)
    assert fast(np.full(1, 2, np.float32)) == [np.full(1, 6, np.float32)]
    assert fast(np.full(1, 5, np.float32)) == [np.full(1, 15, np.float32)]
    assert isinstance(fast(np.ones(1, np.float32)), FailedAt)
    assert seen == [42, 42, 42]


def plain_host(entry, address, *args):
    return entry.invoke(args, [None], address)


def test_fork_then_run():
    out = run_alone("""
        import os, numpy as np
        from tests.backend.cpu.test_native_binder import Model, arrays
        model = Model(threads=4)
        x, y = arrays(20_000)
        def right():
            return all((model.fast(x, y) == x * np.float32(2) + y).all() for _ in range(5))
        assert right()
        child = os.fork()
        if not child:
            os._exit(0 if right() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert right()
        print("right")
    """)
    assert out == "right\n"


def test_invoke_checks_what_it_is_given():
    model = Model()
    x, y = arrays(100)
    read_only = np.zeros(100, np.float32)
    read_only.flags.writeable = False
    for args, match in [
        (([x, y[:50]], [None]), r"input 1 is float32\[50\], not float32\[100\]"),
        (([x, y.astype(np.float64)], [None]), "input 1 is float64"),
        (([x, np.repeat(y, 2)[::2]], [None]), "input 1 is not contiguous"),
        (([x, y], [np.zeros(99, np.float32)]), r"output 0 is float32\[99\]"),
        (([x, y], [read_only]), "output 0 cannot be written"),
    ]:
        with pytest.raises(Error, match=match):
            model.entry.invoke(*args)


def test_entries_come_and_go():
    """Dropped without the collector: a model may hold much memory."""
    x, y = arrays(30_000)
    binding = Model().entry.binding
    gc.collect()
    gc.disable()
    try:
        assert growth(lambda _: use_once(binding, x, y), cycles=300, after=100) < 512 << 10
    finally:
        gc.enable()


def use_once(binding, x, y):
    entry = Entry(binding, Loaded(scaled_sum()), support())
    weights = np.ones(1, np.float32)
    entry.set_weights(weights, weights.ctypes.data, [weights.ctypes.data])
    fast = entry.callable(functools.partial(plain, entry))
    for _ in range(3):
        np.testing.assert_array_equal(fast(x, y), x + y)
    gone = weakref.ref(entry)
    del fast, entry
    assert gone() is None


def plain(entry, *args):
    return entry.invoke(args, [None])[0]


def test_running_needs_no_compiler(tmp_path):
    (tmp_path / "model").write_bytes(scaled_sum().to_bytes())
    (tmp_path / "support").write_bytes(compiled_support().to_bytes())
    out = run_alone(f"""
        import sys, numpy as np
        from pathlib import Path
        from rlx.backends.cpu.runtime.blob import Blob
        from rlx.backends.cpu.runtime.executable_memory import Loaded
        from rlx.backends.cpu.runtime.call import Entry
        from rlx.backends.cpu.runtime.support_code import compiled_support, support
        from rlx.backends.cpu.runtime.binding_table import Binding, Input, Output
        read = lambda name: Blob.from_bytes((Path({str(tmp_path)!r}) / name).read_bytes())
        f32, one = np.dtype(np.float32), np.ones(1, np.float32)
        binding = Binding((Input(f32, (0,)),) * 2, (Output(f32, 1),), 1, 1, threads=2)
        entry = Entry(binding, Loaded(read("model")), support(lambda: read("support")))
        entry.set_weights(one, one.ctypes.data, [one.ctypes.data])
        fast = entry.callable(lambda *args: entry.invoke(args, [None])[0])
        print(fast(one, one), "llvmlite" in sys.modules)
    """)
    assert out == "[2.] False\n"


def test_an_object_is_not_an_array():
    """Anything may come: the native side looks at its type before all else."""
    model = Model()
    x, y = arrays(4)
    model.fast(x, y)
    for odd in (None, 1, "x", object(), ctypes.c_int(), [1.0] * 3, np.float32(1)):
        with pytest.raises((Error, ValueError, TypeError)):
            model.fast(odd, y)
