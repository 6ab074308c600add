"""Programs of kernels on a device: what is launched where, as data, and what runs it."""
