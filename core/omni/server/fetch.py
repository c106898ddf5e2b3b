"""Fetching audio from an address that a client gave, without becoming its way into the local network.

Every name is resolved here, all of its addresses are checked, and the connection goes to an address that was
checked: a name that changes its mind in between (DNS rebinding) gains nothing. Redirects are followed by the
same rules. No proxy, no cookies, no credentials, no compression.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from omni.errors import BadRequest
from omni.server.body import Share
from omni.server.errors import shown
from omni.server.settings import MIB, ServerSettings

if TYPE_CHECKING:
    import httpx

_REDIRECTS = 3
_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that has been given out to the internet so far; old and new special ranges, NAT64 and IPv4-compatible addresses
lie outside."""
_NOT_PUBLIC = [
    ipaddress.ip_network(net)
    # Protocols' own (Teredo among them), 6to4 and documentation inside of that; relays of 6to4.
    for net in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "192.88.99.0/24")
]


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the open internet and to nothing nearer."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip not in _UNICAST or ip.scope_id is not None:
            return False
    if any(ip in net for net in _NOT_PUBLIC):
        return False
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or ip.is_unspecified or ip.is_loopback)


async def fetch(url: str, settings: ServerSettings, param: str, share: Share) -> NDArray[np.uint8]:
    """The bytes behind an http or https URL, at most ``max_reference_mb`` of them; ``share`` holds them.

    Raises:
        Busy, TooLarge: there is no room for them.
        BadRequest: the address is not allowed, does not answer in time, or answers with an error or too much.
    """
    import httpx

    limit = int(settings.max_reference_mb * MIB)
    try:
        async with (
            asyncio.timeout(settings.fetch_seconds),
            httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=settings.fetch_seconds) as client,
        ):
            for _ in range(_REDIRECTS + 1):
                request = await _request(client, url, settings, param)
                response = await client.send(request, stream=True)
                try:
                    if response.has_redirect_location:
                        # The request's own URL holds an IP address in place of the name.
                        url = str(httpx.URL(url).join(response.headers["location"]))
                        continue
                    return await _read(response, limit, param, share)
                finally:
                    await response.aclose()
    except TimeoutError:
        raise _refusal(f"did not answer within {settings.fetch_seconds:g} s", url, param) from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise _refusal(f"cannot be fetched: {type(error).__name__}", url, param) from error
    raise _refusal(f"redirects more than {_REDIRECTS} times", url, param)


async def _request(client: httpx.AsyncClient, url: str, settings: ServerSettings, param: str) -> httpx.Request:
    """A request to a checked address that still names the host, in its header and in TLS."""
    import httpx

    parsed = httpx.URL(url)
    if parsed.scheme not in ("http", "https") or not parsed.host or parsed.userinfo:
        raise _refusal("must be http or https, with a host and without a password", url, param)
    address = await _resolve(parsed, settings, url, param)
    return client.build_request(
        "GET",
        parsed.copy_with(host=address, fragment=None),
        headers={"host": parsed.netloc.decode("ascii"), "accept-encoding": "identity", "user-agent": "omni"},
        extensions={"sni_hostname": parsed.host},
    )


async def _resolve(parsed: httpx.URL, settings: ServerSettings, url: str, param: str) -> str:
    port = parsed.port or (443 if parsed.scheme == "https" else 80)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parsed.host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise _refusal("has a host that cannot be found", url, param) from None
    addresses = [str(entry[4][0]) for entry in found]
    if not settings.allow_private_urls and not all(is_public(address) for address in addresses):
        raise _refusal("leads to a private address, which this server does not fetch from", url, param)
    return addresses[0]


async def _read(response: httpx.Response, limit: int, param: str, share: Share) -> NDArray[np.uint8]:
    if response.status_code != 200:
        raise BadRequest(f"{param!r}: the address answered with status {response.status_code}", param=param)
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > limit:
            raise BadRequest(f"{param!r}: the file is larger than {round(limit / MIB, 2):g} MiB", param=param)
        share.take(len(chunk))
    return np.frombuffer(body, np.uint8)


def _refusal(text: str, url: str, param: str) -> BadRequest:
    return BadRequest(f"{param!r}: {shown(url, 100)} {text}", param=param, code="invalid_url")
