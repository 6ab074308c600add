"""WebGPU in a browser: plans of the backend wgpu as JSON.

engine.py    its plans for kinds of adapters
plan.py      an artefact as JSON
steps.py     its steps
kernels.py   its WGSL
"""
