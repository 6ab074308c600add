"""The search of the demo in a web page: `make demo-web`.

__main__.py    builds the folder and serves it
build.py       the folder
server.py      a server on the loopback
index.html     the page
search.js      what it does
tokenizer.js   text to tokens
"""
