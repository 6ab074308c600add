"""onnxruntime's own operators (com.microsoft)."""
