"""Models over HTTP: language models by OpenAI's protocol, others by KServe's.

settings.py      limits, times, the token, the address
app.py           routes of a language model or of tensors, as an ASGI application
server.py        an application on a socket, until a signal ends it
guard.py         what every request passes: token, host, size of the body
errors.py        errors in OpenAI's shape
body.py          fields of a JSON body, checked by name
runner.py        the engine's thread, and streams of pieces out of it
responses.py     server-sent events, answers that end with their client
sampling.py      what is asked of a language model, out of a body
turns.py         calls in turns, and so many that wait
prompts.py       prompts as texts or tokens, and how likely their tokens are
completions.py   /v1/completions
chat.py          /v1/chat/completions
embeddings.py    /v1/embeddings
tools.py         tools: in prompts, as a form of answers, out of answers
kserve.py        models of tensors by KServe's protocol
tensors.py       tensors as JSON and as bytes
metrics.py       /metrics
models.py        /v1/models, /tokenize, /detokenize
page/            the chat page
"""

from __future__ import annotations

from rlx.serve.app import language_model_app as language_model_app
from rlx.serve.app import tensor_model_app as tensor_model_app
from rlx.serve.server import run as run
from rlx.serve.settings import Settings as Settings
