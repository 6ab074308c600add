"""Models for browsers: a folder of files that runs without Python, by WebGPU or by WebAssembly.

export.py    a folder of what engines need, the weights, the runtime and a page
engine.py    what an engine adds to a folder
weights.py   params and constants of all engines as one file of chunks with hashes
bundle.py    the runtime as ES modules, out of the modules in js/
minify.py    JavaScript in fewer characters
webgpu/      WebGPU: plans and kernels of the backend wgpu as JSON
wasm.py      WebAssembly: modules of the CPU backend
"""
