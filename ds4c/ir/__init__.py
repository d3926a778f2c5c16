"""The `ds4` dialect on xDSL: states with a rewind contract, ops, text form and NumPy meaning.

What does not belong here: passes (`ds4c.passes`), code generation (`ds4c.lower`, `ds4c_targets`).
"""
