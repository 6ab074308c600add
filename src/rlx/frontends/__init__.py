"""How models come in: files of ONNX and safetensors, and traced Python functions."""
