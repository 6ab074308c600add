"""Compiling for a target, and a session that does not compile the same thing twice."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args, overload

from rlx.backends.base import Program, Serializer
from rlx.backends.registry import device_variant, find_backend, target_of
from rlx.core.arguments import COUNT, MAPPING, NONE, SEVERAL, TEXT, WHOLE, instance, takes
from rlx.core.disk_cache import Cache, CacheLike
from rlx.core.errors import Error, GraphError, OutOfMemoryError
from rlx.core.files import path_of
from rlx.core.gc_paused import gc_paused
from rlx.core.not_copied import NotCopied
from rlx.core.params import Params
from rlx.core.public_calls import public, public_class, warn_user
from rlx.core.sections import Sections
from rlx.core.tune import Tune
from rlx.cost.target import FusionTarget, Target
from rlx.ir.bundle import Bundle
from rlx.ir.hir import HirModule
from rlx.ir.lir import LirModule
from rlx.ir.mir import Graph, MirModule
from rlx.ir.module import GraphModule
from rlx.passes.options import FusionOptions
from rlx.runtime.artefact_file import parts
from rlx.runtime.cache_requests import REQUEST, request_facts, why_missed
from rlx.runtime.compile_record import Record
from rlx.runtime.executable import Executable, adopt
from rlx.runtime.loaded_program import LoadedProgram
from rlx.runtime.request_keys import (
    comes_with_rlx,
    entry_key,
    entry_prefix,
    model_digest,
    model_name,
    request_key,
)
from rlx.runtime.weights import Pool

if TYPE_CHECKING:
    from rlx.cost.decision import Decision
    from rlx.frontends.torch.program import TorchProgram
    from rlx.ops.op import Array
    from rlx.pipeline import CompileResult
    from rlx.runtime.variants import Variants


Compilable: TypeAlias = (
    Bundle
    | HirModule
    | MirModule
    | Graph
    | GraphModule
    | LirModule
    | str
    | os.PathLike[str]
    | bytes
)
"""A model, or where it is."""


@overload
def compile(
    model: Compilable,
    target: str | FusionTarget | None = None,
    *,
    like: str | FusionTarget | Target | None = None,
    threads: int | None = None,
    device: int | None = None,
    cache: CacheLike = None,
    precision: str | None = None,
    f64: Literal["f32"] | None = None,
    at_end: Collection[str] | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
    dump: str | os.PathLike[str] | None = None,
    tune: Tune = "bitwise",
    mesh: Any = None,
    donate: Collection[str] = (),
) -> Executable: ...


@overload
def compile(
    model: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    /,
    *,
    dynamic_shapes: Any = None,
    target: str | FusionTarget | None = None,
    like: str | FusionTarget | Target | None = None,
    threads: int | None = None,
    device: int | None = None,
    cache: CacheLike = None,
    precision: str | None = None,
    f64: Literal["f32"] | None = None,
    at_end: Collection[str] | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
    dump: str | os.PathLike[str] | None = None,
    tune: Tune = "bitwise",
    mesh: Any = None,
    donate: Collection[str] = (),
) -> TorchProgram: ...


@public
def compile(
    model: Any,
    *given: Any,
    target: str | FusionTarget | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    like: str | FusionTarget | Target | None = None,
    threads: int | None = None,
    device: int | None = None,
    cache: CacheLike = None,
    precision: str | None = None,
    f64: Literal["f32"] | None = None,
    at_end: Collection[str] | None = None,
    options: FusionOptions | None = None,
    params: Mapping[str, Any] | None = None,
    dump: str | os.PathLike[str] | None = None,
    tune: Tune = "bitwise",
    mesh: Any = None,
    donate: Collection[str] = (),
) -> Any:
    """Compile a model and load it for `target`: `rlx.compile(model, "cpu")`. A module or function
    of PyTorch is compiled for arguments like those given, `rlx.compile(module, args, kwargs)`; with
    `dynamic_shapes`, as torch.export takes them, one program serves all sizes of those axes.

    `model` is a path (or what else `rlx.load` takes: bytes, an open file, an onnx.ModelProto), or
    what `rlx.load` gave, which brings its weights along (`params` replace some), a HirModule,
    MirModule, Graph (as `rlx.trace` makes of a function), GraphModule or LirModule. Without a
    `target` it is native code for this machine, where llvmlite is installed.
    Target "reference" runs on NumPy the plan that the target named by `like` would run. `threads`
    is how many cores a call may use, None all; `device` the number of the GPU, None the first, as
    in target "cuda:0". `cache` is a folder for what was compiled, or False
    for none; None is the user's own. `precision` "bf16" carries f32 products out in bf16, their
    sums in f32; "int8" keeps their weights as bytes, with a scale for each output, "int8:block=32"
    with one for each 32 weights of an output; "int8-activations" rounds what is multiplied with
    GGUF's quantised blocks to bytes, 32 to a scale, "int16-activations" to the sum of two such.
    `f64` "f32" computes in f32 what a model states to be f64, where the target has no f64; without
    it that is an error. `at_end` names outputs that `finish` gives, once after any number of calls
    of `step`: what only they need is not computed before. `dump` is a folder to which every level
    is written as text: blocks, the graph after each pass and what it changed, the plan, the fusion
    report, the kernels; nothing is taken from the cache then. `tune` is a timed search of schedules
    on the device, where the target has one: "bitwise" among those that give the same bits, "full"
    among all, "off" takes what is predicted to be the fastest. `mesh`, for target "tpu", is several
    devices that run one program: {"data": 2, "model": 2}, or a jax Mesh of such axes; "data" splits
    the batch of inputs, "model" the weights. `donate`, for target "tpu", names inputs that a call
    may consume, such as caches that it returns with more in them: results are written over arrays
    of jax that are given for them.
    """
    if args is not None or kwargs is not None or dynamic_shapes is not None or _are_examples(given):
        model = _traced_model(model, given, args, kwargs, dynamic_shapes)
    elif given:
        target = _only_target(given, target)
    session = Session(
        target, like=like, threads=threads, device=device, cache=cache, dump=dump, tune=tune,
        mesh=mesh, donate=donate,
    )  # fmt: skip
    return session.compile(
        model, precision=precision, f64=f64, at_end=at_end, options=options, params=params
    )


def _are_examples(given: tuple[Any, ...]) -> bool:
    """Are positional arguments those that a module is traced with, not a target?"""
    return bool(given) and isinstance(given[0], tuple | list)


def _traced_model(
    model: Any, given: tuple[Any, ...], args: Any, kwargs: Any, dynamic_shapes: Any
) -> Bundle:
    from rlx.frontends.torch.export import exported_model

    if len(given) > 2 or (given and args is not None) or (len(given) > 1 and kwargs is not None):
        raise Error("compile takes a module, its arguments and its keyword arguments, each once.")
    examples = given[0] if given else args
    named = given[1] if len(given) > 1 else kwargs
    return exported_model(model, () if examples is None else examples, named, dynamic_shapes)


def _only_target(given: tuple[Any, ...], target: Any) -> Any:
    if len(given) != 1 or target is not None:
        raise Error("compile takes a model and one target; all else is given by name.")
    return given[0]


LLVM_MISSING = "llvmlite is not installed"
LOG = logging.getLogger("rlx")
_LOADED = (Bundle, HirModule, MirModule, Graph, GraphModule, LirModule)


@dataclass(frozen=True, slots=True)
class Made:
    """A program, and what the compile that made it gave."""

    record: CompileResult | Record
    program: Program


@public_class
class Session(NotCopied):
    """A target, and what has been compiled for it: equal requests share one program, and equal
    params one set of weights."""

    why_not_copied = (
        "holds programs that are loaded in this process, so it is neither copied nor pickled. Open "
        "another with rlx.Session(target), or pickle an executable."
    )

    @takes(
        target=NONE | TEXT | instance(FusionTarget),
        like=NONE | TEXT | instance(FusionTarget, Target),
        threads=NONE | COUNT,
        device=NONE | WHOLE,
        tune=TEXT,
        donate=SEVERAL,
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
        mesh: Any = None,
        donate: Collection[str] = (),
    ) -> None:
        if tune not in get_args(Tune):
            raise Error(f"tune is {tune!r}. Use one of: {', '.join(get_args(Tune))}.")
        text = target.value if isinstance(target, FusionTarget) else target
        name, _, variant = (text or _default(has_like=like is not None)).partition(":")
        stands_in = LLVM_MISSING if text is None and like is None else ""
        self.dump = None if dump is None else path_of(dump)
        self.cache = None if dump is not None else Cache.of(cache, os.environ)
        found = find_backend(name)
        variant = device_variant(found, variant, device)
        backend = found.configured(variant, threads, self.cache).tuned(tune)
        if why := backend.why_never_here():
            stands_in = f"target {name!r} cannot run here: {why}"
            _warn_of_numpy(stands_in)
            backend, like = find_backend("reference"), name if like is None else like
        backend = backend.standing_in(stands_in) if stands_in else backend
        backend = backend if mesh is None else backend.meshed(mesh)
        self.backend = backend.donating(donate) if donate else backend
        self.target = self.backend.target() if like is None else self._planned_for(like)
        self._made: dict[str, Made] = {}
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
        at_end=NONE | SEVERAL,
        options=NONE | instance(FusionOptions),
        params=NONE | MAPPING,
    )
    def compile(
        self,
        model: Any,
        *,
        precision: str | None = None,
        f64: Literal["f32"] | None = None,
        at_end: Collection[str] | None = None,
        options: FusionOptions | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Any:
        """An executable of `model`; where the request was met before, here or by another process,
        no pass runs."""
        if precision is not None:
            options = replace(options or FusionOptions(), precision=precision)
        if f64 is not None:
            options = replace(options or FusionOptions(), f64=f64)
        if at_end is not None:
            options = replace(options or FusionOptions(), at_end=at_end)
        if not isinstance(model, _LOADED):
            from rlx.frontends.files import compilable

            model = compilable(model)
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
        variants: Variants | None = None,
    ) -> Executable:
        """One program of `model`. Its `own` weights, which nobody changes, are used where `params`
        has no others. `before` is what was decided to come to this model; `variants` run calls of
        sizes that the program is not for."""
        wanted = FusionOptions() if options is None else options
        if not isinstance(wanted, FusionOptions):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Error(f"expected a FusionOptions, got {type(wanted).__name__}.")
        key = request_key(model, self.target, wanted)
        made = None if self.dump is not None else self._made.get(key)
        if made is None:
            with gc_paused():
                made = self._made[key] = self._obtained(key, model, wanted)
        given = params or {}
        loaded = LoadedProgram(made.record, made.program, self.backend, pool=self._pool)
        exe = Executable(loaded, variants, source=model, before=before)
        if own:
            adopt(exe, _without(own, given))
        if given:
            exe.set_params(given)
        return exe

    @property
    def cached(self) -> int:
        """How many compiles are cached in memory."""
        return len(self._made)

    def _obtained(self, key: str, model: Any, options: FusionOptions) -> Made:
        files, cache, name = self.backend.serializer(), self.cache, model_name(model)
        if files is None or cache is None or not comes_with_rlx(model):
            return self._compiled(model, options, "programs of this target or model are not cached")
        start = time.perf_counter()
        is_kept = cache.has(entry_prefix(key))  # what is not need not wait to identify the device
        entry = entry_key(key, self.backend.identity) if is_kept else ""
        if entry and (found := self._opened(files, cache, entry)) is not None:
            took = time.perf_counter() - start
            LOG.info("%s: cache hit, opened for %s in %.3f s", name, self.backend.name, took)
            return found
        why = why_missed(cache, name, self._facts(model, options)) if self.says_why else ""
        found = self._compiled(model, options, f"cache miss: {why}")
        facts = self._facts(model, options)
        self._store(files, cache, entry_key(key, self.backend.identity), found, facts)
        return found

    @property
    def says_why(self) -> bool:
        """Is it logged in what a request differs from those before? It takes reading them."""
        return LOG.isEnabledFor(logging.INFO)

    def _facts(self, model: Any, options: FusionOptions) -> dict[str, str]:
        digest = f"{self.target.name} {self.target.digest()}"
        return request_facts(model_digest(model), options.text(), digest, self.backend.identity)

    def _compiled(self, model: Any, options: FusionOptions, reason: str) -> Made:
        start = time.perf_counter()
        made = self._made_anew(model, options)
        took, target = time.perf_counter() - start, self.backend.name
        LOG.info("%s: compiled for %s in %.2f s (%s)", model_name(model), target, took, reason)
        return made

    def _made_anew(self, model: Any, options: FusionOptions) -> Made:
        from rlx.pipeline import CompilePipeline

        held = model.graph if isinstance(model, Bundle) else model
        try:
            program = self.backend.program
            pipeline = CompilePipeline(
                self.target, options=options, dump=self.dump, program=program
            )
            result = pipeline.compile(held)
            self._require_own(result.lir)
            return Made(result, self.backend.compile(result.lir))
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

    def _opened(self, files: Serializer[Any], cache: Cache, key: str) -> Made | None:
        """What another process left; an entry that cannot be used is dropped."""
        file = cache.get(key)
        if file is None:
            return None
        try:
            return self._made_of(files, file)
        except (Error, KeyError):
            cache.drop(key)
            return None

    def _made_of(self, files: Serializer[Any], file: Sections) -> Made:
        program = files.opened(file.head["program"], file)
        data = bytes(file.section("record"))
        return Made(Record(data, self.target, program.interface.name), program)

    def _store(
        self,
        files: Serializer[Any],
        cache: Cache,
        key: str,
        made: Made,
        facts: Mapping[str, str],
    ) -> None:
        try:
            kept = files.kept(made.program)
            head, sections = parts(kept, self.backend.name, made.program, made.record)
        except GraphError:  # graphs nested too deeply to be written
            return
        cache.put(key, {**head, REQUEST: dict(facts)}, sections)


def _without(params: Mapping[str, Array], others: Collection[str]) -> Mapping[str, Array]:
    if isinstance(params, Params):
        return params.without(others)
    return {k: v for k, v in params.items() if k not in others}


def _too_large(model: Any, error: MemoryError) -> Error:
    if isinstance(error, Error):
        return error
    name = model_name(model)
    return OutOfMemoryError(f"{name}: compiling it takes more memory than there is: {error}.")


def _default(*, has_like: bool) -> str:
    """Native code, where there is what makes it; another target's plan runs on NumPy."""
    if has_like:
        return "reference"
    if find_spec("llvmlite") is not None:
        return "cpu"
    warn_user(
        f"{LLVM_MISSING}, so models run on NumPy, slowly: pip install 'rlx[cpu]'. "
        "If that is what you want, say target='reference'."
    )
    return "reference"


@functools.cache
def _warn_of_numpy(why: str) -> None:
    """Once a process."""
    warn_user(
        f"{why}. Models run on NumPy instead, slowly. If that "
        "is what you want, say target='reference'."
    )
