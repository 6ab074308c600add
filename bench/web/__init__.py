"""Models in a browser, in turns with onnxruntime-web on the same page: `python -m bench.web`.

__main__.py   the command
peers.py      where onnxruntime-web is, and the folder that the page is served from
bench.js      what the page does
page.py       web.md, which has `python -m bench.webgpu`, too
"""
