"""From a plan to one native module: kernel sequences, subprograms, control flow, assembly."""
