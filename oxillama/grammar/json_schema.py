"""`JsonSchemaCompiler`: a JSON Schema (drafts 4 to 2020-12) as a grammar of exactly the JSON texts
that are valid under it.

The policy is *enforce or raise*: every accepted text is valid; what cannot be enforced raises
`GrammarError` with the JSON pointer and keyword (`strict=False`: a warning, and the keyword is left
out). Where a language is cut down, it is always to fewer texts: members come in the declared order
(an option frees it), numbers have bounded digits and no exponent where they are constrained, text
nests up to `GrammarLimits.max_depth`. The steps: `schema_document` resolves references,
`schema_facts` turns logic into cases, `schema_emit` writes.
"""

import dataclasses
import json
import sys
import typing
import warnings
from collections.abc import Mapping

from oxillama.errors import GrammarError
from oxillama.grammar.automaton import Grammar, GrammarLimits
from oxillama.grammar.dataclass_schema import class_schema
from oxillama.grammar.schema_document import FALSE, TRUE, Document
from oxillama.grammar.schema_emit import Emitter
from oxillama.grammar.schema_facts import Expander
from oxillama.grammar.schema_values import load

ORDERS = ("declared", "free")
WHITESPACE = ("compact", "flexible")


class GrammarWarning(UserWarning):
    """Something a schema asks for is not enforced (only with `strict=False`)."""


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
        whitespace: str = "compact",
        order: str = "declared",
        closed: bool | None = None,
        limits: GrammarLimits | None = None,
        resources: Mapping[str, object] | None = None,
    ):
        if whitespace not in WHITESPACE:
            raise GrammarError(f"whitespace: {whitespace!r} found, one of {WHITESPACE} wanted")
        if order not in ORDERS:
            raise GrammarError(f"order: {order!r} found, one of {ORDERS} wanted")
        if closed not in (None, True, False):
            raise GrammarError(f"closed: {closed!r} found, None, True or False wanted")
        self.whitespace, self.order, self.closed = whitespace, order, closed
        self.limits = limits or GrammarLimits(max_repetition=1 << 30)
        self.resources = {
            uri.rstrip("#"): load(schema, f"resource {uri}")
            for uri, schema in (resources or {}).items()
        }

    def compile(self, schema, strict: bool = True) -> Grammar:
        """The grammar of a schema: JSON text, a dict or bool, a Pydantic model, dataclass or TypedDict.

        Raises `GrammarError` with JSON pointer and keyword for what is malformed or cannot be
        enforced, and for schemas that nothing satisfies. With strict=False what cannot be enforced
        is warned about (`GrammarWarning`, also in `Grammar.warnings`) and left out.
        """
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
                warnings.warn(text, GrammarWarning, stacklevel=3)

        source = schema_of(schema)
        closed = isinstance(source, ClosedSchema) if self.closed is None else self.closed
        try:
            document = Document(load(source), self.resources)
            document.refuse_loops()
            expander = Expander(document, refuse)
            emitter = Emitter(
                document,
                expander,
                flexible=self.whitespace == "flexible",
                free_order=self.order == "free",
                closed=closed,
                refuse=refuse,
            )
            root = (document.root, True)
            if root == FALSE or document.schemas[document.root] is False:
                raise GrammarError("schema /: nothing is valid under the schema false")
            deferred = emitter.run(frozenset() if root == TRUE else frozenset([root]))
            return Grammar(
                () if deferred else emitter.names,
                emitter.rules,
                limits=self.limits,
                warnings=notes,
                deferred=emitter if deferred else None,
                origin=self._origin(source, strict, closed),
            )
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

    def _origin(self, schema, strict: bool, closed: bool) -> dict | None:
        """What `Grammar.describe` tells of a schema; None where resources would have to be told too
        (then it is told as GBNF).
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


class ClosedSchema(dict):
    """A schema whose objects have the members that they list and no others, unless they say what
    others may be (`additionalProperties`, `patternProperties`, `unevaluatedProperties`), as the
    strict mode of hosted APIs and llama.cpp read schemas.
    """

    def __repr__(self) -> str:
        return f"ClosedSchema({super().__repr__()})"


def schema_of(source):
    """The schema of a Pydantic model or dataclass or TypedDict, closed; anything else as it is."""
    if not isinstance(source, type):
        return source
    describe = getattr(source, "model_json_schema", None)
    if callable(describe):
        return ClosedSchema(describe())
    if hasattr(source, "__pydantic_core_schema__"):
        # a dataclass of pydantic's, which is loaded then
        return ClosedSchema(sys.modules["pydantic"].TypeAdapter(source).json_schema())
    if dataclasses.is_dataclass(source) or typing.is_typeddict(source):
        return ClosedSchema(class_schema(source))
    return source
