"""JSON Schema to the rules of a grammar.

compiler   SchemaCompiler: the steps in order
classes    the schema of a Pydantic model, dataclass or TypedDict
values     constants of a schema; document: its nodes, references resolved
expander   logic into cases, with keywords (what holds), negation (what must fail), disjoint
           (branches of oneOf), entailment (what a case meets already), validity (constants
           against a schema) and case (one case)
survey     which rules can be written later
emit       cases into rules, with objects, arrays and numbers
spelling   how JSON values are written; numerals: numbers within bounds
formats    string formats as regular expressions
"""
