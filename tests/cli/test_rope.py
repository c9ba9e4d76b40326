"""The options of the rotation are the fields of `EngineConfig`, for every command that runs a
model.
"""

import pytest

import oxillama
from tests.cli.test_cli import printed


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (("--rope-scale", "4"), {"rope_freq_scale": 0.25}),
        (("--rope-freq-scale", "0.25"), {"rope_freq_scale": 0.25}),
        (
            (
                "--rope-scaling",
                "yarn",
                "--rope-scale",
                "3",
                "--yarn-orig-ctx",
                "128",
                "--yarn-ext-factor",
                "0.5",
                "--yarn-attn-factor",
                "1.25",
                "--yarn-beta-fast",
                "16",
                "--yarn-beta-slow",
                "2",
                "--rope-freq-base",
                "20000",
            ),
            {
                "rope_scaling": "yarn",
                "rope_freq_scale": 1 / 3,
                "yarn_orig_ctx": 128,
                "yarn_ext_factor": 0.5,
                "yarn_attn_factor": 1.25,
                "yarn_beta_fast": 16,
                "yarn_beta_slow": 2,
                "rope_freq_base": 20000,
            },
        ),
    ],
)
def test_run_rotates_as_its_options_say(capsys, options, given):
    code, out, _ = printed(
        capsys, "run", "-p", "Once upon a time", "-n", "24", "--temp", "0", *options
    )
    with oxillama.load(**given) as engine:
        text = engine.generate(
            "Once upon a time", max_tokens=24, sampler=oxillama.SamplerConfig(temperature=0.0)
        ).text
    assert code == 0 and out == f"Once upon a time{text}\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rope-scale", "0"), ("--rope-scale", "0.0")),
        (("--rope-freq-scale", "-1"), ("rope_freq_scale", "-1.0")),
        (("--yarn-orig-ctx", "64"), ("yarn_orig_ctx", "64", "'linear'")),
    ],
)
def test_what_cannot_be_rotated_by_is_one_line_and_code_1(capsys, options, words):
    code, _, err = printed(capsys, "doctor", *options)
    assert (
        code == 1
        and err.startswith("oxillama: ")
        and err.count("\n") == 1
        and all(word in err for word in words)
    )
