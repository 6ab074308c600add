"""The wgpu target: SIMT programs as WGSL, run through wgpu-native or a browser."""
