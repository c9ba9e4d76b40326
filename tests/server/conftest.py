"""A server in this process over the embedded model, asked without a socket; and one on a socket,
for what only sockets show.
"""

import io
import json
import threading
import time

import pytest
from starlette.testclient import TestClient

import oxillama
from oxillama.server import ServerConfig, create_app
from oxillama.server.logs import Log

MODEL = "oxillama-embedded"


class Asking:
    """A client with the lines that the server logged, and the frames of a stream."""

    def __init__(self, client, app, stream):
        self.client, self.app, self._stream = client, app, stream

    def post(self, path, body, **options):
        return self.client.post(path, json=body, **options)

    def get(self, path, **options):
        return self.client.get(path, **options)

    def ok(self, path, body):
        """The JSON of an answer that must be 200."""
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path, body, status=400):
        """The error of an answer that must be refused."""
        answer = self.post(path, body)
        assert answer.status_code == status, answer.text
        return answer.json()["error"]

    def chunks(self, path, body):
        """The data of each frame of a stream; [DONE] stands as that text."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        out = []
        for frame in answer.text.split("\n\n")[:-1]:
            data = frame.split("data: ", 1)[1]
            out.append(data if data == "[DONE]" else json.loads(data))
        return out

    def events(self, path, body):
        """(name, data) of each frame of a stream of named events."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        out = []
        for frame in answer.text.split("\n\n")[:-1]:
            name, data = frame.split("\n")
            out.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return out

    def logged(self):
        """The log's lines so far."""
        return [json.loads(line) for line in self._stream.getvalue().splitlines()]


def asking(**options):
    """A context manager: an `Asking` over a server with these options."""

    class Context:
        def __enter__(self):
            self.stream = io.StringIO()
            config = ServerConfig.of(options)
            app = create_app(config)
            app.state.log = Log(
                self.stream, prompts=config.log_prompts, requests=config.log_requests
            )
            self.client = TestClient(
                app, base_url="http://localhost", raise_server_exceptions=False
            )
            self.client.__enter__()
            end = time.monotonic() + 20
            while app.state.models.default and self.client.get("/health").status_code != 200:
                assert time.monotonic() < end
                time.sleep(0.01)
            return Asking(self.client, app, self.stream)

        def __exit__(self, *given):
            self.client.__exit__(*given)

    return Context()


class Compared(str):
    """A string that counts how often one is compared with another; `times` begins at 0 in a test
    that sets it.
    """

    __slots__ = ()
    __hash__ = str.__hash__
    times = 0

    def __eq__(self, other):
        Compared.times += 1
        return str.__eq__(self, other)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests that leave it as it was."""
    with asking(sessions_dir=tmp_path_factory.mktemp("sessions")) as made:
        yield made


@pytest.fixture(scope="session")
def engine():
    """An engine of its own over the same model: what answers are held against."""
    with oxillama.load() as made:
        yield made


class Listening:
    """A server on a socket, in a thread."""

    def __init__(self, **options):
        from oxillama.server.run import Server, listen

        self.config = ServerConfig.of({"port": 0, "log_requests": False, **options})
        self.app = create_app(self.config)
        self.socket = listen(self.config)
        self.address = self.socket.getsockname()[:2]
        self.server = Server(self.app)
        self.thread = threading.Thread(target=self.server.run, args=([self.socket],), daemon=True)
        self.thread.start()
        end = time.monotonic() + 20
        while not self.app.state.models.loaded():
            assert time.monotonic() < end
            time.sleep(0.01)

    def stop(self):
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def listening():
    """A server on a socket with short time-outs and small limits."""
    made = Listening(
        header_timeout=0.3, body_timeout=0.3, idle_timeout=1.0, write_timeout=0.5, grace=1.0
    )
    yield made
    made.stop()
