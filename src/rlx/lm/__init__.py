"""Language models: text in, text out.

tokenizer.py        text to tokens and back, as the file says
sentence_pieces.py  SentencePiece's merges
template.py         chat templates in a sandbox
slots.py            sequences with cached keys and values: the protocol of decoders
decoder.py          the compiled decoder with the caches of its slots
prefix_cache.py     what slots hold, and what a new prompt takes over
engine.py           continuous batching: admission, prompts in chunks, steps of all sequences
generation.py       one answer in the making
sampling.py         choosing the next token; sampling_defaults.py: as a file states it
constraint.py       answers of a given form: JSON schemas, regular expressions, grammars
embedding.py        vectors of texts
drafting.py         speculative decoding: prompt lookup, draft models
stopping.py         whole characters, stop texts
model.py            `load`, `LanguageModel`
perplexity.py       how well a model predicts a text, and how far it is from another
bench.py            tokens a second
"""

from __future__ import annotations

from rlx.lm.generation import Piece, Request
from rlx.lm.model import Answer, LanguageModel, load
from rlx.lm.sampling import Sampling

__all__ = ["Answer", "LanguageModel", "Piece", "Request", "Sampling", "load"]
