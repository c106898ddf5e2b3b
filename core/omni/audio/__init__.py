"""Audio and text for speech: decode untrusted files, encode and stream, resample, stretch, split.

Everything is synchronous, runs on the CPU and holds audio as float32 in [-1, 1] of the shape ``(samples,)``
or ``(samples, channels)``. FFmpeg and soxr are imported when they are first used.
"""

from omni.audio.decode import AudioReader, decode, open_audio
from omni.audio.encode import FORMATS, MEDIA_TYPES, StreamEncoder, encode_all, encoder_rate
from omni.audio.output import AudioOutput
from omni.audio.resample import Resampler, resample
from omni.audio.split import AudioSpan, SilenceSplitter
from omni.audio.stretch import TimeStretch
from omni.audio.text import has_speakable, normalize_text, split_text

__all__ = [
    "FORMATS",
    "MEDIA_TYPES",
    "AudioOutput",
    "AudioReader",
    "AudioSpan",
    "Resampler",
    "SilenceSplitter",
    "StreamEncoder",
    "TimeStretch",
    "decode",
    "encode_all",
    "encoder_rate",
    "has_speakable",
    "normalize_text",
    "open_audio",
    "resample",
    "split_text",
]
