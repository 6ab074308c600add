"""Pipelines by their text, bind groups by what they bind: both are made once."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from rlx.backends.wgpu.copies import Moved
from rlx.backends.wgpu.launch import Binding, Prepared, Shader
from rlx.backends.wgpu.memory import Buffers
from rlx.backends.wgpu.params import SLOT, Params, Slots
from rlx.backends.wgpu.stream import Dispatch, Stream
from rlx.backends.wgpu.wgsl.module import ENTRY

MAX_GROUPS = 8192
"""Bind groups that are held for launches to come."""
MAX_THREADS = 8
"""That compile at a time."""


class Text(NamedTuple):
    """What a pipeline is made of."""

    source: str
    name: str
    bindings: int
    """Of storage buffers."""
    params_bytes: int


def _text(shader: Shader, indices: tuple[int, ...]) -> Text:
    """With the bindings of its buffers."""
    module = shader.module
    count = max(indices, default=-1) + 1
    return Text(module.source(indices), module.name, count, module.params_bytes)


class Pipelines:
    """What launches of a device share."""

    def __init__(self, stream: Stream, buffers: Buffers, params: Params) -> None:
        self._stream, self._buffers, self._params = stream, buffers, params
        self._layouts: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._made: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
        self._moves: dict[str, Any] = {}
        """Those of copies and fills, which are always needed again."""
        self._groups: dict[object, Any] = {}

    def dispatch(self, work: Prepared | Moved, slots: Slots) -> Dispatch:
        """A launch whose params are in these slots."""
        if isinstance(work, Moved):
            pipeline = self._moving(work)
        else:
            pipeline = self.of_launch(work)
        group = self._group(work.bindings, slots)
        return Dispatch(pipeline, group, [slots.first * SLOT], work.counts)

    def of_launch(self, work: Prepared) -> Any:
        """The pipeline of a kernel whose buffers share bindings like this."""
        shader, indices = work.shader, work.indices
        found = shader.pipelines.get(indices)
        if found is None:
            found = shader.pipelines[indices] = self.pipeline(_text(shader, indices))
        return found

    def _moving(self, work: Moved) -> Any:
        found = self._moves.get(work.text)
        if found is None:
            text = Text(work.text, "copy", len(work.bindings), len(work.params))
            found = self._moves[work.text] = self.pipeline(text)
        return found

    def build(self, shaders: Sequence[Shader]) -> None:
        """The pipelines of kernels whose buffers have a binding each, several at a time: a driver
        compiles in the thread that asks."""
        wanted = dict[str, tuple[Text, list[Shader]]]()
        for shader in shaders:
            if shader.module.separate not in shader.pipelines:
                text = _text(shader, shader.module.separate)
                wanted.setdefault(text.source, (text, []))[1].append(shader)
        if not wanted:
            return
        texts = [text for text, _ in wanted.values()]
        for text in texts:
            self._layout(text.bindings, text.params_bytes)
        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            for (_, sharing), made in zip(wanted.values(), pool.map(self.pipeline, texts)):
                for shader in sharing:
                    shader.pipelines[shader.module.separate] = made

    def pipeline(self, text: Text) -> Any:
        """The pipeline of a text, compiled beside what other threads do."""
        found = self._made.get(text.source)
        if found is None:
            _, layout = self._layout(text.bindings, text.params_bytes)
            with self._stream.beside(f"compiling kernel {text.name}") as device:
                module = device.create_shader_module(code=text.source, label=text.name)
                stage = {"module": module, "entry_point": ENTRY}
                found = device.create_compute_pipeline(
                    layout=layout, compute=stage, label=text.name
                )
            self._made[text.source] = found
        return found

    def _layout(self, count: int, params_bytes: int) -> tuple[Any, Any]:
        """Of bind groups and of pipelines: so many storage buffers, then the params."""
        from wgpu import ShaderStage

        slots = -(-params_bytes // SLOT)
        found = self._layouts.get((count, slots))
        if found is not None:
            return found
        stage: Any = ShaderStage
        kinds: list[dict[str, Any]] = [{"type": "storage"}] * count
        kinds.append({"type": "uniform", "has_dynamic_offset": True})
        entries = [
            {"binding": i, "visibility": stage.COMPUTE, "buffer": k} for i, k in enumerate(kinds)
        ]
        with self._stream.calls("describing bindings") as device:
            groups = device.create_bind_group_layout(entries=entries)
            pipelines = device.create_pipeline_layout(bind_group_layouts=[groups])
        self._layouts[count, slots] = groups, pipelines
        return groups, pipelines

    def _group(self, bindings: Sequence[Binding], slots: Slots) -> Any:
        key = tuple(bindings), slots.slab, slots.num
        found = self._groups.get(key)
        if found is not None:
            return found
        if len(self._groups) >= MAX_GROUPS:
            self._groups.clear()
        size = slots.num * SLOT
        bound = [(self._buffers[b.number], b.start, b.size) for b in bindings]
        bound.append((self._params.buffer(slots.slab), 0, size))
        entries = [
            {"binding": i, "resource": {"buffer": b, "offset": start, "size": n}}
            for i, (b, start, n) in enumerate(bound)
        ]
        layout, _ = self._layout(len(bindings), size)
        with self._stream.calls("binding buffers") as device:
            made = self._groups[key] = device.create_bind_group(layout=layout, entries=entries)
        return made
