"""The five kinds of stage. An author subclasses one and core runs it behind the scheduler of its kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import ConfigDict, Field

from omni.engines.base import ARModel, ModelSource, Prompt, SamplingParams, StepOutput
from omni.errors import OmniError
from omni.messages import Message
from omni.stages.base import In, Out, Stage, StageOptions

State = TypeVar("State")


class PreprocessOptions(StageOptions):
    """``workers`` threads serve the stage."""

    workers: Annotated[int, Field(ge=1, le=64)] = 2


class Preprocess(Stage[In, Out]):
    """CPU work on one item. Runs in a pool of threads; items of one request keep their order."""

    kind: ClassVar[str] = "preprocess"
    Options: ClassVar[type[StageOptions]] = PreprocessOptions

    def process(self, item: In) -> Out | Iterator[Out]:
        """Turn one item into one, or into a stream of them (return an iterator or generator).

        An iterator is advanced only while downstream has room, and closed when the request is cancelled.
        """
        raise NotImplementedError


class EncoderOptions(StageOptions):
    """A batch starts when ``max_batch`` items wait or the oldest waits ``max_wait_ms``; ``workers`` batches
    run at once; results are cached up to ``cache_mb`` (0: off). A batch holds up to ``max_cost`` of
    :meth:`Encoder.cost` (None: no bound), or one item that alone costs more."""

    workers: Annotated[int, Field(ge=1, le=64)] = 1
    max_batch: Annotated[int, Field(ge=1, le=4096)] = 8
    max_wait_ms: Annotated[float, Field(ge=0, le=10_000)] = 0.0
    max_cost: Annotated[float, Field(gt=0)] | None = None
    cache_mb: Annotated[float, Field(ge=0)] = 0.0


class Encoder(Stage[In, Out]):
    """Stateless work on a batch of items from many requests; one result per item."""

    kind: ClassVar[str] = "encoder"
    Options: ClassVar[type[StageOptions]] = EncoderOptions

    def encode(self, batch: Sequence[In]) -> Sequence[Out | OmniError]:
        """One result per item, in order; an error is that item's alone. Must not depend on what shares the batch."""
        raise NotImplementedError

    def cost(self, item: In) -> float:
        """How much work an item is, above 0, in a unit of the stage's own. Requests take turns by it, and ``max_cost``
        bounds what one call of :meth:`encode`, which nothing interrupts, is given. Cheap, runs on the event loop."""
        return 1.0

    def key(self, item: In) -> Message | None:
        """The content that the result depends on, which core hashes with the stage's options and the weights'
        revision into the cache key; None: never cache this item. The default is the whole item."""
        return item


class DecoderOptions(StageOptions):
    """Up to ``max_batch`` streams share a step. The first chunk of a stream takes ``first_chunk`` items, each
    later one ``chunk_growth`` times as many, up to ``max_chunk``."""

    workers: Annotated[int, Field(ge=1, le=64)] = 1
    max_batch: Annotated[int, Field(ge=1, le=4096)] = 16
    first_chunk: Annotated[int, Field(ge=1)] = 1
    chunk_growth: Annotated[float, Field(ge=1)] = 1.0
    max_chunk: Annotated[int, Field(ge=1)] = 1


class DecodeJob(NamedTuple):
    """One stream's share of a step: its state, the new items (may be empty if ``last``)."""

    state: Any
    items: Sequence[Any]
    last: bool


class Decoder(Stage[In, Out]):
    """Stateful work on streams, batched across them: a vocoder, or synthesis sentence by sentence."""

    kind: ClassVar[str] = "decoder"
    Options: ClassVar[type[StageOptions]] = DecoderOptions

    def open(self, first: In) -> Any:
        """State of a new stream, made from its first item (which ``decode`` gets as well)."""
        return None

    def decode(self, batch: Sequence[DecodeJob]) -> Sequence[Sequence[Out] | OmniError]:
        """For every job the outputs that its new items complete (none, one or more), in order; an error ends its stream
        alone, whereas one that is raised ends every stream of the batch, whose states are unknown then.

        With ``last`` the stream ends: give what is still held back. One worker at a time handles a stream.
        """
        raise NotImplementedError

    def discard(self, state: Any) -> None:
        """Free what ``open`` took; called once for every stream, ended or cancelled."""


class Aggregator(Stage[In, Out], Generic[In, Out, State]):
    """Cheap work that joins a stream, run inline on the event loop: it must never block or compute."""

    kind: ClassVar[str] = "aggregator"

    def open(self) -> State:
        raise NotImplementedError

    def add(self, state: State, item: In, source: str) -> Iterable[Out]:
        """Take one item from the stage ``source``; give what can leave already."""
        raise NotImplementedError

    def result(self, state: State) -> Iterable[Out]:
        """The stream has ended: give what is left. Raise a typed error when something is missing."""
        return ()


class AROptions(StageOptions):
    """``engine`` names a registered AR engine; ``auto`` lets core choose and say why. ``parallel_items`` items of one
    request are generated at once (1: each after the other), in the order of which they leave; each is at most ``ahead``
    steps before what the next stage has taken, then it pauses. Options of an engine go under its name, for example
    ``--set ar.torch.page_size=16``, and are checked by that engine."""

    model_config = ConfigDict(frozen=True, extra="allow")

    engine: str = "auto"
    prompt_workers: Annotated[int, Field(ge=1, le=64)] = 2
    parallel_items: Annotated[int, Field(ge=1, le=1024)] = 1
    ahead: Annotated[int, Field(ge=1, le=1_000_000)] = 32

    def engine_options(self) -> dict[str, Any]:
        """What was set under engines' names, by engine."""
        return dict(self.__pydantic_extra__ or {})


class AR(Stage[In, Out]):
    """Autoregressive decoding. The author gives the model and the prompt, the engine is core's.

    ``max_tokens``: positions that the engine gives one request, prompt and output together; core sets it before the
    first prompt is asked for.
    """

    kind: ClassVar[str] = "ar"
    Options: ClassVar[type[StageOptions]] = AROptions
    max_tokens: int = 0

    def model(self) -> ARModel:
        """The model that the engine runs; called once, after ``load``, in a worker thread. Weights belong here and not
        in ``load``: an engine that builds the model elsewhere asks for :meth:`source` instead."""
        raise NotImplementedError

    def source(self) -> ModelSource | None:
        """How another process builds the same model; None: only this one can, which some engines refuse."""
        return None

    def open(self, item: In) -> Any:
        """State of one item's generation, by default the item itself; runs in a worker thread."""
        return item

    def prompt(self, state: Any) -> tuple[Prompt, SamplingParams]:
        """What to feed and how to sample; runs in a worker thread."""
        raise NotImplementedError

    def output(self, state: Any, step: StepOutput) -> Iterable[Out]:
        """Turn one step of the engine into items for the next stage; cheap, runs on the event loop. In the last step
        ``finish_reason`` is set."""
        raise NotImplementedError

    def follows(self, state: Any) -> bool:
        """Whether a finished generation is continued by another one, whose ``prompt`` is asked for with the same state
        before the request's next item begins: for models that speak a long text in turns, each with the earlier ones
        as context. Cheap, runs on the event loop."""
        return False
