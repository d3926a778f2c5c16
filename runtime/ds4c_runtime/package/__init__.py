"""Reads what a GPU artifact ships and compares it with its launch plan, without tools of any vendor."""
