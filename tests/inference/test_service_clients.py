"""Test what clients find at the service besides its own form: LibreTranslate's, models, keys, origins, streams."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
import tiny
from service_client import PATIENCE, Served, Stub, served

from seq2seq import serve
from seq2seq.data.languages import Tags
from seq2seq.inference.service import app
from seq2seq.inference.service.access import read_keys
from seq2seq.inference.service.batcher import Batcher, Entry
from seq2seq.inference.service.loaded_models import _code
from seq2seq.inference.service.messages import Options, Text, Translation
from seq2seq.inference.service.metrics import Metrics
from seq2seq.inference.service.settings import ServiceSettings
from seq2seq.inference.translator import Translator
from seq2seq.settings.search import SearchSettings

FORM = {"content-type": "application/x-www-form-urlencoded"}
DASHBOARD = Path(__file__).resolve().parents[2] / "deploy" / "grafana.json"


def stub_of(source: str, *targets: str) -> Stub:
    """A stub of other languages; its translations name the target."""
    stub = Stub(languages=targets)
    stub.meta["src_lang"] = source
    stub.src_lang, stub.tgt_lang = source, targets[0]
    # Tags of the stub are their own ids
    stub.tags = Tags(stub.tokenizer.tag_ids([f"<2{targets[0]}>"]), [])
    return stub


@pytest.fixture(scope="module")
def plain():
    with served() as running:
        yield running


@pytest.fixture(scope="module")
def several():
    others = {"wide": stub_of("eng_Latn", "deu_Latn", "fra_Latn"), "narrow": stub_of("en", "de")}
    with served(others=others) as running:
        yield running


def form(running: Served, fields: dict, **headers: str):
    return running.call(urlencode(fields, doseq=True).encode(), headers={**FORM, **headers})


# LibreTranslate's forms. `libretranslatepy` sends urlencoded forms, others JSON.


def test_libretranslates_forms_have_its_answers(plain):
    asked = {"q": "für", "source": "de", "target": "en"}
    answers = [form(plain, asked), plain.call(asked), plain.call({**asked, "format": "text", "secret": "x"})]
    # curl sends bytes that are not escaped
    answers.append(plain.call("q=für&source=de&target=en".encode(), headers=FORM))
    multipart = "".join(
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in asked.items()
    )
    kind = {"content-type": "multipart/form-data; boundary=x"}
    answers.append(plain.call(f"{multipart}--x--\r\n".encode(), headers=kind))
    assert [each.json for each in answers] == [{"translatedText": "rüf/0/3/"}] * 5


def test_several_texts_alternatives_and_auto(plain):
    detected = {"confidence": 100, "language": "de"}
    assert plain.call({"q": "ab", "source": "auto", "target": "en", "alternatives": 1}).json == {
        "translatedText": "ba/0/3/",
        "alternatives": ["ba/1/3/"],
        "detectedLanguage": detected,
    }
    answer = plain.call({"q": ["ab", "c"], "alternatives": 99}).json
    # As many alternatives as the service's largest beam has
    assert answer["alternatives"] == [[f"{text}/{i}/10/" for i in range(1, 10)] for text in ("ba", "c")]
    assert (answer["translatedText"], answer["detectedLanguage"]) == (["ba/0/10/", "c/0/10/"], [detected] * 2)
    assert form(plain, {"q": ["ab", "c"], "source": "de"}).json == {"translatedText": ["ba/0/3/", "c/0/3/"]}


@pytest.mark.parametrize("empty", [None, ""])
def test_empty_fields_count_as_left_out(plain, empty):
    fields = dict.fromkeys(("source", "target", "format", "alternatives", "api_key"), empty)
    assert plain.call({"q": "ab", **fields}).json == plain.call({"q": "ab"}).json


def test_alternatives_are_cut_to_the_largest_beam_of_whole_groups():
    stub = Stub(beam_size=6)
    stub.settings = SearchSettings(beam_size=6, beam_groups=3)
    with served(stub) as running:
        assert len(running.call({"q": "ab", "alternatives": 99}).json["alternatives"]) == 8


@pytest.mark.parametrize(
    ("body", "status", "key"),
    [
        ({"q": 1}, 422, "q must be"),
        ({"q": []}, 422, "empty"),
        ({"q": "a", "target": "fr"}, 422, "'fr'"),
        ({"q": "a", "source": "fr"}, 422, "from 'fr'"),
        ({"q": "<b>a</b>", "format": "html"}, 422, "format"),
        ({"q": "a" * 20_001}, 413, "20,001"),
        # A glossary without effect would be a wrong translation
        ({"q": "a", "glossary": {"a": "b"}}, 422, "glossary"),
        ({"q": ["ab", "boom"]}, 500, "out of memory"),
    ],
)
def test_refusals_in_libretranslates_form(plain, body, status, key):
    answer = plain.call(body)
    assert (answer.status, key in answer.error) == (status, True)


def test_a_form_that_cannot_be_read(plain):
    for body in (b"q=\xff", b"&".join([b"q=a"] * 300)):
        assert plain.call(body, headers=FORM).status == 400
    assert plain.call(b"q=a", headers=FORM, query=b"&".join([b"q"] * 300)).status == 400
    # What curl -d sends without a header
    answer = plain.call(b'{"text": "a"}', headers=FORM)
    assert (answer.status, "Content-Type" in answer.error) == (415, True)
    kind = {"content-type": "multipart/form-data"}
    assert plain.call(b"--x", headers=kind).status == 400
    # A client's choice of a decoder: the one takes seconds for a long field, the other returns lone surrogates
    field = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n+2AA-\r\n--x--\r\n'
    for charset, status in (("punycode", 400), ('"UTF-7"', 400), ("UTF-8", 200), ("us-ascii", 200)):
        kind = {"content-type": f"multipart/form-data; boundary=x; charset={charset}"}
        assert plain.call(field, headers=kind).status == status


def test_a_page_of_another_origin_may_not_send_forms(plain):
    fields = {"q": "ab", "source": "de"}
    refused = form(plain, fields, origin="https://evil.example", host="localhost:8000")
    assert (refused.status, "--cors" in refused.error) == (403, True)
    assert form(plain, fields, origin="null", host="localhost:8000").status == 403
    assert form(plain, fields, origin="http://localhost:8000", host="localhost:8000").status == 200


def test_languages_and_detection(several):
    names = [("de", "German"), ("en", "English"), ("eng_Latn", "English (Latn)"), ("deu_Latn", "German (Latn)")]
    found = several.call(path="/languages", method="GET").json
    assert [(each["code"], each["name"]) for each in found[:4]] == names
    assert {each["code"]: each["targets"] for each in found if each["targets"]} == {
        "de": ["en"],
        "en": ["de"],
        "eng_Latn": ["deu_Latn", "fra_Latn"],
    }
    detected = several.call({"q": "a"}, path="/detect").json
    assert [each["language"] for each in detected] == ["de", "eng_Latn", "en"]


# Several models.


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("zh", "zho_Hans"),
        ("zh-Hant", "zho_Hant"),
        ("zh_hans", "zho_Hans"),
        ("zho_Hant", "zho_Hant"),
        ("zh-TW", "zho_Hant"),
        ("yue", ""),
    ],
)
def test_a_script_chooses_among_codes_of_a_language(wanted, expected):
    assert _code(wanted, ["eng_Latn", "zho_Hans", "zho_Hant"], exact=False) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, ""),
        ({"source": "de"}, ""),
        ({"target": "de"}, "<2de>"),
        ({"source": "en", "target": "fr"}, "<2fra_Latn>"),
        ({"source": "eng", "target": "deu_Latn"}, "<2deu_Latn>"),
        ({"source": "en"}, "<2de>"),
        ({"tgt_lang": "fra_Latn"}, "<2fra_Latn>"),
        ({"source": "auto", "target": "fra"}, "<2fra_Latn>"),
        ({"model": "wide"}, "<2deu_Latn>"),
        ({"model": "wide", "target": "de"}, "<2deu_Latn>"),
    ],
)
def test_a_request_chooses_a_model_by_languages_or_name(several, asked, expected):
    assert several.call({"text": "a", **asked}).texts == [f"a/0/3/{expected}"]


@pytest.mark.parametrize(
    ("asked", "key"),
    [
        ({"model": "wde"}, "did you mean wide"),
        ({"source": "de", "target": "fr"}, "from 'de' to 'fr'"),
        # Both sides have to fit one model
        ({"source": "de", "target": "de"}, "from 'de' to 'de'"),
    ],
)
def test_a_model_that_is_not_there(several, asked, key):
    answer = several.call({"text": "a", **asked})
    assert (answer.status, key in answer.error) == (422, True)


def test_health_and_metrics_name_the_models(several):
    several.call({"text": "a", "model": "narrow"})
    found = several.call(path="/health", method="GET").json
    assert [(each["name"], each["tgt_lang"]) for each in found["models"]] == [
        ("model", "en"),
        ("wide", "deu_Latn"),
        ("narrow", "de"),
    ]
    measured = several.call(path="/metrics", method="GET").body.decode()
    assert 'seq2seq_model_bytes{model="wide"} 1000.0' in measured
    assert re.search(r'seq2seq_model_texts_total\{model="narrow"\} [1-9]', measured)
    assert "_created" not in measured


def test_the_model_used_least_recently_leaves_memory():
    with served(others={"b": Stub(), "c": Stub()}, memory=2500 / 1e9) as running:

        def loaded() -> list[str]:
            return [name for name, each in running.service.models.by_name.items() if each.translator]

        assert loaded() == ["b", "c"]
        for name, after in (("b", ["b", "c"]), ("model", ["model", "b"]), ("c", ["model", "c"])):
            assert running.call({"text": "ab", "model": name}).texts == ["ba/0/3/"]
            assert loaded() == after


def test_a_model_that_cannot_be_loaded_again_is_reported():
    with served(others={"b": Stub()}, memory=1e-6) as running:
        models = running.service.models
        assert not models.by_name["model"].translator
        models.by_name["model"].load = lambda: 1 / 0
        answer = running.call({"text": "ab", "model": "model"})
        assert (answer.status, "could not be loaded" in answer.error) == (500, True)
        assert running.call({"text": "ab", "model": "b"}).status == 200


def test_loading_a_model_lets_texts_of_loaded_ones_go_first():
    """A text whose model takes a second to load counts as one that came a second later, and interrupts nothing."""
    limits = ServiceSettings()
    batcher = Batcher(limits=limits, metrics=Metrics())

    def translate(texts, options, step):
        return [Translation(text=each.text, candidates=[]) for each in texts]

    def entry(text: str, arrived: float, delay: float) -> Entry:
        options = Options(SearchSettings(), "de", "en")
        return Entry(Text(text), options, text, arrived, 1, 10.0, translate, delay=lambda: delay)

    late, early, loading = entry("late", 0.9, 0.0), entry("early", 0.0, 0.0), entry("loading", 0.0, 1.0)
    batcher._queue = [loading]
    assert batcher._choose(float("inf"), loaded=True) == []
    batcher._queue = [loading, late, early]
    assert batcher._choose(float("inf"))[:1] == [early]


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["runs/demo"], {"demo": "runs/demo"}),
        (["runs/demo/", "a.safetensors"], {"demo": "runs/demo/", "a": "a.safetensors"}),
        (["x=runs/demo", "y=runs/demo"], {"x": "runs/demo", "y": "runs/demo"}),
        (["runs/lr=3/model"], {"model": "runs/lr=3/model"}),
    ],
)
def test_names_of_models(paths, names):
    options = serve._parser().parse_args(["--ckpt", *paths])
    assert serve._named(options) == names


@pytest.mark.parametrize(
    "rest",
    [
        ["b/demo"],
        ["b", "--tgt-lang", "en"],
        ["b", "--shortlist", "c"],
        ["b", "--glossary", "c"],
        ["b", "--src-lang", "de"],
    ],
)
def test_several_models_that_do_not_go_together(rest):
    options = serve._parser().parse_args(["--ckpt", "a/demo", *rest])
    with pytest.raises(ValueError, match=r"NAME=FILE|works with a single model"):
        serve._named(options)


# Keys and origins.


@pytest.fixture
def guarded(tmp_path):
    path = tmp_path / "keys"
    path.write_text("one \n\n# für alle\nsecond-key\n", "utf-8-sig")
    with served(api_key_file=str(path)) as running:
        yield running, path


def test_keys(guarded):
    running, path = guarded
    body = {"text": "ab"}

    def status(key: str, **more: str) -> int:
        return running.call({**body, **more}, headers={"content-type": "application/json", "authorization": key}).status

    missing = running.call(body)
    assert (missing.status, missing.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer" in missing.error
    assert [status("Bearer one"), status("bearer  one"), status("Bearer on"), status("Bearer # für alle")] == [
        200,
        200,
        403,
        403,
    ]
    # A wrong header is refused whatever the field says
    assert status("Bearer no", api_key="one") == 403
    assert running.call({**body, "api_key": "second-key"}).status == 200
    assert form(running, {"q": "ab", "api_key": "one"}).status == 200
    assert running.call({"q": "ab", "api_key": "two"}).status == 403
    assert running.call({"q": "ab", "api_key": 1}).status == 401
    assert running.call({"q": "ab"}, path="/detect").status == 401
    assert not running.stub.batches or all("ab" in batch[0] for batch in running.stub.batches)
    for open_path in ("/health", "/", "/languages", "/metrics", "/docs"):
        assert running.call(path=open_path, method="GET").status == 200
    # SIGUSR1 reads the file again; a file that cannot be used leaves the old keys
    path.write_text("three\n")
    running.service.access.read_keys()
    assert [status("Bearer three"), status("Bearer one")] == [200, 403]
    path.write_text("# none\n")
    with pytest.raises(ValueError, match="no key"):
        running.service.access.read_keys()
    assert status("Bearer three") == 200


def test_a_file_of_keys_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match="none: cannot be read"):
        read_keys(str(tmp_path / "none"))
    # A browser sends no header of these
    for key in ("kéy", "a\tkey"):
        (tmp_path / "keys").write_text(f"one\n{key}\n", "utf-8")
        with pytest.raises(ValueError, match=r"line 2") as refused:
            read_keys(str(tmp_path / "keys"))
        assert key not in str(refused.value)


def test_pages_of_allowed_origins_only():
    ask = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}
    with served(cors="https://app.example/, https://b.example") as running:
        for origin, allowed in (("https://app.example", True), ("https://evil.example", False)):
            preflight = running.call(method="OPTIONS", headers={"origin": origin, **ask})
            answer = running.call({"text": "ab"}, headers={"content-type": "application/json", "origin": origin})
            assert [preflight.status, answer.status] == [200 if allowed else 400, 200]
            for each in (preflight, answer):
                assert (each.headers.get("access-control-allow-origin") == origin) is allowed
        assert form(running, {"q": "ab"}, origin="https://b.example", host="localhost").status == 200
        # The rule of names stays
        assert running.call(method="OPTIONS", headers={"origin": origin, "host": "evil.example", **ask}).status == 421
    with pytest.raises(ValueError, match=r"app\.example: is not an origin"), served(cors="app.example"):
        pass


# Streams.


def events_of(body: bytes) -> list[tuple[str, dict]]:
    """The name and the data of each event."""
    blocks = [dict(re.findall(r"^(\w+): (.*)", block, re.MULTILINE)) for block in body.decode().split("\n\n")[:-1]]
    return [(block.get("event", ""), json.loads(block["data"])) for block in blocks]


def test_a_stream_has_the_lines_of_its_texts_in_order(plain):
    texts = ["ab\n\n  cd\n", "", "long"]
    answer = plain.call({"text": texts, "stream": True, "n_best": 2})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    *events, last = events_of(answer.body)
    assert last == ("done", {})
    joined = ["", "", ""]
    for name, event in events:
        assert name == ""
        joined[event["index"]] += event["translation"]["text"] + event["after"]
    assert joined == ["ba/0/3/\n\n  dc/0/3//0/3/".replace("dc/0/3/", "dc/0/3/\n"), "/0/3/", "gnol/0/3/"]
    assert len(events[0][1]["translation"]["candidates"]) == 2
    assert "warning" in events[-1][1]["translation"]


def test_a_stream_is_the_translation_of_the_whole_text(tmp_path):
    one, two, three = tiny.sentences(tiny.GERMAN, 3)
    settings = SearchSettings(beam_size=2, max_len_ratio=1, max_len_extra=4)
    with served(Translator.load(tiny.save(tmp_path), settings=settings, device="cpu")) as running:
        for text in (f"{one} {two}\r\n\r\n  {three}\n", f"\n {one}", "\n\n", ""):
            (whole,) = running.call({"text": text}).texts
            *events, _ = events_of(running.call({"text": text, "stream": True}).body)
            assert "".join(event["translation"]["text"] + event["after"] for _, event in events) == whole


def test_limits_of_a_stream(plain):
    for body, status in (
        ({"text": "a\n" * 128}, 413),
        ({"text": "a" * 20_001}, 413),
        ({"text": "a", "prefixes": ["b"]}, 422),
    ):
        assert plain.call({**body, "stream": True}).status == status
    with served(queue_texts=2, timeout=0.05) as running:
        running.stub.gate.clear()
        ((name, event),) = events_of(running.call({"text": "a", "stream": True}).body)
        assert (name, "0.05 seconds" in event["error"]) == ("error", True)
        running.stub.gate.set()


def test_a_stream_ends_when_its_client_leaves():
    async def scenario(running: Served) -> None:
        leave = asyncio.Event()
        asked = asyncio.create_task(running.send({"text": "a\nb", "stream": True}, leave=leave))
        await asyncio.to_thread(running.stub.begun.wait, PATIENCE)
        assert running.service.open == 1
        leave.set()
        await asked
        assert running.service.open == 0
        while running.service.batcher._working or running.service.batcher._queue:
            await asyncio.sleep(0.002)

    with served(batch_texts=1) as running:
        running.stub.gate.clear()
        asyncio.run(asyncio.wait_for(scenario(running), PATIENCE))
        assert len(running.stub.batches) == 1


def test_a_client_that_reads_no_events_keeps_no_place(monkeypatch):
    monkeypatch.setattr(app, "_LAST_SECONDS", 0.0)

    with served(timeout=0.05) as running:
        asyncio.run(asyncio.wait_for(running.send({"text": "a", "stream": True}, stalled=True), PATIENCE))
        assert running.service.open == 0


# Documentation and dashboard.


def test_the_documentation_loads_from_the_service_alone(plain):
    answer = plain.call(path="/docs", method="GET")
    text = answer.body.decode()
    assert "unsafe-inline" not in re.sub("style-src [^;]*", "", answer.headers["content-security-policy"])
    assert "https:" not in text
    for path in re.findall(r'(?:src|href)="(swagger/[^"]*)"', text):
        found = plain.call(path=f"/{path}", method="GET")
        assert (found.status, len(found.body) > 100_000) == (200, True)


def test_the_dashboard_has_metrics_of_the_service(plain):
    measured = plain.call(path="/metrics", method="GET").body.decode()
    known = set(re.findall(r"^# TYPE (\S+)", measured, re.MULTILINE))
    panels = json.loads(DASHBOARD.read_text("utf-8"))["panels"]
    asked = [name for panel in panels for each in panel["targets"] for name in re.findall(r"seq2seq_\w+", each["expr"])]
    assert len(set(asked)) > 8
    for name in asked:
        assert name in known or name.removesuffix("_bucket") in known or re.sub("_(sum|count)$", "", name) in known
