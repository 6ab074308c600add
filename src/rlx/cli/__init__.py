"""The command line: one verb per file.

    app.py        the verbs together; parsing, errors and exit codes
    options.py    what several verbs take
    models.py     a model of a file, ready to run
    inputs.py     what a model is run on: arrays from files, or made up
    tables.py     reports on a terminal
    progress.py   how far long work has come

Only this package imports typer and rich, and only when `rlx` is called.
"""
