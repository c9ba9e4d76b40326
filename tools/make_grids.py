"""Writes csrc/formats/grids.h: the lattices of the IQ formats, as published in the `gguf` package,
two or three bits per coordinate.

Run `python tools/make_grids.py` with the test dependencies installed; the output is committed, so
nobody needs to run it to build.
"""

from pathlib import Path

import numpy as np
from gguf import quants

OUT = Path(__file__).resolve().parent.parent / "csrc" / "formats" / "grids.h"

GRIDS = [  # (name, class that holds it, bits per coordinate, what the coordinates mean)
    ("iq2_xxs", quants.IQ2_XXS, 2, "8 coordinates: 0, 1, 2 stand for the magnitudes 8, 25, 43"),
    ("iq2_xs", quants.IQ2_XS, 2, "8 coordinates: 0, 1, 2 stand for the magnitudes 8, 25, 43"),
    ("iq2_s", quants.IQ2_S, 2, "8 coordinates: 0, 1, 2 stand for the magnitudes 8, 25, 43"),
    (
        "iq3_xxs",
        quants.IQ3_XXS,
        3,
        "4 coordinates: 0 .. 7 stand for the magnitudes 4, 12, 20, 28, 36, 44, 52, 62",
    ),
    ("iq3_s", quants.IQ3_S, 3, "4 coordinates: 0 .. 7 stand for the magnitudes 1, 3, 5, .. 15"),
    ("iq1", quants.IQ1_S, 2, "8 coordinates: 0, 1, 2 stand for -1, 0, 1"),
]

HEAD = """\
/* The lattices from which the IQ formats choose their points: tables of published numbers, written
 * by tools/make_grids.py.
 *
 * One number is one point; coordinate j is in bits 2 j, 2 j + 1 (8 coordinates) or 3 j .. 3 j + 2
 * (4 coordinates). Numbers ascend, so points with the same upper half of coordinates are adjacent:
 * ox_runs_* holds where each such run starts and where the last ends, ox_uppers_* its upper half.
 */
#ifndef OX_FORMATS_GRIDS_H
#define OX_FORMATS_GRIDS_H

#include <stdint.h>
"""


def codes(cls: type, bits: int) -> list[int]:
    """The points of one lattice as numbers, coordinate 0 in the lowest bits."""
    cls.init_grid()
    points = np.asarray(cls.grid).reshape(cls.grid_shape)
    levels = {value: index for index, value in enumerate(cls.grid_map)}
    numbers = [sum(levels[int(v)] << bits * j for j, v in enumerate(point)) for point in points]
    if numbers != sorted(set(numbers)):
        raise SystemExit(f"{cls.__name__}: the points do not ascend")
    return numbers


def array(name: str, numbers: list[str]) -> str:
    """A C array of numbers, 16 a line."""
    lines = [
        "    " + ", ".join(numbers[start : start + 16]) + ",\n"
        for start in range(0, len(numbers), 16)
    ]
    return f"static const uint16_t {name}[{len(numbers)}] = {{\n{''.join(lines)}}};\n"


def main() -> None:
    text = [HEAD]
    for name, cls, bits, meaning in GRIDS:
        numbers = codes(cls, bits)
        digits = 4 if bits == 2 else 3
        upper = [n >> (8 if bits == 2 else 6) for n in numbers]
        starts = [i for i, u in enumerate(upper) if i == 0 or u != upper[i - 1]]
        text.append(f"\n/* {meaning} */\n")
        text.append(array(f"ox_grid_{name}", [f"0x{n:0{digits}x}" for n in numbers]))
        text.append(array(f"ox_runs_{name}", [str(n) for n in (*starts, len(numbers))]))
        text.append(array(f"ox_uppers_{name}", [str(upper[n]) for n in starts]))
    text.append("\n#endif\n")
    OUT.write_text("".join(text))


if __name__ == "__main__":
    main()
