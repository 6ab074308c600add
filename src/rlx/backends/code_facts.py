"""What an engine's compiler says about the code that it made, for whoever plans a deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """The functions of a call, compiled for some devices. Numbers are those of one device."""

    device: str
    devices: int
    functions: int
    """Between host steps, one each."""
    code_bytes: int
    flops: float
    traffic_bytes: float
    """What the functions read and write, as the compiler counts it."""
    argument_bytes: int
    """Inputs and weights."""
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int = 0
    """Of the outputs, what is written over arguments that a call may consume."""
    memory_bytes: int = 0
    """Of a device; 0 where it is not known."""
    optimal_ns: float = 0.0
    """What a call takes at least by the compiler's cost model; 0 where it has none."""
    collectives: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often devices exchange values, by kind."""

    @property
    def total_bytes(self) -> int:
        """What a call takes of a device's memory."""
        held = self.argument_bytes + self.output_bytes + self.temporary_bytes + self.code_bytes
        return held - self.aliased_bytes

    def __add__(self, other: CodeFacts) -> CodeFacts:
        """Of two functions that run one after the other. Arguments and outputs of both are counted,
        temporaries of the one that has more."""
        return CodeFacts(
            self.device, self.devices, self.functions + other.functions,
            self.code_bytes + other.code_bytes, self.flops + other.flops,
            self.traffic_bytes + other.traffic_bytes, self.argument_bytes + other.argument_bytes,
            self.output_bytes + other.output_bytes,
            max(self.temporary_bytes, other.temporary_bytes),
            self.aliased_bytes + other.aliased_bytes, self.memory_bytes,
            self.optimal_ns + other.optimal_ns,
            dict(Counter(self.collectives) + Counter(other.collectives)),
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self), "total_bytes": self.total_bytes}

    @classmethod
    def from_dict(cls, held: Mapping[str, Any]) -> CodeFacts:
        """What `to_dict` gave."""
        return cls(**{f.name: held[f.name] for f in fields(cls)})

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterable[str]:
        each = " each" if self.devices > 1 else ""
        yield f"compiled for {self.devices} × {self.device}, {self.functions} function(s){each}:"
        yield f"  code       {self.code_bytes:>16,} bytes"
        yield f"  arithmetic {self.flops:>16,.0f} flops"
        yield f"  traffic    {self.traffic_bytes:>16,.0f} bytes"
        yield f"  arguments  {self.argument_bytes:>16,} bytes"
        yield f"  outputs    {self.output_bytes:>16,} bytes"
        yield f"  temporary  {self.temporary_bytes:>16,} bytes"
        of = f" of {self.memory_bytes:,}" if self.memory_bytes else ""
        yield f"  in all     {self.total_bytes:>16,} bytes{of}"
        if self.optimal_ns:
            yield f"  at least   {self.optimal_ns / 1e3:>16,.2f} µs by its cost model"
        if self.collectives:
            counted = ", ".join(f"{n} {kind}" for kind, n in sorted(self.collectives.items()))
            yield f"  collectives: {counted}"
