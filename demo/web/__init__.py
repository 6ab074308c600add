"""The search of the demo in a web page: `make demo-web`."""
