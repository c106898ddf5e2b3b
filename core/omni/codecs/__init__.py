"""Building blocks of neural audio codecs that stream exactly: causal layers whose past lives in one state.

A layer takes the next columns of some streams and leaves behind what it will look back at, so a signal may come in
pieces of any length, beside any other streams, and gives the same samples. Needs torch.
"""

from omni.codecs.attention import Rotations, WindowView, interleaved
from omni.codecs.conv import CausalConv, UpsampleConv
from omni.codecs.device import compute_in_full, device_of
from omni.codecs.linear import Linear
from omni.codecs.state import Step, StreamState
from omni.codecs.streaming import FrameDecoder, StreamingDecoder, decode_whole
from omni.codecs.weights import CheckpointWeights, RandomWeights, ShapeRecorder, WeightSource

__all__ = [
    "CausalConv",
    "CheckpointWeights",
    "FrameDecoder",
    "Linear",
    "RandomWeights",
    "Rotations",
    "ShapeRecorder",
    "Step",
    "StreamState",
    "StreamingDecoder",
    "UpsampleConv",
    "WeightSource",
    "WindowView",
    "compute_in_full",
    "decode_whole",
    "device_of",
    "interleaved",
]
