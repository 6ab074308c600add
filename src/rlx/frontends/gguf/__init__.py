"""Language models in GGUF files, and in folders of safetensors as GGUF files have them.

reader.py        the header, checked; tensors as blocks of quantised weights
fields.py        typed access to metadata
architecture.py  what decoders differ in
rotary.py        rotary frequencies, plain and scaled
decoder.py       the graph
model.py         the model: a graph and its weights
source.py        a file or a folder
neutral_keys.py  keys of metadata that change no result: others are read, or refused
folder.py        tensors of a folder by GGUF's names; folder_config.py, folder_rotary.py,
                 folder_tokenizer.py, folder_text.py: its metadata; folder_families.py: what
                 transformers' classes compute, and fields that change no result
word_splits.py   how byte-level BPE cuts words
writer.py        files
quantize.py      other block formats; type_rules.py: which tensor has which
"""
