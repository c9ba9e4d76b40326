"""The engines and models that the engine's tests share, too."""

from tests.engine.conftest import engine, model, small

__all__ = ["engine", "model", "small"]
