"""Compiling for a target, and a session that does not compile the same thing twice."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, get_args, overload

from rlx._version import __version__
from rlx.backends.base import Program, Serializer, device_variant, find_backend, target_of
from rlx.core.arguments import COUNT, MAPPING, NONE, TEXT, WHOLE, instance, takes
from rlx.core.disk_cache import Cache, CacheLike, key_of
from rlx.core.errors import Error, GraphError, OutOfMemoryError
from rlx.core.files import path_of
from rlx.core.gc_paused import gc_paused
from rlx.core.tune import Tune
from rlx.cost.target import FusionTarget, Target
from rlx.ir.bundle import Bundle
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.module import GraphModule
from rlx.passes.options import FusionOptions
from rlx.runtime.artefact_file import KIND, parts
from rlx.runtime.compile_record import Record
from rlx.runtime.executable import Executable
from rlx.runtime.weights import Pool

if TYPE_CHECKING:
    from rlx.cost.decision import Decision
    from rlx.frontends.onnx.specialise import Specialising
    from rlx.ops.op import Array
    from rlx.pipeline import CompileResult


@overload
def compile(
    model: Bundle,
    target: str | FusionTarget | None = None,
    *,
    like: str | FusionTarget | Target | None = None,
    threads: int | None = None,
    device: int | None = None,
    cache: CacheLike = None,
    precision: str | None = None,
    f64: Literal["f32"] | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
    dump: str | os.PathLike[str] | None = None,
    tune: Tune = "bitwise",
) -> Executable | Specialising: ...


@overload
def compile(
    model: HirModule | MirModule | Graph | GraphModule | LirModule,
    target: str | FusionTarget | None = None,
    *,
    like: str | FusionTarget | Target | None = None,
    threads: int | None = None,
    device: int | None = None,
    cache: CacheLike = None,
    precision: str | None = None,
    f64: Literal["f32"] | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
    dump: str | os.PathLike[str] | None = None,
    tune: Tune = "bitwise",
) -> Executable: ...


def compile(
    model: Any,
    target: str | FusionTarget | None = None,
    *,
    like: str | FusionTarget | Target | None = None,
    threads: int | None = None,
    device: int | None = None,
    cache: CacheLike = None,
    precision: str | None = None,
    f64: Literal["f32"] | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
    dump: str | os.PathLike[str] | None = None,
    tune: Tune = "bitwise",
) -> Any:
    """Compile a model and load it for `target`.

    `model` is what `rlx.load` gives of a file, which brings its weights along (`params` replace
    some), a HirModule, MirModule, Graph (as `rlx.trace` makes of a function), GraphModule or
    LirModule. Without a `target` it is native code for this machine, where llvmlite is installed.
    Target "reference" runs on NumPy the plan that the target named by `like` would run. `threads`
    is how many cores a call may use, None all; `device` the number of the GPU, None the first, as
    in target "cuda:0". `cache` is a folder for what was compiled, or False
    for none; None is the user's own. `precision` "bf16" carries f32 products out in bf16, their
    sums in f32; "int8" keeps their weights as bytes, with a scale for each output, "int8:block=32"
    with one for each 32 weights of an output. `f64` "f32" computes in f32 what a model states to be
    f64, where the target has no f64; without it that is an error. `dump` is a folder to which
    the graph after each pass and the plan are written as text; nothing is taken from the cache
    then. `tune` is a timed search of schedules on the device, where the target has one: "bitwise"
    among those that give the same bits, "full" among all, "off" takes what is predicted to be the
    fastest.
    """
    session = Session(
        target, like=like, threads=threads, device=device, cache=cache, dump=dump, tune=tune
    )
    return session.compile(model, precision=precision, f64=f64, options=options, params=params)


@dataclass(frozen=True, slots=True)
class _Made:
    """A program, and what the compile that made it gave."""

    record: CompileResult | Record
    program: Program


class Session:
    """A target, and what has been compiled for it: equal requests share one program, and equal
    params one set of weights."""

    @takes(
        target=NONE | TEXT | instance(FusionTarget),
        like=NONE | TEXT | instance(FusionTarget, Target),
        threads=NONE | COUNT,
        device=NONE | WHOLE,
        tune=TEXT,
    )
    def __init__(
        self,
        target: str | FusionTarget | None = None,
        *,
        like: str | FusionTarget | Target | None = None,
        threads: int | None = None,
        device: int | None = None,
        cache: CacheLike = None,
        dump: str | os.PathLike[str] | None = None,
        tune: Tune = "bitwise",
    ) -> None:
        if tune not in get_args(Tune):
            raise Error(f"tune is {tune!r}. Use one of: {', '.join(get_args(Tune))}.")
        text = target.value if isinstance(target, FusionTarget) else target
        name, _, variant = (text or _default(has_like=like is not None)).partition(":")
        self.dump = None if dump is None else path_of(dump)
        self.cache = None if dump is not None else Cache.of(cache, os.environ)
        found = find_backend(name)
        variant = device_variant(found, variant, device)
        self.backend = found.configured(variant, threads, self.cache).tuned(tune)
        self.target = self.backend.target() if like is None else self._planned_for(like)
        self._made: dict[str, _Made] = {}
        self._pool = Pool()

    def _planned_for(self, like: str | FusionTarget | Target) -> Target:
        """The documented target; of one that rlx does not document, what its backend has."""
        if not self.backend.runs_any_plan:
            raise Error(
                f"target {self.backend.name!r} runs plans that are made for it, and like= asks for "
                "another's. Leave one of the two out, or use target='reference'."
            )
        if isinstance(like, str) and like not in {t.value for t in FusionTarget}:
            return target_of(like)
        return Target.of(like)

    @takes(
        precision=NONE | TEXT,
        f64=NONE | TEXT,
        options=NONE | instance(FusionOptions),
        params=NONE | MAPPING,
    )
    def compile(
        self,
        model: Any,
        *,
        precision: str | None = None,
        f64: Literal["f32"] | None = None,
        options: FusionOptions | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        """An executable of `model`; where the request was met before, here or by another process,
        no pass runs."""
        if precision is not None:
            options = replace(options or FusionOptions(), precision=precision)
        if f64 is not None:
            options = replace(options or FusionOptions(), f64=f64)
        if isinstance(model, Bundle):
            return model.compiled(self, options, params)
        return self.executable(model, options=options, params=params)

    def executable(
        self,
        model: Any,
        own: Mapping[str, Array] | None = None,
        *,
        options: FusionOptions | None = None,
        params: Mapping[str, Any] | None = None,
        before: tuple[Decision, ...] = (),
    ) -> Executable:
        """One program of `model`. Its `own` weights, which nobody changes, are used where `params`
        has no others. `before` is what was decided to come to this model."""
        wanted = FusionOptions() if options is None else options
        if not isinstance(wanted, FusionOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Error(f"expected a FusionOptions, got {type(wanted).__name__}.")
        key = request_key(model, self.target, wanted)
        made = None if self.dump is not None else self._made.get(key)
        if made is None:
            with gc_paused():
                made = self._made[key] = self._obtained(key, model, wanted)
        given = params or {}
        first = given if own is None else None
        exe = Executable(
            made.record, made.program, first,
            backend=self.backend, pool=self._pool, source=model, before=before,
        )  # fmt: skip
        if own:
            exe.adopt({k: v for k, v in own.items() if k not in given})
        if own is not None and given:
            exe.set_params(given)
        return exe

    @property
    def cached(self) -> int:
        """How many compiles are cached in memory."""
        return len(self._made)

    def _obtained(self, key: str, model: Any, options: FusionOptions) -> _Made:
        files, cache = self.backend.serializer(), self.cache
        if files is None or cache is None or not comes_with_rlx(model):
            return self._compiled(model, options)
        is_kept = cache.has(entry_prefix(key))  # what is not need not wait to identify the device
        found = (
            self._opened(files, cache, entry_key(key, self.backend.identity)) if is_kept else None
        )
        if found is None:
            found = self._compiled(model, options)
            self._store(files, cache, entry_key(key, self.backend.identity), found)
        return found

    def _compiled(self, model: Any, options: FusionOptions) -> _Made:
        from rlx.pipeline import CompilePipeline

        held = model.graph if isinstance(model, Bundle) else model
        try:
            program = self.backend.program
            pipeline = CompilePipeline(
                self.target, options=options, dump=self.dump, program=program
            )
            result = pipeline.compile(held)
            self._require_own(result.lir)
            return _Made(result, self.backend.compile(result.lir))
        except MemoryError as error:
            raise _too_large(held, error) from None

    def _require_own(self, lir: LirModule) -> None:
        """Backends run plans that were made for them, unless they run any."""
        name = lir.target.name
        if not self.backend.runs_any_plan and name != self.target.name:
            raise Error(
                f"{lir.name} was planned for {name}, not for {self.backend.name}. Compile the "
                "model for this target, or run the plan on NumPy: target='reference'."
            )

    def _opened(self, files: Serializer[Any], cache: Cache, key: str) -> _Made | None:
        """What another process left; an entry that cannot be used is dropped."""
        file = cache.get(key)
        if file is None:
            return None
        try:
            program = files.opened(file.head["program"], file)
            data = bytes(file.section("record"))
        except (Error, KeyError):
            cache.drop(key)
            return None
        return _Made(Record(data, self.target, program.interface.name), program)

    def _store(self, files: Serializer[Any], cache: Cache, key: str, made: _Made) -> None:
        try:
            head, sections = parts(files, self.backend.name, made.program, made.record)
        except GraphError:  # graphs nested too deeply to be written
            return
        cache.put(key, head, sections)


def _too_large(model: Any, error: MemoryError) -> Error:
    if isinstance(error, Error):
        return error
    name = getattr(model, "name", "the model")
    return OutOfMemoryError(f"{name}: compiling it takes more memory than there is: {error}.")


def _default(*, has_like: bool) -> str:
    """Native code, where there is what makes it; another target's plan runs on NumPy."""
    if has_like:
        return "reference"
    if find_spec("llvmlite") is not None:
        return "cpu"
    warnings.warn(
        "llvmlite is not installed, so models run on NumPy, slowly: pip install 'rlx[cpu]'. "
        "If that is what you want, say target='reference'.",
        stacklevel=4,
    )
    return "reference"


def request_key(model: Any, target: Target, options: FusionOptions) -> str:
    """A hash of all that a plan depends on: input graph, options, target and version."""
    return _hash(repr([_digest(model), options.text(), target.digest(), __version__]))


def entry_prefix(key: str) -> str:
    """What the keys of all entries of a request begin with."""
    return key_of(KIND, key)


def entry_key(key: str, identity: str) -> str:
    """Of the entry of a request: its code depends on the backend's identity beside the plan."""
    return f"{entry_prefix(key)}-{_hash(identity)}"


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _digest(model: Any) -> str:
    match model:
        case GraphModule():
            return f"{model.stage.name} {_digest(model.value)}"
        case HirModule():
            return f"{model.policy.name} {_digest(model.graph)}"
        case MirModule():
            return _digest(model.graph)
        case Graph():
            return f"{model.name!r} {model.digest()}"
        case LirModule():
            return model.fingerprint
        case Bundle():
            return model.digest
        case _:
            from rlx.pipeline import cannot_compile

            raise cannot_compile(model)


def comes_with_rlx(model: Any) -> bool:
    """Is the meaning of every op of the model that of rlx? What a program brings along may mean
    something else tomorrow, under the same name."""
    if isinstance(model, Bundle):
        return model.is_of_rlx
    return all(
        n.op != "custom" and n.decl.reference.__module__.startswith("rlx.") for n in _nodes(model)
    )


def _nodes(model: Any) -> Iterator[Node]:
    held = model.value if isinstance(model, GraphModule) else model
    module = held.mir if isinstance(held, LirModule) else held
    graphs: list[Graph] = [module if isinstance(module, Graph) else module.graph]
    for graph in graphs:
        for node in graph.order():
            yield node
            graphs += [v for v in node.attrs.values() if isinstance(v, Graph)]
