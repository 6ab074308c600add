"""Programs for browsers: a folder of files that WebGPU runs without Python.

export.py    from a planned model to the folder
plan.py      an artefact as JSON
steps.py     its steps
kernels.py   its WGSL
weights.py   params and constants as one file of chunks with hashes
bundle.py    the runtime as one ES module, out of the modules in js/
"""
