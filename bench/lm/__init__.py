"""Language models of `.gguf` files, in turns with llama.cpp and openvino-genai."""
