"""The document that the server gives out is true: its routes exist, its schemas are schemas."""

import json

import jsonschema

from oxillama.server.openapi import document
from oxillama.server.routes import ROUTES


def test_every_route_is_described(server):
    found = server.get("/openapi.json").json()
    assert found == document(ROUTES)
    for route in ROUTES:
        if not route.hidden:
            operation = found["paths"][route.path.replace(":path}", "}")][route.method.lower()]
            assert operation["summary"] == route.about
            assert ("requestBody" in operation) == (route.body is not None)
            assert {"200", "400", "401", "404", "429", "503"} <= set(operation["responses"])


def test_the_schemas_are_schemas():
    members = {}
    for methods in document(ROUTES)["paths"].values():
        for operation in methods.values():
            if "requestBody" in operation:
                ((kind, content),) = operation["requestBody"]["content"].items()
                assert kind in ("application/json", "multipart/form-data")
                schema = content["schema"]
                # many routes share their members: each is looked at once
                for each in (*schema.get("properties", {}).values(), {**schema, "properties": {}}):
                    members[json.dumps(each, sort_keys=True)] = each
    assert len(members) > 100
    jsonschema.Draft202012Validator.check_schema({"allOf": list(members.values())})


def test_no_schema_says_that_a_stream_is_a_text():
    paths, streams = document(ROUTES)["paths"], 0
    for route in ROUTES:
        if route.streams and not route.hidden:
            operation = paths[route.path.replace(":path}", "}")][route.method.lower()]
            assert operation["responses"]["200"]["content"][route.streams] == {}
            streams += 1
    assert streams


def test_bodies_that_are_served_fit_the_document():
    paths = document(ROUTES)["paths"]
    schema = paths["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    jsonschema.validate(
        {"messages": [{"role": "user", "content": "x"}], "max_tokens": None, "top_k": 5}, schema
    )


def test_errors_fit_the_document(server):
    schemas = document(ROUTES)["components"]["schemas"]
    for path, dialect in (
        ("/v1/completions", "openai"),
        ("/v1/messages", "anthropic"),
        ("/completion", "llama"),
        ("/api/chat", "ollama"),
    ):
        answer = server.post(path, {"nonsense": 1})
        assert answer.status_code == 400
        jsonschema.validate(answer.json(), schemas[f"{dialect}_error"])
