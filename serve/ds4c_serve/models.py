"""ModelService: what is served, what it can do, how busy it is."""

from ds4c_serve import convert
from ds4c_serve.backend import Backend
from ds4c_serve.context import Context
from ds4c_serve.rpc import unary
from ds4c_serve.v1 import engine_pb2 as pb
from ds4c_serve.v1 import engine_pb2_grpc


class ModelService(engine_pb2_grpc.ModelServiceServicer):
    """Reads the manifest and the counters of the engine; changes nothing."""

    def __init__(self, backend: Backend, *, max_request_bytes: int):
        self._backend = backend
        self._max_request_bytes = max_request_bytes

    @unary
    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: Context
    ) -> pb.GetModelInfoResponse:
        """Identity of the model, its artifact and its tokenizer."""
        return convert.model_info(self._backend.engine.manifest)

    @unary
    async def GetCapabilities(
        self, request: pb.GetCapabilitiesRequest, context: Context
    ) -> pb.GetCapabilitiesResponse:
        """What the artifact can do, and the limits."""
        engine = self._backend.engine
        return convert.capabilities(
            engine.manifest,
            engine.snapshot_limits(),
            max_sessions=engine.limits.max_sessions,
            max_queue=engine.limits.max_queue,
            max_request_bytes=self._max_request_bytes,
        )

    @unary
    async def GetLoad(self, request: pb.GetLoadRequest, context: Context) -> pb.GetLoadResponse:
        """Queue, sessions and memory now."""
        return convert.load(self._backend.engine.load_info())
