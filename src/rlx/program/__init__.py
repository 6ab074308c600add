"""Programs of one thread of a GPU as typed SSA: nodes, builder, text, verifier, interpreter, and
the rewrites that expand what a target lacks."""
