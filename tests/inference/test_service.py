"""Test the service's application: every status code and limit, and concurrent requests."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
import math
import re
import time
from types import SimpleNamespace

import pytest
import tiny
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from service_client import PATIENCE, Answer, Stub, served

from seq2seq.data import language_id
from seq2seq.inference.forced import pharaoh
from seq2seq.inference.forced_text import force_lines
from seq2seq.inference.service import loaded_models, messages
from seq2seq.inference.service.messages import RefusedError, TranslateRequest
from seq2seq.inference.translator import TranslatedText, Translator
from seq2seq.settings.search import SamplingSettings, SearchSettings

EXHAUSTIVE = {"test_batches_are_translated_like_each_text_alone", "test_any_body_is_translated_or_refused"}


@pytest.fixture(scope="module")
def plain():
    with served(max_texts=4, max_characters=100, max_body=2000) as running:
        yield running


def eventually(condition) -> None:
    """Wait for another thread."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


# Answers.


def test_one_text_and_several(plain):
    one = plain.call({"text": "abc"})
    assert one.status == 200
    assert one.json == {"translations": [{"text": "cba/0/3/", "candidates": [{"text": "cba/0/3/", "score": -0.1}]}]}
    assert plain.call({"text": ["ab", "", "cd"]}).texts == ["ba/0/3/", "/0/3/", "dc/0/3/"]


def test_options_reach_the_search(plain):
    answer = plain.call({"text": "ab", "n_best": 2, "beam_size": 7, "length_penalty": 0, "max_len_extra": 3})
    assert [each["text"] for each in answer.json["translations"][0]["candidates"]] == ["ba/0/7/", "ba/1/7/"]
    assert plain.call({"text": "ab", "max_len_ratio": 1}).status == 200


def test_the_services_own_settings_are_allowed():
    own = {"beam_size": 12, "n_best": 12, "min_len": 300, "max_len_ratio": 4.0, "max_len_extra": 500}
    stub = Stub()
    stub.settings = SearchSettings(**own)
    with served(stub) as running:
        assert running.call({"text": "ab", **own}).texts == ["ba/0/12/"]


def test_a_language_of_several():
    with served(Stub(languages=["en", "fr"])) as running:
        assert running.call({"text": "ab"}).texts == ["ba/0/3/"]
        assert running.call({"text": "ab", "tgt_lang": "fr"}).texts == ["ba/0/3/<2fr>"]
        answer = running.call({"text": "a", "tgt_lang": "pl"})
        assert "does not translate to 'pl'; it translates from de to en, fr" in answer.error


def test_a_source_language_of_several():
    stub = Stub(languages=["en", "fr"])
    stub.tokenizer.tags_targets = True
    with served(stub) as running:
        assert running.call({"text": "ab", "src_lang": "fr"}).texts == ["ba/0/3/<2fr>"]
        for code in ("pl", ""):
            assert f"does not translate from '{code}'" in running.call({"text": "a", "src_lang": code}).error
        assert "src_lang: " in running.call({"text": "a", "source": "de", "src_lang": "fr"}).error


def test_a_text_that_is_cut_has_a_warning(plain):
    (one,) = plain.call({"text": "long"}).json["translations"]
    assert one["warning"] == "the text is cut: 9 pieces, the first 4 are translated"


def test_a_text_that_fails_fails_alone(plain):
    for word in ("boom", "crash"):
        good, bad = plain.call({"text": ["ab", word]}).json["translations"]
        assert good["text"] == "ba/0/3/"
        assert bad["candidates"] == []
        assert "text" not in bad
        assert bad["error"]
        alone = plain.call({"text": word})
        assert alone.status == 500
        assert alone.error.startswith("the text could not be translated: ")


def test_a_prefix_or_phrase_that_cannot_be_placed_is_refused_by_name(tmp_path):
    """The request is the cause, so the status is 422; a text beside it is translated."""
    translator = Translator.load(tiny.save(tmp_path), settings=SearchSettings(beam_size=1), device="cpu")
    body = {"text": "Der Hund. Die Katze.", "sentences": "split"}
    with served(translator) as running:
        for given in ({"prefixes": ["the dog. The"]}, {"phrases": [["the dog. The"]]}):
            answer = running.call(body | given)
            assert (answer.status, "'the dog. The'" in answer.error) == (422, True)
        several = {"text": ["Der Hund", body["text"]], "prefixes": ["", "the dog. The"], "sentences": "split"}
        good, bad = running.call(several).json["translations"]
        assert (set(good) & {"text"}, set(bad)) == ({"text"}, {"candidates", "error"})


def test_an_infinite_score_is_left_out():
    class Empty(Stub):
        def candidate(self, line, i, settings):
            return TranslatedText("the dog", float("-inf"))

    with served(Empty()) as running:
        (candidate,) = running.call({"text": "der Hund", "alignment": True}).json["translations"][0]["candidates"]
    words = {"source": ["der", "Hund"], "target": ["the dog"], "links": [[0, 0]], "weights": [[1.0, 1.0]]}
    assert candidate == {"text": "the dog", "alignment": words}


def test_the_average_probability_of_a_token(tmp_path):
    """It is the score with the length penalty 1, whatever the penalty."""
    translator = Translator.load(
        tiny.save(tmp_path), settings=SearchSettings(beam_size=1, max_len_ratio=1), device="cpu"
    )
    line = tiny.sentences(tiny.GERMAN, 1)[0]
    ((mean,),) = translator.translate([line], length_penalty=1.0)
    with served(translator) as running:
        for options in ({"length_penalty": 0.0}, {"length_penalty": 0.5}, {"length_norm": "gnmt"}):
            (one,) = running.call({"text": line, **options}).json["translations"][0]["candidates"]
            assert one["probability"] == round(math.exp(mean.score), 4)
            assert one["score"] != pytest.approx(mean.score)


def test_the_parts_of_a_text(tmp_path):
    """Each part is aligned as if it was a text, and the probability is that of all parts."""
    settings = SearchSettings(beam_size=1, max_len_ratio=1, max_len_extra=4)
    translator = Translator.load(tiny.save(tmp_path), settings=settings, device="cpu")
    sources = [f"{text}." for text in tiny.sentences(tiny.GERMAN, 3)]
    body = {"text": " ".join(sources).title(), "sentences": "split", "alignment": True}
    with served(translator) as running:
        (one,) = running.call(body | {"length_penalty": 0.0}).json["translations"][0]["candidates"]
    assert len(one["parts"]) == 3
    assert " ".join(part["source"] for part in one["parts"]) == body["text"]
    pairs = [(part["source"], part["target"]) for part in one["parts"]]
    for part, line in zip(one["parts"], force_lines(translator, pairs, note=print, align=True), strict=True):
        assert pharaoh(part["alignment"]["links"]) == line.alignment
    assert sum(len(part["alignment"]["source"]) for part in one["parts"]) == len(one["alignment"]["source"])
    ((mean,),) = translator.translate([body["text"]], sentences="split", length_penalty=1.0)
    assert one["probability"] == pytest.approx(math.exp(mean.score), abs=1e-4)


def test_a_text_in_another_language_is_named_if_asked(monkeypatch, plain):
    monkeypatch.setattr(loaded_models, "other_language", lambda text, expected: {"hi": "en"}.get(text))
    first, second = plain.call({"text": ["hi", "na"], "language": True}).json["translations"]
    assert (first["language"], second.get("language")) == ("en", None)
    assert "language" not in plain.call({"text": "hi"}).json["translations"][0]
    # Factors are in no language
    stub = Stub()
    stub.tokenizer.factors = {"pos": {"": 0, "NOUN": 1}}
    with served(stub) as running:
        assert "language" not in running.call({"text": "hi", "language": True}).json["translations"][0]


def test_constraints_and_sampling_reach_the_translator(plain):
    texts = ["a", "b"]
    plain.call({"text": texts, "prefixes": ["the", ""], "suppress": ["▁dog"]})
    plain.call({"text": texts, "phrases": [["cat", "house"], []]})
    plain.call({"text": "c", "samples": 4, "n_best": 2, "temperature": 0.5, "seed": 3, "mbr": "chrf"})
    assert plain.stub.options[-3:] == [
        {"prefixes": ["the", ""], "suppress": ["▁dog"]},
        {"phrases": [("cat", "house"), ()]},
        {"sampling": SamplingSettings(temperature=0.5, seed=3), "mbr": "chrf"},
    ]


# Refusals.


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"\xff", b"text", b'{"text": NaN}', b"[" * 1500, b'{"text": "\\ud800"}', "{}".encode("utf-16")],
    ids=["empty", "cut", "latin-1", "word", "nan", "deep", "surrogate", "utf-16"],
)
def test_no_json(plain, body):
    answer = plain.call(body)
    # JSON's grammar has neither NaN nor lone surrogates; Python's own parser takes both
    assert answer.status in (400, 422)
    assert answer.status == 400 or b"NaN" in body
    assert answer.error.count("\n") == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], 'the body must be an object such as {"text": "Guten Morgen."}'),
        ({}, "the field text is missing"),
        ({"text": 1}, "text must be a string or a list of strings"),
        ({"text": None}, "text must be a string or a list of strings"),
        ({"text": ["a", 1]}, "text must be a string or a list of strings"),
        ({"text": []}, "text is an empty list; give one text or more"),
        ({"text": "a", "beam_siz": 3}, "unknown field 'beam_siz'; did you mean beam_size or beam_groups?"),
        ({"text": "a", "ckpt": "/etc/passwd"}, "unknown field 'ckpt'"),
        ({"text": "a", "n_best": 0}, "n_best: input should be greater than or equal to 1, not 0"),
        ({"text": "a", "n_best": "2"}, 'n_best: input should be a valid integer, not "2"'),
        ({"text": "a", "n_best": True}, "n_best: input should be a valid integer, not true"),
        ({"text": "a", "n_best": 4}, "n_best 4 is more than beam_size"),
        ({"text": "a", "beam_size": 11}, "beam_size 11 is more than this service allows: choose 10 or less"),
        ({"text": "a", "max_len_extra": 201}, "choose 200 or less"),
        ({"text": "a", "max_len_ratio": 4}, "choose 3 or less"),
        ({"text": "a", "n_best": 1001}, "choose 10 or less"),
        ({"text": "a", "min_len": 201}, "choose 200 or less"),
        ({"text": "a", "samples": 10**400}, "choose 10 or less"),
        ({"text": "a", "length_penalty": -1}, "length_penalty"),
        (
            {"text": "a", "phrases": ["b"]},
            'phrases must be a list with a list of strings for each text: [["green", "tea"]]',
        ),
        ({"text": "a", "prefixes": []}, "prefixes has 0 entries for 1 texts; give one for each"),
        ({"text": ["a", "b"], "phrases": [["c"]]}, "phrases has 1 entries for 2 texts; give one for each"),
        ({"text": "a", "phrases": [["c"]], "beam_groups": 3}, "phrases"),
        ({"text": "a", "beam_groups": 2}, "beam_groups"),
        ({"text": "a", "diversity": 3}, "diversity"),
        ({"text": "a", "samples": 2, "diversity": 3}, "diversity"),
        ({"text": "a", "temperature": 2}, "temperature needs samples"),
        ({"text": "a", "mbr": "bleu"}, "mbr needs samples"),
        ({"text": "a", "samples": 2, "beam_size": 2}, "beam_size"),
        ({"text": "a", "samples": 11}, "samples 11 is more than this service allows: choose 10 or less"),
        ({"text": "a", "samples": 2, "top_p": 0}, "top_p: input should be greater than 0, not 0"),
        ({"text": "a", "length_norm": "none"}, "length_norm: input should be 'power' or 'gnmt'"),
        ({"text": "a", "suppress": ["nix"]}, "suppress: the target's vocabulary has no piece 'nix'"),
        ({"text": "a", "tgt_lang": "fr"}, "does not translate to 'fr'; it translates from de to en"),
    ],
)
def test_wrong_fields(plain, body, message):
    answer = plain.call(body)
    assert answer.status == 422
    assert message in answer.error


def test_only_json_and_forms_are_accepted(plain):
    for kind in ("", "text/plain", "application/jsonp"):
        answer = plain.call({"text": "a"}, headers={"content-type": kind})
        assert (answer.status, "application/json" in answer.error) == (415, True)
    assert plain.call({"text": "a"}, headers={"content-type": "Application/JSON; charset=utf-8"}).status == 200


def test_too_large(plain):
    for body, words in [
        ({"text": ["a"] * 5}, "send at most 4"),
        ({"text": ["a" * 50, "a" * 51]}, "101 characters of a request"),
        ({"text": "a" * 50, "prefixes": ["a" * 51]}, "101 characters of a request"),
        ({"text": "a", "prefixes": ["a" * 201]}, "201 characters of a prefix are too many; send at most 200"),
        ({"text": "a", "phrases": [["a"] * 9]}, "9 phrases"),
        ({"text": "a", "phrases": [["a" * 200, "b"]]}, "201 characters of a text's phrases"),
        ({"text": "a" * 2000}, "2,000 bytes"),
        (b"[" * 5000, "2,000 bytes"),
    ]:
        answer = plain.call(body)
        assert (answer.status, words in answer.error) == (413, True)
    # A client that waits for "100 Continue" is answered at once: here the body never comes
    asking = {"content-type": "application/json", "content-length": "2001", "expect": "100-continue"}
    answer = plain.call(headers=asking, chunks=[])
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert plain.call({"text": ["a" * 25] * 4}).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"text":[' + b"1," * 40_000 + b"1]}",
        b'{"text":"a","phrases":[' + b"null," * 20_000 + b"null]}",
        b'{"text":"a","phrases":[[' + b"1," * 40_000 + b"1]]}",
        b"{" + b"".join(b'"%d":1,' % number for number in range(9_000)) + b'"text":"a"}',
    ],
    ids=["text", "phrases", "phrase", "fields"],
)
def test_the_check_of_a_body_ends_at_its_first_errors(body, monkeypatch):
    """A description of every error would take seconds, in which no other request is answered."""
    counts = []
    whole = messages.TranslateRequest.model_validate

    def counted(given):
        try:
            return whole(given)
        except ValidationError as error:
            counts.append(error.error_count())
            raise

    monkeypatch.setattr(messages.TranslateRequest, "model_validate", counted)
    with pytest.raises(RefusedError):
        messages.checked(messages.TranslateRequest, messages.parsed(body))
    assert all(count < 4 for count in counts)


def test_pieces_are_limited():
    with served(max_pieces=6) as running:
        assert running.call({"text": ["abc", "abc"]}).status == 200
        answer = running.call({"text": ["abc", "abcd"]})
        assert (answer.status, "at most 6" in answer.error) == (413, True)


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        ("localhost:8000", None, 200),
        ("127.0.0.1", None, 200),
        ("[::1]:8000", None, 200),
        ("192.0.2.7:8000", None, 200),
        ("Here.example:8000", None, 200),
        ("evil.example", None, 421),
        ("127.0.0.1.evil.example:8000", None, 421),
        ("localhost@evil.example", None, 421),
        ("[::1", None, 421),
        ("mt.example", "mt.example,other.example", 200),
        ("localhost.", None, 200),
        ("mt.example", "mt.example:8080", 200),
        ("xn--bcher-kva.example", "bücher.example", 200),
        ("evil.example", "*", 200),
    ],
)
def test_names_of_the_service(host, allowed, status):
    with served(host="here.example", allowed_hosts=allowed) as running:
        answer = running.call(method="GET", path="/health", headers={"host": host})
        assert answer.status == status
        assert status == 200 or "--allowed-hosts" in answer.error


@pytest.mark.parametrize("allowed", ["https://mt.example.org", "*.example.org", "mt.example.org/de"])
def test_names_that_no_host_has(allowed):
    with pytest.raises(ValueError, match="--allowed-hosts"), served(allowed_hosts=f"a.example, {allowed}"):
        pass


def test_a_proxy_is_an_address():
    with served(proxy="127.0.0.1, 10.0.0.0/8 ::1") as running:
        assert running.call(method="GET", path="/health").status == 200
    with pytest.raises(ValueError, match="--proxy proxy: is not an address"), served(proxy="proxy"):
        pass


def test_a_body_that_never_ends_is_not_read_on(plain):
    answer = plain.call(chunks=[b" " * (1 << 20)] * 40)
    assert answer.status == 413


def test_a_body_that_stalls():
    with served(body_timeout=0.05) as running:
        answer = running.call(chunks=[b'{"text": '])
        assert (answer.status, answer.headers["connection"]) == (408, "close")


def test_other_paths_and_methods(plain):
    assert plain.call(path="/nothing", method="GET").status == 404
    assert "the paths are /, /translate, /languages" in plain.call(path="/../etc/passwd", method="GET").error
    answer = plain.call(method="GET")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")
    assert json.loads(answer.body)["error"] == "this path takes POST, not GET"


def test_a_full_queue_refuses_every_client():
    """One text is being translated and two wait: there is no room for another."""
    stub = Stub()
    stub.gate.clear()

    async def scenario(running):
        asked = [asyncio.create_task(running.send({"text": "a"}))]
        await asyncio.to_thread(stub.begun.wait, PATIENCE)
        asked.append(asyncio.create_task(running.send({"text": ["b", "c"]})))
        await asyncio.sleep(0)
        refused = [await running.send({"text": "d"}, client=client) for client in ("1.2.3.4", "5.6.7.8")]
        stub.gate.set()
        return refused, [each.texts for each in await asyncio.gather(*asked)]

    with served(stub, queue_texts=2) as running:
        refused, answered = asyncio.run(scenario(running))
        assert [(each.status, each.headers["retry-after"]) for each in refused] == [(503, "1")] * 2
        assert answered == [["a/0/3/"], ["b/0/3/", "c/0/3/"]]
        # A refused request leaves no trace
        assert running.call({"text": "e"}).status == 200
        assert not running.service.batcher._queue


async def _one_more(running, accepted, before=lambda: None):
    """While the requests `accepted` are translated, send one more text and ask for the health; then release all."""
    open_ones = [asyncio.create_task(running.send({"text": text})) for text in accepted]
    await asyncio.to_thread(running.stub.begun.wait, PATIENCE)
    before()
    new = await running.send({"text": "z"})
    health = await running.send(path="/health", method="GET")
    running.stub.gate.set()
    return new, health, [(await each).texts for each in open_ones]


def test_more_requests_than_may_be_open():
    """Open requests are answered, a further one is refused at once, and /health still works."""
    stub = Stub()
    stub.gate.clear()

    with served(stub, max_requests=2) as running:
        refused, health, answered = asyncio.run(_one_more(running, "ab"))
        assert refused.status == 503
        assert refused.error == "2 requests are open, the maximum; try again later"
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert health.status == 200
        assert answered == [["a/0/3/"], ["b/0/3/"]]
        assert running.call({"text": "d"}).texts == ["d/0/3/"]


def test_a_translation_that_takes_too_long():
    stub = Stub()
    stub.gate.clear()
    with served(stub, timeout=0.05) as running:
        answer = running.call({"text": "a"})
        assert (answer.status, answer.error.split(";")[0]) == (504, "not translated within 0.05 seconds")
        # The search has been left, and the next text begins
        eventually(lambda: not running.service.batcher._working)
        stub.gate.set()
        eventually(lambda: running.call({"text": "c"}).status == 200)


def test_a_client_that_leaves_while_it_sends_is_no_error():
    async def send() -> Answer:
        leave = asyncio.Event()
        leave.set()
        return await running.send(chunks=[b"{"], leave=leave)

    with served() as running:
        assert asyncio.run(send()).status == 499


def test_texts_of_a_client_that_has_left_are_not_translated():
    stub = Stub()
    stub.gate.clear()

    async def scenario(running):
        leave = asyncio.Event()
        first = asyncio.create_task(running.send({"text": "a"}))
        await asyncio.to_thread(stub.begun.wait, PATIENCE)
        second = asyncio.create_task(running.send({"text": "b"}, leave=leave))
        await asyncio.sleep(0.01)
        leave.set()
        assert (await second).status == 499
        assert not running.service.batcher._queue
        stub.gate.set()
        return (await first).texts

    with served(stub) as running:
        assert asyncio.run(scenario(running)) == ["a/0/3/"]
    assert stub.batches == [["a"]]


def test_a_stopping_service_answers_accepted_requests_and_refuses_new_ones():
    stub = Stub()
    stub.gate.clear()

    with served(stub) as running:
        new, health, answered = asyncio.run(_one_more(running, "abc", before=running.service.batcher.close))
        assert (new.status, new.error, new.headers["connection"]) == (503, "the service is stopping", "close")
        assert (health.status, health.json["status"]) == (503, "stopping")
        assert answered == [["a/0/3/"], ["b/0/3/"], ["c/0/3/"]]


def test_an_abort_refuses_accepted_requests():
    stub = Stub()
    stub.gate.clear()

    async def scenario(running):
        accepted = [asyncio.create_task(running.send({"text": text})) for text in "abc"]
        await asyncio.to_thread(stub.begun.wait, PATIENCE)
        running.service.batcher.abort()
        return [await each for each in accepted]

    with served(stub) as running:
        for answer in asyncio.run(scenario(running)):
            assert (answer.status, answer.error) == (503, "the service stopped before this was translated")
        stub.gate.set()


# Monitoring.


def test_health(plain):
    assert plain.call(path="/health", method="HEAD").status == 200
    answer = plain.call(path="/health", method="GET")
    assert answer.status == 200
    found = answer.json
    assert (found["status"], found["src_lang"], found["tgt_langs"]) == ("ok", "de", ["en"])
    assert found["limits"] == {
        "texts": 4,
        "characters": 100,
        "pieces": 20_000,
        "bytes": 2000,
        "beam_size": 10,
        "seconds": 600,
    }
    assert (found["defaults"]["beam_size"], found["defaults"]["beam_groups"]) == (3, 1)
    assert found["alignment"] is True


def test_metrics_count():
    with served() as running:
        running.call({"text": ["ab", "boom"]})
        running.call({"text": []})
        running.call(path="/made/up", method="GET")
        # The thread counts a batch after it has answered it
        eventually(lambda: b"seq2seq_batch_texts_sum 2.0" in running.call(path="/metrics", method="GET").body)
        answer = running.call(path="/metrics", method="GET")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }
    assert samples["seq2seq_http_requests_total", "/translate", "200"] == 1
    assert samples["seq2seq_http_requests_total", "/translate", "422"] == 1
    assert samples["seq2seq_http_requests_total", "other", "404"] == 1
    assert samples["seq2seq_texts_total", "translated"] == 1
    assert samples["seq2seq_texts_total", "failed"] == 1
    assert samples["seq2seq_source_characters_total",] == 6
    assert samples["seq2seq_batch_texts_sum",] == 2
    assert samples["seq2seq_queue_texts",] == 0


def test_open_translations_are_measured():
    def measured() -> bytes:
        return running.call(path="/metrics", method="GET").body

    async def scenario() -> bytes:
        asked = asyncio.create_task(running.send({"text": "ab"}))
        while not running.stub.begun.is_set():
            await asyncio.sleep(0.002)
        scraped = await running.send(path="/metrics", method="GET")
        running.stub.gate.set()
        assert (await asked).status == 200
        return scraped.body

    with served() as running:
        running.stub.gate.clear()
        assert b"seq2seq_open_translations 1.0" in asyncio.run(scenario())
        assert b"seq2seq_open_translations 0.0" in measured()


def test_a_stream_is_timed_to_its_end():
    counted = b'seq2seq_http_request_seconds_count{path="/translate"} 1.0'

    async def scenario() -> bytes:
        asked = asyncio.create_task(running.send({"text": "ab", "stream": True}))
        while not running.stub.begun.is_set():
            await asyncio.sleep(0.002)
        scraped = await running.send(path="/metrics", method="GET")
        running.stub.gate.set()
        await asked
        return scraped.body

    with served() as running:
        running.stub.gate.clear()
        assert counted not in asyncio.run(scenario())
        assert counted in running.call(path="/metrics", method="GET").body


def test_a_model_that_aligns_no_words():
    """Graphs of single steps translate, and refuse alignments; /health says so."""
    stub = Stub()
    stub.can_force = False
    with served(stub) as running:
        assert running.call(path="/health", method="GET").json["alignment"] is False
        assert running.call({"text": "ab"}).texts == ["ba/0/3/"]
        refused = running.call({"text": "ab", "alignment": True})
        assert (refused.status, len(stub.batches)) == (422, 1)
        assert refused.error.startswith("alignment: ")


def test_the_description(plain):
    found = plain.call(path="/openapi.json", method="GET").json
    assert set(found["paths"]) == {"/translate", "/languages", "/detect", "/health", "/metrics"}
    body = found["paths"]["/translate"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"][0]
    properties = body["properties"]
    assert properties["text"]["description"]
    assert "gnmt: ((5 + length) / 6)^penalty" in properties["length_norm"]["description"]
    assert "object" in [each.get("type") for each in properties["glossary"]["anyOf"]]
    (detected,) = found["paths"]["/detect"]["post"]["requestBody"]["content"]["application/json"]["schema"]["anyOf"]
    assert detected["required"] == ["q"]


def test_the_page_allows_only_its_own_style_and_script(plain, monkeypatch):
    # Reading the model of languages takes a second, for which no visitor must wait
    read = []
    monkeypatch.setattr(language_id, "_identifier", lambda: read.append(1) or SimpleNamespace(labels=[]))
    answer = plain.call(path="/", method="GET")
    assert read
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    text = answer.body.decode()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    # XML namespaces are not addresses
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not re.findall(r"\sstyle=|\son[a-z]+=|<link (?!rel=\"icon\" href=\"data:)|@import|url\(", text)


# Concurrent requests.


def test_batches_are_translated_like_each_text_alone(tmp_path):
    """Compare with translating one text at a time, without a service."""
    settings = SearchSettings(beam_size=2, max_len_ratio=1, max_len_extra=4)
    translator = Translator.load(tiny.save(tmp_path), settings=settings, device="cpu")
    texts = [*tiny.sentences(tiny.GERMAN, 8), "", " "]
    alone = {
        (text, n): translator.translate([text], settings=dataclasses.replace(settings, n_best=n))[0]
        for text in texts
        for n in (1, 2)
    }

    async def scenario(running):
        asked = [(texts[i : i + 1 + i % 3], 1 + i % 2) for i in range(len(texts))]
        bodies = ({"text": some, "n_best": n, "alignment": True} for some, n in asked)
        answers = await asyncio.gather(*map(running.send, bodies))
        return list(zip(asked, answers, strict=True))

    with served(translator, batch_wait=0.05) as running:
        for (some, n), answer in asyncio.run(scenario(running)):
            for text, found in zip(some, answer.json["translations"], strict=True):
                expected = alone[text, n]
                assert [each["text"] for each in found["candidates"]] == [each.text for each in expected]
                scores = [each["score"] for each in found["candidates"]]
                assert scores == pytest.approx([each.score for each in expected], abs=1e-4)
                forced = force_lines(translator, [(text, each.text) for each in expected], note=print, align=True)
                for each, line in zip(found["candidates"], forced, strict=True):
                    assert pharaoh(each.get("alignment", {"links": []})["links"]) == line.alignment


def test_a_translation_of_too_many_pieces_has_a_warning_and_no_alignment(tmp_path):
    """A model with learned positions: a translation may have more pieces than positions when it is tokenized again."""
    path = tiny.save(tmp_path, positions="learned", max_len=16)
    translator = Translator.load(path, settings=SearchSettings(beam_size=1), device="cpu")
    with served(translator) as running:
        answer = running.call({"text": ["der Hund", "die Katze", "ich geht", "du", "und " * 40], "alignment": True})
    assert answer.status == 200
    *short, split = answer.json["translations"]
    for one in short:
        pieces = len(translator.tokenizer.encode_tgt([one["text"]])[0])
        reason = f"a translation has no alignment: it has {pieces} pieces; the model has 16 positions"
        assert (reason in one.get("warning", "")) == (pieces > 16)
        assert ("alignment" in one["candidates"][0]) == (pieces <= 16)
    assert any("warning" in one for one in short)
    assert "the text is split: " in split["warning"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (*TranslateRequest.model_fields, "Text", "")
near_requests = st.fixed_dictionaries(
    {"text": st.text(max_size=30) | st.lists(st.text(max_size=9), max_size=5) | json_values},
    optional={name: json_values | st.integers(0, 12) for name in FIELDS if name != "text"},
)
bodies = st.binary(max_size=200) | (json_values | near_requests).map(lambda value: json.dumps(value).encode())


@hypothesis_settings(max_examples=40)
@given(body=bodies)
def test_any_body_is_translated_or_refused(plain, body):
    answer = plain.call(body)
    assert answer.status in (200, 400, 413, 422), answer
    if answer.status == 200 and json.loads(body).get("stream"):
        assert answer.body.endswith(b"event: done\ndata: {}\n\n")
    elif answer.status == 200:
        asked = json.loads(body)["text"]
        asked = [asked] if isinstance(asked, str) else asked
        assert [text.rsplit("/", 3)[0][::-1] for text in answer.texts] == asked
    else:
        assert answer.error.count("\n") == 0
        assert len(answer.error) < 400
