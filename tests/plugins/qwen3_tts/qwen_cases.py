"""What the reference was asked to say for the golden arrays."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from qwen3_tts.prompts import PromptBuilder, Reference, Wording

T1 = "Hello, this is a test of the speech system."
T2 = "其实我真的有发现，我是一个特别善于观察别人情绪的人。"
T3 = "Good morning, how are you today?"
HAPPY = "Very happy."
WOMAN = "A young woman with a bright and clear voice."
SAID = "She said she would be here by noon."

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "cv_en": ("custom_voice", T1, {"speaker": "ryan", "language": "english", "whole": True}),
    "cv_en_stream": ("custom_voice", T1, {"speaker": "ryan", "language": "english", "whole": False}),
    "cv_en_norep": ("custom_voice", T1, {"speaker": "ryan", "language": "english", "whole": True}),
    "cv_zh_dialect": ("custom_voice", T2, {"speaker": "dylan", "language": "chinese", "whole": True}),
    "cv_auto": ("custom_voice", T1, {"speaker": "serena", "whole": True}),
    "cv_eos": ("custom_voice", T3, {"speaker": "vivian", "language": "english", "whole": True}),
    "cv_instruct": (
        "custom_voice",
        T1,
        {"speaker": "ryan", "language": "english", "instructions": HAPPY, "whole": True},
    ),
    "vd": ("voice_design", T1, {"language": "english", "instructions": WOMAN, "whole": True}),
    "vd_stream_auto": ("voice_design", T1, {"instructions": WOMAN, "whole": False}),
    "vd_noinstruct": ("voice_design", T2, {"language": "chinese", "whole": True}),
    "base_xvec_stream": ("base", T1, {"language": "english", "whole": False}),
    "base_xvec": ("base", T1, {"language": "english", "whole": True}),
    "base_icl_stream": ("base", T1, {"language": "english", "whole": False, "reference": ""}),
    "base_icl_stream_short": ("base", T1, {"language": "english", "whole": False, "reference": "_short"}),
    "base_icl": ("base", T1, {"whole": True, "reference": ""}),
}


def wording(builders: dict[str, PromptBuilder], golden: dict[str, Tensor], case: str) -> Wording:
    kind, text, fields = CASES[case]
    fields = dict(fields)
    reference = fields.pop("reference", None)
    if kind == "base":
        fields["vector"] = golden[f"spk.embedding{reference or ''}"].numpy()
    if reference is not None:
        fields["reference"] = Reference(SAID, golden[f"base.ref{reference}_codes"].t().numpy())
    return builders[kind].build(text, **fields)
