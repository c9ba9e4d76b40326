#!/usr/bin/env python3
"""Writes schemas of strings as programs often bound them, one file each, for `measure_masks.py`:

mask_cases.py FOLDER
measure_masks.py VOCABULARY.gguf FOLDER --every 1 --each --peer PYTHON
"""

import json
import sys
from pathlib import Path

TEXT = "The quick brown fox jumps over the lazy dog. " * 6

CASES: dict[str, tuple[dict, object]] = {
    "label of 63": (
        {"pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
        "my-very-long-service-name-0123",
    ),
    "slug of 100": (
        {"pattern": "^[a-z0-9]+(?:-[a-z0-9]+)*$", "maxLength": 100},
        "hello-world-this-is-a-slug-of-some-words",
    ),
    "email, 254": (
        {"format": "email", "maxLength": 254},
        "john.smith.the.third@example-company.co.uk",
    ),
    "uri, 2083": (
        {"format": "uri", "maxLength": 2083},
        "https://www.example.com/path/to/thing?query=1&b=2#frag",
    ),
    "hostname": ({"format": "hostname"}, "a.very.long.host-name.example.com"),
    "text of 280": ({"minLength": 1, "maxLength": 280}, TEXT[:250]),
    "a line of 280": ({"pattern": "^[^\\n]{1,280}$"}, TEXT[:250]),
    "printable, 500": ({"pattern": "^[ -~]{1,500}$"}, TEXT[:250]),
    "not blank, 200": ({"pattern": "\\S", "maxLength": 200}, TEXT[:150]),
    "letters, 80": ({"pattern": "^[A-Za-z ,.'-]{2,80}$"}, TEXT[:60]),
    "letters of Unicode, 60": (
        {"pattern": "^[\\p{L}\\p{M} .'-]+$", "maxLength": 60},
        "Jean-Luc Picard du Château Élysée",
    ),
    "phone": ({"pattern": "^\\+?[0-9 ()-]{7,20}$"}, "+41 (0)44 123 45 67"),
    "date and time": ({"format": "date-time"}, "2026-11-26T08:00:00Z"),
    "uuid": ({"format": "uuid"}, "123e4567-e89b-12d3-a456-426614174000"),
    "base64 of 1000": (
        {
            "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            "maxLength": 1000,
        },
        "VGhlIHF1aWNrIGJyb3duIGZveCBqdW1wcyBvdmVy",
    ),
    "one of 200": (
        {"enum": [f"value_{i}_{'abc'[i % 3]}" for i in range(200)]},
        "value_77_c",
    ),
    "one of 5000": ({"enum": [f"item {i}" for i in range(5000)]}, "item 4321"),
}


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (schema, value)) in enumerate(CASES.items()):
        case = {
            "schema": {
                "type": "object",
                "properties": {"value": {"type": "string", **schema}},
                "required": ["value"],
                "additionalProperties": False,
            },
            "tests": [{"data": {"value": value}, "valid": True}],
        }
        (folder / f"{number:02} {name}.json").write_text(json.dumps(case))


if __name__ == "__main__":
    main()
