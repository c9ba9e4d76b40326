"""`JsonSchemaCompiler`: JSON Schemas as grammars, many with one set of options."""

from collections.abc import Mapping
from typing import Any

from oxillama.grammar.automaton import Grammar, GrammarLimits, limits_of
from oxillama.grammar.collector import paused_collector
from oxillama.grammar.schema.compiler import Order, SchemaCompiler, Whitespace, schema_errors


class JsonSchemaCompiler:
    """Compiles schemas with one set of options.

    - `whitespace`: "compact" (as `json.dumps(value, separators=(",", ":"), ensure_ascii=False)`
      writes) or "flexible" (spaces and line breaks around punctuation, any escapes).
    - `order`: "declared" (members in the schema's order) or "free" (any order).
    - `closed`: an object that lists properties has no others unless its schema says so. None
      applies this to classes and `ClosedSchema`s only.
    - `limits`: None for the defaults of `GrammarLimits`.
    - `resources`: further schemas by absolute URI that `$ref` may name.
    """

    def __init__(
        self,
        *,
        whitespace: Whitespace = "compact",
        order: Order = "declared",
        closed: bool | None = None,
        limits: GrammarLimits | None = None,
        resources: Mapping[str, object] | None = None,
    ) -> None:
        self.limits = limits_of(limits)
        self._compiler = SchemaCompiler(
            whitespace=whitespace, order=order, closed=closed, resources=resources
        )

    def compile(self, schema: Any, strict: bool = True) -> Grammar:
        """The grammar of a schema: JSON text, a dict or bool, a Pydantic model, dataclass or
        TypedDict, or a type made of these.

        GrammarError with JSON pointer and keyword if it is malformed, cannot be enforced, or has no
        valid value. With strict=False, a keyword that cannot be enforced gives a warning
        (`GrammarWarning`, also in `Grammar.warnings`) and is left out. Python's garbage collector
        is paused meanwhile (`paused_collector`).
        """
        with schema_errors(), paused_collector():
            return Grammar.of_compiled(
                self._compiler.compile(schema, strict=strict), limits=self.limits
            )
