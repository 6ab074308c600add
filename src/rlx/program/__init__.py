"""Programs as typed SSA, of one thread of a GPU and of a vector unit: nodes, builder, text,
verifiers, interpreters, and the rewrites that expand what a target lacks."""
