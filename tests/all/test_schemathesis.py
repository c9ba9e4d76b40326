"""schemathesis over the document that the server gives out: no 5xx, no answer that is not in it."""

import os
import subprocess
import sys

EXAMPLES = int(os.environ.get("OXILLAMA_EXAMPLES", "200"))
CHECKS = (
    "not_a_server_error,status_code_conformance,"
    "content_type_conformance,response_schema_conformance"
)


def test_the_document_holds(url, tmp_path):
    program = (
        "import sys; from schemathesis.cli import schemathesis; "
        "sys.exit(schemathesis(sys.argv[1:]))"
    )
    operations = 40
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            program,
            "run",
            f"{url}/openapi.json",
            "--checks",
            CHECKS,
            "--phases",
            "fuzzing",
            "--max-examples",
            str(EXAMPLES // operations),
            "--seed",
            "1",
            "--request-timeout",
            "30",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
