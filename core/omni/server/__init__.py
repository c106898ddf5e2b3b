"""The HTTP server: OpenAI's audio endpoints over the recipes of a :class:`omni.service.Service`."""

from omni.server.settings import ServerSettings

__all__ = ["ServerSettings"]
