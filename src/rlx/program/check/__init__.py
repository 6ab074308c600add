"""Parts of the verifier: types, memory, phases of asynchronous copies."""
