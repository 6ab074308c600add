"""The PyTorch importer: graphs of ATen ops become graphs of the op table.

    export.py       a module becomes an ExportedProgram, with the sizes that were asked for
    signature.py    inputs, weights, buffers and results of an ExportedProgram
    importer.py     nodes of an FX graph, one after the other
    aliasing.py     views and in-place ops as values: writes go back to the base
    decompose.py    ops without a handler, by torch's own decompositions, one at a time
    node_call.py    what a handler is given: operands, attributes, torch's shape and dtype
    sizes.py        SymInts as named dims
    handlers/       what each ATen op means, by family
    model.py        the model: a graph, its weights, and how calls map to it
    program.py      the compiled model, called with tensors or arrays

The input is the training IR of torch.export, where linear, attention and norms are whole; any FX
graph of ATen ops with fake values in `meta["val"]` will do.
"""

from __future__ import annotations
