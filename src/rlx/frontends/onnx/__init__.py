"""The ONNX importer: models become graphs of the op table.

    reader.py     a file, or bytes, as a checked protobuf; tensors in memory or in files beside it
    importer.py   its nodes, one after the other, in the scopes they see
    call.py       what a handler is given: operands, attributes, sizes
    handlers/     what each operator means, by family
    model.py      the model: a graph and its weights, or a graph for each value of static inputs

Integer tensors that come from shapes are dims, not data.
"""

from __future__ import annotations
