"""How kernels run on this machine: tiles, parallel tasks, index-set splitting."""
