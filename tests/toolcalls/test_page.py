"""The conversation with tools in docs/chat.md runs as it stands."""

import re
from pathlib import Path

import oxillama

PAGE = Path(__file__).resolve().parents[2] / "docs" / "chat.md"


def test_the_conversation_with_tools_runs_as_it_stands(capsys):
    (block,) = (
        each
        for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        if "ToolDispatcher" in each
    )
    names = {"oxillama": oxillama}
    exec(compile(block, str(PAGE), "exec"), names)
    out = capsys.readouterr().out
    (result,) = names["answer"].results
    assert (
        result.ok
        and out.startswith(f"{result.content} {names['answer'].content}\n")
        and names["answer"].rounds == 2
    )
    assert (
        "\ncall  weather" in out
        and "\narguments " in out
        and "\ncall_end  weather" in out
        and out.splitlines()[-1].startswith("end")
    )
