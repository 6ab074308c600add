"""A search by meaning with a real model: `make demo`.

__main__.py   the demo, step by step
encoder.py    texts as vectors: the model's tokenizer, and rlx
asking.py     where questions come from
peers.py      the same model on other runtimes, if there are any
corpus.txt    what is searched
web/          the same in a web page: `make demo-web`
"""
