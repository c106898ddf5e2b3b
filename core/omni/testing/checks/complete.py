"""Text and audio are never silently shortened."""

from __future__ import annotations

import msgspec

from omni.errors import BadRequest, OmniError
from omni.messages import SpeechRequest, TranscriptionRequest
from omni.recipe import Speech, Transcription
from omni.testing.checks.base import check
from omni.testing.clips import Recording, heard, long_recording, repeated, saying
from omni.testing.kit import Kit, NotApplicable, fail, shown, spoken
from omni.testing.outcome import Output
from omni.testing.parameters import properties, with_value


@check(
    "every part of a text is spoken: a text lasts as long as its parts, and no part can change unheard", task="speech"
)
async def text_is_never_shortened(kit: Kit) -> None:
    base, sentences = await _sentences(kit)
    parts = sentences[:4]
    whole = await kit.output(saying(base, " ".join(parts)))
    await _lasts(kit, base, parts, whole)
    await _every_part_matters(kit, base, parts, whole, range(len(parts)))


@check("a long text, up to the declared limit or long_characters, is spoken to its end", task="speech")
async def long_text_is_never_shortened(kit: Kit) -> None:
    base, sentences = await _sentences(kit)
    assert isinstance(kit.recipe.task, Speech)
    size = min(kit.recipe.task.max_characters, kit.samples.long_characters)
    parts = repeated(sentences, size)
    whole = await kit.output(saying(base, " ".join(parts)))
    await _lasts(kit, base, parts, whole)
    await _every_part_matters(kit, base, parts, whole, sorted({len(parts) // 2, len(parts) - 1}))


@check("a sentence without an end is spoken to its end, or refused", task="speech")
async def endless_sentences_are_never_shortened(kit: Kit) -> None:
    base, sentences = await _sentences(kit)
    assert isinstance(kit.recipe.task, Speech)
    size = min(kit.recipe.task.max_characters, kit.samples.long_characters)
    plain = ["".join(c for c in sentence if c.isalnum() or c == " ") for sentence in sentences]
    parts = repeated(plain, size)
    request = saying(base, " ".join(parts))
    outcome = await kit.solo(request)
    if isinstance(outcome, BadRequest):
        return
    whole = spoken(request, outcome)
    await _every_part_matters(kit, base, parts, whole, sorted({len(parts) // 2, len(parts) - 1}))


@check("words in a script that the recipe cannot speak are refused or heard, not left out", task="speech")
async def unknown_scripts_are_not_left_out(kit: Kit) -> None:
    base, (sentence, *_) = await _sentences(kit)
    without = await kit.output(saying(base, sentence))
    for words in ("你好世界", "привет мир", "مرحبا بالعالم"):
        outcome = await kit.solo(saying(base, f"{sentence} {words}"))
        if isinstance(outcome, BadRequest):
            continue
        if isinstance(outcome, OmniError):
            fail(f"{words!r} after a sentence gave {type(outcome).__name__}, not a BadRequest: {outcome.message}")
        if kit.difference(outcome, without) is None:
            fail(f"{words!r} after a sentence is left out silently: refuse what cannot be spoken")


async def _sentences(kit: Kit) -> tuple[SpeechRequest, list[str]]:
    """The first sample, and the different texts of all."""
    requests = kit.requests
    texts = list(dict.fromkeys(r.text for r in requests if isinstance(r, SpeechRequest)))
    if len(texts) < 3:
        raise NotApplicable("the samples hold fewer than three different texts")
    first = requests[0]
    assert isinstance(first, SpeechRequest)
    return first, texts


async def _lasts(kit: Kit, base: SpeechRequest, parts: list[str], whole: Output) -> None:
    alone = {text: (await kit.output(saying(base, text))).audible_seconds() for text in dict.fromkeys(parts)}
    wanted = sum(alone[text] for text in parts)
    if whole.audible_seconds() < kit.samples.keeps * wanted:
        fail(
            f"{len(parts)} sentences, {len(' '.join(parts))} characters, sound for {whole.audible_seconds():.2f} s in "
            f"one request and for {wanted:.2f} s one by one: the text was shortened"
        )


async def _every_part_matters(
    kit: Kit, base: SpeechRequest, parts: list[str], whole: Output, places: range | list[int]
) -> None:
    """Replacing any part must be heard."""
    for place in places:
        replaced = [*parts]
        replaced[place] = next(text for text in [*parts, *reversed(parts)] if text != parts[place])
        request = saying(base, " ".join(replaced))
        if kit.difference(await kit.output(request), whole) is None:
            fail(
                f"part {place + 1} of {len(parts)} of a text of {len(' '.join(parts))} characters can change and the "
                f"audio stays the same: it is not spoken ({parts[place]!r})"
            )


@check("every part of a recording is heard, beyond the model's window and after long silence", task="transcription")
async def audio_is_never_shortened(kit: Kit) -> None:
    long = _recording(kit)
    output = await _transcript(kit, long)
    words, at = output.words(), 0
    for place, index in enumerate(long.order):
        wanted = (await kit.output(kit.requests[index])).words()
        share = heard(wanted, words[at : at + 2 * len(wanted) + 3])
        if share < kit.samples.keeps:
            fail(
                f"clip {place + 1} of {len(long.order)}, at {long.starts[place]:.1f} s of {long.seconds:.1f} s, says "
                f"{' '.join(wanted)!r}; {share:.0%} of it is found in {' '.join(words[at:])!r}"
            )
        at += round(share * len(wanted))
    if output.duration is not None and abs(output.duration - long.seconds) > 0.1:
        fail(f"the recording has {long.seconds:.2f} s, the transcript says {output.duration:.2f} s")
    if len(words) - at > 3 + 0.2 * at:
        fail(f"the transcript holds {len(words)} words where the clips say {at}: {output.text!r}")


@check("a text that a parameter cuts says so: finish_reason is length", task="transcription")
async def a_cut_text_says_so(kit: Kit) -> None:
    found = False
    for name, effect in kit.samples.effects.items():
        if name not in properties(kit.recipe) or not all(isinstance(value, int) for value in effect.values):
            continue
        requests = [with_value(kit.recipe, effect.request or kit.requests[0], name, value) for value in effect.values]
        outputs = [spoken(request, await kit.solo(request)) for request in requests]
        for short, request in zip(outputs, requests, strict=True):
            if any(_goes_on(short.text, other.text) for other in outputs):
                found = True
                if short.finish_reason != "length":
                    fail(
                        f"{short.text!r} is a text cut short by {name!r} and ends with finish_reason "
                        f"{short.finish_reason!r}, not 'length' ({shown(request)})"
                    )
    if not found:
        raise NotApplicable("no parameter in samples.effects cuts a text")


def _goes_on(short: str, text: str) -> bool:
    """Whether ``text`` is the same and more, by a letter at least."""
    return bool(short) and text.startswith(short) and any(c.isalnum() for c in text[len(short) :])


@check("times in a transcript count from the start of the file, to the second", task="transcription")
async def times_are_absolute(kit: Kit) -> None:
    assert isinstance(kit.recipe.task, Transcription)
    if not kit.recipe.task.timestamps:
        raise NotApplicable("the recipe declares no timestamps")
    long = _recording(kit)
    output = await _transcript(kit, long)
    spans = [(word.start, word.end, word.word) for segment in output.segments for word in segment.words]
    spans = spans or [(segment.start, segment.end, segment.text) for segment in output.segments]
    for start, end, text in spans:
        if not any(a - 1.0 <= start and end <= b + 1.0 for a, b in zip(long.starts, long.ends, strict=True)):
            fail(f"{text!r} is said to be at {start:.2f} to {end:.2f} s, where the recording is silent")
    for place, (a, b) in enumerate(zip(long.starts, long.ends, strict=True)):
        if not any(a - 1.0 <= start and end <= b + 1.0 for start, end, _ in spans):
            fail(f"clip {place + 1}, at {a:.2f} to {b:.2f} s, has no times in the transcript")


def _recording(kit: Kit) -> Recording:
    clips = [request for request in kit.requests if isinstance(request, TranscriptionRequest)]
    return long_recording(clips, kit.samples.long_seconds)


async def _transcript(kit: Kit, long: Recording) -> Output:
    first = kit.requests[0]
    assert isinstance(first, TranscriptionRequest)
    assert isinstance(kit.recipe.task, Transcription)
    timed = msgspec.structs.replace(first, audio=long.audio, timestamps=list(kit.recipe.task.timestamps))
    outcome = await kit.solo(timed)
    if isinstance(outcome, OmniError):
        fail(f"a recording of {long.seconds:.1f} s failed: {type(outcome).__name__}: {outcome.message}, {shown(timed)}")
    return outcome


COMPLETE = (
    text_is_never_shortened,
    long_text_is_never_shortened,
    endless_sentences_are_never_shortened,
    unknown_scripts_are_not_left_out,
    audio_is_never_shortened,
    a_cut_text_says_so,
    times_are_absolute,
)
