"""The embedded AR engine and the parts from which plugins build models for it."""

from omni.engines.torch.depth import DepthTransformer
from omni.engines.torch.engine import TorchEngine, create_engine
from omni.engines.torch.layers import BlockDims, DecoderLayer, Rope, linear, weight
from omni.engines.torch.loading import Checkpoint
from omni.engines.torch.model import Attend, KVShape, PromptSlice, Step, StepResult, TorchARModel
from omni.engines.torch.options import TorchOptions, parse_options
from omni.engines.torch.sampling import (
    UniformSource,
    counter_uniform,
    race,
    standard_filter,
    top_candidates,
)
from omni.engines.torch.stack import LayerStack, Stack, StackDims, StackFactory

__all__ = [
    "Attend",
    "BlockDims",
    "Checkpoint",
    "DecoderLayer",
    "DepthTransformer",
    "KVShape",
    "LayerStack",
    "PromptSlice",
    "Rope",
    "Stack",
    "StackDims",
    "StackFactory",
    "Step",
    "StepResult",
    "TorchARModel",
    "TorchEngine",
    "TorchOptions",
    "UniformSource",
    "counter_uniform",
    "create_engine",
    "linear",
    "parse_options",
    "race",
    "standard_filter",
    "top_candidates",
    "weight",
]
