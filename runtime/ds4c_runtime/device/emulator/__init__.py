"""A device that runs the shipped CUDA or Metal text of an artifact on the CPU."""
