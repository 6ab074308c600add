"""The operating system: memory for code, waiting and waking, a clock, processors, conventions."""
