"""`SchemaCompiler`: a JSON Schema (drafts 4 to 2020-12) as the rules of a grammar of exactly the
JSON texts that are valid under it.

The policy is *enforce or raise*: every accepted text is valid; what cannot be enforced raises
`GrammarError` with the JSON pointer and keyword (`strict=False`: a warning, and the keyword is left
out). Where a language is cut down, it is always to fewer texts: members come in the declared order
(an option frees it), numbers have bounded digits and no exponent where they are constrained, text
nests up to `GrammarLimits.max_depth`. The steps: `document` resolves references, `case` turns
logic into cases, `emit` writes rules.
"""

import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from oxillama._core.schemas import FALSE, TRUE
from oxillama.arguments import is_one_of
from oxillama.errors import GrammarError, warn
from oxillama.grammar.schema.classes import ClosedSchema, schema_of
from oxillama.grammar.schema.document import Document
from oxillama.grammar.schema.emit import Emitter
from oxillama.grammar.schema.expander import Expander
from oxillama.grammar.schema.values import load

Whitespace = Literal["compact", "flexible"]
Order = Literal["declared", "free"]


class GrammarWarning(UserWarning):
    """Something a schema asks for is not enforced (only with `strict=False`)."""


@dataclass(frozen=True, slots=True)
class CompiledSchema:
    """The rules of a schema. deferred: writes the deferred rules, None if all are written. origin:
    the result of `Grammar.describe`, None for a grammar that is not described by a schema.
    """

    names: Sequence[str]
    rules: list[tuple]
    warnings: Sequence[str]
    deferred: Emitter | None
    origin: dict[str, Any] | None


class SchemaCompiler:
    """Compiles schemas with one set of options, those of `JsonSchemaCompiler`."""

    def __init__(
        self,
        *,
        whitespace: Whitespace = "compact",
        order: Order = "declared",
        closed: bool | None = None,
        resources: Mapping[str, object] | None = None,
    ) -> None:
        for name, value, wanted in (
            ("whitespace", whitespace, typing.get_args(Whitespace)),
            ("order", order, typing.get_args(Order)),
        ):
            if not is_one_of(value, wanted):
                raise GrammarError(f"{name}: found {value!r:.50}, wanted one of {wanted}")
        if not is_one_of(closed, (None, True, False)):
            raise GrammarError(f"closed: found {closed!r:.50}, wanted None, True or False")
        self.whitespace, self.order, self.closed = whitespace, order, closed
        if resources is not None and not (
            isinstance(resources, Mapping) and all(isinstance(uri, str) for uri in resources)
        ):
            raise GrammarError(
                f"resources: found {resources!r:.60}, wanted a mapping of URIs to schemas"
            )
        self.resources = {
            uri.rstrip("#"): load(schema, f"resource {uri}")
            for uri, schema in (resources or {}).items()
        }

    def compile(self, schema: Any, *, strict: bool) -> CompiledSchema:
        """The rules of a schema; call it within `schema_errors`."""
        if not isinstance(strict, bool):
            raise GrammarError(f"strict: found {strict!r:.50}, wanted True or False")
        notes: list[str] = []

        def refuse(pointer: str, keyword: str, why: str) -> None:
            why = why.removeprefix("regular: ").removeprefix("schema: ")
            text = (
                why
                if why.startswith("schema /")
                else f"schema {pointer}: keyword {keyword!r}: {why}"
            )
            if strict:
                raise GrammarError(text)
            if text not in notes:
                notes.append(text)
                warn(text, GrammarWarning)

        source = schema_of(schema)
        closed = isinstance(source, ClosedSchema) if self.closed is None else self.closed
        document = Document(load(source), self.resources)
        document.prepare()
        emitter = Emitter(
            document,
            Expander(document, refuse, loose=self.order == "free" and not closed),
            flexible=self.whitespace == "flexible",
            free_order=self.order == "free",
            closed=closed,
            refuse=refuse,
        )
        root = (document.root, True)
        if root == FALSE or document.schemas[document.root] is False:
            raise GrammarError("schema /: nothing is valid under the schema false")
        deferred = emitter.run(frozenset() if root == TRUE else frozenset([root]))
        return CompiledSchema(
            () if deferred else emitter.names,
            typing.cast(list[tuple], emitter.rules),  # None only where deferred
            notes,
            emitter if deferred else None,
            self._origin(source, strict, closed),
        )

    def _origin(self, schema: Any, strict: bool, closed: bool) -> dict[str, Any] | None:
        """What `Grammar.describe` returns for a schema; None with resources, which would be part of
        it (then it returns GBNF).
        """
        if self.resources:
            return None
        text = (
            schema
            if isinstance(schema, str)
            else schema.decode("utf-8")
            if isinstance(schema, bytes)
            else json.dumps(schema)
        )
        return {
            "schema": text,
            "whitespace": self.whitespace,
            "order": self.order,
            "strict": strict,
            "closed": closed,
        }


@contextmanager
def schema_errors() -> Iterator[None]:
    """Errors of a grammar's rules, in the words of the schema they come from."""
    try:
        yield
    except RecursionError:
        raise GrammarError("schema: nested too deeply") from None
    except GrammarError as error:
        if "never finish" in str(error):
            raise GrammarError("schema /: nothing is valid under this schema") from None
        if "left recursion" in str(error):
            raise GrammarError(
                "schema: a reference leads back to itself without consuming anything"
            ) from None
        raise
