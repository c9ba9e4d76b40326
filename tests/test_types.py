"""What editors and type checkers see: every public name, and every option before it runs."""

import ast
import dataclasses
import inspect
import re
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT, run

import pytest

import oxillama
from oxillama.arguments import CONFIG_NAMES, OPTION_NAMES
from oxillama.compat.llama_cpp import Llama, LlamaOptions
from oxillama.engine.config import ConfigOptions
from oxillama.options import SAMPLING_FIELDS, ChatOptions, GenerateOptions, SamplerFields
from oxillama.server.app import create_app
from oxillama.server.settings import ServerConfig, ServerOptions

PACKAGE = Path(oxillama.__file__).parent
CHECKED = """
import oxillama
engine = oxillama.load("model.gguf", n_ctx=512)
reveal_type(engine)
reveal_type(engine.generate("x", temperature=0, stop=["a"]))
reveal_type(engine.generate(["x", "y"]))
reveal_type(engine.generate([1, 2]))
reveal_type(engine.generate([[1, 2], [3]], n=1))
reveal_type(engine.generate("x", n=4, best_of=8))
reveal_type(engine.generate("x", best_of=2))
reveal_type(engine.generate(["x", "y"], n=2))
count = len("any number")
reveal_type(engine.generate("x", n=count))
reveal_type(engine.generate(word for word in ("x", "y")))
reveal_type(engine.chat([{"role": "user", "content": "x"}]))
reveal_type(engine.chat([{"role": "user", "content": "x"}], n=3, temperature=1))
reveal_type(engine.chat([{"role": "user", "content": "x"}], n=count))
reveal_type(engine.chat([{"role": "user", "content": "x"}], stream=True))
for piece in engine.stream("x"):
    reveal_type(piece)
reveal_type(engine.submit("x", max_tokens=3).result())
reveal_type(engine.submit("x", n=3))
reveal_type(oxillama.AsyncEngine(engine).submit("x").result())
reveal_type(engine.submit_chat([{"role": "user", "content": "x"}]).result())
engine.generate("x", max_tokens="three")
engine.generate("x", no_such_option=1)
oxillama.load(context_size="all")
engine.stream("x", temprature=0)
done = engine.chat([{"role": "user", "content": "x"}], logprobs=1)
reveal_type(done.tool_calls[0].arguments)
reveal_type(done.logprobs[0].raw)
engine.logits("x")
"""


def names_of(kind):
    return set(kind.__annotations__)


def test_the_stub_names_what_the_package_has_from_where_it_is():  # tools/write_stub.py makes it
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    found = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    wanted = {name: home for home, names in oxillama._HOMES.items() for name in names}
    assert found == {**wanted, **dict.fromkeys(oxillama._MODULES, "oxillama")}
    assert {*found, "__version__"} == set(oxillama.__all__)


def test_an_unknown_name_comes_with_what_python_needs_to_suggest_one():
    with pytest.raises(AttributeError, match="module 'oxillama' has no attribute 'laod'") as caught:
        oxillama.laod  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("laod", oxillama)


def test_the_types_of_options_name_every_option():
    options = {field.name for field in dataclasses.fields(oxillama.Options)}
    others = {name for name, own in OPTION_NAMES.items() if own in SAMPLING_FIELDS}
    assert names_of(SamplerFields) == SAMPLING_FIELDS | others
    assert names_of(GenerateOptions) == options | SAMPLING_FIELDS | set(OPTION_NAMES)
    assert names_of(ChatOptions) - names_of(GenerateOptions) == {
        "parallel_tool_calls",
        "response_format",
        "template",
        "tool_choice",
        "tool_format",
        "tools",
    }
    config = {field.name for field in dataclasses.fields(oxillama.EngineConfig)} - {"model_path"}
    assert names_of(ConfigOptions) == config | set(CONFIG_NAMES)


def test_the_types_of_other_options_name_every_option():
    served = {field.name for field in dataclasses.fields(ServerConfig)}
    assert names_of(ServerOptions) == served
    taken = inspect.signature(Llama.__init__).parameters
    named = {name for name, each in taken.items() if each.kind is each.KEYWORD_ONLY}
    assert names_of(LlamaOptions) == named


def test_a_signature_names_every_option():  # what notebooks and shells complete
    engines = (oxillama.InferenceEngine, oxillama.AsyncEngine)
    wanted = {oxillama.load: ConfigOptions, oxillama.load_model_from_bytes: ConfigOptions}
    wanted |= {each.generate: GenerateOptions for each in (*engines, oxillama.SpeculativeEngine)}
    wanted |= {each.chat: ChatOptions for each in engines}
    wanted |= {create_app: ServerOptions, Llama.from_pretrained: LlamaOptions}
    for function, options in wanted.items():
        taken = inspect.signature(function).parameters.values()
        named = {each.name for each in taken if each.kind is each.KEYWORD_ONLY}
        assert names_of(options) <= named, function
    for owner in (oxillama, *engines, oxillama.SpeculativeEngine):
        for name, member in vars(owner).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                taken = inspect.signature(member).parameters.values()
                assert "Unpack" not in str([each.annotation for each in taken]), name
    taken = inspect.signature(oxillama.InferenceEngine.generate).parameters
    assert str(taken["temperature"]) == "temperature: 'float' = ..."


def test_the_package_is_clean():
    done = run(
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", "oxillama"],
        cwd=PACKAGE.parent,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_a_checker_knows_the_types_and_refuses_what_would_be_refused(tmp_path):
    (tmp_path / "use.py").write_text(CHECKED)
    done = run(
        # what the test before this one found of the package is taken from its cache
        [sys.executable, "-m", "mypy", "--ignore-missing-imports", str(tmp_path / "use.py")],
        cwd=PACKAGE.parent,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
    )
    lines = [line.split("use.py:", 1)[1] for line in done.stdout.splitlines() if "use.py:" in line]
    said = [
        line for line in lines if "Possible overload" not in line and "note:     def" not in line
    ]
    revealed = [re.sub(r"(\w+\.)+", "", line.split('"')[1]) for line in said if "Revealed" in line]
    assert revealed == [
        "InferenceEngine",
        "Completion",
        "list[Completion]",
        "Completion",
        "list[Completion]",
        "list[Completion]",
        "list[Completion]",
        "list[list[Completion]]",
        "Completion | list[Completion]",
        "list[Completion]",
        "Completion",
        "list[Completion]",
        "Completion | list[Completion]",
        "Stream[ChatEvent]",
        "Piece",
        "Completion",
        "Request | Siblings",
        "Completion",
        "Completion",
        "dict[str, Any]",
        "float",
    ], done.stdout
    errors = {int(line.split(":")[0]) for line in said if " error: " in line}
    assert errors == {25, 26, 27, 28}, done.stdout


GENERIC = re.compile(
    r"\b(PathLike|Callable|Iterable|Iterator|Sequence|Mapping|list|dict|tuple|set)\b(?!\[)"
)


def test_neighbours_call_an_argument_by_one_name_and_give_it_one_default():
    engine, doors = oxillama.InferenceEngine, oxillama.AsyncEngine
    told = {"pooling": None, "normalize": None, "lora": None}
    for function in (engine.embed, engine.embed_batch, engine.submit_embedding, doors.embed):
        taken = list(inspect.signature(function).parameters.values())[2:]
        assert {each.name: each.default for each in taken} == told
    taken = list(inspect.signature(engine.embed_with).parameters)
    assert taken == ["self", "text", *told]
    for function in (oxillama.TokenizerBridge.encode_batch, oxillama.merge_lora):
        assert inspect.signature(function).parameters["num_threads"].default is None


def test_no_public_signature_leaves_a_type_open():  # which strict pyright reports where it is used
    left = []
    for name in sorted(oxillama._HOME):
        thing = getattr(oxillama, name)
        members = vars(thing).items() if inspect.isclass(thing) else [("", thing)]
        for member, value in members:
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            if not inspect.isfunction(function) or function.__module__ == "typing":
                continue
            if member.startswith("_") and member != "__init__":
                continue
            for taken in inspect.signature(function).parameters.values():
                found = taken.annotation
                if found is taken.empty and taken.name not in ("self", "cls"):
                    left.append((name, member, taken.name))
            for taken, found in function.__annotations__.items():
                told = found.__name__ if isinstance(found, type) else str(found)
                if GENERIC.search(re.sub(r"Literal\[[^]]*]", "", told)):
                    left.append((name, member, taken))
    assert left == [], left
    for of in (oxillama.Completion, oxillama.Piece, oxillama.ChatEvent):
        assert of.__annotations__["logprobs"] == "tuple[Logprobs, ...]"
    assert oxillama.Completion.__annotations__["tool_calls"] == "tuple[ToolCall, ...]"


def test_the_public_face_and_the_examples_are_strictly_clean():
    names = (
        "__init__.pyi api asynchronous loaded chat opening recommended embedded about "
        "engine/request engine/stream completion "
    )
    names += "engine/session engine/generation engine/config engine/embedding engine/beam "
    names += "engine/siblings engine/metrics engine/scheduler arguments options "
    names += "compat/llama_cpp compat/objects compat/handlers compat/arguments "
    names += "compat/shapes compat/constants compat/types"
    files = [name if "." in name else f"{name}.py" for name in names.split()]
    examples = sorted(map(str, (PACKAGE.parent / "examples").rglob("*.py")))
    done = run(
        # other options make another cache
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir=.mypy_cache/strict"]
        + ["--ignore-missing-imports", "--follow-imports=silent"]
        + [*(str(PACKAGE / name) for name in files), *examples],
        cwd=PACKAGE.parent,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_types_of_compiled_modules_are_those_they_have():
    compiled = sorted(path.stem for path in (PACKAGE / "_core").glob("*.pyx"))
    done = run(
        [sys.executable, "-m", "mypy.stubtest", "--concise", "--ignore-missing-stub"]
        + ["--mypy-config-file", str(PACKAGE.parent / "pyproject.toml")]
        + ["--allowlist", str(Path(__file__).with_name("stubtest_allowlist.txt"))]
        # buffers have names of their own from Python 3.12 on
        + ["--ignore-unused-allowlist"] * (sys.version_info >= (3, 12))
        + [f"oxillama._core.{name}" for name in compiled],
        cwd=PACKAGE.parent,
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
