"""The backend protocol: what a target provides to run plans.

A backend is one object in one folder. It derives from `Backend`, and the programs that it loads
from `Program`; every method exists on both, so that callers ask and never look for a name. What
must be provided is abstract. What a target need not have has a default that says so: an empty
answer where there is nothing to tell, an UnsupportedError with the reason where something was asked
to be done.

    class Backend                            class Program
      name, summary                            interface
      target()           required              prepare(params, old)           required
      configured(...)    required              run(weights, inputs, outputs)  required
      compile(lir)       required              quick(weights)       None: there is only `run`
      missing()          None: it runs here    exchange(...)        None: there is only `run`
                                               streams_params       False: it takes arrays
                                               step, finish         refused: phases run together
      why_never_here()   None: what is missing can be installed
      devices()          (): it names none
      call_path()        "": there is only one
      tuned(how)         itself                scratch_bytes(...)   0
      meshed(mesh)       refused: one device   code_facts(sizes)    None: it does not say
      donating(inputs)   refused: none
      is_compile_only    False: it runs
      asked_threads      None: its own choice
      runs_any_plan      False
      num_threads        1                     threads              1
      identity           its name              codegen_spans        ()
      description(lir)   {}                    bind(...)            refused: calls are not bound
      splits(lir, ...)   {}                    takes(value)         False: it is copied
      compiler_modules   (): it compiles where it runs
      has_devices        False
      updates_host_arrays  False
      is_default         False: models name it  copied_params      all: calls read copies
      runner()           its summary           digests(spans)       computed by NumPy
      standing_in(why)   itself
      times_kernels      False                 submit(...)          None: there is only `run`
                                               states               arrays of the host
      timed(lir)         refused: no clock for kernels
      architecture       ""
      hardware           its architecture
      measure(progress)  refused: no prices of its own
      calibrated(n)      None
      program(lir)       None: it takes whole plans
      generate(lir)      what `compile` does
      serializer()       None: its programs are not written to files

A backend that makes kernels of its own is a `KernelBackend`. The compiler selects the kernels of
every step, as data (`kernel/program/`); the backend says which named algorithms it brings, how it
runs a kernel, and what code that is:

    class KernelBackend(Backend)             of what it emits, and what it builds
      has_special(op)            required: is there an algorithm for this op?
      alignment                  1: kernels take values at any address
      candidates(step)           the usual order of kernel forms
      schedule(call)             required: how it runs a kernel, or a Refusal with the reason
      emit(call, schedule)       required: its code; pure, so that it is tested without the device
      build(program)             required: an artefact of all code, which is cached and saved
      load(artefact)             required: the Program that runs it
      program(lir)               the kernels of a plan, selected for this backend

`target()` is data: what the compiler may leave to the backend, and what that costs. Passes and the
planner read nothing else of a backend, so a plan does not depend on code that runs it.

Backends are found by name (`backends/registry.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from rlx.backends.state_memory import HostStates, StateMemory
from rlx.core.errors import UnsupportedError
from rlx.core.memory_digests import MemoryDigests
from rlx.core.not_copied import NotCopied
from rlx.core.page_writes import Span
from rlx.core.tune import Tune
from rlx.cost.target import Target
from rlx.ir.interface import Interface
from rlx.ir.lir import LirModule
from rlx.ir.mir import Node
from rlx.ops.op import Array

if TYPE_CHECKING:
    from rlx.backends.code_facts import CodeFacts
    from rlx.backends.timing import CodegenSpan, Timed
    from rlx.core.disk_cache import Cache
    from rlx.core.exchange import ExchangeCall
    from rlx.core.sections import Bytes, Sections
    from rlx.cost.calibrate import Numbers, Progress
    from rlx.cost.decision import Decision
    from rlx.kernel.program.program import KernelCall, KernelProgram, Step
    from rlx.kernel.program.schedule import Schedule
    from rlx.kernel.program.select import Candidate
    from rlx.kernel.refusal import Refusal


class Program(NotCopied, ABC):
    """A loaded plan. It holds no state of a call: calls may run concurrently.

    Weights and the state of a step are the program's own values, opaque to callers.
    """

    why_not_copied = (
        "is code that is loaded in this process, so it is neither copied nor pickled. Pickle the "
        "executable, or write it with save."
    )
    interface: Interface
    """What it takes and gives."""
    streams_params: ClassVar[bool] = False
    """Does `prepare` take params one after the other, and hold no more of them than it needs? They
    are `Params` then, and arrays otherwise."""

    @abstractmethod
    def prepare(self, params: Mapping[str, Array], old: Any | None) -> Any:
        """A weight set of these params; what does not depend on changed ones comes from `old`."""

    @abstractmethod
    def run(
        self, weights: Any, inputs: Sequence[Array], outputs: Sequence[Array | None]
    ) -> list[Array]:
        """One call: the outputs, written into the given arrays where there are any."""

    def bind(self, weights: Any, inputs: Sequence[Any]) -> Any:
        """The call on these inputs, prepared to be run many times; an UnsupportedError where
        calls are not."""
        raise UnsupportedError(
            f"{self.interface.name}: {type(self).__name__} binds no calls. Call the executable."
        )

    def takes(self, value: Any) -> bool:
        """May an input of a bound call be this array, which is in memory of the device?"""
        return False

    def submit(self, weights: Any, inputs: Sequence[Any]) -> Callable[[], Sequence[Any]] | None:
        """Begin a call, on inputs that stay as they are: a function that waits for it and gives its
        outputs, once; None where nothing of a call goes on by itself."""
        return None

    def quick(self, weights: Any) -> Callable[..., Any] | None:
        """A function of the inputs in order that gives what `run` gives, the output or a tuple of
        them, with less overhead; None where there is none."""
        return None

    def exchange(
        self, weights: Any, call: ExchangeCall, slow: Callable[..., Any]
    ) -> Callable[..., Any] | None:
        """A native function of objects of another library that gives such objects, and calls `slow`
        where they are not as they should be; None where there is none."""
        return None

    @property
    def copied_params(self) -> frozenset[str]:
        """Those that a call reads copies of, or what follows from them: a change of their memory
        must be given anew."""
        return frozenset(n.name for n in self.interface.params)

    def digests(self, spans: Sequence[Span], *, counts_writes: bool = False) -> MemoryDigests:
        """Memory of the host as it is now, to be compared before a call."""
        return MemoryDigests(spans, counts_writes=counts_writes)

    @property
    def states(self) -> StateMemory:
        """Where sessions keep its states: `run` takes them behind the inputs, and updates them."""
        return HostStates()

    def step(self, weights: Any, inputs: Sequence[Array]) -> tuple[list[Array | None], Any]:
        """SteadyState: the outputs that it computes, None for those of the Epilogue, and the state
        that the Epilogue begins with."""
        raise self._no_phases()

    def finish(self, state: Any) -> list[Array | None]:
        """The Epilogue on a state, which it leaves as it is: its outputs, None for the others."""
        raise self._no_phases()

    def _no_phases(self) -> UnsupportedError:
        return UnsupportedError(
            f"{self.interface.name}: {type(self).__name__} does not run SteadyState and Epilogue "
            "separately. Call the executable as a whole."
        )

    def code_facts(self, sizes: Mapping[str, int]) -> CodeFacts | None:
        """What the compiler says of the code of a call, at these sizes of named dims; None where
        it does not."""
        return None

    def scratch_bytes(self, sizes: Mapping[str, int], arena_bytes: int) -> int:
        """What a call takes beside an arena of so many bytes, at these sizes of named dims."""
        return 0

    @property
    def threads(self) -> int:
        """How many cores a call may use."""
        return 1

    @property
    def codegen_spans(self) -> tuple[CodegenSpan, ...]:
        """What generating its code took, part by part; nothing where it was cached, or there is
        none."""
        return ()


P = TypeVar("P", bound=Program)
S = TypeVar("S")
"""What a kernel is emitted as."""
A = TypeVar("A")
"""What a program is built into."""


class Serializer(ABC, Generic[P]):
    """How a backend's programs are written to files, and read without compiling."""

    @abstractmethod
    def stored(self, program: P) -> tuple[dict[str, Any], dict[str, Bytes]]:
        """A program as what JSON can hold, and sections of bytes."""

    def kept(self, program: P) -> tuple[dict[str, Any], dict[str, Bytes]]:
        """The same for the cache of this machine, which may hold what only runs here."""
        return self.stored(program)

    @abstractmethod
    def opened(self, head: dict[str, Any], file: Sections) -> P:
        """The program that was stored; an Error where it cannot run here."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """What a backend says of a step: how it runs, and why."""

    strategy: str
    """The lowering strategy, in a word."""
    tasks: tuple[str, ...]
    """Each kernel with its schedule."""
    decisions: tuple[Decision, ...] = ()


Steps = Mapping[Node, StepFacts]
"""By step of a plan."""


@dataclass(frozen=True, slots=True)
class Runner:
    """What runs a plan on this machine, for `explain`."""

    name: str
    """`native code`, `NumPy`, `nothing`, or what a backend is in a few words."""
    threads: int = 0
    """That a call may use; 0 where another device computes, or a library decides."""
    why: str = ""
    """Why it is not the code of the plan's target, or why calls of that take longer than they
    might."""
    is_target: bool = True
    """Is it the code of the plan's target, whose times are predicted?"""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a backend cannot run here, and the command that helps, if one does."""

    reason: str
    command: str = ""


class Backend(ABC):
    """What a target provides to run plans."""

    name: ClassVar[str]
    """As it is asked for, and as its target is called unless it runs any plan."""
    summary: ClassVar[str] = ""
    """What runs the kernels, in a few words, for `rlx doctor`."""
    runs_any_plan: ClassVar[bool] = False
    """Does it run plans that were made for other targets?"""
    has_devices: ClassVar[bool] = False
    """Is its variant the number of a device?"""
    updates_host_arrays: ClassVar[bool] = False
    """Do its programs take arrays of the host for states, and update them where they are?"""
    compiler_modules: ClassVar[tuple[str, ...]] = ()
    """What compiling imports and running does not, where that is worth a process of its own."""
    is_default: ClassVar[bool] = False
    """Is it what runs models that name no target, which NumPy runs where it is missing?"""
    times_kernels: ClassVar[bool] = False
    """Has it a build of a plan that records the times of its kernels (`timed`)?"""

    # -- what it is ------------------------------------------------------------------------------

    @abstractmethod
    def target(self) -> Target:
        """What it runs natively, and what that costs."""

    @abstractmethod
    def configured(self, variant: str, threads: int | None, cache: Cache | None = None) -> Backend:
        """The backend for a variant of its target, such as an instruction set, and for a number
        of threads; "" and None are its own choice. It may put generated code into `cache`."""

    def tuned(self, tune: Tune) -> Backend:
        """The backend with another search of schedules; itself where it searches none."""
        return self

    def meshed(self, mesh: Any) -> Backend:
        """The backend with each program split over a mesh of devices: names of axes → devices along
        them, or the engine's own mesh."""
        raise UnsupportedError(
            f"target {self.name!r} runs a program on one device, and mesh={mesh!r} asks for "
            "several. Leave it out, or use target='tpu'."
        )

    def donating(self, inputs: Collection[str]) -> Backend:
        """The backend whose calls may write results over these inputs, where they are arrays of the
        device: whoever gives them does not read them again."""
        raise UnsupportedError(
            f"target {self.name!r} writes no results over inputs, as donate={list(inputs)} asks. "
            "Leave it out; out= takes arrays for results."
        )

    def standing_in(self, why: str) -> Backend:
        """The backend for plans whose target cannot run here, for this reason."""
        return self

    def missing(self) -> Missing | None:
        """The package or device without which it cannot run; None where all is here."""
        return None

    def why_never_here(self) -> str | None:
        """Why this machine cannot run its programs, whatever is installed: NumPy then runs its
        plans, after a warning."""
        return None

    def devices(self) -> tuple[str, ...]:
        """The devices that it finds here, a line each, for `rlx doctor`; none but the processor,
        if it does not say."""
        return ()

    def call_path(self) -> str:
        """Which way calls go from Python into its code, for `rlx doctor`, where there are several;
        a slow one with the reason."""
        return ""

    def runner(self) -> Runner:
        """What runs its programs."""
        return Runner(self.summary or self.name)

    @property
    def is_compile_only(self) -> bool:
        """Are its programs for devices that are not here, so that nothing can be called?"""
        return False

    @property
    def asked_threads(self) -> int | None:
        """How many threads it was configured for; None where that is its own choice."""
        return None

    @property
    def num_threads(self) -> int:
        """How many cores a call may use."""
        return 1

    @property
    def identity(self) -> str:
        """All that programs depend on beside the plan, such as the instruction set: part of the
        key under which they are cached."""
        return self.name

    # -- programs --------------------------------------------------------------------------------

    @abstractmethod
    def compile(self, lir: LirModule) -> Program:
        """One object that runs the whole plan."""

    def program(self, lir: LirModule) -> KernelProgram | None:
        """The kernels of a plan, selected for it; None where it takes whole plans."""
        return None

    def generate(self, lir: LirModule) -> None:
        """All code of a plan, which is then dropped: what cannot be generated is an error. Where a
        backend can, it needs no device for that."""
        self.compile(lir)

    def serializer(self) -> Serializer[Any] | None:
        """What writes its programs to files and reads them; None where they stay in memory."""
        return None

    # -- what is known of a plan -----------------------------------------------------------------

    def description(self, lir: LirModule) -> Steps:
        """How each step of a plan runs, and why, for `explain`; nothing where it does not say."""
        return {}

    def splits(self, lir: LirModule, sizes: Mapping[str, int]) -> Mapping[Node, bool]:
        """Is a step's work parallelised, at these sizes of named dims? Only steps that may be."""
        return {}

    # -- measuring -------------------------------------------------------------------------------

    def timed(self, lir: LirModule) -> Timed:
        """The program of a plan in a build that records the times of its kernels."""
        raise UnsupportedError(
            f"target {self.name!r} does not time its kernels. Those of target='cpu' can be timed."
        )

    @property
    def architecture(self) -> str:
        """What code is generated for, such as an instruction set: prices measured for one do not
        hold for another. "" where no code is generated."""
        return ""

    @property
    def hardware(self) -> str:
        """What measured prices hold for: the architecture, and the device where there are several
        of one architecture."""
        return self.architecture

    def measure(self, progress: Progress) -> tuple[Numbers, ...]:
        """What launches, bytes and arithmetic cost here, for each number of threads that counts."""
        raise UnsupportedError(
            f"target {self.name!r} cannot be calibrated: it does not measure what its kernels cost."
        )

    def calibrated(self, threads: int) -> Numbers | None:
        """What was measured on this machine for so many threads; None where nothing was."""
        return None


class KernelBackend(Backend, Generic[S, A]):
    """A backend that makes kernels: the compiler selects them; it schedules, emits, runs them."""

    # -- kernels ---------------------------------------------------------------------------------

    @property
    def alignment(self) -> int:
        """What its kernels count on of the addresses of values, in bytes."""
        return 1

    @abstractmethod
    def has_special(self, op: str) -> bool:
        """Does it bring an algorithm for this op?"""

    def candidates(self, step: Step) -> tuple[Candidate, ...]:
        """The kernel forms to try for a step, the preferred one first."""
        from rlx.kernel.program.select import default_candidates

        return default_candidates(step, self)

    @abstractmethod
    def schedule(self, call: KernelCall) -> Schedule[Any] | Refusal:
        """How it runs a kernel, or why it does not."""

    @abstractmethod
    def emit(self, call: KernelCall, schedule: Schedule[Any]) -> S:
        """The code of a kernel as it is scheduled. It depends on nothing else."""

    # -- programs --------------------------------------------------------------------------------

    def program(self, lir: LirModule) -> KernelProgram:
        """The kernels of a plan, selected for this backend. No code is written."""
        from rlx.pipeline import select_kernels

        return select_kernels(lir, self)

    @abstractmethod
    def build(self, program: KernelProgram) -> A:
        """All code of a program, and what is said beside it: what is cached and saved."""

    @abstractmethod
    def load(self, artefact: A) -> Program:
        """What runs an artefact."""

    def generate(self, lir: LirModule) -> None:
        """Its kernels selected and built, but not loaded."""
        self.build(self.program(lir))

    def compile(self, lir: LirModule) -> Program:
        """Its kernels selected, built and loaded."""
        return self.load(self.build(self.program(lir)))
