"""How models of each operator are drawn, one page per family."""
