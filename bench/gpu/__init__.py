"""What a GPU does, against torch on the same machine: `python -m bench.gpu`."""
