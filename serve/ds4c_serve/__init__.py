"""gRPC server of ds4c: the `ds4c.v1` services over the runtime's `Engine`."""
