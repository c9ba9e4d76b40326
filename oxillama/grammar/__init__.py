"""Constrained decoding: grammars, positions in them, and which tokens may come next.

nodes        the tree every notation is turned into
gbnf         reads and writes GBNF text; left_recursion: rewrites left-recursive rules as loops
regex        ECMA regular expressions (regex_reader: their text) -> nodes and automata
python_regex Python's regular expressions, matched against names
regular      finite automata over code points: intersection, complement, difference
remembered   results that are kept as far as their bytes fit
schema       JSON Schema -> rules of a grammar
automaton    Grammar, GrammarState
json_schema  JsonSchemaCompiler; collector: compiles without the garbage collector
composer     Composer: the rules of several grammars in one
mask         TokenMasker: state -> bitset of allowed tokens
"""

from oxillama.grammar.automaton import Grammar, GrammarLimits, GrammarState
from oxillama.grammar.json_schema import JsonSchemaCompiler
from oxillama.grammar.mask import TokenMasker, apply_grammar_mask
from oxillama.grammar.schema.classes import ClosedSchema, schema_of
from oxillama.grammar.schema.compiler import GrammarWarning

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
