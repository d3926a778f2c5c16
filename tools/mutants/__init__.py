"""Mutants: small faults planted in the sources one at a time, to see that the related tests find them."""
