"""What is compiled: configurations, tensors and modules of models, presets, a checkpoint generator."""
