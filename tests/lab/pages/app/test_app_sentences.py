"""Errors of an answer: a notice in the browser, the rest in the log, and the page as it was."""

import logging
import threading

import pytest

from localscale.errors import DataError

gr = pytest.importorskip("gradio", reason="needs the extra app")
sentences = pytest.importorskip("localscale.lab.pages.app.sentences")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    monkeypatch.setattr(gr, "Warning", said.append)
    return said


def test_an_answer_passes(told: list[str]):
    assert sentences.in_a_sentence(lambda a, b: a + b)(1, 2) == 3
    assert not told


def test_our_own_errors_are_told_as_text(told: list[str], caplog: pytest.LogCaptureFixture):
    @sentences.in_a_sentence
    def refuse(name: str) -> None:
        raise DataError(f"{name} is no image")

    assert refuse("<b>.png") == gr.skip()
    assert told == ["&lt;b&gt;.png is no image"]
    assert not caplog.records


def test_any_other_error_is_logged_and_told_without_its_insides(told: list[str], caplog: pytest.LogCaptureFixture):
    @sentences.in_a_sentence
    def fail() -> None:
        raise ZeroDivisionError("secret")

    with caplog.at_level(logging.ERROR):
        assert fail() == gr.skip()
    assert told == ["Something went wrong here; the terminal says more. The page is as it was."]
    assert caplog.records[0].exc_info is not None
    assert not sentences.ANSWERING.locked()


def test_closing_waits_for_the_answer_that_is_being_made():
    started, ended = threading.Event(), []

    @sentences.in_a_sentence
    def slow() -> None:
        started.set()
        threading.Event().wait(0.2)
        ended.append(True)

    answering = threading.Thread(target=slow)
    answering.start()
    assert started.wait(5)
    sentences.finish()
    assert ended
    answering.join()
