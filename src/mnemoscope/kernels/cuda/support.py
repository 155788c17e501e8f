"""What the CUDA kernels cover."""
def supports() -> bool: return True
