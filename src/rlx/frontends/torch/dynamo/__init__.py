"""`torch.compile(model, backend="rlx")`: graphs of Dynamo as programs.

    backend.py     the backend function, its options, and what stays with torch
    plain_inputs.py  attributes and lists of a graph as tensors that it takes
    trace.py       Dynamo's graph as ATen ops before dispatch, where composites are whole
    functional.py  AOTAutograd: forward passes of calls that need gradients, graphs for parts
    parts.py       the parts of a graph that rlx supports, with torch's ops between
    graph.py       the model of a graph: params, arguments and sizes by place
    calls.py       the compiled graph, called with Dynamo's flat inputs
    breaks.py      graph breaks, reported with the line that made them

The entry point group `torch_dynamo_backends` names `backend.rlx`.
"""

from __future__ import annotations
