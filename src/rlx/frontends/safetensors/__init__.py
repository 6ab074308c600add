"""Models as folders: a configuration, and weights in the format of safetensors.

reader.py   a .safetensors file, checked and mapped; JSON that is not believed
naming.py   what a family of models calls its weights and sizes
encoder.py  the BERT family, built of blocks
pooling.py  what sentence-transformers puts after it
model.py    the model: a graph and its weights
"""
