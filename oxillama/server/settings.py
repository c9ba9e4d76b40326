"""`ServerConfig`: the server's addresses, models and limits."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from oxillama.arguments import checked_flag, named_fields, unknown
from oxillama.errors import ConfigError
from oxillama.tokenizer import ChatTemplate
from oxillama.tokenizer.builtin_templates import template_source

_POSITIVE = {
    "header_bytes": int,
    "body_bytes": int,
    "image_body_bytes": int,
    "json_depth": int,
    "schema_bytes": int,
    "header_timeout": float,
    "body_timeout": float,
    "idle_timeout": float,
    "write_timeout": float,
    "max_queue": int,
    "max_connections": int,
    "max_loaded": int,
    "max_batch_inputs": int,
    "max_responses": int,
    "max_response_bytes": int,
    "max_sessions": int,
    "stall_timeout": float,
}
_LATE_INSTRUCTIONS = ("refuse", "user")
_LONGEST_NAME = 256  # characters of a model's name in a request
_HOST = re.compile(r"[^\s/:@\[\]]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\sA-Z]+")
_NOT_NEGATIVE = {"port": int, "grace": float, "per_key": int, "sse_ping_interval": float}


class ServerOptions(TypedDict, total=False):
    """The fields of `ServerConfig` as keyword arguments."""

    host: str
    port: int
    model: str | Path | None
    alias: str | None
    models_dir: str | Path | None
    max_loaded: int
    engine: Mapping[str, Any]
    loras: tuple[tuple[str | Path, float], ...]
    chat_template: str | None
    late_instructions: str
    api_keys: tuple[str, ...]
    force: bool
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    header_bytes: int
    body_bytes: int
    image_body_bytes: int
    json_depth: int
    schema_bytes: int
    max_batch_inputs: int
    header_timeout: float
    body_timeout: float
    idle_timeout: float
    write_timeout: float
    sse_ping_interval: float
    max_queue: int
    max_connections: int
    per_key: int
    max_responses: int
    max_response_bytes: int
    max_sessions: int
    sessions_dir: str | Path | None
    grace: float
    stall_timeout: float
    log_prompts: bool
    log_requests: bool


@named_fields
@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """How the server listens and what it refuses. Sizes are in bytes, times in seconds.

    Models:

    - `model`: a GGUF file, None for the embedded model. `alias`: its name to clients.
    - `models_dir`: a folder of further GGUF files, loaded on first use, at most `max_loaded` at
      once.
    - `engine`: keyword arguments of `oxillama.load`.
    - `loras`: adapters of `model` and their scales; requests that name none use all of them.
    - `chat_template`: Jinja text, or the name of a built-in template, that replaces the file's;
      kept as text.
    - `late_instructions`: what becomes of instructions in the midst of a conversation that the chat
      template cannot write there: "refuse", or "user" writes them as the user's.

    Access:

    - `api_keys`: any of them opens every route except /health; without keys there is no check.
    - `force`: allow an address that others can reach, without a key.
    - `cors_origins`: origins whose pages may use the server. `allowed_hosts`: further names that
      the Host header may have.

    Limits:

    - `header_bytes`, `body_bytes`, `image_body_bytes`, `json_depth`: of a request.
    - `schema_bytes`: of a schema, a grammar, or the tools of one request.
    - `max_batch_inputs`: inputs of one embedding request.
    - `header_timeout`, `body_timeout`: for a request's whole head or body. `idle_timeout`: a
      connection without a request. `write_timeout`: a client that does not read.
    - `sse_ping_interval`: the silence of a stream of events after which it sends a comment, 0 for
      none.
    - `max_queue`: requests that may wait in addition to the running ones; more get a 429.
    - `per_key`: requests of one key at once, 0 for no limit.
    - `grace`: the time SIGTERM leaves to running requests.
    - `stall_timeout`: an engine that makes no step for this long while requests run is reported as
      failed.

    State and logs:

    - `sessions_dir`: where named sessions are saved, None refuses to save. `max_sessions`: how
      many are in memory.
    - `max_responses`, `max_response_bytes`: how many stored responses are kept, and bytes of the
      requests that they came from; as many replies of threads.
    - `log_prompts`: log the bodies of requests. `log_requests`: log a line for each request.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    model: str | Path | None = None
    alias: str | None = None
    models_dir: str | Path | None = None
    max_loaded: int = 2
    engine: Mapping[str, Any] = field(default_factory=dict)
    loras: tuple[tuple[str | Path, float], ...] = ()
    chat_template: str | None = None
    late_instructions: str = "refuse"
    api_keys: tuple[str, ...] = ()
    force: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    header_bytes: int = 32 << 10
    body_bytes: int = 8 << 20
    image_body_bytes: int = 64 << 20
    json_depth: int = 64
    schema_bytes: int = 256 << 10
    max_batch_inputs: int = 2048
    header_timeout: float = 15.0
    body_timeout: float = 60.0
    idle_timeout: float = 30.0
    write_timeout: float = 60.0
    sse_ping_interval: float = 30.0
    max_queue: int = 512
    max_connections: int = 2048
    per_key: int = 0
    max_responses: int = 1024
    max_response_bytes: int = 256 << 20
    max_sessions: int = 64
    sessions_dir: str | Path | None = None
    grace: float = 30.0
    stall_timeout: float = 60.0
    log_prompts: bool = False
    log_requests: bool = True

    def __post_init__(self) -> None:
        for name, kind in (*_POSITIVE.items(), *_NOT_NEGATIVE.items()):
            value = getattr(self, name)
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or (kind is int and not isinstance(value, int))
                or not math.isfinite(value)
                or value < 0
                or (name in _POSITIVE and value == 0)
            ):
                wanted = "an integer" if kind is int else "a finite number"
                least = "above 0" if name in _POSITIVE else "of 0 or more"
                raise ConfigError(f"{name}: found {value!r}, wanted {wanted} {least}")
        for name in ("force", "log_prompts", "log_requests"):
            checked_flag(name, getattr(self, name))
        if not isinstance(self.host, str):
            raise ConfigError(f"host: found {self.host!r}, wanted a text")
        for name in ("api_keys", "cors_origins", "allowed_hosts"):
            object.__setattr__(self, name, _texts(name, getattr(self, name)))
        if self.loras:
            from oxillama.lora.stack import paths_with_scales

            pairs = paths_with_scales(self.loras, option="loras")
            object.__setattr__(self, "loras", tuple(pairs))
        if self.chat_template is not None:
            source = template_source(self.chat_template)
            ChatTemplate(source).compiled()  # or what is wrong with it
            object.__setattr__(self, "chat_template", source)
        if self.late_instructions not in _LATE_INSTRUCTIONS:
            raise ConfigError(
                f"late_instructions: found {self.late_instructions!r}, wanted "
                f"{' or '.join(_LATE_INSTRUCTIONS)}"
            )
        if self.port > 65535:
            raise ConfigError(f"port: found {self.port}, wanted at most 65535")
        if any(not key or not key.isascii() or key != key.strip() for key in self.api_keys):
            raise ConfigError(
                "api_keys: found an empty key or one with spaces or non-ASCII characters around "
                "or in it, wanted plain ASCII"
            )
        for origin in self.cors_origins:
            if origin not in ("*", "null") and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors_origins: found {origin!r}, wanted '*' or origins as browsers send them: "
                    "http://localhost:3000, in small letters and without a path"
                )
        if self.per_key and not self.api_keys:
            raise ConfigError("per_key: found without an API key, wanted both")
        for name in self.allowed_hosts:
            if not _HOST.fullmatch(name):
                raise ConfigError(
                    f"allowed_hosts: found {name!r}, wanted a name or an address without a port: "
                    "llm.example, or [::1]"
                )
        if "*" in self.cors_origins and self.api_keys:
            raise ConfigError("cors_origins: found '*' and an API key, wanted the origins by name")
        if self.alias is not None and not 1 <= len(self.alias) <= _LONGEST_NAME:
            raise ConfigError(
                f"alias: found {len(self.alias)} characters, wanted 1 to {_LONGEST_NAME}"
            )
        if self.alias is not None and self.model is None and self.models_dir is not None:
            raise ConfigError("alias: found without a model, wanted the model that it names")
        if self.loras and self.model is None and self.models_dir is not None:
            raise ConfigError("loras: found without a model, wanted the model that they change")
        if self.models_dir is not None and not Path(self.models_dir).is_dir():
            raise ConfigError(f"models_dir: {self.models_dir} is not a folder, wanted one")
        if not self.loopback and not self.api_keys and not self.force:
            raise ConfigError(
                f"host: found {self.host!r}, which others can reach, without an API key; "
                "wanted --api-key, or --force to serve everybody"
            )

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names allowed in a `Host` header, None for any. On a loopback address without a key,
        a page of another site must not reach the server through a name of its own (DNS rebinding).
        """
        if self.api_keys or not self.loopback:
            return frozenset(map(str.lower, self.allowed_hosts)) or None
        return frozenset(
            {
                "localhost",
                "127.0.0.1",
                "[::1]",
                self.host.lower(),
                *map(str.lower, self.allowed_hosts),
            }
        )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ServerConfig:
        """A config from keyword arguments; ConfigError names an unknown one."""
        known = {each.name for each in fields(cls)}
        for name in given:
            if name not in known:
                raise unknown(name, known, place="an option of the server")
        return cls(**given)


def _texts(name: str, given: Any) -> tuple[str, ...]:
    """A list of texts as a tuple. ConfigError for a single text, whose letters would be keys or
    hosts; it does not show what may be a key.
    """
    if isinstance(given, (str, bytes)) or not hasattr(given, "__iter__"):
        raise ConfigError(f"{name}: found {type(given).__name__}, wanted a list of texts")
    texts = tuple(given)
    for each in texts:
        if not isinstance(each, str):
            raise ConfigError(f"{name}: found {type(each).__name__} among them, wanted texts")
    return texts
