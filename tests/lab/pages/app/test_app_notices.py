"""An error in a handler becomes a notice in the browser and leaves the page unchanged."""

import logging
import threading

import pytest

from localscale.errors import DataError

gr = pytest.importorskip("gradio", reason="needs the extra app")
notices = pytest.importorskip("localscale.lab.pages.app.notices")


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    shown: list[str] = []
    monkeypatch.setattr(gr, "Warning", shown.append)
    return shown


def test_an_expected_error_is_shown_as_escaped_text(shown: list[str], caplog: pytest.LogCaptureFixture):
    @notices.errors_as_notices
    def refuse(name: str) -> None:
        raise DataError(f"{name} is broken")

    assert refuse("<b>.png") == gr.skip()
    assert shown == ["&lt;b&gt;.png is broken"]
    assert not caplog.records


def test_an_unexpected_error_is_logged_and_its_message_is_not_shown(shown: list[str], caplog: pytest.LogCaptureFixture):
    @notices.errors_as_notices
    def fail() -> None:
        raise ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR):
        assert fail() == gr.skip()
    assert len(shown) == 1
    assert "secret" not in shown[0]
    assert caplog.records[0].exc_info is not None


def test_closing_waits_for_the_running_handler():
    started, ended = threading.Event(), []

    @notices.errors_as_notices
    def slow() -> None:
        started.set()
        threading.Event().wait(0.2)
        ended.append(True)

    thread = threading.Thread(target=slow)
    thread.start()
    assert started.wait(60)
    notices.wait_for_handler()
    assert ended
    thread.join()
