"""The folder of the page: the exported model, its tokens, and vectors of what is searched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import rlx
from demo.asking import BUILT_IN
from demo.encoder import A_QUESTION, Encoder
from rlx.backends.web.export import Exported

HERE = Path(__file__).parent
PAGE = ("index.html", "search.js", "tokenizer.js")


def build(model: Path, corpus: Path, folder: Path) -> Exported:
    """All that the page fetches. The vectors are the cpu target's: what is searched is known when
    a page is made, what is asked is not."""
    options = rlx.FusionOptions(sizes=A_QUESTION)
    made = rlx.export_web(rlx.load(model), folder, options=options)
    texts = [t for t in corpus.read_text("utf-8").splitlines() if t.strip()]
    vectors = Encoder.of(model).vectors(texts)
    (folder / "vectors.bin").write_bytes(vectors.astype("<f4").tobytes())
    found = {"sentences": texts, "questions": BUILT_IN}
    (folder / "search.json").write_text(json.dumps(found, ensure_ascii=False), "utf-8")
    shutil.copyfile(model / "vocab.txt", folder / "vocab.txt")
    for name in PAGE:
        shutil.copyfile(HERE / name, folder / name)
    return made
