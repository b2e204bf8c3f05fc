"""The server of the live view: files only, loopback or a token, a sentence for everything that is missing."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import pytest

from offbeat.live.server import make_app, token_for


class Client:
    """Asks the application without a network, and keeps its cookies. Starlette's own client warns of its imports."""

    def __init__(self, root: Path, token: str | None) -> None:
        self._transport = httpx.ASGITransport(make_app(root, token))
        self._cookies = httpx.Cookies()

    def get(self, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self._transport, base_url="http://127.0.0.1:8765", cookies=self._cookies
            ) as asking:
                answer = await asking.request(method, path, headers=headers)
                self._cookies.update(asking.cookies)
                return answer

        with ThreadPoolExecutor(1) as threads:  # Playwright keeps an event loop in this one
            return threads.submit(asyncio.run, ask()).result()


def client(root: Path, token: str | None = None) -> Client:
    return Client(root, token)


def view(root: Path, name: str) -> dict[str, Any]:
    answer = client(root).get(f"/data/{name}")
    assert answer.status_code == 200, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


def test_the_list_has_groups_and_runs_and_the_page_asks_for_them(results: Path) -> None:
    answer = client(results).get("/data").json()
    assert [(line["name"], line["state"]) for line in answer["index"]] == [("both", "interrupted")]
    assert "4 of 4 runs finished" in answer["index"][0]["what"]
    page = client(results).get("/view/both").text
    assert '"source":"/data/both"' in page and "connect-src 'self'" in page


def test_a_group_and_its_runs_are_shown(results: Path) -> None:
    shown = view(results, "both")
    assert len(shown["runs"]) == 4 and shown["runs"][0]["views"]["strip"]["orders"] > 5
    assert dict(shown["facts"])["runs"] == "4 of 4 finished"
    one = view(results, "both/fedavg-seed0")
    assert dict(one["facts"])["state"] == "finished" and one["progress"] is None


def test_what_is_missing_or_damaged_is_a_sentence(results: Path, tmp_path: Path) -> None:
    assert view(tmp_path, "nowhere")["problems"] == [f"{tmp_path / 'nowhere'} holds no run yet."]
    assert client(tmp_path).get("/data").json()["index"] == []
    copytree(results / "both", tmp_path / "both")
    rows = tmp_path / "both" / "fedavg-seed0" / "metrics.jsonl"
    whole = rows.read_text()
    rows.write_text(whole[:400] + "\n" + whole[600:])  # a line that is cut in the middle
    (tmp_path / "both" / "fedavg-seed1" / "orders.bin").write_bytes(b"another format of some other version")
    (tmp_path / "both" / "fedbuff-seed0" / "orders.bin").unlink()
    shown = view(tmp_path, "both")
    assert len(shown["runs"]) == 3
    assert len(shown["problems"]) == 1 and "fedavg-seed0 cannot be read" in shown["problems"][0]
    missing = [run.get("missing", "") for run in shown["runs"]]
    assert "is not an order log" in missing[0] and "has no order log" in missing[1] and missing[2] == ""
    rows.write_text(whole[:400])  # cut within the last line, as when a run was killed
    assert len(view(tmp_path, "both")["runs"]) == 4
    rows.write_text("")
    alone = view(tmp_path, "both/fedavg-seed0")
    assert alone["runs"] == [] and "no row of metrics" in alone["problems"][0]


def test_nothing_outside_the_directory_is_read(results: Path) -> None:
    for name in ("..%2f..%2f", "both/..%2f..%2f", "%2fetc"):
        answer = client(results / "both").get(f"/data/{name}")
        assert answer.status_code in (404, 200) and (answer.status_code == 404 or "runs" in answer.json())
    assert "outside" in client(results / "both").get("/data/..%2f").text


def test_a_page_elsewhere_cannot_reach_loopback_and_nothing_can_be_written(results: Path) -> None:
    assert client(results).get("/data", headers={"host": "evil.example:8765"}).status_code == 403
    assert client(results).get("/data", method="POST").status_code == 405
    before = sorted((path, path.stat().st_mtime_ns) for path in results.rglob("*"))
    client(results).get("/data/both")
    assert sorted((path, path.stat().st_mtime_ns) for path in results.rglob("*")) == before


def test_an_address_elsewhere_needs_the_token(results: Path) -> None:
    assert token_for("127.0.0.1") is None
    token = token_for("0.0.0.0")
    assert token is not None and len(token) > 16
    guarded = client(results, token)
    for path in ("/", "/data", "/events", "/view/both", "/data?token=wrong"):
        assert guarded.get(path).status_code == 401
    assert guarded.get(f"/?token={token}").status_code == 200
    assert guarded.get("/data").status_code == 200  # by the cookie


def test_an_event_says_that_something_has_changed(results: Path) -> None:
    from offbeat.live.watching import Watching

    watching = Watching(results)
    both = results / "both"
    before = watching.signature(both)
    assert watching.signature(both) == before
    file = both / "fedavg-seed0" / "live.json"
    file.write_text(json.dumps({"time": 1.0}))
    try:
        assert watching.signature(both) != before
    finally:
        file.unlink()
    assert watching.signature(both) == before


@pytest.mark.parametrize("damaged", ["", "[]", "{", '{"orders": "%%%"}'])
def test_a_damaged_live_file_is_ignored(results: Path, damaged: str) -> None:
    file = results / "both" / "fedavg-seed0" / "live.json"
    file.write_text(damaged)
    try:
        assert len(view(results, "both/fedavg-seed0")["runs"]) == 1
    finally:
        file.unlink()
