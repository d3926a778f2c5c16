"""Generated stubs of the `ds4c.v1` contract; made by tools/gen_proto.py, never edited by hand."""
