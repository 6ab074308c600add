"""ai.onnx.ml."""
