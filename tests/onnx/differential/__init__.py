"""A differential generator per ONNX operator: `python -m tests.onnx.differential --help`.

For every operator it draws models of one node (every attribute, optional operand, opset version,
dtype, extreme sizes and values; shape-like operands as constants and as inputs; static and named
sizes) and compares rlx, targets reference and cpu, with onnx.reference and onnxruntime. Where those
two agree, rlx must give the same: integers exactly, floats within a stated rounding error. Where
they differ, a row of a page's table says whose answer is right, and why.

To add operators, write a page: a module of `pages/` with one drawing function per operator.

    @draws("Gather")
    def _(d: Draw) -> Node:
        x = d.tensor(d.dims(1, smallest=1), "T")      # an operand of a dtype that T admits
        axis = d.axis(x.rank)                         # negative ones among them
        i = d.indices(d.dims(0, 3), x.dims[axis], "Tind")
        return d.node(x, i, **d.some(axis=axis))      # attributes are given, or left out

- `d.op`, `d.opset`, `d.schema` say what is drawn; `d.has("allowzero")` whether this version has an
  attribute, `d.num_operands` how many operands it takes at most.
- `d.tensor(dims, "T", domain)` draws values; `d.given(array)` takes yours; both are inputs, seldom
  initialisers. `d.shaping([...])` is an operand that decides shapes: an initialiser, an input,
  or computed from a size of the first operand. None leaves an optional operand out.
- `d.node(*operands, outputs=1, tolerance=Rounding(...), **attrs)` is the result. The default
  tolerance is that of elementwise functions; `sums(terms)` that of sums of so many products.
- Draw valid models. One that no evaluator takes is counted as invalid, and shown as a share.
- `explain("Op", right=..., why=..., when=...)` is a row of the table of explained differences. It
  names the evaluator that is right where they differ, or a formula, which also decides against
  both; `otherwise=` is a formula for draws on which the evaluator gives nothing.

A finding is printed as its smallest case, with the command that draws it again.
"""
