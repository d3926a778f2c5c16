"""The `ds4c` compiler: a DeepSeek-V4 checkpoint in, an artifact for one target out."""
