"""The architectures that can be compiled, by the `model_type` of a `config.json`: the only list of models.

Everything outside this package takes a configuration and asks its `Architecture`; no pass, no importer, no
target and no module of the runtime knows a model by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ds4c.errors import MalformedInputError
from ds4c.models.config_keys import read_json_object
from ds4c.models.names import FusedExperts
from ds4c.models.tensors import TensorSpec

if TYPE_CHECKING:
    from xdsl.dialects.builtin import ModuleOp

    from ds4c.models.ir_weights import IrWeight

Floats = NDArray[np.float32]


class Config(Protocol):
    """What every configuration says of its model; a frozen dataclass."""

    @property
    def vocab_size(self) -> int:
        """Token ids."""
        ...

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the main model."""
        ...

    @property
    def max_position_embeddings(self) -> int:
        """Largest context that the model was made for."""
        ...

    @property
    def bos_token_id(self) -> int | None:
        """Token that begins a text, if there is one."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a text."""
        ...


@dataclass(frozen=True)
class Architecture:
    """One family of models. `Any` stands for its own configuration class.

    Attributes:
        model_type: as `config.json` says it, and as the manifest repeats it.
        parse: keys of a `config.json` and its name for messages -> configuration.
        to_hf_dict: the inverse of `parse`.
        tensors: tensors of the main model by the name used everywhere here, in the order of computation.
        native_name: a stored name of any known spelling -> that name; unknown ones come back unchanged.
        seeded_values: name, spec, values of mean 0 and variance 1 -> values in the usual range of the tensor.
        ir_weights: configuration, context, stored type by name -> weights of the step function.
        build_module: configuration and these weights by name -> module with `@step`.
        layers: what is special of the layers, for people to read.
    """

    model_type: str
    config: type[Any]
    parse: Callable[[Mapping[str, object], str], Any]
    to_hf_dict: Callable[[Any], dict[str, object]]
    tensors: Callable[[Any], dict[str, TensorSpec]]
    native_name: Callable[[str], str | FusedExperts]
    seeded_values: Callable[[str, TensorSpec, Floats], Floats]
    ir_weights: Callable[[Any, int, Callable[[str], str]], Iterable[IrWeight]]
    build_module: Callable[[Any, dict[str, IrWeight]], ModuleOp]
    layers: Callable[[Any], str]

    def num_parameters(self, config: Config) -> int:
        """Elements of all tensors of the main model."""
        return sum(spec.num_elements for spec in self.tensors(config).values())


@cache
def _deepseek_v4() -> Architecture:
    from ds4c.models import config, deepseek_v4_weights, names, weights

    def build(described: Any, table: dict[str, IrWeight]) -> ModuleOp:
        from ds4c.models.deepseek_v4 import build_module  # needs xdsl

        return build_module(described, table)

    return Architecture(
        model_type="deepseek_v4",
        config=config.ModelConfig,
        parse=config.config_from_dict,
        to_hf_dict=config.to_hf_dict,
        tensors=weights.expected_tensors,
        native_name=names.native_name,
        seeded_values=weights.seeded_values,
        ir_weights=deepseek_v4_weights.step_weights,
        build_module=build,
        layers=lambda c: f"compress ratios {list(c.compress_ratios)}",
    )


@cache
def _gated_delta() -> Architecture:
    from ds4c.models import gated_delta_config, gated_delta_weights

    def build(described: Any, table: dict[str, IrWeight]) -> ModuleOp:
        from ds4c.models.gated_delta_net import build_module  # needs xdsl

        return build_module(described, table)

    return Architecture(
        model_type=gated_delta_config.MODEL_TYPE,
        config=gated_delta_config.GatedDeltaConfig,
        parse=gated_delta_config.config_from_dict,
        to_hf_dict=gated_delta_config.to_hf_dict,
        tensors=gated_delta_weights.expected_tensors,
        native_name=gated_delta_weights.native_name,
        seeded_values=gated_delta_weights.seeded_values,
        ir_weights=gated_delta_weights.step_weights,
        build_module=build,
        layers=lambda c: f"gated delta rule, {c.linear_num_value_heads} heads",
    )


ARCHITECTURES: dict[str, Callable[[], Architecture]] = {
    "deepseek_v4": _deepseek_v4,
    "qwen3_next": _gated_delta,
}
"""Architecture by `model_type`; made when asked for."""


def architecture_of(config: Config) -> Architecture:
    """The architecture that a configuration belongs to."""
    for make in ARCHITECTURES.values():
        if isinstance(config, make().config):
            return make()
    raise KeyError(type(config).__name__)


def config_from_dict(data: Mapping[str, object], source: str = "config.json") -> Config:
    """Configuration from the parsed keys of a `config.json`; `source` names it in errors.

    Raises:
        MalformedInputError: Another architecture, or missing, contradictory or unsupported keys.
    """
    model_type = data.get("model_type", "")
    if isinstance(model_type, str) and model_type in ARCHITECTURES:
        return ARCHITECTURES[model_type]().parse(data, source)
    if not model_type or str(model_type).startswith("deepseek"):
        return _deepseek_v4().parse(data, source)  # refuses each of its relatives with advice
    raise MalformedInputError(
        f"{source}: model_type: expected {' or '.join(ARCHITECTURES)}, got {model_type!r}; "
        "other architectures are not supported"
    )


def load_config(path: Path) -> Config:
    """Read the `config.json` of any architecture.

    Raises:
        UsageError: `path` does not exist.
        MalformedInputError: Not a JSON object, or as `config_from_dict`.
    """
    return config_from_dict(read_json_object(path), str(path))
