"""``omni say`` and ``omni transcribe`` without a server answer as a server would."""

from __future__ import annotations

import io
import json
import os
import socket
import wave

import pytest

from omni.cli.main import main

MAGIC = {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OggS", "ogg": b"OggS", "mp3": (b"ID3", b"\xff"), "aac": b"\xff"}


@pytest.fixture
def say(omni):
    return lambda *args: omni("say", "--recipe", "toy-voice", *args)


@pytest.fixture
def transcribe(omni):
    return lambda *args: omni("transcribe", "--recipe", "toy-ears", *args)


@pytest.fixture
def melody(scaffolds, tmp_path):
    from toy_ears.samples import samples

    path = tmp_path / "melody.wav"
    path.write_bytes(bytes(samples().requests[0].audio))
    return path


@pytest.mark.parametrize("suffix", MAGIC)
def test_format_comes_from_the_suffix(say, tmp_path, suffix) -> None:
    out = tmp_path / f"out.{suffix}"
    assert say("do re mi", "-o", out) == (0, "", "")
    assert out.read_bytes().startswith(MAGIC[suffix])
    assert list(tmp_path.iterdir()) == [out], "nothing else is left"


def test_wav_is_complete(say, tmp_path) -> None:
    assert say("abcd", "-o", tmp_path / "out.wav").code == 0
    with wave.open(str(tmp_path / "out.wav")) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (24000, 4 * 1440)


def test_format_option_wins(say, tmp_path) -> None:
    assert say("ab", "-o", tmp_path / "out.mp3", "--format", "flac").code == 0
    assert (tmp_path / "out.mp3").read_bytes().startswith(b"fLaC")


def test_options_reach_the_recipe(say, tmp_path) -> None:
    def spoken(*args: str) -> bytes:
        out = tmp_path / "out.pcm"
        ran = say("ab", "-o", out, *args)
        assert ran.code == 0, ran.err
        return out.read_bytes()

    plain = spoken()
    assert spoken() == plain
    assert len(spoken("--set", "synth.note_seconds=0.12")) == 2 * len(plain)
    assert len(spoken("-p", "sample_rate=48000")) == 2 * len(plain)
    for changed in (("--voice", "square"), ("-p", "pitch=1.5"), ("--speed", "2")):
        assert spoken(*changed) != plain


def test_stdout_and_stdin(installed, capfdbinary, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"abcd")))
    assert main(["say", "-", "-o", "-", "--format", "pcm", "--recipe", "toy-voice"]) == 0
    assert len(capfdbinary.readouterr().out) == 4 * 1440 * 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["a", "-o", "out.doc"], "the suffix names no format"),
        (["a", "-o", "out"], "the suffix names no format"),
        (["a", "-o", "out.wav", "-p", "pitch"], "write KEY=VALUE"),
        (["a", "-o", "out.wav", "-p", "input=b"], "has an option of its own"),
        (["a", "-o", "out.wav", "-p", "pitch=1", "-p", "pitch=2"], "is given twice"),
        (["a", "-o", "out.wav", "--url", "http://x", "--set", "synth.volume=1"], "not for --url"),
        (["a", "-o", "out.wav", "--recipe", "toy-ears"], "one is enough"),
    ],
)
def test_wrong_usage(say, args, message, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = say(*args)
    assert ran.code == 2
    assert message in ran.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([" "], "(field 'input')"),
        (["a", "--voice", "nobody"], "(field 'voice')"),
        (["a", "-p", "pitch=9"], "(field 'pitch')"),
        (["a", "-p", "colour=red"], "(field 'colour')"),
        (["a", "--speed", "99"], "(field 'speed')"),
        (["a", "--seed", "1"], "(field 'seed')"),
        (["a", "--set", "synth.volume=9"], "volume"),
    ],
)
def test_refused_in_one_line(say, args, message, tmp_path) -> None:
    out = tmp_path / "out.wav"
    out.write_bytes(b"before")
    ran = say(*args, "-o", out)
    assert (ran.code, ran.out) == (1, "")
    assert len(ran.err.splitlines()) == 1
    assert message in ran.err
    assert out.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_failure_inside_is_told(omni, installed, module, tmp_path) -> None:
    module(
        "faulty",
        "from omni import *\n"
        "class Stage(Preprocess[SpeechRequest, AudioChunk]):\n"
        "    def process(self, item):\n        raise ValueError('the stage is faulty')\n"
        "@hookimpl\ndef omni_recipes():\n"
        "    return [Recipe(name='faulty', summary='s', license='MIT', task=Speech(sample_rate=16000),\n"
        "                   stages=[StageSpec('a', 'faulty:Stage')])]\n",
    )
    installed.add("faulty", "faulty")
    ran = omni("say", "a", "-o", tmp_path / "out.wav", "--recipe", "faulty")
    assert ran.code == 1
    assert "the stage is faulty" in ran.err
    assert "Traceback" not in ran.err
    ran = omni("say", "a", "-o", tmp_path / "out.wav", "--recipe", "faulty", "--debug")
    assert "Traceback" in ran.err
    assert not list(tmp_path.glob("*.wav"))


def test_a_place_where_nothing_can_be_written_is_told_before_loading(say, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("omni.cli.client.target", lambda *_: pytest.fail("it was loaded"))
    folder = tmp_path / "folder.wav"
    folder.mkdir()
    for output, reason in ((folder, "is a folder"), (tmp_path / "no" / "x.wav", f"no folder {tmp_path / 'no'}")):
        ran = say("a", "-o", output)
        assert (ran.code, ran.out) == (2, "")
        assert reason in ran.err


def test_a_player_that_stops_reading_is_not_complained_about(installed, monkeypatch, capfd) -> None:
    read, write = os.pipe()
    os.close(read)
    gone = io.TextIOWrapper(os.fdopen(write, "wb", buffering=0))
    monkeypatch.setattr("sys.stdout", gone)
    assert main(["say", "ab", "-o", "-", "--recipe", "toy-voice"]) == 1
    gone.close()
    assert capfd.readouterr().err == ""


def test_wrong_task(omni, tmp_path) -> None:
    ran = omni("say", "a", "-o", tmp_path / "out.wav", "--recipe", "toy-ears")
    assert ran.code == 1
    assert "does speech; selected: toy-ears" in ran.err


def test_no_server_there(say, tmp_path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ran = say("a", "-o", tmp_path / "out.wav", "--url", f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert ran.code == 1
    assert "no server answers there" in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("url", ["127.0.0.1:1", "ftp://x", "http://[", "nonsense"])
def test_no_url(say, tmp_path, url) -> None:
    ran = say("a", "-o", tmp_path / "out.wav", "--url", url)
    assert ran.code == 1
    assert ran.err.startswith("error: ")
    assert "bug" not in ran.err


def test_transcribe_formats(transcribe, melody) -> None:
    assert transcribe(melody) == (0, "A4 Cs5 E5 A5\n", "")
    assert json.loads(transcribe(melody, "--format", "json").out)["text"] == "A4 Cs5 E5 A5"
    verbose = json.loads(transcribe(melody, "--format", "verbose_json").out)
    assert [segment["start"] for segment in verbose["segments"]] == [0.1, 0.4, 0.7, 1.0]
    assert transcribe(melody, "--format", "srt").out.startswith("1\n00:00:00,100 --> 00:00:00,300\nA4\n")
    assert transcribe(melody, "--format", "vtt").out.startswith("WEBVTT\n")


def test_an_answer_that_was_cut_is_noted(transcribe, melody, monkeypatch) -> None:
    whole = transcribe(melody)
    monkeypatch.setattr("omni.server.transcriptions.finish_header", lambda _: [(b"x-omni-finish-reason", b"length")])
    cut = transcribe(melody)
    assert (cut.code, cut.out, cut.err) == (0, whole.out, "a limit cut the answer short\n")
    assert whole.err == ""


def test_transcribe_stdin(transcribe, melody, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(melody.read_bytes())))
    assert transcribe("-").out == "A4 Cs5 E5 A5\n"


def test_transcribe_refusals(transcribe, melody, tmp_path) -> None:
    assert transcribe(melody, "--words", "--format", "srt").code == 2
    assert transcribe(tmp_path / "nothing.wav").code == 2
    (tmp_path / "text.wav").write_text("this is no sound")
    for args, message in [
        ((tmp_path / "text.wav",), "not recognised as audio"),
        ((melody, "--language", "klingon"), "klingon"),
        ((melody, "--words"), "word"),
    ]:
        ran = transcribe(*args)
        assert ran.code == 1
        assert message in ran.err
        assert len(ran.err.splitlines()) == 1
