"""JSON Schema to the rules of a grammar.

compiler   SchemaCompiler: the steps in order
classes    the schema of a Pydantic model, dataclass, TypedDict or type
values     constants of a schema; document: its nodes, references resolved (the nodes themselves
           are numbered in `_core.schemas`)
expander   logic into cases (the loop is `_core.expansion`, one case `_core.cases`), with keywords
           (what holds), negation (what must fail) and validity (values against a schema)
survey     which rules can be written later
emit       cases into rules, with objects, arrays and numbers
spelling   how JSON values are written; numerals: numbers within bounds
formats    string formats as regular expressions
"""
