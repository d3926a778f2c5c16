"""One figure a module; each says what it measures and against what."""
