"""`JsonSchemaCompiler`: JSON Schemas as grammars, many with one set of options."""

from collections.abc import Mapping
from typing import Any

from oxillama.grammar.automaton import Grammar, GrammarLimits
from oxillama.grammar.schema.compiler import Order, SchemaCompiler, Whitespace, schema_errors


class JsonSchemaCompiler:
    """Compiles schemas with one set of options.

    whitespace: "compact" (as `json.dumps(value, separators=(",", ":"), ensure_ascii=False)` writes)
    or "flexible" (spaces and line breaks around punctuation, any escapes). order: "declared" or
    "free". closed: where a schema lists properties and says nothing of others, there are no others;
    None means so for classes and for `ClosedSchema`s. resources: further schemas by absolute URI
    that `$ref` may name.
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
        self.limits = limits
        self._compiler = SchemaCompiler(
            whitespace=whitespace, order=order, closed=closed, resources=resources
        )

    def compile(self, schema: Any, strict: bool = True) -> Grammar:
        """The grammar of a schema: JSON text, a dict or bool, a Pydantic model, dataclass or
        TypedDict.

        Raises `GrammarError` with JSON pointer and keyword for what is malformed or cannot be
        enforced, and for schemas that nothing satisfies. With strict=False what cannot be enforced
        is warned about (`GrammarWarning`, also in `Grammar.warnings`) and left out.
        """
        with schema_errors():
            return Grammar.of_compiled(
                self._compiler.compile(schema, strict=strict), limits=self.limits
            )
