"""Chat handlers of llama-cpp-python: the image encoder of a `Llama(chat_handler=...)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn, Self

from oxillama.compat.arguments import OF_HUB, refuse
from oxillama.errors import ConfigError
from oxillama.stores.hub import fetch_encoder


@dataclass(frozen=True)
class MTMDChatHandler:
    """The file (mmproj) of a model's image encoder; chats are written by the model's own template.
    `use_gpu` and `verbose` have no effect.
    """

    clip_model_path: str
    verbose: bool = True
    use_gpu: bool = True

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        additional_files: list[str] | None = None,
        local_dir: str | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | None = None,
        verbose: bool = True,
        use_gpu: bool = True,
    ) -> Self:
        """An encoder of the Hugging Face hub, kept in the hub's own cache folder; filename may be a
        pattern ("*mmproj*").
        """
        given = locals()
        for name, only in OF_HUB:
            refuse(name, given[name], only)
        return cls(str(fetch_encoder(repo_id, filename)), verbose, use_gpu)


class Gemma4ChatHandler(MTMDChatHandler):
    """The same: the template of a Gemma 4 file."""


class _OfItsOwn:
    """Not supported: llama-cpp-python writes chats in a form that stands in the handler."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._refuse()

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> NoReturn:
        cls._refuse()

    @classmethod
    def _refuse(cls) -> NoReturn:
        raise ConfigError(
            f"{cls.__name__}: its form of chats is not done here, wanted MTMDChatHandler, which "
            "has the template of the model's file"
        )


class Llama3VisionAlphaChatHandler(_OfItsOwn):
    """Not supported."""


class Llava15ChatHandler(_OfItsOwn):
    """Not supported."""


class Llava16ChatHandler(_OfItsOwn):
    """Not supported."""


class MiniCPMv26ChatHandler(_OfItsOwn):
    """Not supported."""


class MoondreamChatHandler(_OfItsOwn):
    """Not supported."""


class NanoLlavaChatHandler(_OfItsOwn):
    """Not supported."""


class ObsidianChatHandler(_OfItsOwn):
    """Not supported."""


class Qwen25VLChatHandler(_OfItsOwn):
    """Not supported."""


__all__ = [name for name in globals() if name.endswith("ChatHandler")]
