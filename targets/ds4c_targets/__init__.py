"""Code generators of ds4c, one package for each kind of device."""
