"""Front ends: ONNX files, safetensors folders, and traced Python functions."""
