"""NVIDIA GPUs: SIMT programs printed as PTX, which the driver assembles."""
