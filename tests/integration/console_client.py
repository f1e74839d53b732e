"""A console as a real process, and a small browser for it: cookies, forms, redirects."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from rocketpost.testing.process import ServerProcess

READY = r"The console is ready: (?P<url>\S+)/"
PROGRAM = ("-c", "from rocketpost.cli import rocketpost; rocketpost()")
NAME, PASSWORD = "ada", "correct horse battery"


class Answer(NamedTuple):
    """An answer of the console."""

    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)

    def field(self, name: str) -> str:
        """Return the value of a hidden field."""
        found = re.search(rf'name="{name}" value="([^"]*)"', self.text)
        assert found is not None, f"there is no field {name}"
        return found[1]


class Browser:
    """Makes requests as a browser would, without running scripts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.host = urlsplit(url).netloc
        self.cookies: dict[str, str] = {}

    def request(
        self,
        method: str,
        path: str,
        *,
        fields: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        sent = {"Cookie": "; ".join(f"{key}={value}" for key, value in self.cookies.items())}
        body = None
        if fields is not None:
            body = urlencode(fields)
            sent |= {
                "Content-Type": "application/x-www-form-urlencoded",
                "Sec-Fetch-Site": "same-origin",
            }
        sent |= dict(headers or {})
        try:
            connection.request(
                method, path, body, {key: each for key, each in sent.items() if each}
            )
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
        finally:
            connection.close()
        for value in response.headers.get_all("set-cookie") or []:
            name, _, rest = value.partition("=")
            self.cookies[name] = rest.partition(";")[0]
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, text)

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers=headers)

    def json(self, path: str) -> Any:
        answer = self.get(path, Accept="application/json")
        assert answer.status == 200, answer.text
        return answer.json()

    def post(self, path: str, fields: Mapping[str, str]) -> Answer:
        return self.request("POST", path, fields=fields)

    def csrf(self) -> str:
        """Return the token of the session's forms."""
        return self.get("/settings").field("csrf")

    def log_in(self, name: str = NAME, password: str = PASSWORD) -> Answer:
        return self.post("/login", {"name": name, "password": password, "next": "/"})


class Console(NamedTuple):
    """A running console."""

    process: ServerProcess
    url: str
    link: str
    """The path with which the first user is made; empty if there is one."""

    def browser(self) -> Browser:
        return Browser(self.url)


@contextmanager
def run_console(
    name_servers: str, state: Path, *options: str, environment: dict[str, str] | None = None
) -> Iterator[Console]:
    """Run a console until the context ends, and stop it in order if it still runs."""
    command = ["console", "-n", name_servers, "--port", "0", "--state", str(state)]
    process = ServerProcess(
        [*command, *options], ready=READY, program=PROGRAM, environment=environment
    )
    process.launch()
    try:
        url = process.wait_ready()["url"]
        link = ""
        if not (state / "users.json").exists():
            found = process.wait_for(r"(/invitation\?token=\S+)", seconds=10)
            link = found[1]
        yield Console(process, url, link)
        if process.is_running:
            assert process.stop() == 0
    finally:
        process.kill()


def make_first_user(console: Console) -> Browser:
    """Make the first user through the link, and return a browser with their session."""
    browser = console.browser()
    answer = browser.post(
        "/invitation",
        {
            "token": console.link.partition("token=")[2],
            "name": NAME,
            "password": PASSWORD,
            "again": PASSWORD,
        },
    )
    assert answer.status == 303, answer.text
    return browser
