"""Decide who may open the page, and which of Gradio's addresses the page answers."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from localscale.errors import ConfigError

__all__ = ["OnlyThePage", "check_password", "is_loopback", "password_check"]

SHORTEST = 8  # characters of a password
# Gradio reads files, fetches other servers' pages and keeps histories at these addresses; the page needs none of them.
CLOSED = (
    *("file", "proxy=", "stream/", "process_recording", "custom_component", "component_server", "run-history", "runs"),
    *("deep_link", "vibe", "undo-vibe", "dev/", "monitoring", "openapi.json", "info"),
)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class OnlyThePage:
    """An ASGI middleware that answers 404 at every address below which Gradio would read files or other servers."""

    def __init__(self, app: Callable[[dict[str, Any], Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_closed(scope["path"]):
            await self.app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"Not Found"})


def is_closed(path: str) -> bool:
    """Return whether the page does not answer at this path, which is decoded and may repeat slashes.

    >>> is_closed("/gradio_api/file=/etc/passwd"), is_closed("//file/etc"), is_closed("/gradio_api/queue/join")
    (True, True, False)
    """
    parts = [part for part in path.lower().split("/") if part]
    rest = "/".join(parts[1:] if parts[:1] == ["gradio_api"] else parts)
    return ".." in parts or rest.startswith(CLOSED)


def check_password(host: str, password: str | None, *, no_password: bool) -> None:
    """Raise ``ConfigError`` if other machines could open the page and nothing was said about a password."""
    if password is not None and no_password:
        raise ConfigError("--password and --no-password contradict each other; give one of them")
    if password is not None and len(password) < SHORTEST:
        raise ConfigError(f"--password has {len(password)} characters; expected at least {SHORTEST}")
    if password is None and not no_password and not is_loopback(host):
        raise ConfigError(
            f"--host {host} lets other machines open the page; give --password TEXT, which visitors must then type, or "
            "--no-password if everybody who reaches this machine may open it"
        )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach ``host``; a name that is unknown counts as reachable.

    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, False)
    """
    if not host:
        return False
    try:
        found = {str(address[0]) for *_, address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
        return bool(found) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)
    except (OSError, UnicodeError, ValueError):
        return False


def password_check(password: str) -> Callable[[str, str], bool]:
    """Return Gradio's check of a user name, which may be any, and a password, in constant time."""
    return lambda user, given: hmac.compare_digest(given.encode(errors="replace"), password.encode(errors="replace"))
