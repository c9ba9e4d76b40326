"""Constrained decoding: grammars, where one stands in them, and which tokens may come next.

nodes        the tree every notation is turned into
gbnf         reads and writes GBNF text
regex        ECMA regular expressions (regex_reader: their text) -> nodes and automata
regular      finite automata over code points: intersection, complement, difference
automaton    Grammar, GrammarState
mask         TokenMasker: state -> bitset of allowed tokens
spelling     how JSON values are written: characters, constants; numerals: numbers within bounds
formats      string formats as regular expressions
json_schema  JSON Schema -> Grammar; the steps: schema_values and schema_document (constants, references), schema_facts with
             schema_keywords, schema_negation, schema_disjoint, schema_validity and schema_case
             (logic into cases), schema_survey (which rules can be written later), schema_emit,
             schema_objects, schema_arrays, schema_numbers (cases into rules), dataclass_schema
"""

from oxillama.grammar.automaton import Grammar, GrammarLimits, GrammarState
from oxillama.grammar.json_schema import (
    ClosedSchema,
    GrammarWarning,
    JsonSchemaCompiler,
    schema_of,
)
from oxillama.grammar.mask import TokenMasker, apply_grammar_mask

__all__ = [
    "ClosedSchema",
    "Grammar",
    "GrammarLimits",
    "GrammarState",
    "GrammarWarning",
    "JsonSchemaCompiler",
    "TokenMasker",
    "apply_grammar_mask",
    "schema_of",
]
